"""Environments whose answer is one number. Knows the target of a task; the tools are the subclass's."""

from __future__ import annotations

from llmgym import Message, ToolEnv
from llmgym.errors import TaskError
from llmgym_environments.calculator import parse_number


class NumberAnswerEnv(ToolEnv):
    """Scores 1.0 when the final message is the task's target and nothing else, compared as numbers; else 0.0.

    What counts as one number is said by :func:`~llmgym_environments.calculator.parse_number`. It is strict on
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

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        return float(parse_number(message["content"]) == self._target)
