"""A small registered environment for the tests of the Gymnasium API."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import llmgym
from llmgym import Message, StepResult, Task

ENV_ID = "Adding-v0"


def generate_tasks(split: str, level: int = 1) -> list[Task]:
    """Ten sums for training, three for validation and test; level 2 has larger numbers."""
    start = {"train": 0, "val": 100, "test": 200}[split]
    count = 10 if split == "train" else 3
    return [
        Task(f"What is {number * level} + 1?", str(number * level + 1), {"level": level})
        for number in range(start, start + count)
    ]


class AddingEnv(llmgym.ToolEnv):
    """The system message holds a draw of ``rng``; the loop of ``reset`` must be the loop of every step."""

    closed: list[str] = []  # noqa: RUF012 - the prompts of closed episodes, shared on purpose

    async def setup(self) -> None:
        self.draw = self.rng.randrange(10**9)
        self.loop = asyncio.get_running_loop()

    def opening(self) -> list[Message]:
        return [{"role": "system", "content": f"draw {self.draw}"}, {"role": "user", "content": self.task.prompt}]

    @llmgym.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        await asyncio.sleep(0)
        return a + b

    @llmgym.tool
    def process(self) -> int:
        """The id of this process."""
        return os.getpid()

    @llmgym.tool
    async def quit(self) -> str:
        """Raise what no environment should."""
        raise SystemExit("quit was called")

    async def step(self, message: Message) -> StepResult:
        assert asyncio.get_running_loop() is self.loop
        if message.get("content") == "give up":
            return StepResult(False, True, [*self.messages, message], 0.25, {"gave_up": True})
        if message.get("content") == "break":
            raise OSError("the disk is on fire")
        return await super().step(message)

    async def score(self, message: Message) -> float:
        return float(message["content"] == self.task.target)

    async def close(self) -> None:
        self.closed.append(self.task.prompt)


def call(name: str, arguments: str = "{}") -> list[dict[str, Any]]:
    """An action that calls one tool."""
    return [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": name, "arguments": arguments}}]}]


llmgym.register(ENV_ID, env=AddingEnv, tasks=generate_tasks)
