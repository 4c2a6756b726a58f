"""One episode under observation: sends what it is told and judges what every reset, step and close returns.

:class:`CheckContext` holds what all sessions of a check share: how to make environments, the worker they run on, the
findings.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from llmgym._util.seeding import derive_seed
from llmgym.checking.report import CheckResult, Findings
from llmgym.checking.schemas import spec_faults
from llmgym.checking.worker import Actor, Outcome, Trouble, Worker, describe_error
from llmgym.env import Env, StepResult
from llmgym.episode import Episode
from llmgym.errors import ConfigError, MessageError
from llmgym.from_gymnasium import FromGym
from llmgym.messages import Message, copy_message, normalize_message, normalize_messages
from llmgym.policy import Policy
from llmgym.registry import EnvEntry
from llmgym.rollout import check_step_result
from llmgym.task import Task

_CODE_OF = {Trouble.BLOCKS: "blocks-event-loop", Trouble.IGNORES_CANCELLATION: "ignores-cancellation"}


class Skip(Exception):
    """A check cannot be made, or not completed; the text says why."""


class Blocked(Skip):
    """Neither can any check after it."""


@dataclass
class CheckContext:
    """What the checks of one environment share: what was asked for, and what they have found so far.

    Attributes:
        entry: The environment, its tasks and its expert.
        reference: How another process can find the environment; None when it cannot.
        expert: Makes a scripted expert; None without one.
        tasks: The tasks, or a JSONL file of them; None takes the registered ones.
        split: The split to play.
        task_options: Passed on to the environment's task function.
        episodes: How many tasks to play.
        timeout_s: Seconds one call of the environment may take.
        seed: Seeds ``env.rng`` and the hostile actions.
        progress: Told what is being done.
        on_call: Told what is sent before each call.
        played: The tasks that are played, a few of the split.
        specs: The tool specifications, once an episode has started; empty when they are malformed.
        reproduced: Recorded episodes that reproduced, for the checks that follow.
        findings: The faults so far.
        ran: How each check ran, by name.
        calls: Calls of the environment so far; a whole episode counts as one.
        lost_calls: Calls that did not return in time.
        hostile_actions: Hostile actions that were sent.
        started: When the check started, in seconds of ``time.monotonic``.

    Raises:
        ConfigError: ``episodes`` or ``timeout_s`` is not positive.
    """

    entry: EnvEntry
    reference: str | None
    expert: Callable[[], Policy] | None
    tasks: Sequence[Task] | str | Path | None
    split: str
    task_options: Mapping[str, Any]
    episodes: int
    timeout_s: float
    seed: int
    progress: Callable[[str], None]
    on_call: Callable[[str], None] = lambda sent: None
    played: list[Task] = field(default_factory=list)
    specs: list[Any] = field(default_factory=list)
    reproduced: list[Episode] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    ran: dict[str, CheckResult] = field(default_factory=dict)
    calls: int = 0
    lost_calls: int = 0
    hostile_actions: int = 0
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.episodes < 1 or not self.timeout_s > 0:
            raise ConfigError(f"episodes and timeout_s must be positive, got {self.episodes!r} and {self.timeout_s!r}")
        self._worker = Worker()

    @property
    def worker(self) -> Worker:
        """The worker; a fresh one when the last is lost."""
        if self._worker.lost:
            self._worker = Worker()
        return self._worker

    def call(
        self,
        actor: Actor,
        make: Callable[[], Awaitable[Any]],
        sent: str,
        *,
        raises: str,
        hangs: str = "call-hangs",
        timeout_s: float | None = None,
    ) -> Outcome:
        """Run one call of the environment and note when it raises, hangs or blocks the event loop.

        Args:
            actor: Runs it.
            make: Makes the awaitable.
            sent: What is called, for findings.
            raises: The code of an exception.
            hangs: The code of a call that has to be cancelled.
            timeout_s: Seconds it may take; None takes those of the check.
        """
        self.calls += 1
        self.on_call(sent)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        outcome = actor.call(make, timeout_s)
        if outcome.trouble is not None:
            code = _CODE_OF.get(outcome.trouble, hangs)
            self.lost_calls += code != "hanging-tool"  # which was sent to be cancelled
            where = f"; it stands at {outcome.blocked_at}" if outcome.blocked_at else ""
            self.findings.add(code, sent=sent, got=f"nothing within {timeout_s:g} s{where}")
        elif outcome.blocked_at is not None:
            got = f"the event loop stood still for a quarter of a second or longer, at {outcome.blocked_at}"
            self.findings.add("blocks-event-loop", sent=sent, got=got)
        if outcome.error is not None:
            self.findings.add(raises, sent=sent, got=describe_error(outcome.error))
        return outcome

    def close(self) -> None:
        """Stop the worker."""
        self._worker.stop()


class Session:
    """One environment, driven call by call. Use as a context manager: it closes the environment.

    Attributes:
        env: The environment, once :meth:`reset` has made it.
        history: The conversation as last returned, normalised.
        specs: The tool specifications after ``reset``; empty when they are malformed.
        transcript: Everything that was returned, as JSON texts, if it is recorded.
        steps: Steps taken.
        ended: The environment ended the episode.
        usable: The episode has started and no call has failed so far.
        raw: The list of messages that the last call returned, itself.

    Args:
        context: What the sessions share.
        task: The task.
        index: Number of the episode among those of the task.
        record: Keep the transcript.
    """

    def __init__(self, context: CheckContext, task: Task, index: int = 0, *, record: bool = False) -> None:
        self.context = context
        self.task = task
        self.env: Env | None = None
        self.history: list[Message] = []
        self.specs: list[Any] = []
        self.transcript: list[str] = []
        self.steps = 0
        self.ended = False
        self.usable = False
        self.raw: Any = None
        self._rng = random.Random(derive_seed(context.seed, task.id, index))
        self._actor = context.worker.start()
        self._spec_text = ""
        self._recording = record

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the environment."""
        env = self.env
        if env is not None and not self._actor.worker.lost:
            self._call(env.close, f"close() {self._state()}", raises="close-raises")
        self._actor.end()

    def build(self) -> bool:
        """Make the environment; whether that worked."""

        async def make() -> Any:
            return self.context.entry.make_env(self.task)

        sent = f"make the environment for {_task(self.task)}"
        self.context.on_call(sent)
        outcome = self._actor.call(make, self.context.timeout_s)
        if isinstance(outcome.value, Env):
            self.env = outcome.value
            self.env.rng = self._rng
            return True
        if outcome.trouble is not None:
            got = f"nothing within {self.context.timeout_s:g} s"
        elif outcome.error is not None:
            got = describe_error(outcome.error)
        else:
            got = f"not an llmgym.Env but {type(outcome.value).__name__} {outcome.value!r:.200}"
        self._note("build-fails", sent, got)
        return False

    def reset(self) -> bool:
        """Make the environment and start the episode; whether that worked."""
        if not self.build():
            return False
        env = self._env
        sent = f"reset({_task(self.task)})"
        outcome = self._call(lambda: env.reset(copy.deepcopy(self.task)), sent, raises="reset-raises")
        if not outcome.returned:
            return False
        self.raw = outcome.value
        try:
            self.history = normalize_messages(outcome.value)
            fault = "" if self.history else "an empty list"
        except Exception as error:  # noqa: BLE001 - a list of unknown objects
            fault = describe_error(error)
        if fault:
            self._note("opening-invalid", sent, fault)
            return False
        self.usable = True
        self._watch(sent)
        self._record({"opening": self.history, "specs": self._spec_text})
        return True

    def begin(self) -> Any:
        """Make the environment, start the episode and return the environment. Raises :class:`Skip` when that fails."""
        if not self.reset():
            raise Skip("no episode starts")
        return self.env

    def play(self, script: Iterable[Any]) -> None:
        """Send valid messages one after the other, until a call fails or the episode ends."""
        for message in script:
            if self.usable and not self.ended:
                self.step(message, sent="valid")

    def step(self, message: Any, **options: Any) -> StepResult | None:
        """Send one assistant message as every driver does, normalised; return a valid result or None.

        Args:
            message: The message, which must be one that :func:`llmgym.normalize_message` takes.
            options: See :meth:`send`.
        """
        action = normalize_message(message, role="assistant", call_id_prefix=f"call_{self.steps}_")
        return self.send(action, **options)

    def send(self, action: Message, *, sent: str, raises: str = "step-raises", **options: Any) -> StepResult | None:
        """Send one normalised message itself, not a copy; return a valid result or None.

        Args:
            action: The message.
            sent: What it is, for findings.
            raises: The code of an exception.
            options: See :meth:`CheckContext.call`.
        """
        env = self._env
        kept = copy_message(action)
        sent = f"step({sent}: {_short(action)}) as turn {self.steps + 1} of {_task(self.task)}"
        self.steps += 1
        outcome = self._call(lambda: env.step(action), sent, raises=raises, **options)
        after = self._judge(outcome.value, kept, sent) if outcome.returned else None
        if after is None:
            self.usable = False
            return None
        result: StepResult = outcome.value
        self.raw, self.history = result.messages, after
        self.ended = bool(result.terminated or result.truncated)
        self._watch(sent)
        self._record({**vars(result), "messages": after})
        return result

    def cut(self, make: Callable[[Env], Awaitable[Any]]) -> None:
        """Start a call and cancel it where it first waits. Nothing is noted: only ``close`` has to work afterwards."""
        env = self._env
        self.context.calls += 1
        self.usable = False
        self._actor.call(lambda: make(env), 0.0)

    @property
    def _env(self) -> Env:
        assert self.env is not None  # the caller has built it
        return self.env

    def _call(self, make: Callable[[], Awaitable[Any]], sent: str, *, raises: str, **options: Any) -> Outcome:
        return self.context.call(self._actor, make, sent, raises=raises, **options)

    def _note(self, code: str, sent: str, got: str) -> None:
        self.context.findings.add(code, sent=sent, got=got)

    def _judge(self, result: Any, action: Message, sent: str) -> list[Message] | None:
        """Note what is wrong with a result; return its messages, or None when the episode cannot go on."""
        try:
            check_step_result(result)
            if not all(isinstance(flag, bool | np.bool_) for flag in (result.terminated, result.truncated)):
                raise MessageError(f"terminated and truncated are {result.terminated!r:.50}, {result.truncated!r:.50}")
            after = normalize_messages(result.messages)
        except Exception as error:  # noqa: BLE001 - unknown objects
            numeric = isinstance(result, StepResult) and isinstance(result.reward, (int, float, np.number))
            if numeric and not np.isfinite(result.reward):
                self._note("reward-not-finite", sent, f"reward {result.reward!r}")
            else:
                self._note("step-result", sent, describe_error(error))
            return None
        ended = result.terminated or result.truncated
        if not ended and float(result.reward) != 0.0 and not isinstance(self.env, FromGym):  # which adds rewards up
            self._note("intermediate-reward", sent, f"reward {result.reward!r}, terminated=False, truncated=False")
        kept = [*self.history, action]
        place = common_length(kept, after)
        edited = place < len(kept)
        if edited:
            now = _short(after[place]) if place < len(after) else "nothing"
            self._note("history-edited", sent, f"message {place} was {_short(kept[place])} and is now {now}")
        if not ended:
            wanted = [call["id"] for call in action.get("tool_calls", [])]
            added = after if edited else after[len(kept) :]
            given = [str(message.get("tool_call_id")) for message in added if message["role"] == "tool"]
            if edited:
                given = given[len(given) - len(wanted) :]
            if given != wanted:
                got = f"calls with the ids {wanted!r:.150}, results for the ids {given!r:.150}"
                self._note("calls-unanswered", sent, got)
        return after

    def _watch(self, sent: str) -> None:
        """Note when the tool specifications are malformed or change, and when ``env.messages`` is not the history."""
        env, history = self._env, self.history
        try:
            specs = env.tool_specs
            faults = spec_faults(specs)
        except Exception as error:  # noqa: BLE001 - a property that may raise anything
            faults = [f"tool_specs raised {describe_error(error)}"]
        text = "" if faults else json.dumps(specs)
        if faults:
            self._note("tool-spec-invalid", f"tool_specs after {sent}", "; ".join(faults))
        elif not self._spec_text:
            self._spec_text, self.specs = text, json.loads(text)
        elif text != self._spec_text:
            self._note("tool-spec-unstable", f"tool_specs after {sent}", f"first {self._spec_text}, then {text}")
        try:
            own = normalize_messages(env.messages)
            got = f"{len(own)} messages, returned were {len(history)}; the last are {_short(own[-1:])} and "
            got = "" if own == history else got + _short(history[-1:])
        except Exception as error:  # noqa: BLE001 - a property that may raise anything
            got = describe_error(error)
        if got:
            self._note("history-mismatch", f"env.messages after {sent}", got)

    def _record(self, returned: dict[str, Any]) -> None:
        if self._recording:
            self.transcript.append(json.dumps(returned, default=repr))

    def _state(self) -> str:
        if not self.history and not self.usable:
            return "before an episode started"
        if not self.usable:
            return "after a call that failed or was cancelled"
        return f"after {self.steps} steps{', the last of which ended the episode' if self.ended else ''}"


def common_length(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many items two sequences have in common at their start."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _task(task: Task) -> str:
    return f"task {task.id!r:.60}"


def _short(value: Any) -> str:
    """A value as text, without the middle of what is long."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value[:4])) + (", …]" if len(value) > 4 else "]")
    if isinstance(value, str) and len(value) > 120:
        return f"{value[:60]!r}…({len(value)} characters)"
    return repr(value)
