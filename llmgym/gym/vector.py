"""Many conversations as one Gymnasium vector environment on one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from llmgym._util.aio import run_sync
from llmgym._util.settings import check_value
from llmgym.errors import ConfigError, MessageError
from llmgym.gym.env import MessageEnv, read_action
from llmgym.messages import Message
from llmgym.task import Task

T = TypeVar("T")

Observations = tuple[list[Message], ...]


class MessageVectorEnv(VectorEnv[Observations, Any, NDArray[Any]]):
    """What ``gymnasium.make_vec`` returns by default for every environment that :func:`llmgym.register` knows.

    All episodes run concurrently on one event loop, so waiting for tools overlaps, without processes. Each behaves as
    a :class:`MessageEnv` of its own. Observations are a tuple with one list of messages an environment; actions a
    sequence with one action an environment. After the step that ends an episode, the next step starts a new one
    in its place (``AutoresetMode.NEXT_STEP``): it ignores the action there and gives reward 0.

    Args:
        env_id: See :class:`MessageEnv`, as all but ``num_envs``.
        num_envs: Number of episodes at a time.
        split: ``"train"``, ``"val"`` or ``"test"``.
        tasks: Tasks to use instead of a split's.
        max_turns: Assistant turns after which an episode is truncated.
        render_mode: ``"ansi"`` or ``"human"``.
        task_options: Passed on to the environment's task function.

    Raises:
        ConfigError: ``num_envs`` below 1, or as :class:`MessageEnv` does.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int = 1,
        *,
        split: str = "train",
        tasks: Sequence[Task] | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **task_options: Any,
    ) -> None:
        check_value("num_envs", num_envs, int, least=1)
        first = MessageEnv(
            env_id, split=split, tasks=tasks, max_turns=max_turns, render_mode=render_mode, **task_options
        )
        others = (
            MessageEnv(env_id, tasks=first.tasks or None, max_turns=max_turns, render_mode=render_mode)
            for _ in range(num_envs - 1)
        )
        self.envs = [first, *others]
        self.num_envs = num_envs
        self.render_mode = render_mode
        self.metadata = {**MessageEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, num_envs)
        self.action_space = batch_space(first.action_space, num_envs)
        self._ended: NDArray[np.bool_] = np.zeros(num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: A number ``s`` gives environment ``i`` the seed ``s + i``; a list gives each its own.
            options: Passed on to each environment.

        Raises:
            ConfigError: A list of seeds of another length than ``num_envs``.
        """
        if seed is None or isinstance(seed, int):
            seeds: Sequence[int | None] = [None if seed is None else seed + index for index in range(self.num_envs)]
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise ConfigError(f"expected one seed for each of the {self.num_envs} environments, got {len(seeds)}")
        results = run_sync(
            _all([env.reset_async(seed=one, options=options) for env, one in zip(self.envs, seeds, strict=True)])
        )
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)
        infos: dict[str, Any] = {}
        for index, (_, info) in enumerate(results):
            infos = self._add_info(infos, info, index)
        if self.render_mode == "human":
            self.render()
        return tuple(observation for observation, _ in results), infos

    def step(
        self, actions: Any
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Step every environment, or begin its next episode when the last step ended one.

        Raises:
            MessageError: Not one action an environment, or one that is not an assistant message. No environment has
                stepped then.
            ResetNeeded: Called before ``reset``.
        """
        if isinstance(actions, str | Mapping) or not isinstance(actions, Sequence) or len(actions) != self.num_envs:
            count = f" of {len(actions)}" if isinstance(actions, Sequence) else ""
            raise MessageError(
                f"expected a sequence with one action for each of the {self.num_envs} environments, got a "
                f"{type(actions).__name__}{count}"
            )
        for ended, action in zip(self._ended, actions, strict=True):
            if not ended:
                read_action(action)  # raises before anything has stepped
        results = run_sync(
            _all(
                [
                    _begin_next(env) if ended else env.step_async(action)
                    for env, ended, action in zip(self.envs, self._ended, actions, strict=True)
                ]
            )
        )
        observations, rewards, terminated, truncated, all_info = zip(*results, strict=True)
        terminations, truncations = np.array(terminated, dtype=np.bool_), np.array(truncated, dtype=np.bool_)
        self._ended = terminations | truncations
        infos: dict[str, Any] = {}
        for index, info in enumerate(all_info):
            infos = self._add_info(infos, info, index)
        if self.render_mode == "human":
            self.render()
        return observations, np.array(rewards, dtype=np.float64), terminations, truncations, infos

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment; see :meth:`MessageEnv.render`."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close every environment. Takes the keyword arguments that Gymnasium may pass and needs none."""
        run_sync(_all([env.close_async() for env in self.envs]))


async def _begin_next(env: MessageEnv) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
    observation, info = await env.reset_async()
    return observation, 0.0, False, False, info


async def _all(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all, also after a failure, and then raise the first exception."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    values = []
    for index, result in enumerate(results):
        if isinstance(result, BaseException):
            result.add_note(f"in environment {index} of {len(results)}")
            raise result
        values.append(result)
    return values
