"""The comparison of two codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def compare(guess: Sequence[T], code: Sequence[T]) -> tuple[int, int]:
    """How many places of ``guess`` are exact, and how many further colours of it are in the code elsewhere.

    A colour counts as often as both hold it: ``red red blue`` against ``red blue red`` has 1 exact and 2 misplaced.
    Both have the same length.
    """
    exact = sum(one == other for one, other in zip(guess, code, strict=True))
    shared = sum(min(guess.count(colour), code.count(colour)) for colour in set(guess))
    return exact, shared - exact
