"""What task generators share: options, splits, and draws that no Python version changes. Knows no environment."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from llmgym._util.seeding import derive_seed
from llmgym.errors import TaskError, did_you_mean
from llmgym.task import Task

T = TypeVar("T")

DEFAULT_COUNTS: Mapping[str, int] = {"train": 2000, "val": 200, "test": 200}

MAX_COUNT = 1_000_000
"""A larger count is refused at once: it would run for minutes before it fills the memory or the tasks run out."""

MAX_REPEATS = 10
"""A stream that repeats itself so many times as often as it has had different tasks has no others: that one of them,
all equally likely, is missed so long has a chance of exp(-10)."""

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


def chosen_levels(level: int | str, levels: Sequence[int]) -> Sequence[int]:
    """The levels that ``level`` names, also as text: one of ``levels``, or all of them for ``"all"``."""
    if level == "all":
        return levels
    for known in levels:
        if str(level) == str(known):
            return (known,)
    raise TaskError(f"unknown level {level!r:.80}; allowed are {', '.join(map(str, levels))} and 'all'")


def split_of(content: str) -> str:
    """The one split that ``content`` belongs to: 1/8 of all texts is val, 1/8 test, the rest train."""
    part = hashlib.sha256(content.encode()).digest()[0] % 8
    return "val" if part == 0 else "test" if part == 1 else "train"


def generate(
    env_id: str,
    stream: Callable[[random.Random, str, int], Iterator[Task]],
    levels: Sequence[int],
    split: str,
    *,
    level: int | str,
    count: int | str | None,
    seed: int | str,
) -> list[Task]:
    """The tasks of an environment: those of its levels in turn, each level a stream of its own; none comes twice.

    Args:
        env_id: Whose tasks; part of the seed of each stream.
        stream: ``(rng, split, level)`` gives tasks of one split and level; they may end or repeat themselves.
        levels: The levels there are.
        split: See :func:`split_count`.
        level: See :func:`chosen_levels`.
        count: See :func:`split_count`.
        seed: A whole number, also as text.

    Raises:
        TaskError: A bad split, level, count or seed, or fewer different tasks than wanted.
    """
    wanted = split_count(split, count)
    seed = whole_number("seed", seed)
    streams = [
        _distinct(
            stream(random.Random(derive_seed(env_id, split, one, seed)), split, one),
            f"{env_id}, split {split!r}, level {one}",
        )
        for one in chosen_levels(level, levels)
    ]
    return [next(streams[index % len(streams)]) for index in range(wanted)]


def _distinct(stream: Iterator[Task], name: str) -> Iterator[Task]:
    """Each task of ``stream`` once. Raises :class:`TaskError`, which calls it ``name``, when there are no more."""
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
