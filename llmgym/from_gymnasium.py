"""Any Gymnasium environment over message lists as an :class:`~llmgym.Env`."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable
from typing import Any, Literal

import gymnasium
import numpy as np

from llmgym._util.aio import CallThread
from llmgym.env import Env, StepResult
from llmgym.errors import ConfigError
from llmgym.messages import Message, MessageCopies, ToolSpec, copy_message, normalize_messages
from llmgym.task import Task

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
    return FromGym(target, only_new=observation == "new")


class FromGym(Env):
    """What :func:`from_gym` returns."""

    def __init__(self, target: GymEnv | str | Callable[[], GymEnv], *, only_new: bool) -> None:
        self.rng = random.Random()
        self._target = target
        self._only_new = only_new
        self._thread: CallThread | None = None
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
            self._thread = CallThread()
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
