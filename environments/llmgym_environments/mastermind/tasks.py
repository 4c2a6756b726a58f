"""The tasks of Mastermind-v0 and the comparison of codes. A hash of the set of colours decides the split."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from llmgym import Task
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

T = TypeVar("T")

COLOURS = (
    *("amber", "beige", "black", "blue", "bronze", "brown", "coral", "cream", "gold", "green", "grey", "indigo"),
    *("ivory", "jade", "lilac", "lime", "olive", "orange", "peach", "pink", "plum", "purple", "red", "rust"),
    *("silver", "teal", "violet", "white"),
)


@dataclass(frozen=True)
class Level:
    """The rules of one level.

    Attributes:
        places: Length of the code.
        colours: Colours to choose from.
        repeats: Whether a colour may stand in the code twice.
        guesses: Guesses allowed.
        par: Guesses in which the scripted expert breaks every code; that many earn the full reward.
    """

    places: int
    colours: int
    repeats: bool
    guesses: int
    par: int


LEVELS = {
    1: Level(places=2, colours=4, repeats=False, guesses=6, par=3),
    2: Level(places=3, colours=5, repeats=False, guesses=8, par=4),
    3: Level(places=4, colours=6, repeats=True, guesses=10, par=6),
}


def compare(guess: Sequence[T], code: Sequence[T]) -> tuple[int, int]:
    """The number of exact places of ``guess``, and of its further colours that stand elsewhere in ``code``.

    A colour counts as often as both hold it: ``red red blue`` against ``red blue red`` has 1 exact and 2 misplaced.
    Both have the same length.
    """
    exact = sum(one == other for one, other in zip(guess, code, strict=True))
    shared = sum(min(guess.count(colour), code.count(colour)) for colour in set(guess))
    return exact, shared - exact


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    rules = LEVELS[level]
    often = "colours may repeat" if rules.repeats else "none twice"
    while True:
        colours = draw(rng, COLOURS, rules.colours)
        if rules.repeats:
            code = [colours[below(rng, rules.colours)] for _ in range(rules.places)]
        else:
            code = draw(rng, colours, rules.places)
        if split_of(" ".join(sorted(colours))) == split:
            prompt = (
                f"Colours: {', '.join(colours)}. The code has {rules.places} of them, {often}. "
                f"You have {rules.guesses} guesses."
            )
            metadata = {
                "level": level,
                "colours": colours,
                "places": rules.places,
                "guesses": rules.guesses,
                "par": rules.par,
                "repeats": rules.repeats,
            }
            yield Task(prompt, " ".join(code), metadata)


generate_tasks = TaskGenerator("Mastermind-v0", LEVELS, _stream)
"""Tasks with the code as ``target``, its colours separated by blanks, and this ``metadata``: ``level``; ``colours``,
the colours to choose from, in the order of the prompt; ``places``, ``guesses``, ``par`` and ``repeats`` as in
:class:`Level`."""
