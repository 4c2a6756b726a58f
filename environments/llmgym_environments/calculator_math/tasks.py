"""The tasks of CalculatorMath-v0, generated from a seed. Knows expressions; knows neither tools nor messages.

Everything is drawn from ``random.Random(...).random()``, whose stream is the same in every Python version. An
expression belongs to one split: a hash of its text says to which, whatever the level, the seed or the count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from llmgym import Task
from llmgym_environments.calculator import evaluate
from llmgym_environments.task_generation import below, draw, generate, split_of

LEVELS = (1, 2, 3)


def generate_tasks(
    split: str = "train", *, level: int | str = 1, count: int | str | None = None, seed: int | str = 0
) -> list[Task]:
    """Generate tasks. A smaller ``count`` gives the beginning of a larger one.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``. No expression occurs in two of them.
        level: 1, 2 or 3 as in the environment's page, or ``"all"`` for the three in turn.
        count: Number of tasks; None for 2000 in train and 200 in val and test.
        seed: Another seed gives other tasks of the same split.

    Returns:
        Tasks with a number as ``target`` and this ``metadata``: ``level`` and ``expression``. Within a split an
        expression may come twice.

    Raises:
        TaskError: An unknown split or level, or a count or seed that is no whole number.
    """
    return generate("CalculatorMath-v0", _stream, LEVELS, split, level=level, count=count, seed=seed)


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    while True:
        expression = _expression(rng, level)
        if split_of(expression) == split:
            value = evaluate(expression)
            target = value.numerator if value.denominator == 1 else float(value)
            yield Task(f"What is {expression}?", target, {"level": level, "expression": expression})


def _expression(rng: random.Random, level: int) -> str:
    largest = 999 if level == 3 else 99
    a, b, c, d = (str(1 + below(rng, largest)) for _ in range(4))
    first, second = (draw(rng, "+-" if level == 3 else "+-*", 1)[0] for _ in range(2))
    if level == 1:
        return f"{a} {first} {b}"
    if level == 2:
        return f"({a} {first} {b}) {second} {c}" if below(rng, 2) else f"{a} {first} ({b} {second} {c})"
    divisor = draw(rng, (2, 4, 5, 8, 10), 1)[0]  # a quotient by these has few decimals, so its double is exact enough
    return f"({a} {first} {b}) * ({c} {second} {d}) / {divisor}"
