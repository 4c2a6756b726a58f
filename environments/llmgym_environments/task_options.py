"""Options that task generators share, from Python or as command-line text. Knows no environment."""

from __future__ import annotations

from collections.abc import Mapping

from llmgym.errors import TaskError, did_you_mean

DEFAULT_COUNTS: Mapping[str, int] = {"train": 2000, "val": 200, "test": 200}


def split_count(split: str, count: int | str | None) -> int:
    """How many tasks to make: ``count``, or the default of ``split``. Raises :class:`TaskError` for a bad one."""
    if split not in DEFAULT_COUNTS:
        raise TaskError(
            f"unknown split {split!r}; allowed are {', '.join(DEFAULT_COUNTS)}.{did_you_mean(split, DEFAULT_COUNTS)}"
        )
    return DEFAULT_COUNTS[split] if count is None else whole_number("count", count, minimum=1)


def whole_number(name: str, value: int | str, *, minimum: int | None = None) -> int:
    """Read a whole number. Raises :class:`TaskError` that names the option when it is none or too small."""
    try:
        number = int(value)
    except ValueError:
        raise TaskError(f"{name} must be a whole number, got {value!r}") from None
    if minimum is not None and number < minimum:
        raise TaskError(f"{name} must be at least {minimum}, got {value!r}")
    return number


def chosen_levels(level: int | str, levels: tuple[int, ...]) -> tuple[int, ...]:
    """The levels that ``level`` names: one of ``levels``, or all of them for ``"all"``."""
    if level == "all":
        return levels
    for known in levels:
        if str(level) == str(known):
            return (known,)
    raise TaskError(f"unknown level {level!r}; allowed are {', '.join(map(str, levels))} and 'all'")
