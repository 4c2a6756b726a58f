"""The scripted expert of FileWorkspace-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert


class FileWorkspaceExpert(PlannedExpert):
    """Solves every generated task with one call a turn, and says that it is done."""

    def plan(self, task: Task) -> list[Call]:
        """The calls, from the task's metadata."""
        return [(name, arguments) for name, arguments in task.metadata["plan"]]

    def answer(self, task: Task, result: str) -> str:
        """The message that ends the episode; its text does not count."""
        return "done"
