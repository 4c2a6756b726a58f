"""Any Gymnasium environment over message lists as an ``Env``. Knows the Gymnasium API; needs no base class of ours."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import queue
import random
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import gymnasium
import numpy as np

from llmgym.env import Env, StepResult
from llmgym.errors import ConfigError
from llmgym.messages import Message, MessageCopies, ToolSpec, copy_message, normalize_messages
from llmgym.task import Task

T = TypeVar("T")

GymEnv = gymnasium.Env[Any, Any]


def from_gym(target: GymEnv | str | Callable[[], GymEnv], *, observation: Literal["history", "new"] = "history") -> Env:
    """Turn a Gymnasium environment over message lists into an :class:`Env`, for one episode at a time.

    What the Gymnasium environment sees and gives:

    - ``reset(seed=..., options={"task": task})`` with the :class:`Task`. The seed is ``task.metadata["seed"]`` when
      that is a whole number, so that an environment which draws its scenario from the seed plays the same one in all
      episodes of a task; else it is drawn from ``Env.rng``.
    - ``step([message])``: a list that holds the assistant message, normalised.
    - Observations are lists of chat messages: the whole conversation, or only what is new.
    - ``info["tool_specs"]`` of ``reset`` becomes ``tool_specs`` (without it, no tools), ``info["metrics"]`` of each
      step becomes ``StepResult.metrics``.
    - Step rewards are added up: ``StepResult.reward`` is the sum so far, and so the return of the episode at its
      end, by termination or truncation alike.

    All calls run on one daemon thread, so neither a blocking environment nor one tied to its thread is a problem.

    Args:
        target: A ``gymnasium.Env`` class or function without arguments, or an id for ``gymnasium.make``: ``reset``
            makes the environment with it and ``close`` closes it. Or an environment, which stays open.
        observation: ``"history"``: an observation is the whole conversation. ``"new"``: it is what came after the
            last action, which the history here then goes on with.

    Raises:
        ConfigError: ``target`` or ``observation`` is none of these.
    """
    if observation not in ("history", "new"):
        raise ConfigError(f"observation must be 'history' or 'new', got {observation!r}")
    if not isinstance(target, gymnasium.Env | str) and not callable(target):
        raise ConfigError(
            "from_gym takes a gymnasium.Env, a class or function that makes one, or an id for gymnasium.make; got "
            f"{type(target).__name__} {target!r:.80}"
        )
    return _FromGym(target, only_new=observation == "new")


class _FromGym(Env):
    def __init__(self, target: GymEnv | str | Callable[[], GymEnv], *, only_new: bool) -> None:
        self.rng = random.Random()
        self._target = target
        self._only_new = only_new
        self._thread: _CallThread | None = None
        self._gym_env: GymEnv | None = None  # touched on the thread only
        self._messages: list[Message] = []
        self._copies = MessageCopies()
        self._tool_specs: list[ToolSpec] = []
        self._total = 0.0

    async def reset(self, task: Task) -> list[Message]:
        seed = task.metadata.get("seed")
        if not isinstance(seed, int) or isinstance(seed, bool):
            seed = self.rng.getrandbits(31)
        if self._thread is None:
            self._thread = _CallThread()
        observation, info = await self._thread.run(lambda: self._made().reset(seed=seed, options={"task": task}))
        self._messages = normalize_messages(observation)
        self._tool_specs = copy.deepcopy(list(info.get("tool_specs", [])))
        self._total = 0.0
        return self.messages

    async def step(self, message: Message) -> StepResult:
        if self._thread is None:
            raise RuntimeError("no episode is running; call reset before step")
        action = [copy_message(message)]
        result = await self._thread.run(lambda: self._made().step(action))
        observation, reward, terminated, truncated, info = result
        known = [*self._messages, copy_message(message)]
        self._messages = (
            known + normalize_messages(observation) if self._only_new else normalize_messages(observation, known)
        )
        self._total += float(reward)
        metrics = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in info.get("metrics", {}).items()
        }
        return StepResult(bool(terminated), bool(truncated), self.messages, self._total, metrics)

    @property
    def tool_specs(self) -> list[ToolSpec]:
        return copy.deepcopy(self._tool_specs)

    @property
    def messages(self) -> list[Message]:
        return self._copies.of(self._messages)

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            closing = thread.finish(self._close_made)
            if not thread.abandoned:  # else it happens when the call before it comes back, and nobody waits for that
                await asyncio.wrap_future(closing)

    def _made(self) -> GymEnv:
        if self._gym_env is None:
            if isinstance(self._target, gymnasium.Env):
                self._gym_env = self._target
            else:
                self._gym_env = gymnasium.make(self._target) if isinstance(self._target, str) else self._target()
        return self._gym_env

    def _close_made(self) -> None:
        made, self._gym_env = self._gym_env, None
        if made is not None and made is not self._target:
            made.close()


class _CallThread:
    """A daemon thread that runs one call after the other; a call that hangs occupies this thread alone.

    Attributes:
        abandoned: The wait for a call was cancelled, so the thread may hang in it.
    """

    def __init__(self) -> None:
        self.abandoned = False
        self._calls: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any], bool]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, daemon=True, name="llmgym-gym-env").start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread and return its result."""
        try:
            return await asyncio.wrap_future(self._put(function))
        except asyncio.CancelledError:
            self.abandoned = True
            raise

    def finish(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Queue the last call, after which the thread ends."""
        return self._put(function, last=True)

    def _put(self, function: Callable[[], T], *, last: bool = False) -> concurrent.futures.Future[T]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._calls.put((outcome, function, last))
        return outcome

    def _work(self) -> None:
        last = False
        while not last:
            outcome, function, last = self._calls.get()
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(function())
                except BaseException as error:  # noqa: BLE001 - carried to whoever waits, whatever it is
                    if isinstance(error, StopIteration) or not isinstance(error, Exception):
                        # A future cannot hold StopIteration, and sys.exit() in an environment must not end the process.
                        error = RuntimeError(f"{type(error).__name__}: {error}")
                    outcome.set_exception(error)
            del outcome, function  # while waiting for the next call, keep nothing of this one alive
