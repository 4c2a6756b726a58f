"""One process at a time in a folder. Knows a lock file, nothing of what else stands in the folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import filelock

from llmgym.errors import ConfigError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def locked_folder(path: Path, what: str, *, instead: str) -> Iterator[None]:
    """Hold a folder against other processes. The lock ends with its process, so a kill leaves none behind.

    Args:
        path: The folder, which exists.
        what: What runs in it, for the error, such as ``"an evaluation"``.
        instead: What the user may do instead, for the error.

    Raises:
        ConfigError: Another process holds the folder, or it cannot be written.
    """
    lock = filelock.FileLock(path / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise ConfigError(f"{what} in {str(path)!r} is running; wait until it has ended, or {instead}") from error
    except OSError as error:
        raise ConfigError(f"cannot write into {str(path)!r} ({error}); {instead}") from error
    try:
        yield
    finally:
        lock.release()
