"""The base class of scripted experts that know their calls in advance."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from llmgym import Message, Policy, Task, ToolSpec

Call = tuple[str, dict[str, Any]]
"""Name and arguments of a tool call."""


class PlannedExpert(Policy):
    """Makes one planned call or sends one planned message per turn, then answers."""

    @abstractmethod
    def plan(self, task: Task) -> Sequence[Call | str]:
        """The calls that solve ``task``, and the messages between them."""

    def answer(self, task: Task, result: str) -> str:
        """The final message: the bare ``result`` of the last call, unless a subclass says otherwise."""
        return result

    async def start(self, task: Task) -> None:
        """Plan the episode."""
        self._task, self._plan = task, self.plan(task)

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> Message:
        """The call or the text of this turn, or the answer."""
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn >= len(self._plan):
            return {"role": "assistant", "content": self.answer(self._task, messages[-1]["content"])}
        step = self._plan[turn]
        if isinstance(step, str):
            return {"role": "assistant", "content": step}
        name, arguments = step
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
