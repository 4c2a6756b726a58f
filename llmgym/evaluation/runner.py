"""Runs the episodes of an evaluation, several at a time, and reports. Knows no model: policies come from a source.

An evaluation ends early when its endpoint is lost, when its episodes do nothing but fail, when its money is spent, or
when it is interrupted; the record then holds the episodes that ended, the report says why there are no more, and
``resume`` runs the others. An episode that a loss or an interruption cut short counts for nothing but its tokens, which
the cost includes. Otherwise those that had begun are finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from llmgym.env import Env
from llmgym.episode import Episode, StopReason, Usage
from llmgym.errors import ConfigError
from llmgym.evaluation.episode_summary import EpisodeSummary, summarize
from llmgym.evaluation.folder import EvaluationFolder, TokenLedger
from llmgym.evaluation.report import Report, build_report
from llmgym.messages import Message, ToolSpec
from llmgym.policies.sources import PolicySource
from llmgym.policy import Policy, PolicyTurn
from llmgym.records import EpisodeWriter
from llmgym.rollout import run_episode
from llmgym.task import Task

if TYPE_CHECKING:
    from llmgym.evaluation.config import Evaluation

FAILED_IN_A_ROW = 10
FAILED_TASKS = 3
"""So many episodes in a row that are lost, of so many tasks (or all, when there are fewer), end an evaluation."""


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
        self._failed: list[str] = []  # tasks of the last episodes, as long as these are lost
        self._abandoned = Usage(0, 0)
        self._cost = 0.0
        self._paid = self._uncounted_turns = 0
        self._waiting: deque[tuple[Task, int]] = deque()
        self._stopped: str | None = None

    async def to_the_end(self) -> Report:
        """Run what is left, report, and free the source. Once only; cancelled, it still writes the report."""
        try:
            with self._folder.claim(self._settings):
                try:
                    await self._run()
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

    async def _run(self) -> None:
        wanted = [(task, index) for task in self._tasks for index in range(self._evaluation.episodes_per_task)]
        with (
            _progress_bar(self._evaluation.progress, len(wanted)) as show,
            EpisodeWriter(self._folder.episodes) as writer,
            TokenLedger(self._folder.tokens) as ledger,
        ):
            done = self._folder.done()
            for task, index in wanted:
                if (task.id, index) in done:
                    self._keep(done[task.id, index])
                    show(done[task.id, index])
                else:
                    self._waiting.append((task, index))
            try:
                self._abandoned = self._without_record(ledger)
                async with contextlib.aclosing(self._episodes(ledger)) as episodes:
                    async for episode in episodes:
                        writer.write(episode)
                        summary = summarize(episode)
                        self._keep(summary)
                        self._watch(summary)
                        show(summary)
            finally:
                self._abandoned = self._without_record(ledger)

    def _keep(self, summary: EpisodeSummary) -> None:
        """Count an episode that stands in the record."""
        self._done.append(summary)
        cost = summary.usage.cost(*(self._evaluation.prices or (0.0, 0.0)))
        self._cost += cost
        self._paid += cost > 0
        self._uncounted_turns += summary.turns_without_usage

    def _watch(self, summary: EpisodeSummary) -> None:
        """End an evaluation in which nothing works any more."""
        self._failed = [*self._failed, summary.task_id] if summary.lost else []
        tasks = len(set(self._failed))
        enough = len(self._failed) >= FAILED_IN_A_ROW and tasks >= min(FAILED_TASKS, len(self._tasks))
        if enough and self._waiting:
            self._stopped = (
                f"the last {len(self._failed)} episodes, of {tasks} tasks, all failed, and the last one because: "
                f"{summary.stop_detail:.300}. Mend that and start anew in another folder; --resume runs the rest only"
            )

    def _without_record(self, ledger: TokenLedger) -> Usage:
        """The tokens of episodes that did not get into the record."""
        kept = sum((summary.usage for summary in self._done), Usage(0, 0))
        return Usage(
            max(0, ledger.total.prompt_tokens - kept.prompt_tokens),
            max(0, ledger.total.completion_tokens - kept.completion_tokens),
        )

    async def _episodes(self, ledger: TokenLedger) -> AsyncGenerator[Episode, None]:
        """The episodes that wait, as they end."""
        running: set[asyncio.Task[Episode]] = set()
        try:
            while True:
                while self._waiting and len(running) < self._evaluation.concurrency and self._may_begin(len(running)):
                    running.add(asyncio.create_task(self._play(*self._waiting.popleft(), ledger)))
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
        if self._source.lost is not None or self._stopped is not None:
            return False
        most = self._evaluation.max_cost
        if most is None:
            return True
        spent = self._cost + self._abandoned.cost(*(self._evaluation.prices or (0.0, 0.0)))
        if self._uncounted_turns:
            reason = "the endpoint reports no token counts, so that max_cost cannot be kept"
        elif spent + (running + 1) * self._cost / max(1, self._paid) > most or spent >= most:
            reason = f"{spent:.4f} is spent, and one more episode may exceed max_cost={most}"
        else:
            return self._paid > 0 or running == 0  # one at a time until it is known what an episode costs
        if running == 0:
            self._stopped = reason
        return False

    async def _play(self, task: Task, index: int, ledger: TokenLedger) -> Episode:
        evaluation, provenance = self._evaluation, self._source.provenance
        policy = self._source.policy(task, episode_index=index, seed=evaluation.seed, limits=evaluation.limits)
        policy = _Counted(policy, lambda usage: ledger.add(task.id, index, usage))
        try:
            env = self._make_env(task)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - like a raising reset: this episode's failure, not the run's
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
            abandoned=self._abandoned,
            success_reward=evaluation.success_reward,
            prices=evaluation.prices,
            stopped=self._stopped,
        )


class _Counted(Policy):
    """A policy of which every turn's tokens are told at once, before its episode goes on."""

    def __init__(self, policy: Policy, tell: Callable[[Usage], None]) -> None:
        self._policy, self._tell = policy, tell

    async def start(self, task: Task) -> None:
        await self._policy.start(task)

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn | Message | str:
        turn = await self._policy.act(messages, tool_specs)
        if isinstance(turn, PolicyTurn) and turn.usage is not None:
            self._tell(turn.usage)
        return turn

    async def close(self) -> None:
        await self._policy.close()


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
