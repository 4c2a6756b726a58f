"""The example environment of the multi-turn reference runs with only its import lines changed.

What stands between the two marks is that example as its documentation prints it: users port code of this shape, so
it is kept word for word.
"""
# ruff: noqa: BLE001, RUF012

from __future__ import annotations

import asyncio

import pytest

from llmgym import ScriptedPolicy, StopReason, run_episode
from llmgym_environments.calculator import evaluate, format_number


def safe_eval(expression):
    return format_number(evaluate(expression))


# The example begins.
# fmt: off
import json  # noqa: E402

from llmgym import (  # noqa: E402
    Env,
    Message,
    StepResult,
    Task,
    Tool,
    ToolResult,
    ToolSpec,
    tool_to_spec,
)

SYSTEM_PROMPT = (
    "Use the calculator tool, then reply with only the final number."
)


class CalculatorTool:
    name = "calculator"
    description = "Evaluate an arithmetic expression."
    parameters_schema = {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    }

    async def execute(self, arguments: str) -> ToolResult:
        expression = json.loads(arguments)["expression"]
        # safe_eval is your own arithmetic evaluator. Define it before you
        # train. Until you do, every call returns a tool_error, because the
        # step's except catches the NameError. Never eval() model output.
        return ToolResult(content=str(safe_eval(expression)))


class MathEnv(Env):
    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._task: Task | None = None
        self._tools: dict[str, Tool] = {"calculator": CalculatorTool()}

    async def reset(self, task: Task) -> list[Message]:
        self._task = task
        self._messages = [
            Message(role="system", content=SYSTEM_PROMPT),
            Message(role="user", content=task.prompt),
        ]
        return list(self._messages)

    async def step(self, message: Message) -> StepResult:
        self._messages.append(message)
        tool_calls = message.get("tool_calls", [])
        if not tool_calls:
            # No tool calls: treat the message as the final answer.
            correct = message.get("content", "").strip() == str(
                self._task.target
            )
            return StepResult(
                terminated=True,
                truncated=False,
                messages=list(self._messages),
                reward=1.0 if correct else 0.0,
            )
        for call in tool_calls:
            name = call["function"]["name"]
            try:
                tool = self._tools[name]
                result = await tool.execute(call["function"]["arguments"])
                content = result.content
            except Exception as exc:
                # Report a bad tool call to the model. An uncaught
                # exception here stops the whole training run.
                content = f"tool_error: {exc!r}"
            self._messages.append(
                Message(
                    role="tool",
                    content=content,
                    tool_call_id=call["id"],
                    name=name,
                )
            )
        return StepResult(
            terminated=False,
            truncated=False,
            messages=list(self._messages),
            reward=0.0,
        )

    @property
    def tool_specs(self) -> list[ToolSpec]:
        return [tool_to_spec(tool) for tool in self._tools.values()]

    @property
    def messages(self) -> list[Message]:
        return list(self._messages)
# fmt: on
# The example ends.


def call(name="calculator", **arguments):
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def play(*script):
    task = Task(prompt="What is 12 * 12 + 5?", target=149)
    return asyncio.run(run_episode(MathEnv(), task, ScriptedPolicy(script)))


def tool_results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def test_a_right_episode():
    episode = play(call(expression="12 * 12 + 5"), " 149 ")
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 1.0)
    assert tool_results(episode) == ["149"]
    assert [message["role"] for message in episode.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert episode.initial_messages[0]["content"] == "Use the calculator tool, then reply with only the final number."
    assert episode.tool_specs[0]["function"]["name"] == "calculator"
    assert not any(turn.history_edited for turn in episode.turns)


def test_a_wrong_episode():
    episode = play(call(expression="12 * 12"), "144")
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 0.0)
    assert tool_results(episode) == ["144"]


@pytest.mark.parametrize("bad", [call(expression="12 *"), call(formula="1"), call("calc", expression="1")])
def test_an_episode_with_a_tool_error(bad):
    episode = play(bad, call(expression="12 * 12 + 5"), "149")
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 1.0)
    assert tool_results(episode)[0].startswith("tool_error: ")
    assert (episode.num_tool_errors, episode.num_tool_calls) == (1, 2)
