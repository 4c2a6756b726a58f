"""The scripted expert of ToolUseGame-v0. Knows the solution of a task; makes the calls that a model would need."""

from __future__ import annotations

import json

from llmgym import Message, Policy, Task, ToolSpec
from llmgym_environments.tool_use_game.tasks import fill_in, keys_of


class ToolUseGameExpert(Policy):
    """Solves every generated task with one call a turn.

    It lists the keys when the question does not name them (level 3), looks each needed key up, calculates once, and
    answers with the bare result of the calculator.
    """

    async def start(self, task: Task) -> None:
        """Plan the calls from the task's metadata."""
        expression, facts = task.metadata["expression"], task.metadata["facts"]
        self._plan: list[tuple[str, dict[str, str]]] = []
        if task.metadata["level"] == 3:
            self._plan.append(("list_fact_keys", {}))
        self._plan += [("lookup", {"key": key}) for key in keys_of(expression)]
        self._plan.append(("calculator", {"expression": fill_in(expression, facts)}))

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message:
        """The next planned call, or the last result as the answer."""
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(self._plan):
            return {"role": "assistant", "content": messages[-1]["content"]}
        name, arguments = self._plan[turn]
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": f"call_{turn}_0",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
            ],
        }
