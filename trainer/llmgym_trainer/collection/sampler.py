"""What a training step trains on: samples its groups, replaces those without reward variance, and validates."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from accelerate import PartialState

from llmgym.episode import StopReason
from llmgym.errors import ConfigError, LLMGymError
from llmgym.task import Task
from llmgym_trainer.collection.collector import Collector, Group
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.data.task_stream import MixtureStream, TaskStream
from llmgym_trainer.distributed import gather
from llmgym_trainer.errors import TooManyErrorsError, ruined_weights
from llmgym_trainer.metrics import GROUP_METRICS, EpisodeStats, rollout_metrics
from llmgym_trainer.runs.interrupts import StopRequest, TrainingInterrupted, run_until_closed
from llmgym_trainer.runs.reporting import Reporter
from llmgym_trainer.runs.state import RunState
from llmgym_trainer.tokens.policy import NonFiniteLogprobError


class StepSampler:
    """Samples the groups of a step when the trainer asks for them, with the weights of that moment.

    Args:
        collector: Runs episodes.
        config: All settings.
        state: The state of the run, whose ``cursor`` and ``seen_tokens`` this advances. Metrics go there.
        tasks: The training tasks.
        val_tasks: Held-out tasks, maybe none.
        reporter: Shows progress and records episodes.
        stop: Asks the run to stop.
        source_of: The name of a task's environment, if there are several.
    """

    def __init__(
        self,
        collector: Collector,
        config: GRPOConfig,
        state: RunState,
        tasks: TaskStream | MixtureStream,
        val_tasks: Sequence[Task],
        *,
        reporter: Reporter,
        stop: StopRequest,
        source_of: Callable[[Task], str] = lambda task: "",
    ) -> None:
        self._collector, self._config, self._state = collector, config, state
        self._tasks, self.val_tasks = tasks, list(val_tasks)
        self._reporter, self._stop, self._source_of = reporter, stop, source_of
        self._credit = config.make_credit()
        self._limits, self._val_limits = config.limits(), config.limits(validation=True)
        self._rank, self._world = PartialState().process_index, PartialState().num_processes
        self._room_checked = False

    def sample(self, step: int) -> list[Group]:
        """Sample this process's groups of a step.

        Returns:
            ``batch_size / processes`` groups to train on, and in front of them those they replaced.

        Raises:
            TooManyErrorsError: More than ``max_error_share`` of the episodes of all processes failed.
            RuinedWeightsError: All of them failed, because the model gives no probabilities any more.
            ConfigError: In the first step here, no prompt leaves room for a turn.
        """
        config, state, clock = self._config, self._state, self._collector.clock
        start, sampling_s, env_s = time.perf_counter(), clock.sampling_s, clock.env_s
        self._collector.sync(step)
        groups: list[Group] = []
        missing, total = config.batch_size // self._world, 0
        for attempt in range(config.max_sampling_attempts):
            wanted = gather(missing)
            if not any(wanted):
                break
            before = sum(wanted[: self._rank])
            numbers = range(before, before + missing)
            tasks = [self._tasks[state.cursor + number] for number in numbers]
            state.cursor += sum(wanted)
            total += sum(wanted)
            phase = f"train{attempt}"
            sampled = self._collect(tasks, config.episodes_per_task, numbers, phase, step, config.temperature)
            if attempt < config.max_sampling_attempts - 1:
                for group in sampled:
                    rewards = [self._credit.rewards(episode) for episode in group.episodes]
                    group.replaced = not self._credit.has_reward_variance(rewards)
            groups += sampled
            missing -= sum(not group.replaced for group in sampled)
        state.add("time/rollout", time.perf_counter() - start)
        state.add("time/sampling", clock.sampling_s - sampling_s)
        state.add("time/env", clock.env_s - env_s)
        stats = self._stats(groups)
        for name, value in rollout_metrics(stats, config.success_reward).items():
            state.add(name, value)
        state.seen_tokens += sum(s.sampled_tokens + s.context_tokens for s in stats)
        state.add("num_tokens", float(state.seen_tokens))
        state.add("groups/sampled", float(total))
        try:
            self._check_failures(groups, stats, step, f"the episodes of step {step}")
        except LLMGymError:
            self._reporter.episodes("train", step, self._rank, [e for group in groups for e in group.all_episodes])
            raise
        if not self._room_checked:
            self._check_room(groups, stats, step)
            self._room_checked = True
        return groups

    def validate(self, step: int) -> dict[str, float]:
        """Run one episode of each validation task, and record them.

        Returns:
            The metrics of all processes, named ``val/…``.

        Raises:
            TooManyErrorsError: More than ``max_error_share`` of the episodes of all processes failed.
            RuinedWeightsError: All of them failed, because the model gives no probabilities any more.
        """
        config = self._config
        start = time.perf_counter()
        self._collector.sync(step)
        numbers = range(self._rank, len(self.val_tasks), self._world)
        temperature = config.temperature if config.val_temperature is None else config.val_temperature
        tasks = [self.val_tasks[number] for number in numbers]
        one_by_one = config.sequential_validation
        groups = self._collect(tasks, 1, numbers, "val", step, temperature, one_by_one=one_by_one)
        self._reporter.episodes("val", step, self._rank, [e for group in groups for e in group.all_episodes])
        stats = self._stats(groups)
        self._check_failures(groups, stats, step, f"the validation episodes of step {step}")
        metrics = rollout_metrics(stats, config.success_reward)
        return {f"val/{name}": value for name, value in metrics.items() if name not in GROUP_METRICS} | {
            "val/time": time.perf_counter() - start
        }

    def _collect(
        self,
        tasks: Sequence[Task],
        episodes_per_task: int,
        numbers: Sequence[int],
        phase: str,
        step: int,
        temperature: float,
        *,
        one_by_one: bool = False,
    ) -> list[Group]:
        """Run the episodes of these tasks, or stop on all processes when one was asked to."""
        numbered = list(zip(numbers, tasks, strict=True))
        groups: list[Group] = []
        with (
            contextlib.suppress(TrainingInterrupted),  # raised below, on all processes
            self._stop.waiting(),
            self._reporter.rollout(len(tasks) * episodes_per_task) as on_episode,
        ):
            for batch in [[pair] for pair in numbered] if one_by_one else [numbered]:
                groups += run_until_closed(
                    self._collector.collect(
                        [task for _, task in batch],
                        episodes_per_task,
                        self._val_limits if phase == "val" else self._limits,
                        numbers=[number for number, _ in batch],
                        temperature=temperature,
                        phase=phase,
                        step=step,
                        on_episode=on_episode,
                    ),
                    blocked_after_s=self._config.env_timeout_s,
                )
        self._stop.check_together()
        return groups

    def _stats(self, groups: Sequence[Group]) -> list[EpisodeStats]:
        """Statistics of the episodes of all processes."""
        own = [
            EpisodeStats.of(
                episode, (self._rank, number), self._credit.rewards(episode).outcome, self._source_of(episode.task)
            )
            for number, group in enumerate(groups)
            for episode in group.all_episodes
        ]
        return [stats for of_process in gather(own) for stats in of_process]

    def _check_failures(self, groups: Sequence[Group], stats: Sequence[EpisodeStats], step: int, what: str) -> None:
        """Raise when too large a share of ``stats``, all processes' episodes, failed."""
        share = sum(s.stop_reason is StopReason.ERROR for s in stats) / max(len(stats), 1)
        if share <= self._config.max_error_share:
            return
        failed = [episode for group in groups for episode in group.failed]
        no_number = all(s.error_type == NonFiniteLogprobError.__name__ for s in stats)
        if no_number and self._state.trained_steps > 0:
            raise ruined_weights("gives no probabilities but NaN", step, self._config)
        first = failed[0].stop_detail if failed else "see the other processes"
        raise TooManyErrorsError(
            f"{share:.0%} of {what} failed, more than max_error_share={self._config.max_error_share:.0%}. The first "
            f"failure: {first}. All episodes are in {self._reporter.folder / 'episodes'}"
        )

    def _check_room(self, groups: Sequence[Group], stats: Sequence[EpisodeStats], step: int) -> None:
        """Raise :class:`ConfigError` when all prompts, on all processes, are too long for a turn."""
        good = [s for s in stats if s.stop_reason is not StopReason.ERROR]
        if not good or any(s.turns or s.stop_reason is not StopReason.CONTEXT_OVERFLOW for s in good):
            return
        first = [group.episodes[0] for group in groups if group.episodes]
        own = [len(self._collector.codec.render(e.initial_messages, e.tool_specs)) for e in first]
        lengths = [length for of_process in gather(own) for length in of_process]
        limits = self._limits
        raise ConfigError(
            f"no episode of step {step} had room for a turn: the prompts have {min(lengths)} to {max(lengths)} tokens "
            f"and max_model_length={limits.max_model_length}, of which {limits.reply_reserve_tokens} are reserved for "
            f"a reply. Set max_model_length to {max(lengths) + limits.reply_reserve_tokens} plus what "
            f"{limits.max_turns} turns need, or shorten the prompts"
        )
