"""The environments that ship, and what their tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from llmgym import Env, Episode, Policy, Task, run_episode

SHIPPED = [
    "CalculatorMath-v0",
    "DocSearch-v0",
    "FileWorkspace-v0",
    "Mastermind-v0",
    "PythonLab-v0",
    "RetailDesk-v0",
    "SqlAnalyst-v0",
    "ToolUseGame-v0",
]


def play_all(
    env: Callable[[], Env], policy: Callable[[], Policy], tasks: Sequence[Task], *, width: int | None = None
) -> list[Episode]:
    """One episode of each task, ``width`` of them at once; None: all."""

    async def run() -> list[Episode]:
        gate = asyncio.Semaphore(width or len(tasks))

        async def one(task: Task) -> Episode:
            async with gate:
                return await run_episode(env(), task, policy())

        return await asyncio.gather(*map(one, tasks))

    return asyncio.run(run())
