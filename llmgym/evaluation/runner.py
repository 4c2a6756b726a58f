"""Runs the episodes of an evaluation, several at a time, and reports.

An evaluation ends early when its endpoint is lost, when all its episodes fail, when its money is spent, or
when it is interrupted; the record then holds the episodes that ended, the report says why there are no more, and
``resume`` runs the others. An episode cut short by a lost endpoint or an interruption counts for nothing, its tokens
included. In the other cases the episodes already running are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, ParamSpec, TypeVar

from llmgym._util.aio import run_sync
from llmgym._util.progress import ProgressBar
from llmgym.episode import Episode, StopReason
from llmgym.errors import ConfigError
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.folder import EvaluationFolder
from llmgym.evaluation.report import Report
from llmgym.evaluation.summary import EpisodeSummary, build_report, summarize
from llmgym.records import EpisodeWriter
from llmgym.rollout import run_episode
from llmgym.task import Task

P = ParamSpec("P")
R = TypeVar("R")

FAILED_IN_A_ROW = 10
FAILED_TASKS = 3
"""An evaluation ends after this many failed episodes in a row, of this many tasks (or of all, if there are fewer)."""


def _takes_arguments_of(make: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the signature of a class, for editors, type checkers and ``help``."""

    def decorate(function: Callable[..., R]) -> Callable[P, R]:
        returned = inspect.signature(function).return_annotation
        signature = inspect.signature(make).replace(return_annotation=returned)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    return decorate


@_takes_arguments_of(EvalConfig)
def run_and_report(*args: Any, **settings: Any) -> Report:
    """Let a policy act in every task a number of times, and report how it did. Works in notebooks too.

    Each episode is run as in training: :func:`llmgym.run_episode`, with its stop reasons and its policy on malformed
    calls. It is recorded as soon as it ends.

    Args:
        args: The environment, see :class:`EvalConfig`.
        settings: The fields of :class:`EvalConfig`.

    Returns:
        The report, also when the evaluation ended early; then ``stopped`` says why.

    Raises:
        UnknownEnvironmentError: There is no such environment, or it has no expert.
        TaskError: There is no such split, there are no tasks, or two have one id.
        ConfigError: A setting is wrong or contradicts another, or ``out`` holds something else. Like the errors above
            it comes before the first request.
        EndpointLostError: The endpoint was lost before the first episode ended, so that there is nothing to report.
    """
    return run_sync(EvaluationRun(EvalConfig(*args, **settings)).run())


class EvaluationRun:
    """One evaluation. Making it checks everything that can be checked before the first request, and loads the model.

    Args:
        config: Its settings.

    Raises:
        LLMGymError: What :func:`run_and_report` raises before its first request.
    """

    def __init__(self, config: EvalConfig) -> None:
        self._config = config
        self._env_id, self._make_env = config.resolve_env()
        self._tasks = config.load_tasks()
        self._folder = EvaluationFolder(config.out, resume=config.resume)
        self._source = config.make_source()
        self._settings = config.record(self._env_id, self._tasks, self._source)
        self._done: list[EpisodeSummary] = []
        self._rewards: list[float] = []
        self._failed: list[str] = []  # tasks of the latest run of failed episodes
        self._cost = 0.0
        self._paid = self._uncounted_turns = 0
        self._waiting: deque[tuple[Task, int]] = deque()
        self._stopped: str | None = None

    async def run(self) -> Report:
        """Run what is left, report, and free the source. Once only; cancelled, it still writes the report."""
        try:
            with self._folder.claim(self._settings):
                try:
                    await self._run_episodes()
                except asyncio.CancelledError:
                    self._stopped = "it was interrupted; --resume runs the rest"
                    raise
                finally:
                    if self._done:
                        report = self._report()
                        self._folder.write_report(report)
        finally:
            await self._source.close()
        if not self._done:
            raise self._source.lost or ConfigError(f"no episode was run: {self._stopped}")
        return report

    async def _run_episodes(self) -> None:
        wanted = [(task, index) for task in self._tasks for index in range(self._config.episodes_per_task)]
        with (
            ProgressBar("eval", len(wanted), shown=self._config.progress, lines=False) as bar,
            EpisodeWriter(self._folder.episodes) as writer,
        ):
            done = self._folder.done()
            for task, index in wanted:
                if (task.id, index) in done:
                    self._keep(done[task.id, index], bar)
                else:
                    self._waiting.append((task, index))
            async with contextlib.aclosing(self._episodes()) as episodes:
                async for episode in episodes:
                    writer.write(episode)
                    summary = summarize(episode)
                    self._keep(summary, bar)
                    self._watch(summary)

    def _keep(self, summary: EpisodeSummary, bar: ProgressBar) -> None:
        """Count an episode that is in the record."""
        self._done.append(summary)
        if not summary.failed:
            self._rewards.append(summary.reward)
        failed = len(self._done) - len(self._rewards)
        mean = f"reward {sum(self._rewards) / len(self._rewards):.3f}" if self._rewards else ""
        bar.update(len(self._done), f"{mean} {f'{failed} failed' if failed else ''}".strip())
        cost = summary.usage.cost(*(self._config.prices or (0.0, 0.0)))
        self._cost += cost
        self._paid += cost > 0
        self._uncounted_turns += summary.turns_without_usage

    def _watch(self, summary: EpisodeSummary) -> None:
        """End an evaluation in which nothing works any more."""
        self._failed = [*self._failed, summary.task_id] if summary.failed else []
        tasks = len(set(self._failed))
        enough = len(self._failed) >= FAILED_IN_A_ROW and tasks >= min(FAILED_TASKS, len(self._tasks))
        if enough and self._waiting:
            self._stopped = (
                f"the last {len(self._failed)} episodes, of {tasks} tasks, all failed, and the last one because: "
                f"{summary.stop_detail:.300}. Fix that and start again in another folder; --resume runs the rest only"
            )

    async def _episodes(self) -> AsyncGenerator[Episode, None]:
        """The episodes that wait, as they end."""
        running: set[asyncio.Task[Episode]] = set()
        try:
            while True:
                while self._waiting and len(running) < self._config.concurrency and self._can_start(len(running)):
                    running.add(asyncio.create_task(self._play(*self._waiting.popleft())))
                if not running:
                    return
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    episode = task.result()
                    if self._source.lost is None or episode.stop_reason is not StopReason.ERROR:
                        yield episode
                if self._source.lost is not None:
                    self._stopped = f"the endpoint was lost: {self._source.lost}. --resume runs the rest"
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)  # their environments are closed

    def _can_start(self, running: int) -> bool:
        """Whether one more episode may start beside those that are running."""
        if self._source.lost is not None or self._stopped is not None:
            return False
        most = self._config.max_cost
        if most is None:
            return True
        if self._uncounted_turns:
            reason = "the endpoint reports no token counts, so that max_cost cannot be kept"
        elif self._cost + (running + 1) * self._cost / max(1, self._paid) > most or self._cost >= most:
            reason = f"{self._cost:.4f} is spent, and one more episode may exceed max_cost={most}"
        else:
            return self._paid > 0 or running == 0  # one at a time until it is known what an episode costs
        if running == 0:
            self._stopped = reason
        return False

    async def _play(self, task: Task, index: int) -> Episode:
        config, provenance = self._config, self._source.provenance
        policy = self._source.policy(task, episode_index=index, seed=config.seed, limits=config.limits)
        return await run_episode(
            self._make_env,
            task,
            policy,
            config.limits,
            seed=config.seed,
            episode_index=index,
            env_id=self._env_id,
            provenance=provenance,
        )

    def _report(self) -> Report:
        config = self._config
        return build_report(
            self._done,
            {task.id: task.prompt for task in self._tasks},
            env_id=self._env_id,
            policy=self._source.name,
            settings=self._settings,
            folder=str(self._folder.path),
            planned=len(self._tasks) * config.episodes_per_task,
            success_reward=config.success_reward,
            prices=config.prices,
            stopped=self._stopped,
        )
