"""Runs groups of episodes, with the model as policy."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmgym._util.seeding import derive_seed
from llmgym.env import Env
from llmgym.episode import Episode, EpisodeLimits, StopReason
from llmgym.errors import ConfigError
from llmgym.messages import Message, ToolSpec
from llmgym.policy import Policy, PolicyTurn
from llmgym.rollout import make_env, run_episode
from llmgym.task import Task
from llmgym_trainer.engines.base import Engine, EngineWrapper, Sample, SamplingParams
from llmgym_trainer.engines.deterministic import BatchGate
from llmgym_trainer.runs.interrupts import run_until_closed
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy


@dataclass
class Group:
    """The episodes of one task in one step.

    Attributes:
        task: The task.
        episodes: Those that did not fail.
        failed: Those that ended with ERROR, earlier attempts of a retried episode included.
        replaced: Whether another group trains in its place, because this one has no reward variance.
    """

    task: Task
    episodes: list[Episode] = field(default_factory=list)
    failed: list[Episode] = field(default_factory=list)
    replaced: bool = False

    @property
    def all_episodes(self) -> list[Episode]:
        """Every episode, for the records."""
        return [*self.episodes, *self.failed]


class RolloutClock:
    """Splits the wall clock of a rollout in two parts that add up to it.

    Attributes:
        sampling_s: Seconds with at least one completion being sampled.
        env_s: All other seconds: every live episode is inside its environment (or in the loop around it).
    """

    def __init__(self) -> None:
        self.sampling_s = self.env_s = 0.0
        self._in_flight = 0
        self._since = time.perf_counter()

    def start(self) -> None:
        """Begin a rollout."""
        self._since = time.perf_counter()

    def change(self, by: int) -> None:
        """Count completions in flight, +1 as one begins and -1 as one ends; 0 only takes the time."""
        now = time.perf_counter()
        if self._in_flight:
            self.sampling_s += now - self._since
        else:
            self.env_s += now - self._since
        self._since = now
        self._in_flight += by


class _TimedEngine(EngineWrapper):
    """An engine whose ``sample`` reports to a :class:`RolloutClock`."""

    def __init__(self, engine: Engine, clock: RolloutClock) -> None:
        super().__init__(engine)
        self._clock = clock

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        self._clock.change(+1)
        try:
            return await self._engine.sample(prompt_ids, params, key, rng)
        finally:
            self._clock.change(-1)


class Collector:
    """Runs groups of episodes concurrently.

    Attributes:
        codec: Renders and parses.
        clock: How long sampling and environments took.

    Args:
        codec: Renders and parses.
        engine: Samples.
        env_factory: Builds a fresh environment for one episode of a task.
        seed: The run seed.
        max_concurrent_episodes: Episodes alive at once; None for all.
        episode_retries: Times a failed episode is tried again on a fresh environment.
        deterministic: Sample in batches that follow from the episodes alone, see :class:`BatchGate`.
        env_id: Recorded in the episodes; a function of the task where there are several environments.
        provenance: Recorded in the episodes.
    """

    def __init__(
        self,
        codec: Codec,
        engine: Engine,
        env_factory: Callable[[Task], Env],
        *,
        seed: int,
        max_concurrent_episodes: int | None = None,
        episode_retries: int = 1,
        deterministic: bool = False,
        env_id: str | Callable[[Task], str] = "",
        provenance: dict[str, Any] | None = None,
    ) -> None:
        self.codec = codec
        self.clock = RolloutClock()
        self._engine: Engine = _TimedEngine(engine, self.clock)
        self._gate: BatchGate | None = None
        if deterministic:
            self._engine = self._gate = BatchGate(self._engine, max_concurrent_episodes)
        self._env_factory = env_factory
        self._seed = seed
        self._max_concurrent_episodes = max_concurrent_episodes
        self._episode_retries = episode_retries
        self._env_id: Callable[[Task], str] = env_id if callable(env_id) else lambda task: env_id
        self._provenance = dict(provenance or {})

    def sync(self, version: int) -> None:
        """Sample with the current weights from now on."""
        self._engine.sync(version)

    async def collect(
        self,
        tasks: Sequence[Task],
        episodes_per_task: int,
        limits: EpisodeLimits,
        *,
        temperature: float,
        phase: str,
        step: int,
        numbers: Sequence[int] | None = None,
        on_episode: Callable[[Episode], None] = lambda episode: None,
    ) -> list[Group]:
        """Run ``episodes_per_task`` episodes of each task.

        Args:
            tasks: One group each, in order; a task may occur twice.
            episodes_per_task: Size of a group.
            limits: What ends an episode from outside.
            temperature: Sampling temperature.
            phase: Part of the sampling seed, such as ``"train"``; recorded in the episodes.
            step: Optimizer step, likewise.
            numbers: Number of each task among those of all processes, part of the sampling seed; None counts from 0.
            on_episode: Called as each episode ends.

        Returns:
            The groups in the order of ``tasks``, their episodes in the order of their index.
        """
        slots = asyncio.Semaphore(self._max_concurrent_episodes or max(1, len(tasks) * episodes_per_task))

        async def play(number: int, task: Task, index: int) -> list[Episode]:
            attempts: list[Episode] = []
            async with slots:
                for attempt in range(self._episode_retries + 1):
                    episode = await self._attempt(
                        task, index, limits, temperature, (phase, step, number, task.id, index, attempt)
                    )
                    episode.provenance |= {"phase": phase, "step": step, "attempt": attempt}
                    attempts.append(episode)
                    if episode.stop_reason is not StopReason.ERROR:
                        break
                if self._gate is not None:
                    self._gate.end_episode()
            on_episode(attempts[-1])
            return attempts

        self.clock.start()
        if self._gate is not None:
            self._gate.begin(len(tasks) * episodes_per_task)
        async with asyncio.TaskGroup() as running:
            plays = [
                [running.create_task(play(number, task, index)) for index in range(episodes_per_task)]
                for number, task in zip(numbers or range(len(tasks)), tasks, strict=True)
            ]
        self.clock.change(0)
        groups = []
        for task, of_task in zip(tasks, plays, strict=True):
            every = [episode for played in of_task for episode in played.result()]
            failed = [episode for episode in every if episode.stop_reason is StopReason.ERROR]
            groups.append(Group(task, [episode for episode in every if episode not in failed], failed))
        return groups

    async def _attempt(
        self, task: Task, index: int, limits: EpisodeLimits, temperature: float, name: tuple[Any, ...]
    ) -> Episode:
        policy = ModelPolicy(
            self.codec,
            self._engine,
            limits,
            key="/".join(map(str, name)),
            rng=random.Random(derive_seed(self._seed, "sampling", *name)),
            temperature=temperature,
        )
        return await run_episode(
            self._env_factory, task, policy, limits,
            seed=self._seed, episode_index=index, env_id=self._env_id(task), provenance=self._provenance,
        )  # fmt: skip


class _NoPolicy(Policy):
    """Ends the episode where its first turn would begin."""

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn:
        return PolicyTurn(stop=StopReason.MAX_TURNS)


def check_first_reset(
    env_factory: Callable[[Task], Env], tasks: Sequence[Task], limits: EpisodeLimits, *, seed: int
) -> None:
    """Try the environment before a model loads: build, reset and close it for the first task, and if the reset fails
    also for the last task.

    A reset may fail now and then, which training tolerates. An environment that fails for both tasks is broken.

    Args:
        env_factory: Builds a fresh environment for one episode of a task.
        tasks: The tasks of one environment.
        limits: ``env_timeout_s`` bounds a reset.
        seed: The run seed.

    Raises:
        ConfigError: An environment cannot be built, or neither reset works.
    """
    failed: list[str] = []
    for task in (tasks[0], tasks[-1]):
        try:
            env = make_env(env_factory, task)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the environment of task {task.id!r} cannot be built: env_factory raised "
                f"{type(error).__name__}: {error}"
            ) from error
        episode = run_until_closed(
            run_episode(env, task, _NoPolicy(), limits, seed=seed), blocked_after_s=limits.env_timeout_s
        )
        if episode.stop_reason is StopReason.MAX_TURNS:
            return
        failed.append(f"task {task.id!r} ({episode.stop_detail})")
    raise ConfigError(
        f"the environment {episode.env_id!r} cannot begin {'; nor '.join(failed)}. Fix it, and test it with "
        "llmgym check"
    )
