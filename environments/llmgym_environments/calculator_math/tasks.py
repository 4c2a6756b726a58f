"""The tasks of CalculatorMath-v0. A hash of the expression decides the split."""

from __future__ import annotations

import random
from collections.abc import Iterator

from llmgym import Task
from llmgym_environments.calculator import evaluate
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

LARGEST = {1: 99, 2: 99, 3: 999}
"""The largest number in an expression, by level."""


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    for expression in _all_in_turn(rng, split) if level == 1 else _endless(rng, split, level):
        value = evaluate(expression)
        target = value.numerator if value.denominator == 1 else float(value)
        yield Task(f"What is {expression}?", target, {"level": level, "expression": expression})


def _all_in_turn(rng: random.Random, split: str) -> Iterator[str]:
    """All expressions of level 1 in random order: there are few enough to list."""
    numbers = range(1, LARGEST[1] + 1)
    every = (f"{a} {operator} {b}" for a in numbers for operator in "+-*" for b in numbers)
    left = [expression for expression in every if split_of(expression) == split]
    while left:
        yield left.pop(below(rng, len(left)))


def _endless(rng: random.Random, split: str, level: int) -> Iterator[str]:
    while True:
        expression = _expression(rng, level)
        if split_of(expression) == split:
            yield expression


def _expression(rng: random.Random, level: int) -> str:
    """An expression of level 2 or 3."""
    a, b, c, d = (str(1 + below(rng, LARGEST[level])) for _ in range(4))
    first, second = (draw(rng, "+-" if level == 3 else "+-*", 1)[0] for _ in range(2))
    if level == 2:
        return f"({a} {first} {b}) {second} {c}" if below(rng, 2) else f"{a} {first} ({b} {second} {c})"
    divisor = draw(rng, (2, 4, 5, 8, 10), 1)[0]  # a quotient by these has few decimals, so its double is exact enough
    return f"({a} {first} {b}) * ({c} {second} {d}) / {divisor}"


generate_tasks = TaskGenerator("CalculatorMath-v0", LARGEST, _stream)
"""Tasks with a number as ``target`` and this ``metadata``: ``level`` and ``expression``. Level 1 has 22,135 of them in
train, 3,667 in val and 3,601 in test; the others have far more."""
