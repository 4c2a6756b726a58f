"""From episodes to a report: a summary of each, and what they amount to together."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmgym._util.text import shorten
from llmgym.episode import Episode, StopReason, Usage
from llmgym.evaluation.report import Failure, PassRow, Report, TaskRow, ToolCount, Trainable
from llmgym.evaluation.statistics import Estimate, cluster_estimate, has_reward_variance, pass_at_k, pass_hat_k

_UNKNOWN_TOOL = "(no such tool)"
_GO_SHARE = 0.1


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
