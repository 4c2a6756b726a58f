"""The scripted expert of DocSearch-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.doc_search.encyclopedia import encyclopedia
from llmgym_environments.planned_expert import Call, PlannedExpert


class DocSearchExpert(PlannedExpert):
    """Solves every generated task: for each page on the way it searches once and opens it, then it answers.

    Each page it opens stands in the search result before.
    """

    def plan(self, task: Task) -> list[Call]:
        """The calls, from the task's metadata."""
        first, *others = task.metadata["path"]
        numbers = encyclopedia(task.metadata["encyclopedia"]).numbers
        calls: list[Call] = []
        for title, query in ((first, task.metadata["query"]), *((title, title) for title in others)):
            calls += [("search", {"query": query}), ("open_page", {"number": numbers[title]})]
        return calls

    def answer(self, task: Task, result: str) -> str:
        """The target, which stands on the page opened last."""
        return str(task.target)
