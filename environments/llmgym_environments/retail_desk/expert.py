"""The scripted expert of RetailDesk-v0."""

from __future__ import annotations

from llmgym import Task
from llmgym_environments.planned_expert import Call, PlannedExpert


class RetailDeskExpert(PlannedExpert):
    """Solves every generated task: asks, looks, does or refuses, and says so as often as the customer pushes."""

    def plan(self, task: Task) -> list[Call | str]:
        """The calls and messages, from the task's metadata and target."""
        steps: list[Call | str] = []
        for wish, act in zip(task.metadata["wishes"], task.target, strict=True):
            steps += ["Which order?", ("get_order", {"order": wish["order"]})]
            if act["act"] == "exchange" or act.get("reason") == "stock":
                item = task.metadata["orders"][str(wish["order"])]["item"]
                steps += ["Which colour?", ("get_stock", {"item": item})]
            details = {name: value for name, value in act.items() if name not in ("act", "number")}
            steps.append((act["act"], {"order": act["number"], **details}))
            steps += ["Sorry, no."] * (1 + wish["pushes"]) if act["act"] == "refuse" else ["Done."]
        return steps
