"""The environments that ship, and what their tests share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence

from llmgym import Env, Episode, Message, Policy, ScriptedPolicy, Task, run_episode

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


class Yielding(Policy):
    """Plays a policy; every other episode takes a turn meanwhile."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def start(self, task: Task) -> None:
        await self.policy.start(task)

    async def act(self, messages, tool_specs):
        await asyncio.sleep(0)
        return await self.policy.act(messages, tool_specs)


def play_beside(
    env: Callable[[], Env],
    expert: Callable[[], Policy],
    tasks: Sequence[Task],
    hostile: Sequence[Sequence[Message | str]] = (),
) -> list[Episode]:
    """Play all ``tasks`` at once, beside an episode of one of them for each hostile script, which is returned.

    Asserts that each of the others is solved, and is message for message what it is alone.
    """

    async def run() -> list[Episode]:
        scripts = [(tasks[at % len(tasks)], ScriptedPolicy(script)) for at, script in enumerate(hostile)]
        policies = [*scripts, *((task, expert()) for task in tasks)]
        return await asyncio.gather(*(run_episode(env(), task, Yielding(policy)) for task, policy in policies))

    played, alone = asyncio.run(run()), play_all(env, expert, tasks, width=1)
    for one, other in zip(alone, played[len(hostile) :], strict=True):
        assert one.reward == 1.0
        assert (one.messages, one.metrics) == (other.messages, other.metrics)
    return played[: len(hostile)]


def cell(text: str) -> str:
    """A text as it stands in a cell of a table."""
    return text.replace("|", r"\|").replace("    ", "&nbsp;" * 4).replace("\n", "<br>")


def page_rows(episode: Episode) -> Iterator[str]:
    """The rows of an episode on a page: a row a message, calls as a Python programmer writes them."""
    for message in episode.messages:
        role, text = message["role"], cell(message["content"])
        if role == "assistant":
            role = "**assistant**"
            for call in message.get("tool_calls", []):
                arguments = json.loads(call["function"]["arguments"]).items()
                given = ", ".join(f"{name}={json.dumps(value)}" for name, value in arguments)
                text = f"`{call['function']['name']}({given})`".replace("|", r"\|")
        yield f"| {role} | {text} |"
