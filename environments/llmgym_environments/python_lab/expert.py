"""The scripted expert of PythonLab-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert


class PythonLabExpert(PlannedExpert):
    """Runs the faulty program when there is one, tries the solution on the example of the question, and submits it."""

    def plan(self, task: Task) -> list[Call]:
        """The calls, from the task's metadata."""
        programs, (given, _) = [task.metadata["program"], task.metadata["solution"]], task.metadata["example"]
        tried: list[Call] = [("run_python", {"code": f"{one}\nprint(f({given}))"}) for one in programs if one]
        return [*tried, ("submit", {"code": task.metadata["solution"]})]
