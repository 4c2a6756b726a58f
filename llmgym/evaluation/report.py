"""The report of an evaluation: its figures, its file, and what it shows of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from llmgym.episode import StopReason
from llmgym.errors import ConfigError
from llmgym.evaluation.statistics import Estimate
from llmgym.evaluation.tables import Table, escape, estimate_text, markdown, number_text, print_tables

if TYPE_CHECKING:
    from rich.console import Console

REPORT_FILE = "report.json"

_SHOWN_TASKS = 20


@dataclass
class ToolCount:
    """How often a tool was called, and how often the answer was an error."""

    calls: int = 0
    errors: int = 0


@dataclass
class TaskRow:
    """The episodes of one task.

    Attributes:
        id: The task's id.
        prompt: The first characters of its prompt.
        rewards: By episode index; None for an episode that failed.
        mean_reward: Without failed episodes; None when there is no other.
        successes: Episodes with success.
        turns: Mean turns, without failed episodes.
    """

    id: str
    prompt: str
    rewards: list[float | None]
    mean_reward: float | None
    successes: int
    turns: float | None


@dataclass
class PassRow:
    """pass@k and pass^k for one k: means over the tasks with ``k`` episodes that did not fail.

    Attributes:
        k: Episodes drawn from those of a task.
        at_least_one: pass@k, the probability that one of them succeeds.
        all_of_them: pass^k, the probability that all of them do.
        tasks: Tasks with ``k`` episodes.
    """

    k: int
    at_least_one: float
    all_of_them: float
    tasks: int


@dataclass
class Trainable:
    """Whether GRPO could learn from the tasks.

    Attributes:
        share: Tasks whose episodes do not all score alike, of those with two episodes at least; None without any.
        tasks: Tasks with at least two episodes that did not fail.
        varied: Those whose episodes differ in reward.
        all_succeed: Those whose episodes score alike, with success.
        none_succeeds: Those whose episodes score alike, below success.
        advice: One sentence.
    """

    share: float | None
    tasks: int
    varied: int
    all_succeed: int
    none_succeeds: int
    advice: str


@dataclass
class Failure:
    """A reason why episodes failed or were not understood, and how many of them."""

    stop_reason: StopReason
    detail: str
    count: int


@dataclass
class Report:
    """What :func:`llmgym.run_and_report` returns. Means leave failed episodes out unless they say otherwise.

    Attributes:
        env_id: The environment.
        policy: Name of what acted.
        settings: What the evaluation ran with: the content of ``settings.json``.
        folder: Folder of the evaluation.
        stopped: Why it ended before its last episode; None when it is complete.
        planned: Episodes it was to have.
        episodes: Episodes it has.
        failed: Those that ended with ERROR, and so say nothing about the policy.
        reward: Mean reward, with a 95 % interval that respects the clustering in tasks.
        reward_failed_as_0: The same with 0 for each failed episode.
        success: Share of episodes with a reward of ``success_reward`` or more.
        success_reward: See there.
        passes: pass@k and pass^k for each k.
        trainable: Tasks that GRPO could learn from.
        stop_reasons: Episodes by stop reason, failed ones too.
        turns: Mean assistant turns.
        tools: Calls and errors by tool.
        tool_errors: Errors that tools reported, by type.
        failures: The most frequent reasons of ERROR, PARSE_FAILURE and TIMEOUT.
        prompt_tokens: Of all episodes, failed ones included: each turn's whole prompt.
        completion_tokens: Of all episodes.
        turns_without_usage: Turns without a token count.
        policy_s: Mean seconds in the policy.
        env_s: Mean seconds in the environment.
        cost: Of all tokens, in the currency of the prices; None without prices.
        metrics: Mean of each metric of the environment over the episodes that have it.
        warnings: What the reader must know before believing the rest.
        tasks: The tasks, in their order.
    """

    env_id: str
    policy: str
    settings: dict[str, Any]
    folder: str
    stopped: str | None
    planned: int
    episodes: int
    failed: int
    reward: Estimate
    reward_failed_as_0: Estimate
    success: Estimate
    success_reward: float
    passes: list[PassRow]
    trainable: Trainable
    stop_reasons: dict[StopReason, int]
    turns: float | None
    tools: dict[str, ToolCount]
    tool_errors: dict[str, int]
    failures: list[Failure]
    prompt_tokens: int
    completion_tokens: int
    turns_without_usage: int
    policy_s: float | None
    env_s: float | None
    cost: float | None
    metrics: dict[str, float]
    warnings: list[str] = field(default_factory=list)
    tasks: list[TaskRow] = field(default_factory=list)

    def to_json(self) -> str:
        """All fields as JSON text."""
        return _ADAPTER.dump_json(self, indent=1).decode()

    def to_markdown(self) -> str:
        """The report as Markdown, with every task."""
        warnings = [f"> **Warning.** {escape(warning)}\n" for warning in self.warnings]
        parts = [f"# {escape(self.title)}", "", *warnings, f"**{escape(self.trainable.advice)}**", ""]
        return "\n".join([*parts, *map(markdown, self.tables())])

    _repr_markdown_ = to_markdown  # how a notebook shows it

    def print(self, console: Console | None = None) -> None:
        """Show the report on a terminal; of its tasks the first 20."""
        print_tables(self.title, self.tables(_SHOWN_TASKS), self.warnings, self.trainable.advice, console)

    @property
    def title(self) -> str:
        """Environment and policy."""
        return f"{self.env_id}, {self.policy}"

    def overview(self) -> list[tuple[str, str]]:
        """Name and value of every figure that is one number."""
        trainable = self.trainable
        tokens = f"{self.prompt_tokens:,} in, {self.completion_tokens:,} out"
        if self.turns_without_usage:
            tokens += f"; {self.turns_without_usage} turns uncounted"
        rows = [
            ("episodes", f"{self.episodes} of {self.planned}, {len(self.tasks)} tasks"),
            ("mean reward", estimate_text(self.reward)),
            ("mean reward, failed episodes as 0", f"{estimate_text(self.reward_failed_as_0)}; {self.failed} failed"),
            (f"success (reward of {self.success_reward:g} or more)", estimate_text(self.success)),
            (
                "trainable share",
                f"{number_text(trainable.share)} of {trainable.tasks} tasks; alike: {trainable.all_succeed} with "
                f"success, {trainable.none_succeeds} without",
            ),
            ("turns an episode", number_text(self.turns, ".1f")),
            ("tool calls an episode", self._per_episode(sum(count.calls for count in self.tools.values()))),
            ("tool errors an episode", self._per_episode(sum(self.tool_errors.values()))),
            ("tokens", tokens),
            (
                "seconds an episode",
                f"{number_text(self.policy_s, '.2f')} policy, {number_text(self.env_s, '.2f')} environment",
            ),
        ]
        if self.cost is not None:
            rows.append(("cost", f"{self.cost:.4f}"))
        return rows

    def tables(self, shown_tasks: int | None = None) -> list[Table]:
        """All that the report shows, of its tasks the first ``shown_tasks``."""
        tables = [
            Table(
                "result",
                ["", "value"],
                self.overview(),
                "In brackets: 95 % interval, clustered by task.",
            ),
            Table(
                "pass@k and pass^k",
                ["k", "pass@k: one succeeds", "pass^k: all succeed", "tasks"],
                [
                    [str(row.k), number_text(row.at_least_one), number_text(row.all_of_them), str(row.tasks)]
                    for row in self.passes
                ],
            ),
            Table(
                "why episodes stopped",
                ["stop reason", "episodes", "share"],
                [[reason, str(count), self.stop_share(reason)] for reason, count in self.stop_reasons.items()],
            ),
            Table(
                "failures",
                ["stop reason", "times", "what happened"],
                [[failure.stop_reason, str(failure.count), failure.detail] for failure in self.failures],
            ),
            Table(
                "tools",
                ["tool", "calls", "errors"],
                [[name, str(count.calls), str(count.errors)] for name, count in self.tools.items()],
            ),
            Table(
                "tool errors",
                ["type", "times"],
                [[name, str(count)] for name, count in self.tool_errors.items()],
            ),
            Table(
                "metrics of the environment",
                ["metric", "mean"],
                [[name, number_text(value)] for name, value in self.metrics.items()],
            ),
            Table(
                "tasks",
                ["task", "mean reward", "rewards", "turns", "prompt"],
                [_task_cells(row) for row in self.tasks[:shown_tasks]],
                f"{len(self.tasks) - shown_tasks} more are in report.md."
                if shown_tasks and len(self.tasks) > shown_tasks
                else "",
            ),
        ]
        return [table for table in tables if table.rows]

    def stop_share(self, reason: StopReason) -> str:
        """Share of the episodes that stopped for a reason."""
        return f"{self.stop_reasons.get(reason, 0) / max(1, self.episodes):.1%}"

    def _per_episode(self, count: int) -> str:
        good = self.episodes - self.failed
        return number_text(count / good if good else None, ".2f")


_ADAPTER = pydantic.TypeAdapter(Report)


def load_report(path: str | Path) -> Report:
    """Read the report of an evaluation.

    Args:
        path: Folder of the evaluation, or a ``report.json``.

    Raises:
        ConfigError: There is none, or it is no report.
    """
    file = Path(path)
    if file.is_dir():
        file = file / REPORT_FILE
    try:
        return _ADAPTER.validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"there is no report at {str(path)!r}: give a folder that llmgym eval wrote") from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{str(file)!r} is no report of this version ({first['loc']} {first['msg']}); llmgym eval with "
            "--resume writes it again from the recorded episodes"
        ) from error


def _task_cells(row: TaskRow) -> list[str]:
    rewards = " ".join("failed" if reward is None else f"{reward:.3g}" for reward in row.rewards)
    return [row.id, number_text(row.mean_reward), rewards, number_text(row.turns, ".1f"), row.prompt]
