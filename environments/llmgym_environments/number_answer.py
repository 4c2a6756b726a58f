"""The base class of environments whose answer is one number."""

from __future__ import annotations

from typing import Any

from llmgym import Message, ToolEnv
from llmgym.errors import TaskError
from llmgym_environments.calculator import evaluate, format_number, parse_number


class NumberAnswerEnv(ToolEnv):
    """Scores 1.0 when the final message is the task's target and nothing else, compared as numbers; else 0.0.

    What counts as a number is defined by :func:`~llmgym_environments.calculator.parse_number`. It is strict on
    purpose: a policy that writes down every number it has seen answers no question.
    """

    async def setup(self) -> None:
        """Read the target. Raises :class:`TaskError` when it is no number."""
        target = parse_number(str(self.task.target))
        if target is None:
            raise TaskError(
                f"the target of the task must be a number, such as 42 or '42', got {self.task.target!r:.80}"
            )
        self._target = target
        self._calculated = self._answered = False

    def calculate(self, expression: str) -> str:
        """The value of an expression, as a tool shows it.

        At most 310 characters, which are never cut. Raises :class:`~llmgym.errors.ToolError`.
        """
        value = evaluate(expression)
        self._calculated = self._calculated or value == self._target
        return format_number(value)

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        answer = parse_number(message["content"])
        self._answered = answer is not None
        return float(answer == self._target)

    def metrics(self) -> dict[str, Any]:
        """Adds ``calculated`` (the calculator gave the right number) and ``answered`` (the answer was one number)."""
        return {**super().metrics(), "calculated": self._calculated, "answered": self._answered}
