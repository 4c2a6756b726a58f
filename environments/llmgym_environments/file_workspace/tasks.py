"""The tasks of FileWorkspace-v0. A hash of the file names decides the split."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmgym import Task
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

LEVELS = (1, 2, 3)
WORDS = (
    *("acorn", "amber", "apple", "basil", "birch", "bread", "candle", "cedar", "cloud", "coral"),
    *("daisy", "delta", "drum", "dune", "feather", "fern", "flint", "ginger", "grape", "gull"),
    *("hazel", "iris", "lake", "lemon", "lily", "maple", "meadow", "mint", "moss", "olive"),
    *("pearl", "pepper", "plum", "reed", "sage", "salt", "shell", "stone", "tulip", "willow"),
)
FOLDERS = (
    *("attic", "bakery", "balcony", "barn", "basement", "cabin", "camp", "canal", "castle", "cave"),
    *("cellar", "chapel", "church", "clinic", "cottage", "court", "dock", "factory", "farm", "ferry"),
    *("forest", "gallery", "garage", "garden", "gate", "hall", "harbor", "hotel", "house", "island"),
    *("kiosk", "kitchen", "library", "lobby", "market", "mill", "museum", "office", "palace", "park"),
    *("parlor", "pier", "platform", "pool", "port", "prison", "quarry", "school", "shed", "shop"),
    *("stable", "stage", "station", "store", "studio", "temple", "theater", "tunnel", "vault", "yard"),
)
"""So many that guessing one seldom helps; none begins as another word of a task does."""
OWNERS = ("fox", "foxglove", "pine", "pineapple", "rose", "rosemary", "star", "starling", "wren", "otter")
"""Some begin with others, so that a search finds too much."""
COLORS = ("black", "blue", "green", "red", "white")

Files = dict[str, str]
Changes = dict[str, str | None]
Plan = list[tuple[str, dict[str, Any]]]
Request = tuple[str, Changes, Plan]
"""What is asked, what is different afterwards, and the calls that do it."""


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    make = {1: _level_1, 2: _level_2, 3: _level_3}[level]
    while True:
        files, (prompt, changes, plan) = make(rng, split)
        calls = [[name, arguments] for name, arguments in plan]
        yield Task(prompt, changes, {"level": level, "files": files, "plan": calls})


def _paths(rng: random.Random, split: str, folders: int, files: int) -> list[str]:
    """Paths of ``files`` files in each of some folders. Which names they have decides the split."""
    while True:
        names = draw(rng, WORDS, folders * files)
        if split_of(" ".join(sorted(names))) == split:
            break
    return sorted(
        f"{folder}/{name}.txt"
        for at, folder in enumerate(draw(rng, FOLDERS, folders))
        for name in names[at * files : (at + 1) * files]
    )


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.partition("/")[0]


def _moved(files: Mapping[str, str], moves: Sequence[tuple[str, str]]) -> tuple[Changes, Plan]:
    """What moving files into folders changes, and the calls for it."""
    changes: Changes = {}
    for path, folder in moves:
        changes |= {path: None, f"{folder}/{_name(path)}": files[path]}
    return changes, [("move", {"source": path, "target": folder}) for path, folder in moves]


def _level_1(rng: random.Random, split: str) -> tuple[Files, Request]:
    files = {path: str(1 + below(rng, 99)) for path in _paths(rng, split, folders=3, files=2)}
    folders = sorted({_folder(path) for path in files})
    path = draw(rng, list(files), 1)[0]
    looking: Plan = [("list_dir", {"path": "/"})]
    looking += [("list_dir", {"path": folder}) for folder in folders[: folders.index(_folder(path)) + 1]]
    if below(rng, 2):
        number = str(1 + below(rng, 99))
        number = number if number != files[path] else str(int(number) + 1)
        plan: Plan = [*looking, ("write_file", {"path": path, "text": number})]
        return files, (f"Write {number} into {_name(path)}.", {path: number}, plan)
    target = draw(rng, [folder for folder in folders if folder != _folder(path)], 1)[0]
    changes, moves = _moved(files, [(path, target)])
    return files, (f"Move {_name(path)} to {target}.", changes, [*looking, *moves])


class _Notes:
    """Files of four lines: code (each its own), owner, color and size; at level 3 also the shelf they belong to."""

    def __init__(self, rng: random.Random, split: str, folders: int, files: int, *, shelves: bool = False) -> None:
        self.rng = rng
        paths = _paths(rng, split, folders, files)
        self.folders = sorted({_folder(path) for path in paths})
        codes = draw(rng, range(100, 1000), len(paths))
        owners = draw(rng, OWNERS, 5)
        self.lines: dict[str, dict[str, str]] = {}
        for path, code in zip(paths, codes, strict=True):
            lines = {"code": str(code), "owner": self._one(owners), "color": self._one(COLORS)}
            self.lines[path] = {**lines, "size": str(10 + below(rng, 90))}
            if shelves:
                self.lines[path]["shelf"] = self._one(self.folders)
        self.files = {path: _text(lines) for path, lines in self.lines.items()}

    def _one(self, items: Sequence[str]) -> str:
        return draw(self.rng, items, 1)[0]

    def one(self) -> str:
        """A path at random."""
        return self._one(list(self.files))

    def having(self, key: str, value: str) -> list[str]:
        """The paths of files with this line."""
        return [path for path, lines in self.lines.items() if lines[key] == value]

    def with_line(self, path: str, key: str, value: str) -> str:
        """The text of a file with another value in one line."""
        return _text({**self.lines[path], key: value})


def _text(lines: Mapping[str, str]) -> str:
    return "\n".join(f"{key}: {value}" for key, value in lines.items())


def _level_2(rng: random.Random, split: str) -> tuple[Files, Request]:
    notes = _Notes(rng, split, folders=3, files=3)
    return notes.files, (_move_of_owner, _edit_of_code, _new_name)[below(rng, 3)](notes)


def _level_3(rng: random.Random, split: str) -> tuple[Files, Request]:
    notes = _Notes(rng, split, folders=4, files=3, shelves=True)
    return notes.files, (_sort_all, _new_owner, _swap, _summary)[below(rng, 4)](notes)


def _move_of_owner(notes: _Notes) -> Request:
    path = notes.one()
    owner = notes.lines[path]["owner"]
    target = draw(notes.rng, [folder for folder in notes.folders if folder != _folder(path)], 1)[0]
    moves = [(each, target) for each in notes.having("owner", owner) if _folder(each) != target]
    changes, plan = _moved(notes.files, moves)
    looking: Plan = [("grep", {"text": f"owner: {owner}"})]
    return f"Move all files with owner {owner} to {target}.", changes, [*looking, *plan]


def _edit_of_code(notes: _Notes) -> Request:
    path = notes.one()
    code, size = notes.lines[path]["code"], str(100 + below(notes.rng, 900))
    text = notes.with_line(path, "size", size)
    looking: Plan = [("grep", {"text": f"code: {code}"}), ("read_file", {"path": path})]
    prompt = f"In the file with code {code}, change size to {size}."
    return prompt, {path: text}, [*looking, ("write_file", {"path": path, "text": text})]


def _new_name(notes: _Notes) -> Request:
    path = notes.one()
    code, used = notes.lines[path]["code"], {_name(each) for each in notes.files}
    name = draw(notes.rng, [word for word in WORDS if f"{word}.txt" not in used], 1)[0] + ".txt"
    target = f"{_folder(path)}/{name}"
    plan: Plan = [("grep", {"text": f"code: {code}"}), ("move", {"source": path, "target": target})]
    prompt = f"Rename the file with code {code} to {name} and leave it in its folder."
    return prompt, {path: None, target: notes.files[path]}, plan


def _sort_all(notes: _Notes) -> Request:
    moves = [(path, lines["shelf"]) for path, lines in notes.lines.items() if lines["shelf"] != _folder(path)]
    changes, plan = _moved(notes.files, moves)
    return "Move each file to the folder that its line shelf names.", changes, [("grep", {"text": "shelf: "}), *plan]


def _new_owner(notes: _Notes) -> Request:
    found = {owner: len(notes.having("owner", owner)) for owner in OWNERS}
    owner = draw(notes.rng, [owner for owner, files in found.items() if 1 <= files <= 4], 1)[0]
    new = draw(notes.rng, [each for each, files in found.items() if not files], 1)[0]
    changes: Changes = {path: notes.with_line(path, "owner", new) for path in notes.having("owner", owner)}
    plan: Plan = [("grep", {"text": f"owner: {owner}"})]
    for path, text in changes.items():
        plan += [("read_file", {"path": path}), ("write_file", {"path": path, "text": text})]
    return f"Change owner {owner} to {new} in all files.", changes, plan


def _swap(notes: _Notes) -> Request:
    first, second = draw(notes.rng, list(notes.files), 2)
    codes = [notes.lines[path]["code"] for path in (first, second)]
    changes: Changes = {first: notes.files[second], second: notes.files[first]}
    plan: Plan = [("grep", {"text": f"code: {code}"}) for code in codes]
    plan += [("read_file", {"path": path}) for path in (first, second)]
    plan += [("write_file", {"path": path, "text": text}) for path, text in changes.items()]
    return f"Swap the texts of the files with code {codes[0]} and code {codes[1]}.", changes, plan


def _summary(notes: _Notes) -> Request:
    color = notes.lines[notes.one()]["color"]
    found = sorted(notes.having("color", color), key=_name)
    text = "\n".join(f"{_name(path)}: {notes.lines[path]['size']}" for path in found)
    plan: Plan = [("grep", {"text": f"color: {color}"}), ("grep", {"text": "size: "})]
    prompt = (
        f"Make a file summary.txt at the top with a line 'name: size' for each file with color {color}, such as "
        f"'{WORDS[0]}.txt: 12', in alphabetical order of the names."
    )
    return prompt, {"summary.txt": text}, [*plan, ("write_file", {"path": "summary.txt", "text": text})]


generate_tasks = TaskGenerator("FileWorkspace-v0", LEVELS, _stream)
"""Tasks whose ``target`` maps each path that changes to its new text, or to null for a file that is gone, and whose
``metadata`` holds: ``level``; ``files``, the tree at the beginning; ``plan``, calls that solve the task."""
