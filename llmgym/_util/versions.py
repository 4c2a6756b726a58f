"""The version of llmgym, what else is installed (without importing it), and how to install the rest."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import inspect
import platform
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

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


def install_hint(extra: str) -> str:
    """Say how to add an extra of the distribution to an installation from a clone or from a wheel."""
    return f'install the extra "{extra}": pip install -e ".[{extra}]" in a clone, or pip install "FILE.whl[{extra}]"'


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
        "llmgym": __version__,
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
