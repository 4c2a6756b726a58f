"""Files and folders that are written completely or not at all, and folders held by one process at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

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


def write_whole(path: Path, text: str) -> None:
    """Write a file completely or not at all. What UTF-8 cannot express becomes a question mark."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8", "replace"))


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write; it gets its name, and replaces an older one, when the section ends without an error."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make an empty folder to fill; it gets the name ``path`` when the section ends without an error.

    Raises:
        OSError: There is something of that name by then.
    """
    temporary = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
