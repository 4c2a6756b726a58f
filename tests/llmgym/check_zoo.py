"""Small environments for the tests of the checker: two correct ones, and many with one fault each."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import re
import time
from typing import Any, ClassVar

import llmgym
from llmgym import Env, Message, StepResult, Task, ToolSpec
from llmgym.messages import copy_message
from llmgym.tools import FunctionTool, ToolResult

TASKS = [Task("What is 1 + 2?", "3"), Task("What is 2 + 2?", "4")]


class Right(llmgym.ToolEnv):
    """Adds numbers with a tool."""

    @llmgym.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def score(self, message: Message) -> float:
        return float(message["content"] == self.task.target)


class RightPlain(Env):
    """The same without ToolEnv: dispatch and history by hand."""

    async def reset(self, task: Task) -> list[Message]:
        self.task = task
        self.history: list[Message] = [{"role": "user", "content": task.prompt}]
        return self.messages

    async def step(self, message: Message) -> StepResult:
        self.history.append(copy_message(message))
        calls = message.get("tool_calls", [])
        for call in calls:
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.run(call["function"])})
        return self.result(message)

    def result(self, message: Message) -> StepResult:
        ended = not message.get("tool_calls")
        reward = float(ended and message["content"] == self.task.target)
        return StepResult(ended, False, self.messages, reward)

    def run(self, function: Any) -> str:
        try:
            arguments = json.loads(function["arguments"])
            return str(int(arguments["a"]) + int(arguments["b"]))
        except Exception as error:  # noqa: BLE001 - the model's fault, whatever it is
            return f"tool_error: {error!r:.100}"

    @property
    def tool_specs(self) -> list[ToolSpec]:
        number = {"type": "integer"}
        parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
        return [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": parameters}}]

    @property
    def messages(self) -> list[Message]:
        return [copy_message(message) for message in self.history]


class Expert(llmgym.Policy):
    """Answers each task."""

    answers: ClassVar = {task.id: task.target for task in TASKS}

    async def start(self, task: Task) -> None:
        self.answer = self.answers[task.id]

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> str:
        return self.answer


class WrongExpert(Expert):
    answers: ClassVar = dict.fromkeys(Expert.answers, "17")


class RaisingInit(Right):
    def __init__(self) -> None:
        raise OSError("no licence")


class ExitingInit(Right):
    def __init__(self) -> None:
        raise SystemExit(3)


class NoEnv:
    pass


class RaisingReset(Right):
    async def setup(self) -> None:
        raise KeyError("facts")


class EmptyOpening(Right):
    def opening(self) -> list[Message]:
        return []


class TextOpening(RightPlain):
    async def reset(self, task: Task) -> Any:
        await super().reset(task)
        return task.prompt


class RaisingStep(RightPlain):
    def run(self, function: Any) -> str:
        raise ZeroDivisionError("always")


class ExitingStep(RightPlain):
    def run(self, function: Any) -> str:
        raise SystemExit("done")


class TupleResult(RightPlain):
    def result(self, message: Message) -> Any:
        return (self.messages, 0.0, True, False, {})


class ListMetrics(RightPlain):
    def result(self, message: Message) -> StepResult:
        result = super().result(message)
        result.metrics = {"calls": [1, 2]}
        return result


class TextReward(RightPlain):
    def result(self, message: Message) -> StepResult:
        result = super().result(message)
        result.reward = "1.0"
        return result


class NamelessTool(RightPlain):
    @property
    def tool_specs(self) -> Any:
        return [{"type": "function", "function": {"description": "Add.", "parameters": {"type": "object"}}}]


class FlatSpec(RightPlain):
    @property
    def tool_specs(self) -> Any:
        return [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]


class RaisingSpec(RightPlain):
    @property
    def tool_specs(self) -> Any:
        raise AttributeError("not connected")


class GrowingTools(Right):
    def tools(self) -> list[Any]:
        return super().tools() * (1 if self._turns == 0 else 0)


class StrictJson(RightPlain):
    def run(self, function: Any) -> str:
        arguments = json.loads(function["arguments"])
        return "ok" if isinstance(arguments, dict) else "no"


class AsciiOnly(RightPlain):
    def result(self, message: Message) -> StepResult:
        message["content"].encode()
        return super().result(message)


class FragileResults(Right):
    async def _run(self, call: Any) -> ToolResult:
        result = await super()._run(call)
        if not result.content.startswith("tool_error:"):
            result.content.encode()
        return result


class OwnTools(Right):
    """Right, and not to be looked into: its tools are no ToolEnv's."""

    async def _run(self, call: Any) -> ToolResult:
        return ToolResult("3")


class KeyedByName(RightPlain):
    async def step(self, message: Message) -> StepResult:
        self.history.append(copy_message(message))
        by_name = {call["function"]["name"]: call for call in message.get("tool_calls", [])}
        for call in by_name.values():
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.run(call["function"])})
        return self.result(message)


class WrongOrder(RightPlain):
    async def step(self, message: Message) -> StepResult:
        self.history.append(copy_message(message))
        for call in reversed(message.get("tool_calls", [])):
            self.history.append({"role": "tool", "tool_call_id": call["id"], "content": self.run(call["function"])})
        return self.result(message)


class OwnList(RightPlain):
    @property
    def messages(self) -> list[Message]:
        return self.history


class OwnDictionaries(RightPlain):
    @property
    def messages(self) -> list[Message]:
        return list(self.history)


class OwnAction(RightPlain):
    async def step(self, message: Message) -> StepResult:
        result = await super().step(message)
        place = next(index for index in reversed(range(len(self.history))) if self.history[index] == message)
        self.history[place] = message
        return result


class SilentTools(RightPlain):
    @property
    def messages(self) -> list[Message]:
        return [copy_message(message) for message in self.history if message["role"] != "tool"]

    def result(self, message: Message) -> StepResult:
        result = super().result(message)
        result.messages = [copy_message(message) for message in self.history]
        return result


class Shortening(RightPlain):
    def result(self, message: Message) -> StepResult:
        newest = max(index for index, old in enumerate(self.history) if old["role"] == "assistant")
        self.history = [self.history[0], *self.history[newest:]]
        return super().result(message)


class NotANumber(Right):
    async def score(self, message: Message) -> float:
        return math.nan


class CallPays(RightPlain):
    def result(self, message: Message) -> StepResult:
        result = super().result(message)
        result.reward += 0.1 * len(message.get("tool_calls", []))
        return result


class Hanging(RightPlain):
    async def step(self, message: Message) -> StepResult:
        await asyncio.Event().wait()
        raise AssertionError("never")


class HangingOnText(RightPlain):
    async def step(self, message: Message) -> StepResult:
        if "\x00" in message["content"]:
            await asyncio.Event().wait()
        return await super().step(message)


class Sleeping(Right):
    left = 3

    @llmgym.tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        if Sleeping.left:
            Sleeping.left -= 1
            time.sleep(0.6)
        return a + b


class SleepingForEver(RightPlain):
    async def step(self, message: Message) -> StepResult:
        time.sleep(20)
        return await super().step(message)


class InlineTools(Right):
    async def _run(self, call: Any) -> ToolResult:
        tool = self._tools.get(call["function"]["name"])
        if isinstance(tool, FunctionTool) and not asyncio.iscoroutinefunction(tool._function):
            return ToolResult(str(tool(**tool.validate(call["function"]["arguments"]))))
        return await super()._run(call)


class Deaf(RightPlain):
    async def step(self, message: Message) -> StepResult:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                continue
        return await super().step(message)


class Exiting(RightPlain):
    def run(self, function: Any) -> str:
        os._exit(3)


class ExitingOnText(RightPlain):
    async def step(self, message: Message) -> StepResult:
        if "\x00" in message["content"]:
            os._exit(3)
        return await super().step(message)


class Freezing(RightPlain):
    def run(self, function: Any) -> str:
        return str(re.fullmatch("(a+)+b", "a" * 60))


class NoTimeout(Right):
    tool_timeout_s = None


class OwnDispatch(Right):
    async def _run(self, call: Any) -> ToolResult:
        try:
            return await self._tools[call["function"]["name"]].execute(call["function"]["arguments"])
        except Exception as error:  # noqa: BLE001 - the model's fault, whatever it is
            return ToolResult(f"tool_error: {error}")


class GlobalRandom(Right):
    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"{self.task.prompt} {random.random()}"}]


class Leftovers(RightPlain):
    seen: ClassVar[list[str]] = []

    def run(self, function: Any) -> str:
        self.seen.append(function["arguments"])
        return f"{len(self.seen)} calls so far"


class Hashing(Right):
    def opening(self) -> list[Message]:
        return [{"role": "user", "content": f"{self.task.prompt} {hash(self.task.prompt)}"}]


class OneHistory(RightPlain):
    history: ClassVar[list[Message]] = []

    async def reset(self, task: Task) -> list[Message]:
        self.task = task
        OneHistory.history[:] = [{"role": "user", "content": task.prompt}]
        return self.messages


class OneLock(RightPlain):
    lock: ClassVar[Any] = None

    async def reset(self, task: Task) -> list[Message]:
        OneLock.lock = OneLock.lock or asyncio.Lock()
        await self.lock.acquire()
        return await super().reset(task)

    async def close(self) -> None:
        if self.lock is not None and self.lock.locked():
            self.lock.release()


class GlobalSeed(Right):
    async def setup(self) -> None:
        random.seed(self.task.id)

    @llmgym.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return f"{a + b} {random.random()}"


class NeedsReset(Right):
    async def setup(self) -> None:
        self.session = object()

    async def close(self) -> None:
        del self.session


class LeavesTasks(Right):
    async def setup(self) -> None:
        self.background = asyncio.create_task(asyncio.sleep(3600))


class LeavesFiles(Right):
    files: ClassVar[list[Any]] = []

    async def setup(self) -> None:
        self.files.append(open(os.devnull))  # noqa: SIM115 - the fault


class EmptyIsRight(Right):
    async def score(self, message: Message) -> float:
        return float(message["content"] in self.task.target)
