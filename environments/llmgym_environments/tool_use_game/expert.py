"""The scripted expert of ToolUseGame-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert
from llmgym_environments.tool_use_game.tasks import fill_in, keys_of


class ToolUseGameExpert(PlannedExpert):
    """Solves every generated task with one call a turn.

    It lists the keys when the question does not name them (level 3), looks each needed key up, calculates once, and
    answers with the bare result of the calculator.
    """

    def plan(self, task: Task) -> list[Call]:
        """The calls, from the task's metadata."""
        expression = task.metadata["expression"]
        listing: list[Call] = [("list_fact_keys", {})] if task.metadata["level"] == 3 else []
        lookups: list[Call] = [("lookup", {"key": key}) for key in keys_of(expression)]
        return [*listing, *lookups, ("calculator", {"expression": fill_in(expression, task.metadata["facts"])})]
