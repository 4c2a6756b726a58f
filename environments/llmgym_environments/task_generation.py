"""Task generation: levels, splits and reproducible draws.

All random draws come from ``random.Random(...).random()``, whose stream is the same in every Python version, and a task
belongs to a split by a hash of its content (:func:`split_of`), whatever the level, the seed or the count.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmgym._util.seeding import derive_seed
from llmgym.errors import TaskError, did_you_mean
from llmgym.task import Task

T = TypeVar("T")

DEFAULT_COUNTS: Mapping[str, int] = {"train": 2000, "val": 200, "test": 200}

MAX_COUNT = 1_000_000
"""A larger count is refused at once: it would run for minutes and then fill the memory or run out of tasks."""

MAX_REPEATS = 10
"""Repeated tasks in a row, per different task so far, after which a stream counts as exhausted: if
all tasks are equally likely, the probability of having missed one is exp(-10)."""

_WHOLE = re.compile(r"[+-]?[0-9]+")


def split_count(split: str, count: int | str | None) -> int:
    """How many tasks to make: ``count``, or the default of ``split``. Raises :class:`TaskError` for a bad one."""
    if split not in tuple(DEFAULT_COUNTS):
        near = did_you_mean(str(split), DEFAULT_COUNTS)
        raise TaskError(f"unknown split {split!r:.80}; allowed are {', '.join(DEFAULT_COUNTS)}.{near}")
    if count is None:
        return DEFAULT_COUNTS[split]
    wanted = whole_number("count", count)
    if not 1 <= wanted <= MAX_COUNT:
        raise TaskError(f"count must be from 1 to {MAX_COUNT:,}, got {count!r:.80}")
    return wanted


def whole_number(name: str, value: int | str) -> int:
    """Read an option: an int, or digits as they come from a command line. Raises :class:`TaskError` for all else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            return int(value)
    except ValueError:  # more digits than Python reads
        pass
    raise TaskError(f"{name} must be a whole number, such as 7 or '7', got {value!r:.80}")


def split_of(content: str) -> str:
    """The one split that ``content`` belongs to: 1/8 of all texts is val, 1/8 test, the rest train."""
    part = hashlib.sha256(content.encode()).digest()[0] % 8
    return "val" if part == 0 else "test" if part == 1 else "train"


@dataclass(frozen=True)
class TaskGenerator:
    """Generates the tasks of one environment; called with the options below, it returns a list of different tasks.

    Args:
        env_id: The environment; part of the seed of each stream.
        levels: Its levels.
        stream: ``(rng, split, level)`` yields tasks of one split and level; it may end or repeat itself.
    """

    env_id: str
    levels: Collection[int]
    stream: Callable[[random.Random, str, int], Iterator[Task]]

    def __call__(
        self, split: str = "train", *, level: int | str = 1, count: int | str | None = None, seed: int | str = 0
    ) -> list[Task]:
        """Generate tasks. A smaller ``count`` gives the beginning of a larger one.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            level: One of the levels, or ``"all"`` for all levels in turn.
            count: Number of tasks; None for 2000 in train and 200 in val and test.
            seed: Another seed gives other tasks of the same split.

        Raises:
            TaskError: An unknown split or level, a count or seed that is not a whole number, or a count larger than the
                number of different tasks.
        """
        wanted, seed = split_count(split, count), whole_number("seed", seed)
        chosen = self.levels if level == "all" else [known for known in self.levels if str(known) == str(level)]
        if not chosen:
            raise TaskError(f"unknown level {level!r:.80}; allowed are {', '.join(map(str, self.levels))} and 'all'")
        streams = [
            _distinct(
                self.stream(random.Random(derive_seed(self.env_id, split, one, seed)), split, one),
                f"{self.env_id}, split {split!r}, level {one}",
            )
            for one in chosen
        ]
        return [next(streams[index % len(streams)]) for index in range(wanted)]


def _distinct(stream: Iterator[Task], name: str) -> Iterator[Task]:
    """Each task of ``stream`` once. Raises :class:`TaskError` about ``name`` when there are no more."""
    seen: set[str] = set()
    repeats = 0
    for task in stream:
        if task.id not in seen:
            seen.add(task.id)
            repeats = 0
            yield task
        elif (repeats := repeats + 1) > MAX_REPEATS * len(seen):
            break
    raise TaskError(f"{name}: there are {len(seen)} different tasks, and more are asked for; lower count")


def below(rng: random.Random, limit: int) -> int:
    """A whole number from 0 to ``limit - 1``, from one ``rng.random()``."""
    return int(rng.random() * limit)


def draw(rng: random.Random, items: Sequence[T], count: int) -> list[T]:
    """``count`` different items in random order, from as many ``rng.random()``."""
    left = list(items)
    return [left.pop(below(rng, len(left))) for _ in range(count)]
