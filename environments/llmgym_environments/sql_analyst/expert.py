"""The scripted expert of SqlAnalyst-v0."""

from __future__ import annotations

import re

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert


class SqlAnalystExpert(PlannedExpert):
    """Solves every generated task: lists the tables, describes those it needs, queries, answers with the rows."""

    def plan(self, task: Task) -> list[Call]:
        """The calls, from the task's metadata."""
        query = task.metadata["query"]
        tables = re.findall(r"CREATE TABLE (\w+)", task.metadata["database"])
        words = re.findall(r"\w+", query)
        needed: list[Call] = [("describe_table", {"table": table}) for table in tables if table in words]
        return [("list_tables", {}), *needed, ("run_sql", {"query": query})]
