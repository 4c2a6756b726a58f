"""One episode under observation. Judges what every reset, step and close gives back; sends only what it is told.

``Lab`` holds what all sessions of a check share: how to make environments, the worker they run on, the findings.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import numpy as np

from llmgym._util.seeding import derive_seed
from llmgym.checking.report import Findings
from llmgym.checking.schemas import spec_faults
from llmgym.checking.worker import Actor, Outcome, Trouble, Worker, describe_error
from llmgym.env import Env, StepResult
from llmgym.errors import MessageError
from llmgym.gym.from_gym import _FromGym
from llmgym.messages import Message, copy_message, normalize_message, normalize_messages
from llmgym.registry import EnvEntry
from llmgym.rollout import check_step_result
from llmgym.task import Task

_CODE_OF = {Trouble.BLOCKS: "blocks-event-loop", Trouble.STAYS: "ignores-cancellation"}


class Lab:
    """What the sessions of one check share.

    Attributes:
        entry: The environment, its tasks and its expert.
        timeout_s: Seconds one call of the environment may take.
        seed: Seeds ``env.rng`` and the hostile actions.
        findings: Where faults are noted.
        calls: Calls of the environment so far.
        lost_calls: Calls that did not come back in time.
        on_call: Told what is sent before each call.
    """

    def __init__(self, entry: EnvEntry, timeout_s: float, seed: int, on_call: Callable[[str], None]) -> None:
        self.entry = entry
        self.timeout_s = timeout_s
        self.seed = seed
        self.findings = Findings()
        self.calls = 0
        self.lost_calls = 0
        self.on_call = on_call
        self._worker = Worker()

    @property
    def worker(self) -> Worker:
        """The worker, a fresh one when the last is lost."""
        if self._worker.lost:
            self._worker = Worker()
        return self._worker

    def session(self, task: Task, index: int = 0, *, record: bool = False) -> Session:
        """A fresh environment for one episode of ``task``.

        Args:
            task: The task.
            index: Number of the episode among those of the task.
            record: Keep the transcript.
        """
        return Session(self, task, index, record)

    def run(self, make: Callable[[], Awaitable[Any]], timeout_s: float, sent: str) -> Any:
        """Await ``make()`` (a whole episode) and return its value, or None when that fails; faults are noted."""
        actor = self.worker.start()
        outcome = self.call(actor, make, timeout_s, sent)
        actor.end()
        if outcome.error is not None:
            self.findings.add("step-raises", sent=sent, got=f"the episode loop raised {describe_error(outcome.error)}")
        return outcome.value

    def call(
        self,
        actor: Actor,
        make: Callable[[], Awaitable[Any]],
        timeout_s: float,
        sent: str,
        hangs: str = "call-hangs",
    ) -> Outcome:
        """Run one call and note when it blocks, or hangs (under the code ``hangs``)."""
        self.calls += 1
        self.on_call(sent)
        outcome = actor.call(make, timeout_s)
        if outcome.trouble is not None:
            code = _CODE_OF.get(outcome.trouble, hangs)
            self.lost_calls += code != "hanging-tool"  # which was sent to be cut
            where = f"; it stands at {outcome.blocked_at}" if outcome.blocked_at else ""
            self.findings.add(code, sent=sent, got=f"nothing within {timeout_s:g} s{where}")
        elif outcome.blocked_at is not None:
            got = f"the event loop stood still for a quarter of a second or longer, at {outcome.blocked_at}"
            self.findings.add("blocks-event-loop", sent=sent, got=got)
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
        transcript: Everything that came back, as JSON texts, when it is recorded.
        steps: Steps taken.
        ended: The environment ended the episode.
        usable: No call has failed so far.
        raw: The list of messages that the last call returned, itself.
    """

    def __init__(self, lab: Lab, task: Task, index: int, record: bool) -> None:
        self.lab = lab
        self.task = task
        self.env: Env | None = None
        self.history: list[Message] = []
        self.specs: list[Any] = []
        self.transcript: list[str] = []
        self.steps = 0
        self.ended = False
        self.usable = False
        self.raw: Any = None
        self._rng = random.Random(derive_seed(lab.seed, task.id, index))
        self._actor = lab.worker.start()
        self._spec_text = ""
        self._recording = record
        self._closed = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def build(self) -> bool:
        """Make the environment; whether that worked."""

        async def make() -> Any:
            return self.lab.entry.make_env(self.task)

        sent = f"make the environment for {_task(self.task)}"
        self.lab.on_call(sent)
        outcome = self._actor.call(make, self.lab.timeout_s)
        if outcome.trouble is not None:
            self._note("build-fails", sent, f"nothing within {self.lab.timeout_s:g} s")
        elif outcome.error is not None:
            self._note("build-fails", sent, describe_error(outcome.error))
        elif not isinstance(outcome.value, Env):
            self._note("build-fails", sent, f"no llmgym.Env but {type(outcome.value).__name__} {outcome.value!r:.200}")
        else:
            self.env = outcome.value
            self.env.rng = self._rng
        return self.env is not None

    def reset(self) -> bool:
        """Make the environment, unless that is done, and begin the episode; whether that worked."""
        if self.env is None and not self.build():
            return False
        env = self.env
        assert env is not None  # build() made it
        sent = f"reset({_task(self.task)})"
        outcome = self._call(lambda: env.reset(copy.deepcopy(self.task)), sent)
        if outcome.error is not None:
            self._note("reset-raises", sent, describe_error(outcome.error))
        if outcome.error is not None or outcome.trouble is not None:
            return False
        self.raw = outcome.value
        try:
            self.history = normalize_messages(outcome.value)
            fault = "" if self.history else "an empty list"
        except Exception as error:  # noqa: BLE001 - a list of a stranger's objects
            fault = describe_error(error)
        if fault:
            self._note("opening-invalid", sent, fault)
            return False
        self.usable = True
        self._watch_specs(sent)
        self._compare_messages(sent)
        self._record({"opening": self.history, "specs": self._spec_text})
        return self.usable

    def step(self, message: Any, **options: Any) -> StepResult | None:
        """Send one assistant message as every driver does, normalised; return a valid result or None.

        Args:
            message: The message, which must be one that :func:`llmgym.normalize_message` takes.
            options: See :meth:`send`.
        """
        action = normalize_message(message, role="assistant", call_id_prefix=f"call_{self.steps}_")
        return self.send(action, **options)

    def send(
        self,
        action: Message,
        *,
        sent: str = "",
        raises: str = "step-raises",
        hangs: str = "call-hangs",
        timeout_s: float | None = None,
    ) -> StepResult | None:
        """Send one normalised message itself, not a copy; return a valid result or None.

        Args:
            action: The message.
            sent: What it is, for findings.
            raises: The code of an exception.
            hangs: The code of a call that has to be cut.
            timeout_s: Other than the lab's.
        """
        env = self.env
        assert env is not None and self.usable  # a caller looks at `usable` first
        kept = copy_message(action)
        sent = f"step({sent + ': ' if sent else ''}{_short(action)}) as turn {self.steps + 1} of {_task(self.task)}"
        self.steps += 1
        outcome = self._call(lambda: env.step(action), sent, timeout_s, hangs)
        if outcome.error is not None:
            self._note(raises, sent, describe_error(outcome.error))
        if outcome.error is not None or outcome.trouble is not None:
            self.usable = False
            return None
        after = self._judge(outcome.value, kept, sent)
        if after is None:
            self.usable = False
            return None
        result: StepResult = outcome.value
        self.raw, self.history = result.messages, after
        self.ended = bool(result.terminated or result.truncated)
        self._watch_specs(sent)
        self._compare_messages(sent)
        self._record({**vars(result), "messages": after})
        return result

    def close(self) -> None:
        """Close the environment, once."""
        if self._closed:
            return
        self._closed = True
        env = self.env
        if env is not None and not self._actor.worker.lost:
            sent = f"close() {self._state()}"
            outcome = self._call(env.close, sent)
            if outcome.error is not None:
                self._note("close-raises", sent, describe_error(outcome.error))
        self._actor.end()

    def cut(self, make: Callable[[Env], Awaitable[Any]]) -> None:
        """Begin a call and cancel it where it first waits. Nothing is noted: only ``close`` has to work afterwards."""
        env = self.env
        assert env is not None  # built by the caller
        self.lab.calls += 1
        self.usable = False
        self._actor.call(lambda: make(env), 0.0)

    def _call(
        self,
        make: Callable[[], Awaitable[Any]],
        sent: str,
        timeout_s: float | None = None,
        hangs: str = "call-hangs",
    ) -> Outcome:
        return self.lab.call(self._actor, make, self.lab.timeout_s if timeout_s is None else timeout_s, sent, hangs)

    def _note(self, code: str, sent: str, got: str) -> None:
        self.lab.findings.add(code, sent=sent, got=got)

    def _judge(self, result: Any, action: Message, sent: str) -> list[Message] | None:
        """Note what is wrong with a result; return its messages, or None when the episode cannot go on."""
        try:
            check_step_result(result)
            if not all(isinstance(flag, bool | np.bool_) for flag in (result.terminated, result.truncated)):
                raise MessageError(f"terminated and truncated are {result.terminated!r:.50}, {result.truncated!r:.50}")
            after = normalize_messages(result.messages)
        except Exception as error:  # noqa: BLE001 - a stranger's objects
            numeric = isinstance(result, StepResult) and isinstance(result.reward, (int, float, np.number))
            if numeric and not np.isfinite(result.reward):
                self._note("reward-not-finite", sent, f"reward {result.reward!r}")
            else:
                self._note("step-result", sent, describe_error(error))
            return None
        ended = result.terminated or result.truncated
        if not ended and float(result.reward) != 0.0 and not isinstance(self.env, _FromGym):  # which adds rewards up
            self._note("intermediate-reward", sent, f"reward {result.reward!r}, terminated=False, truncated=False")
        kept = [*self.history, action]
        if after[: len(kept)] == kept:
            added = after[len(kept) :]
        else:
            place = next((at for at, (old, new) in enumerate(zip(kept, after, strict=False)) if old != new), len(after))
            now = _short(after[place]) if place < len(after) else "nothing"
            self._note("history-edited", sent, f"message {place} was {_short(kept[place])} and is now {now}")
            added = after
        if not ended:
            wanted = [call["id"] for call in action.get("tool_calls", [])]
            given = [str(message.get("tool_call_id")) for message in added if message["role"] == "tool"]
            given = given[len(given) - len(wanted) :] if added is after else given
            if given != wanted:
                self._note(
                    "calls-unanswered", sent, f"calls with the ids {wanted!r:.150}, results for the ids {given!r:.150}"
                )
        return after

    def _watch_specs(self, sent: str) -> None:
        env = self.env
        assert env is not None  # called after reset and step only
        try:
            specs = env.tool_specs
            faults = spec_faults(specs)
        except Exception as error:  # noqa: BLE001 - a stranger's property
            specs, faults = [], [f"tool_specs raised {describe_error(error)}"]
        if faults:
            self._note("tool-spec-invalid", f"tool_specs after {sent}", "; ".join(faults))
            return
        text = json.dumps(specs)
        if not self._spec_text:
            self._spec_text, self.specs = text, json.loads(text)
        elif text != self._spec_text:
            self._note("tool-spec-unstable", f"tool_specs after {sent}", f"first {self._spec_text}, then {text}")

    def _compare_messages(self, sent: str) -> None:
        env = self.env
        assert env is not None  # called after reset and step only
        try:
            own = normalize_messages(env.messages)
        except Exception as error:  # noqa: BLE001 - a stranger's property
            self._note("history-mismatch", f"env.messages after {sent}", describe_error(error))
            return
        if own != self.history:
            got = f"{len(own)} messages, returned were {len(self.history)}; the last are {_short(own[-1:])} and "
            self._note("history-mismatch", f"env.messages after {sent}", got + _short(self.history[-1:]))

    def _record(self, came: dict[str, Any]) -> None:
        if self._recording:
            self.transcript.append(json.dumps(came, default=repr))

    def _state(self) -> str:
        if self.env is not None and not self.history and not self.usable:
            return "before an episode began"
        if not self.usable:
            return "after a call that failed or was cut"
        return f"after {self.steps} steps{', the last of which ended the episode' if self.ended else ''}"


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
