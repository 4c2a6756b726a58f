"""A tree of text files in memory, under limits.

A path is only a key of a dictionary and never reaches the machine's file system. A folder is created with the first
file in it and stays when it is emptied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from llmgym.errors import ToolError, did_you_mean

MAX_FILES = 200
MAX_FOLDERS = 200
MAX_CHARACTERS = 200_000
"""Of all files together."""
MAX_LINE = 500
MAX_PATH = 100
PAGE_LINES = 50
PAGE_CHARACTERS = 2000
"""At least ``PAGE_CHARACTERS // (MAX_PATH + MAX_LINE)`` lines fit on a page, so that every line can be seen."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]*")


class MissingError(ToolError):
    """A path names a file or a folder that is not there."""


class Tree:
    """Text files by path, such as ``"garden/plum.txt"``.

    Args:
        files: What is in it at the beginning.

    Raises:
        ToolError: A path, a text or their number is not allowed. All methods raise it, with a text for the model.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files: dict[str, str] = {}
        self._folders: set[str] = {""}
        self._left: set[str] = set()
        for path, text in files.items():
            self.write(path, text)

    @property
    def files(self) -> dict[str, str]:
        """A copy: from path to text."""
        return dict(self._files)

    @property
    def folders(self) -> set[str]:
        """A copy: the folders, without the whole tree."""
        return self._folders - {""}

    def entries(self, folder: str) -> list[str]:
        """Names in a folder (``"/"`` is the whole tree), sorted; those of folders end with a slash."""
        folder = _clean(folder)
        if folder in self._files:
            raise ToolError(f"{folder} is a file; read_file reads it")
        if folder not in self._folders:
            raise MissingError(f"no folder {folder!r}.{_suggestion(folder, self._folders)}")
        begin = f"{folder}/" if folder else ""
        paths = [*self._files, *(f"{each}/" for each in self._folders if each)]
        inside = [path[len(begin) :].partition("/") for path in paths if path.startswith(begin) and path != begin]
        return sorted({name + slash for name, slash, _ in inside})

    def read(self, path: str) -> str:
        """The text of a file."""
        return self._files[self._existing(path)]

    def write(self, path: str, text: str) -> None:
        """Make a file, or replace its text."""
        path = _clean(path)
        # Replaced text counts too, and the path is checked last: a refused text does not reveal what exists.
        characters = sum(map(len, self._files.values())) + len(text)
        if len({*self._files, path}) > MAX_FILES or characters > MAX_CHARACTERS:
            raise ToolError(f"the workspace is full: at most {MAX_FILES} files and {MAX_CHARACTERS} characters in all")
        if any(len(line) > MAX_LINE for line in text.split("\n")):
            raise ToolError(f"a line has more than {MAX_LINE} characters; break it")
        self._put(self._free(path), text)

    def move(self, source: str, target: str) -> str:
        """Move a file into a folder that exists, or to a path that is free; return where it is now."""
        source = self._existing(source)
        target = _clean(target)
        if target in self._folders:
            target = f"{target}/{source.rpartition('/')[2]}".lstrip("/")
        target = self._free(target)
        if target in self._files:
            raise ToolError(f"{target} exists already")
        self._put(target, self._files.pop(source))
        self._left.add(source)
        return target

    def find(self, text: str) -> list[str]:
        """The lines that hold ``text``, as ``path:number: line``, sorted by path."""
        if not text:
            raise ToolError("give a text to look for")
        return [
            f"{path}:{number}: {line}"
            for path in sorted(self._files)
            for number, line in enumerate(self._files[path].split("\n"), start=1)
            if text in line
        ]

    def _put(self, path: str, text: str) -> None:
        self._files[path] = text
        self._folders |= folders_above(path)

    def _existing(self, path: str) -> str:
        path = _clean(path)
        if path in self._folders:
            raise ToolError(f"{path or '/'} is a folder; name a file")
        if path not in self._files:
            kind = ToolError if path in self._left else MissingError  # who moved it away may look whether it is gone
            raise kind(f"{path} does not exist; name a file.{_suggestion(path, self._files)}")
        return path

    def _free(self, path: str) -> str:
        """A clean path at which a file may be."""
        path = _clean(path)
        if path in self._folders:
            raise ToolError(f"{path or '/'} is a folder; name a file")
        for above in folders_above(path) & self._files.keys():
            raise ToolError(f"{above} is a file, so nothing can be in it")
        if len(self._folders | folders_above(path)) > MAX_FOLDERS:
            raise ToolError(f"the workspace is full: at most {MAX_FOLDERS} folders")
        return path


def page(lines: Iterable[str], first: int) -> str:
    """The lines from number ``first`` on, as many as fit; a note says how to get the rest."""
    lines = list(lines)
    if first < 1 or first > max(1, len(lines)):
        raise ToolError(f"first={str(first)[:20]} is out of range; there are lines 1 to {len(lines)}")
    shown: list[str] = []
    for line in lines[first - 1 : first - 1 + PAGE_LINES]:
        if sum(map(len, shown)) + len(line) > PAGE_CHARACTERS:
            break
        shown.append(line)
    last = first - 1 + len(shown)
    note = [f"[cut: lines {first} to {last} of {len(lines)}; first={last + 1} shows more]"] if last < len(lines) else []
    return "\n".join([*shown, *note])


def folders_above(path: str) -> set[str]:
    """The folders that a clean path is in."""
    return {path[: at.start()] for at in re.finditer("/", path)}


def _suggestion(path: str, paths: Iterable[str]) -> str:
    """A similar path among ``paths`` in the same folder only: an error must not reveal where a file is."""
    return did_you_mean(path, [each for each in paths if _parent(each) == _parent(path)], likeness=0.5)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _clean(path: str) -> str:
    """The one way to write a path: names joined by ``/``; the whole tree is ``""``."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    clean = "/".join(names)
    if len(clean) > MAX_PATH or not all(map(_NAME.fullmatch, names)):
        raise ToolError(
            f"the path {path[:60]!r} is not allowed: names of letters, digits, '_', '-', '.' and blanks, "
            f"joined by '/', at most {MAX_PATH} characters, no '..'"
        )
    return clean
