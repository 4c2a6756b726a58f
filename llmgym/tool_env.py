"""The common environment: a prompt, tools, and a score for the final answer."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from llmgym.env import Env, StepResult
from llmgym.episode import TOOL_ERROR_PREFIX
from llmgym.errors import ConfigError, EnvContractError, ToolError, describe_error, did_you_mean
from llmgym.messages import Message, MessageCopies, ToolCall, ToolSpec, copy_message, normalize_message, tool_message
from llmgym.task import Task
from llmgym.tools import FunctionTool, Tool, ToolResult, tool_to_spec


class ToolEnv(Env):
    """An episode in which the model calls tools until it answers without a call.

    A subclass sets :attr:`system_prompt`, decorates methods with :func:`llmgym.tool` (or overrides
    :meth:`tools`), and implements :meth:`score`. Tool calls of one message run in their order, each within
    :attr:`tool_timeout_s`; each gets a tool message with its id. Whatever a tool raises becomes a
    ``tool_error: …`` message the model can read. The episode terminates with an assistant message without
    tool calls, or when a tool returns ``should_stop=True``. Where somebody answers such a message, as in a talk with a
    customer, override :meth:`respond`: the episode then ends when nobody answers.

    Attributes:
        system_prompt: Text of the system message; None leaves it out.
        tool_timeout_s: Seconds one tool call may take; None for no limit.
        max_result_chars: Longer tool results are cut, with a note that says so.
        reward_weights: Weights of the parts that :meth:`score` returns; one that is missing counts 1.
        task: The task of this episode, set by :meth:`reset`.
    """

    system_prompt: str | None = None
    tool_timeout_s: float | None = 30.0
    max_result_chars: int = 20_000
    reward_weights: Mapping[str, float] = MappingProxyType({})
    task: Task

    def tools(self) -> list[Tool]:
        """The tools of this episode. By default the ``@tool`` methods, in the order of their definition."""
        names: dict[str, None] = {}
        for owner in reversed(type(self).__mro__):
            names |= {name: None for name, value in vars(owner).items() if isinstance(value, FunctionTool)}
        return [getattr(self, name) for name in names]

    async def setup(self) -> None:
        """Prepare the episode of ``self.task`` before the opening messages are built. Does nothing by default."""

    def opening(self) -> list[Message]:
        """The opening messages: the system prompt, when there is one, and the task's prompt."""
        messages: list[Message] = []
        if self.system_prompt is not None:
            messages.append({"role": "system", "content": self.system_prompt})
        messages.append({"role": "user", "content": self.task.prompt})
        return messages

    async def respond(self, message: Message) -> list[Message]:
        """Answer an assistant message without tool calls: with user messages, or with nothing, which ends the episode.

        By default nothing: such a message is the final answer.
        """
        return []

    @abstractmethod
    async def score(self, message: Message) -> float | Mapping[str, float]:
        """Return the reward of the episode that ``message`` ends, or its named parts.

        Parts are added up with :attr:`reward_weights`, and each is logged as the metric ``reward/<part>``.
        """

    def metrics(self) -> dict[str, Any]:
        """Diagnostics of the finished episode: turns, tool calls and tool errors. Extend it with your own."""
        return {
            "turns": self._turns,
            "tool_calls": sum(self._call_counts.values()),
            "tool_errors": self._tool_errors,
            **{f"calls_{name}": count for name, count in self._call_counts.items() if name in self._tools},
        }

    async def reset(self, task: Task) -> list[Message]:
        """Begin the episode. Subclasses override :meth:`setup` and :meth:`opening` instead."""
        self.task = task
        self._turns = 0
        self._tool_errors = 0
        self._call_counts: dict[str, int] = {}
        self._ended = False
        await self.setup()
        self._tools = {tool.name: tool for tool in self.tools()}
        self._messages = [copy_message(message) for message in self.opening()]
        self._copies = MessageCopies()
        return self.messages

    async def step(self, message: Message) -> StepResult:
        """Run the message's tool calls. Without any, it is answered or, by default, scored as the final answer."""
        if self._ended:
            raise RuntimeError("the episode has ended; call reset before the next step")
        message = normalize_message(message, role="assistant", call_id_prefix=f"call_{self._turns}_")
        self._turns += 1
        self._messages.append(message)
        calls = message.get("tool_calls", [])
        answers = [] if calls else await self.respond(copy_message(message))
        self._messages += [copy_message(answer) for answer in answers]
        self._ended = not calls and not answers
        errors: dict[str, str] = {}
        for call in calls:
            await asyncio.sleep(0)  # many quick calls hold up no other episode
            if self._ended:
                result = ToolResult(
                    f"{TOOL_ERROR_PREFIX} not run, an earlier call ended the episode", error_type="not_run"
                )
            else:
                result = await self._run(call)
                if not isinstance(result, ToolResult) or not isinstance(result.content, str):
                    raise EnvContractError(
                        f"tool {call['function']['name']!r} must return a ToolResult with text, got {result!r:.80}"
                    )
                self._ended = result.should_stop
            self._messages.append(tool_message(call, self._cut(result.content)))
            if result.error_type is not None:
                errors[call["id"]] = result.error_type
        if not self._ended:
            return StepResult(False, False, self.messages, tool_errors=errors)
        scored = await self.score(message)
        if not isinstance(scored, Mapping):
            return StepResult(True, False, self.messages, float(scored), self.metrics(), errors)
        reward, parts = weighted_reward(scored, self.reward_weights)
        return StepResult(True, False, self.messages, reward, {**self.metrics(), **parts}, errors)

    @property
    def tool_specs(self) -> list[ToolSpec]:
        """Specifications of :meth:`tools`."""
        return [tool_to_spec(tool) for tool in self.tools()]

    @property
    def messages(self) -> list[Message]:
        """A copy of the history."""
        return self._copies.of(self._messages)

    async def _run(self, call: ToolCall) -> ToolResult:
        name = call["function"]["name"]
        self._call_counts[name] = self._call_counts.get(name, 0) + 1
        try:
            tool = self._tools.get(name)
            if tool is None:
                raise ToolError(
                    f"there is no tool {name[:80]!r}; the tools are {', '.join(self._tools) or 'none'}."
                    f"{did_you_mean(name[:80], self._tools, likeness=0.5)}",
                    error_type="unknown_tool",
                )
            async with asyncio.timeout(self.tool_timeout_s) as deadline:
                return await tool.execute(call["function"]["arguments"])
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is the model's to read
            self._tool_errors += 1
            error_type, text = describe_error(error)
            if isinstance(error, TimeoutError) and deadline.expired():
                error_type, text = "timeout", f"{name} took longer than {self.tool_timeout_s} s and was stopped"
            return ToolResult(f"{TOOL_ERROR_PREFIX} {text}", error_type=error_type)

    def _cut(self, content: str) -> str:
        if len(content) <= self.max_result_chars:
            return content
        return content[: self.max_result_chars] + f"\n[cut: {self.max_result_chars} of {len(content)} characters shown]"


def weighted_reward(
    components: Mapping[str, float], weights: Mapping[str, float] | None = None
) -> tuple[float, dict[str, float]]:
    """Add up named parts of a reward.

    Args:
        components: The value of each part, such as ``{"correct": 1.0, "short": 0.4}``.
        weights: The weight of each part; one that is missing counts 1.

    Returns:
        The sum of weight times value, and the values (without weights) as metrics named ``reward/<part>``, to be put
        into :attr:`llmgym.StepResult.metrics`, where training and evaluation log them.

    Raises:
        ConfigError: A weight belongs to no part.
    """
    weights = weights or {}
    for name in weights:
        if name not in components:
            raise ConfigError(
                f"there is a weight for the reward component {name!r}, but the components are "
                f"{', '.join(components) or 'none'}.{did_you_mean(name, components)}"
            )
    total = sum(weights.get(name, 1.0) * value for name, value in components.items())
    return float(total), {f"reward/{name}": float(value) for name, value in components.items()}
