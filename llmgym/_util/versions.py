"""Which software an episode comes from. Knows installed versions and source files; imports no package to ask it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import platform
from pathlib import Path
from typing import Any

_PACKAGES = (
    "gymnasium",
    "numpy",
    "pydantic",
    "torch",
    "transformers",
    "trl",
    "accelerate",
    "peft",
    "tokenizers",
    "vllm",
)


def provenance(environment: type | None = None) -> dict[str, Any]:
    """Return what an episode's record says about the software behind it.

    Args:
        environment: Class of the environment. None leaves its two entries out.

    Returns:
        ``python`` and ``llmgym``, the versions; ``packages``, the version of each package that matters and is
        installed; ``environment``, ``"module:Class"``; ``environment_sha256``, a hash of the source file of
        that class, which changes when somebody edits the environment without a new version (None without a file).
    """
    found: dict[str, Any] = dict(_software())
    if environment is not None:
        found["environment"] = f"{environment.__module__}:{environment.__qualname__}"
        found["environment_sha256"] = _source_hash(environment)
    return found


@functools.cache
def _software() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "llmgym": _version("llmgym"),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _source_hash(environment: type) -> str | None:
    try:
        path = inspect.getsourcefile(environment)
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else None
    except (TypeError, OSError):  # a class made in a shell or a notebook has no file
        return None
