"""The scripted expert of CalculatorMath-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert


class CalculatorMathExpert(PlannedExpert):
    """Solves every generated task: one calculator call, then its bare result."""

    def plan(self, task: Task) -> list[Call]:
        """The call, from the task's metadata."""
        return [("calculator", {"expression": task.metadata["expression"]})]
