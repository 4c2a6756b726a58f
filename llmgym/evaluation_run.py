"""Runs the episodes of an evaluation, several at a time, and reports. Knows no model: policies come from a source.

An evaluation ends early when its endpoint is lost, when its money is spent, or when it is interrupted; the record then
holds the episodes that ended, the report says why there are no more, and ``resume`` runs the others. An episode that
was under way counts for nothing. When money is spent none is under way: those that had begun are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from llmgym.env import Env
from llmgym.episode import Episode, StopReason
from llmgym.episode_summary import EpisodeSummary, summarize
from llmgym.evaluation_folder import EvaluationFolder
from llmgym.policy_sources import PolicySource
from llmgym.records import EpisodeWriter
from llmgym.report import Report, build_report
from llmgym.rollout import run_episode
from llmgym.task import Task

if TYPE_CHECKING:
    from llmgym.evaluation import Evaluation


class EvaluationRun:
    """One evaluation under way.

    Args:
        evaluation: Its settings.
        env_id: The environment, as the record names it.
        make_env: Builds a fresh environment for one episode.
        tasks: The tasks, each with an id of its own.
        folder: Where it is kept.
        source: Gives the policies; it is closed at the end.
        settings: What goes into ``settings.json``.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        env_id: str,
        make_env: Callable[[Task], Env],
        tasks: list[Task],
        folder: EvaluationFolder,
        source: PolicySource,
        settings: dict[str, Any],
    ) -> None:
        self._evaluation, self._env_id, self._make_env = evaluation, env_id, make_env
        self._tasks, self._folder, self._source, self._settings = tasks, folder, source, settings
        self._done: list[EpisodeSummary] = []
        self._spent = 0.0
        self._paid = self._uncounted_turns = 0
        self._waiting: deque[tuple[Task, int]] = deque()
        self._stopped: str | None = None

    async def to_the_end(self) -> Report:
        """Run what is left, report, and free the source. Once only; cancelled, it still writes the report."""
        try:
            try:
                await self._run()
            except asyncio.CancelledError:
                self._stopped = "it was interrupted; --resume runs the rest"
                raise
            finally:
                await self._source.close()
        finally:
            if self._done:
                report = self._report()
                self._folder.write_report(report)
        if not self._done:
            assert self._source.lost is not None  # nothing else stops the first episode
            raise self._source.lost
        return report

    async def _run(self) -> None:
        self._folder.begin(self._settings)
        done = self._folder.done()
        wanted = [(task, index) for task in self._tasks for index in range(self._evaluation.episodes_per_task)]
        with (
            _progress_bar(self._evaluation.progress, len(wanted)) as show,
            EpisodeWriter(self._folder.episodes) as writer,
        ):

            def keep(summary: EpisodeSummary) -> None:
                self._done.append(summary)
                cost = summary.cost(*(self._evaluation.prices or (0.0, 0.0)))
                self._spent += cost
                self._paid += cost > 0
                self._uncounted_turns += summary.turns_without_usage
                show(summary)

            for task, index in wanted:
                if (task.id, index) in done:
                    keep(done[task.id, index])
                else:
                    self._waiting.append((task, index))
            async with contextlib.aclosing(self._episodes()) as episodes:
                async for episode in episodes:
                    writer.write(episode)
                    keep(summarize(episode))

    async def _episodes(self) -> AsyncGenerator[Episode, None]:
        """The episodes that wait, as they end."""
        running: set[asyncio.Task[Episode]] = set()
        try:
            while True:
                while self._waiting and len(running) < self._evaluation.concurrency and self._may_begin(len(running)):
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

    def _may_begin(self, running: int) -> bool:
        """Whether one more episode may begin beside those under way."""
        if self._source.lost is not None:
            return False
        most = self._evaluation.max_cost
        if most is None:
            return True
        if self._uncounted_turns:
            reason = "the endpoint reports no token counts, so that max_cost cannot be kept"
        elif not self._paid:
            return running == 0  # one at a time until it is known what an episode costs
        elif self._spent * (1 + (running + 1) / self._paid) > most:
            reason = f"{self._spent:.4f} is spent, and one more episode may exceed max_cost={most}"
        else:
            return True
        if running == 0:
            self._stopped = reason
        return False

    async def _play(self, task: Task, index: int) -> Episode:
        evaluation, provenance = self._evaluation, self._source.provenance
        policy = self._source.policy(task, episode_index=index, seed=evaluation.seed, limits=evaluation.limits)
        try:
            env = self._make_env(task)
        except Exception as error:  # noqa: BLE001 - like a raising reset: this episode's failure, not the run's
            return Episode(
                task,
                StopReason.ERROR,
                stop_detail=f"making the environment raised {type(error).__name__}: {error}",
                env_id=self._env_id,
                episode_index=index,
                seed=evaluation.seed,
                limits=evaluation.limits,
                provenance=provenance,
            )
        return await run_episode(
            env,
            task,
            policy,
            evaluation.limits,
            seed=evaluation.seed,
            episode_index=index,
            env_id=self._env_id,
            provenance=provenance,
        )

    def _report(self) -> Report:
        evaluation = self._evaluation
        return build_report(
            self._done,
            {task.id: task.prompt for task in self._tasks},
            env_id=self._env_id,
            policy=self._source.name,
            settings=self._settings,
            folder=str(self._folder.path),
            planned=len(self._tasks) * evaluation.episodes_per_task,
            success_reward=evaluation.success_reward,
            prices=evaluation.prices,
            stopped=self._stopped,
        )


@contextlib.contextmanager
def _progress_bar(wanted: bool, total: int) -> Iterator[Callable[[EpisodeSummary], None]]:
    """Show how far an evaluation is; yields the function to call with each episode that is done."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    seen = wanted and (console.is_terminal or console.is_jupyter)
    rewards: list[float] = []
    with Progress(*columns, TextColumn("{task.description}"), console=console, disable=not seen) as bar:
        line = bar.add_task("", total=total)

        def show(summary: EpisodeSummary) -> None:
            if not summary.lost:
                rewards.append(summary.reward)
            bar.advance(line)
            done = int(bar.tasks[0].completed)
            mean = f"reward {math.fsum(rewards) / len(rewards):.3f}" if rewards else ""
            bar.update(line, description=f"{mean} {f'{done - len(rewards)} lost' if done > len(rewards) else ''}")

        yield show
