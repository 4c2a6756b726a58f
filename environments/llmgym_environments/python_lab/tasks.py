"""The tasks of PythonLab-v0. A hash of the function's wording decides the split."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from llmgym import Task
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

LEVELS = (1, 2, 3)
NUM_TESTS = 8
_NUMBERS = range(-30, 61)
"""What lists are made of."""


@dataclass(frozen=True)
class Step:
    """One step of a function: what the task says, Python source in terms of ``x``, and the step itself."""

    words: str
    source: str
    apply: Callable[[int], int]


@dataclass(frozen=True)
class Fold:
    """What becomes of a list of numbers at the end: words, Python source with ``{}`` for the list, and the function."""

    words: str
    source: str
    apply: Callable[[list[int]], Any]


FOLDS = (
    Fold("return the sum", "sum({})", sum),
    Fold("return the largest, 0 if there is none", "max({}, default=0)", lambda xs: max(xs, default=0)),
    Fold("return the smallest, 0 if there is none", "min({}, default=0)", lambda xs: min(xs, default=0)),
    Fold("return them in ascending order, each once", "sorted(set({}))", lambda xs: sorted(set(xs))),
)

LOOP = """\
def f(xs):
    found = []
    for x in xs:
        if {keep}:
            found.append({change})
    return {fold}"""
LOUD_FAULTS = (
    (" = []", " == []"),
    (":\n        if", "\n        if"),
    ("f(xs)", "f(x)"),
    ("    return ", "    retrun "),
)
"""Replacements in ``LOOP`` with which it raises, at once or when ``f`` is called."""
QUIET_FAULTS = (("if ", "if not "), ("in xs", "in xs[:1]"), ("{change}", "x"), ("    return", "        return"))
"""Replacements with which it returns something else."""


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    while True:
        words, solution, program, (example, *tests) = (
            _number_function(rng) if level == 1 else _list_function(rng, repair=level == 3)
        )
        if split_of(words) == split:
            prompt = f"{words} Example: f({example[0]}) is {example[1]}."
            if program:
                prompt += f" This program has two faults; mend it:\n{program}"
            yield Task(prompt, tests, {"level": level, "example": example, "solution": solution, "program": program})


def _number_function(rng: random.Random) -> tuple[str, str, str, list[list[Any]]]:
    """What it does in words, a solution, no faulty program, and arguments with their results."""
    first, second = _arithmetic(rng), _arithmetic(rng)
    words = f"f(x) is x {first.words}, then {second.words}."
    solution = f"def f(x): return {second.source.replace('x', f'({first.source})')}"
    numbers = draw(rng, range(100), NUM_TESTS + 1)
    return words, solution, "", [[x, second.apply(first.apply(x))] for x in numbers]


def _list_function(rng: random.Random, *, repair: bool) -> tuple[str, str, str, list[list[Any]]]:
    """The same for lists, the faulty program only with ``repair``. In the last test nothing is kept."""
    keep, change, fold = _condition(rng), _change(rng), draw(rng, FOLDS, 1)[0]
    words = f"f(xs) gets a list of whole numbers: keep those that are {keep.words}, {change.words}, and {fold.words}."
    pairs = []
    for number in range(NUM_TESTS + 1):
        xs = _numbers(rng, keep, none_kept=number == NUM_TESTS)
        pairs.append([xs, fold.apply([change.apply(x) for x in xs if keep.apply(x)])])
    if not repair:
        found = f"[{change.source} for x in xs if {keep.source}]"
        return words, f"def f(xs): return {fold.source.format(found)}", "", pairs
    sources = {"keep": keep.source, "change": change.source, "fold": fold.source.format("found")}
    (loud, silenced), (quiet, altered) = draw(rng, LOUD_FAULTS, 1)[0], draw(rng, QUIET_FAULTS, 1)[0]
    broken = LOOP.replace(quiet, altered).replace(loud, silenced).format(**sources)
    return words, LOOP.format(**sources), broken, pairs


def _numbers(rng: random.Random, keep: Step, *, none_kept: bool) -> list[int]:
    """A list in random order, of 1 to 4 numbers that ``keep`` keeps (or none) and 1 to 4 that it does not."""
    kept = [x for x in _NUMBERS if keep.apply(x)]
    others = [x for x in _NUMBERS if not keep.apply(x)]
    xs = draw(rng, kept, 0 if none_kept else 1 + below(rng, 4)) + draw(rng, others, 1 + below(rng, 4))
    return draw(rng, xs, len(xs))


def _arithmetic(rng: random.Random) -> Step:
    kind, n, factor = below(rng, 3), 1 + below(rng, 99), 2 + below(rng, 19)
    return (
        Step(f"plus {n}", f"x + {n}", lambda x: x + n),
        Step(f"minus {n}", f"x - {n}", lambda x: x - n),
        Step(f"times {factor}", f"x * {factor}", lambda x: x * factor),
    )[kind]


def _condition(rng: random.Random) -> Step:
    kind, n, factor = below(rng, 3), 2 + below(rng, 49), 2 + below(rng, 8)
    return (
        Step(f"greater than {n}", f"x > {n}", lambda x: x > n),
        Step(f"less than {n}", f"x < {n}", lambda x: x < n),
        Step(f"multiples of {factor}", f"x % {factor} == 0", lambda x: x % factor == 0),
    )[kind]


def _change(rng: random.Random) -> Step:
    kind, n = below(rng, 4), 2 + below(rng, 98)
    return (
        Step(f"add {n} to each", f"x + {n}", lambda x: x + n),
        Step(f"subtract {n} from each", f"x - {n}", lambda x: x - n),
        Step(f"multiply each by {n}", f"x * {n}", lambda x: x * n),
        Step("square each", "x * x", lambda x: x * x),
    )[kind]


generate_tasks = TaskGenerator("PythonLab-v0", LEVELS, _stream)
"""Tasks with the hidden tests as ``target``, ``NUM_TESTS`` lists of an argument and a result, and this ``metadata``:
``level``; ``example``, the argument and the result that the prompt shows; ``solution``, a program that passes;
``program``, the faulty one of level 3, else empty. Within a split a function may come twice, with other tests."""
