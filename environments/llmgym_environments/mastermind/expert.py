"""The scripted expert of Mastermind-v0."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter

from llmgym import Message, Policy, Task, ToolSpec
from llmgym_environments.mastermind.tasks import compare

Code = tuple[int, ...]
"""A code as positions in the list of colours."""
Answers = tuple[tuple[Code, tuple[int, int]], ...]
"""The guesses so far, each with its answer."""

_WEIGHED = 20
"""Guesses that are weighed against each other in one turn; more gain nothing and take longer."""
_ANSWER = re.compile(r"(\d+) exact, (\d+) misplaced")


class MastermindExpert(Policy):
    """Breaks every generated code within its par.

    It guesses a code that agrees with all answers so far; of some such codes it takes the one that leaves the fewest in
    the worst case (as in Knuth, "The Computer as Master Mind", 1976, who weighs all codes, also those ruled out).
    """

    async def start(self, task: Task) -> None:
        """Learn the rules."""
        self._colours: list[str] = task.metadata["colours"]
        self._places: int = task.metadata["places"]
        self._repeats: bool = task.metadata["repeats"]

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> str:
        """The next guess."""
        guesses = [message["content"].split() for message in messages if message["role"] == "assistant"]
        found = [_ANSWER.search(message["content"]) for message in messages if message["role"] == "user"][1:]
        answers = tuple(
            (tuple(self._colours.index(colour) for colour in guess), (int(one[1]), int(one[2])))
            for guess, one in zip(guesses, found, strict=True)
            if one is not None
        )
        guess = best_guess(self._places, len(self._colours), self._repeats, answers)
        return " ".join(self._colours[position] for position in guess)


@functools.cache
def best_guess(places: int, colours: int, repeats: bool, answers: Answers) -> Code:
    """The guess to make after ``answers``; the same for all tasks with these rules."""
    if not answers:  # of all first guesses a good one; to weigh them would take seconds
        return tuple(place * 2 // places for place in range(places)) if repeats else tuple(range(places))
    left = codes_left(places, colours, repeats, answers)
    weighed = left[:: math.ceil(len(left) / _WEIGHED)]
    return min(weighed, key=lambda guess: max(Counter(compare(guess, code) for code in left).values()))


@functools.cache
def codes_left(places: int, colours: int, repeats: bool, answers: Answers) -> list[Code]:
    """The codes that agree with ``answers``, in the order of the colours."""
    if not answers:
        codes = itertools.product(range(colours), repeat=places)
        return [code for code in codes if repeats or len(set(code)) == places]
    guess, answer = answers[-1]
    before = codes_left(places, colours, repeats, answers[:-1])
    return [code for code in before if compare(guess, code) == answer]
