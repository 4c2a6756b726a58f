"""The tasks of Mastermind-v0, generated from a seed. Knows codes and colours; knows no message but the prompt.

Everything is drawn from ``random.Random(...).random()``, whose stream is the same in every Python version. A set of
colours belongs to one split: a hash of it says to which, whatever the level, the seed or the count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from llmgym import Task
from llmgym_environments.task_generation import below, draw, generate, split_of

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
        par: Guesses within which the scripted expert breaks every code; so many earn the full reward.
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


def generate_tasks(
    split: str = "train", *, level: int | str = 1, count: int | str | None = None, seed: int | str = 0
) -> list[Task]:
    """Generate tasks. A smaller ``count`` gives the beginning of a larger one.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``. No set of colours occurs in two of them.
        level: 1, 2 or 3 as in the environment's page, or ``"all"`` for the three in turn.
        count: Number of tasks; None for 2000 in train and 200 in val and test.
        seed: Another seed gives other tasks of the same split.

    Returns:
        Tasks with the code as ``target``, its colours separated by blanks, and this ``metadata``: ``level``;
        ``colours``, those to choose from, in the order of the prompt; ``places``, ``guesses``, ``par`` and
        ``repeats`` as in :class:`Level`.

    Raises:
        TaskError: An unknown split or level, a count or seed that is no whole number, or more tasks than there are.
    """
    return generate("Mastermind-v0", _stream, tuple(LEVELS), split, level=level, count=count, seed=seed)


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
