"""What the episodes of an evaluation amount to: a summary of each, and the report of all."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic

from llmgym._util.text import shorten
from llmgym.episode import Episode, StopReason, Usage
from llmgym.errors import ConfigError
from llmgym.evaluation.statistics import Estimate, cluster_estimate, has_reward_variance, pass_at_k, pass_hat_k

if TYPE_CHECKING:
    from rich.console import Console

REPORT_FILE = "report.json"

_UNKNOWN_TOOL = "(no such tool)"
_GO_SHARE = 0.1


@dataclass
class ToolCount:
    """How often a tool was called, and how often the answer was an error."""

    calls: int = 0
    errors: int = 0


@dataclass(frozen=True)
class EpisodeSummary:
    """What the report needs of one episode; the episode itself, with all its messages, need not be kept."""

    task_id: str
    episode_index: int
    reward: float
    stop_reason: StopReason
    stop_detail: str
    turns: int
    tools: dict[str, ToolCount]
    tool_errors: Counter[str]
    usage: Usage
    turns_without_usage: int
    policy_s: float
    env_s: float
    metrics: dict[str, float]
    environment_sha256: str | None

    @property
    def failed(self) -> bool:
        """Whether the episode ended as an ERROR, which says nothing about the policy."""
        return self.stop_reason is StopReason.ERROR


def summarize(episode: Episode) -> EpisodeSummary:
    """Read one episode."""
    tools, errors = _tool_counts(episode)
    usages = [turn.usage for turn in episode.turns]
    return EpisodeSummary(
        task_id=episode.task.id,
        episode_index=episode.episode_index,
        reward=episode.reward,
        stop_reason=episode.stop_reason,
        stop_detail=episode.stop_detail,
        turns=len(episode.turns),
        tools=tools,
        tool_errors=errors,
        usage=sum((usage for usage in usages if usage is not None), Usage(0, 0)),
        turns_without_usage=sum(usage is None for usage in usages),
        policy_s=sum(turn.policy_s for turn in episode.turns),
        env_s=episode.env_s,
        metrics={
            name: float(value)
            for name, value in episode.metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        },
        environment_sha256=episode.provenance.get("environment_sha256"),
    )


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
        turns_without_usage: Turns whose tokens nobody reported.
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
        from llmgym.evaluation.tables import report_markdown

        return report_markdown(self)

    _repr_markdown_ = to_markdown  # how a notebook shows it

    def print(self, console: Console | None = None) -> None:
        """Show the report as tables on a terminal."""
        from llmgym.evaluation.tables import print_report

        print_report(self, console)


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


def build_report(
    summaries: Iterable[EpisodeSummary],
    prompts: Mapping[str, str],
    *,
    env_id: str,
    policy: str,
    settings: dict[str, Any],
    folder: str = "",
    planned: int,
    success_reward: float = 1.0,
    prices: tuple[float, float] | None = None,
    stopped: str | None = None,
) -> Report:
    """Work out the report.

    Args:
        summaries: The episodes, in any order.
        prompts: Prompt by task id, of all tasks in their order.
        prices: Per million prompt and completion tokens.

    The other arguments are the fields of :class:`Report`.
    """
    by_task: dict[str, list[EpisodeSummary]] = {id: [] for id in prompts}
    for summary in sorted(summaries, key=lambda summary: summary.episode_index):
        by_task[summary.task_id].append(summary)
    every = [summary for group in by_task.values() for summary in group]
    good = [summary for summary in every if not summary.failed]
    counted = [[summary.reward for summary in group if not summary.failed] for group in by_task.values()]
    success = [[float(reward >= success_reward) for reward in rewards] for rewards in counted]
    usage = sum((summary.usage for summary in every), Usage(0, 0))
    report = Report(
        env_id=env_id,
        policy=policy,
        settings=settings,
        folder=folder,
        stopped=stopped,
        planned=planned,
        episodes=len(every),
        failed=len(every) - len(good),
        reward=cluster_estimate(counted),
        reward_failed_as_0=cluster_estimate(
            [[0.0 if summary.failed else summary.reward for summary in group] for group in by_task.values()]
        ),
        success=_within_0_and_1(cluster_estimate(success)),
        success_reward=success_reward,
        passes=_passes([(len(values), int(sum(values))) for values in success]),
        trainable=_trainable(counted, success_reward, learner=policy != "expert"),
        stop_reasons={
            reason: count for reason in StopReason if (count := sum(s.stop_reason is reason for s in every)) > 0
        },
        turns=_mean([s.turns for s in good]),
        tools=_sum_tools(good),
        tool_errors=dict(sum((s.tool_errors for s in good), Counter()).most_common()),
        failures=_failures(every),
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        turns_without_usage=sum(s.turns_without_usage for s in every),
        policy_s=_mean([s.policy_s for s in good]),
        env_s=_mean([s.env_s for s in good]),
        cost=usage.cost(*prices) if prices is not None else None,
        metrics=_mean_metrics(good),
        tasks=[_task_row(id, prompts[id], group, success_reward) for id, group in by_task.items() if group],
    )
    report.warnings = _warnings(report, every, good)
    return report


def _tool_counts(episode: Episode) -> tuple[dict[str, ToolCount], Counter[str]]:
    """Calls and errors by tool, and errors by type. Names that the model made up are one entry."""
    known = {spec["function"]["name"] for spec in episode.tool_specs}
    tools: dict[str, ToolCount] = defaultdict(ToolCount)
    errors: Counter[str] = Counter()
    for turn in episode.turns:
        calls = turn.message.get("tool_calls", []) if turn.message is not None else []
        names = {call["id"]: name if (name := call["function"]["name"]) in known else _UNKNOWN_TOOL for call in calls}
        for name in names.values():
            tools[name].calls += 1
        for message in turn.observation if not turn.history_edited else []:
            error_type = turn.error_type(message)
            if error_type is not None:
                errors[error_type] += 1
                if (id := message.get("tool_call_id", "")) in names:
                    tools[names[id]].errors += 1
    return dict(tools), errors


def _passes(counts: Sequence[tuple[int, int]]) -> list[PassRow]:
    """``counts`` holds episodes and successes of each task."""
    rows = []
    for k in range(1, max((episodes for episodes, _ in counts), default=0) + 1):
        enough = [(episodes, successes) for episodes, successes in counts if episodes >= k]
        at_least_one = statistics.fmean(pass_at_k(episodes, successes, k) for episodes, successes in enough)
        all_of_them = statistics.fmean(pass_hat_k(episodes, successes, k) for episodes, successes in enough)
        rows.append(PassRow(k, at_least_one, all_of_them, len(enough)))
    return rows


def _trainable(rewards: Sequence[Sequence[float]], success_reward: float, *, learner: bool) -> Trainable:
    groups = [group for group in rewards if len(group) > 1]
    alike = [group[0] >= success_reward for group in groups if not has_reward_variance(group)]
    varied, solved, unsolved = len(groups) - len(alike), sum(alike), len(alike) - sum(alike)
    if not groups:
        advice = "Not known: the trainable share needs two episodes of a task, better eight (--episodes-per-task 8)."
        return Trainable(None, 0, 0, 0, 0, advice)
    share = varied / len(groups)
    same = f"in {len(alike)} of {len(groups)} tasks all episodes score alike"
    if not learner:
        advice = "The expert is scripted: run a model to see whether it could learn from these tasks."
    elif share >= _GO_SHARE:
        advice = f"Go: in {varied} of {len(groups)} tasks the episodes differ in reward, and GRPO learns from those."
    elif solved >= unsolved:
        advice = f"Too easy: {same}, {solved} of them always with success; harder tasks would teach more."
    else:
        advice = (
            f"Too hard: {same}, {unsolved} of them never with success; begin with easier tasks, fine-tune the model "
            "first (llmgym sft), or reward partial progress."
        )
    return Trainable(share, len(groups), varied, solved, unsolved, advice)


def _failures(every: Sequence[EpisodeSummary]) -> list[Failure]:
    kinds = (StopReason.ERROR, StopReason.PARSE_FAILURE, StopReason.TIMEOUT)
    counts = Counter((s.stop_reason, shorten(s.stop_detail, 200)) for s in every if s.stop_reason in kinds)
    return [Failure(reason, detail, count) for (reason, detail), count in counts.most_common(8)]


def _task_row(id: str, prompt: str, group: Sequence[EpisodeSummary], success_reward: float) -> TaskRow:
    good = [summary for summary in group if not summary.failed]
    return TaskRow(
        id=id,
        prompt=shorten(prompt, 80),
        rewards=[None if summary.failed else summary.reward for summary in group],
        mean_reward=_mean([summary.reward for summary in good]),
        successes=sum(summary.reward >= success_reward for summary in good),
        turns=_mean([summary.turns for summary in good]),
    )


def _warnings(report: Report, every: Sequence[EpisodeSummary], good: Sequence[EpisodeSummary]) -> list[str]:
    found = []
    if report.stopped is not None:
        found.append(f"Not complete, {report.episodes} of {report.planned} episodes: {report.stopped}")
    rewards = [summary.reward for summary in good]
    if len(rewards) > 1 and not has_reward_variance(rewards):
        found.append(
            f"CONSTANT REWARD: each of the {len(rewards)} episodes earned {rewards[0]:g}. That is right for an expert; "
            "from a model it often means that the score looks at the wrong thing, or that the model never gets as far "
            "as being scored: read some episodes before you believe it. Nothing can be learnt from it."
        )
    if report.failed:
        found.append(
            f"{report.failed} of {report.episodes} episodes failed, and if those were the hard ones the "
            "mean without them is too good."
        )
    if report.settings.get("policy", {}).get("temperature") == 0 and report.settings.get("episodes_per_task", 1) > 1:
        found.append(
            "At temperature 0 the episodes of a task hardly differ, so pass@k and the trainable share say little."
        )
    if report.turns_without_usage and report.cost is not None:
        found.append(f"{report.turns_without_usage} turns came without a token count; the cost leaves them out.")
    if len({summary.environment_sha256 for summary in every}) > 1:
        found.append("The environment's source file changed between episodes: they do not measure the same thing.")
    return found


def _sum_tools(summaries: Iterable[EpisodeSummary]) -> dict[str, ToolCount]:
    total: dict[str, ToolCount] = defaultdict(ToolCount)
    for summary in summaries:
        for name, count in summary.tools.items():
            total[name].calls += count.calls
            total[name].errors += count.errors
    return dict(sorted(total.items(), key=lambda item: (-item[1].calls, item[0])))


def _mean_metrics(summaries: Iterable[EpisodeSummary]) -> dict[str, float]:
    values: dict[str, list[float]] = defaultdict(list)
    for summary in summaries:
        for name, value in summary.metrics.items():
            values[name].append(value)
    return {name: statistics.fmean(found) for name, found in values.items()}


def _within_0_and_1(estimate: Estimate) -> Estimate:
    if estimate.low is None or estimate.high is None:
        return estimate
    return Estimate(estimate.mean, max(0.0, estimate.low), min(1.0, estimate.high))


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
