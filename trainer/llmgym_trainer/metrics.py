"""From the episodes of a step to its metrics.

Names are TRL's where it has one, the reference's for the ratios, and explained one by one in ``docs/metrics.md``.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgym.episode import Episode, StopReason
from llmgym.evaluation.statistics import has_reward_variance

RATIOS = {
    StopReason.TERMINATED: "terminated_ratio",
    StopReason.CONTEXT_OVERFLOW: "context_overflow_ratio",
    StopReason.MAX_TURNS: "max_turns_ratio",
    StopReason.ENV: "env_truncated_ratio",
    StopReason.PARSE_FAILURE: "parse_failure_ratio",
    StopReason.TIMEOUT: "timeout_ratio",
    StopReason.ERROR: "error_ratio",
}

VALIDATION_METRICS = (
    *(f"val/{name}" for name in RATIOS.values()),
    "val/close_error_ratio",
    "val/truncated_ratio",
    "val/reward",
    "val/success",
    "val/overlong_cost",
    "val/turns_per_episode",
    "val/parse_retries_per_episode",
    "val/tools/call_frequency",
    "val/tools/errors_per_episode",
    "val/tools/failure_frequency",
    "val/completions/mean_length",
    "val/completions/min_length",
    "val/completions/max_length",
    "val/history_edited_ratio",
    "val/time",
)
"""What every validation has, beside ``val/env/...`` and ``val/by_env/...`` of the environments."""

GROUP_METRICS = ("reward_std", "frac_reward_zero_std", "groups/best_reward", "groups/with_success")
"""What says nothing in a validation, whose groups have one episode."""


@dataclass
class EpisodeStats:
    """What the metrics need of one episode.

    Attributes:
        group: Names the group, unique over all processes.
        reward: The environment's reward.
        shaped_reward: The reward after the overlong penalty, which the advantages compare.
        source: The environment's name where there are several.
    """

    group: tuple[int, int]
    reward: float
    shaped_reward: float
    stop_reason: StopReason
    turns: int
    corrected_turns: int
    tool_calls: int
    tool_errors: int
    sampled_tokens: int
    context_tokens: int
    history_edited: bool
    close_failed: bool
    error_type: str | None = None
    env_metrics: dict[str, float] = field(default_factory=dict)
    source: str = ""

    @classmethod
    def of(cls, episode: Episode, group: tuple[int, int], shaped_reward: float, source: str = "") -> EpisodeStats:
        """Read an episode."""
        return cls(
            group,
            episode.reward,
            shaped_reward,
            episode.stop_reason,
            len(episode.turns),
            sum(turn.corrected for turn in episode.turns),
            episode.num_tool_calls,
            episode.num_tool_errors,
            episode.num_sampled_tokens,
            sum(len(turn.tokens.context_ids) for turn in episode.turns if turn.tokens is not None),
            any(turn.history_edited for turn in episode.turns),
            episode.close_error is not None,
            episode.error_type,
            {name: float(value) for name, value in episode.metrics.items() if isinstance(value, (bool, int, float))},
            source,
        )


def rollout_metrics(stats: Sequence[EpisodeStats], success_reward: float) -> dict[str, float]:
    """Metrics of the episodes of one rollout, failed ones included in the ratios only.

    Args:
        stats: All episodes of all processes.
        success_reward: An episode with at least this reward is a success.

    Returns:
        The metrics; without any episode that did not fail, only the ratios.
    """
    if not stats:
        return {}
    metrics = {name: _share([s.stop_reason is reason for s in stats]) for reason, name in RATIOS.items()}
    good = [s for s in stats if s.stop_reason is not StopReason.ERROR]
    metrics["close_error_ratio"] = _share([s.close_failed for s in stats])
    if not good:
        return metrics
    metrics["truncated_ratio"] = _share([s.stop_reason is not StopReason.TERMINATED for s in good])
    groups: dict[tuple[int, int], list[EpisodeStats]] = defaultdict(list)
    for s in good:
        groups[s.group].append(s)
    shaped = [[s.shaped_reward for s in group] for group in groups.values()]
    calls, errors = sum(s.tool_calls for s in good), sum(s.tool_errors for s in good)
    lengths = [s.sampled_tokens for s in good]
    metrics |= {
        "reward": statistics.fmean(s.reward for s in good),
        "reward_std": statistics.fmean(statistics.stdev(r) if len(r) > 1 else 0.0 for r in shaped),
        "success": _share([s.reward >= success_reward for s in good]),
        "overlong_cost": statistics.fmean(s.reward - s.shaped_reward for s in good),
        "frac_reward_zero_std": _share([not has_reward_variance(r) for r in shaped]),
        "groups/best_reward": statistics.fmean(max(s.reward for s in group) for group in groups.values()),
        "groups/with_success": _share([any(s.reward >= success_reward for s in group) for group in groups.values()]),
        "turns_per_episode": statistics.fmean(s.turns for s in good),
        "parse_retries_per_episode": statistics.fmean(s.corrected_turns for s in good),
        "tools/call_frequency": calls / len(good),
        "tools/errors_per_episode": errors / len(good),
        "tools/failure_frequency": errors / calls if calls else 0.0,
        "completions/mean_length": statistics.fmean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "history_edited_ratio": _share([s.history_edited for s in good]),
    }
    for source in sorted({s.source for s in good} - {""}):
        own = [s for s in good if s.source == source]
        metrics |= {
            f"by_env/{source}/reward": statistics.fmean(s.reward for s in own),
            f"by_env/{source}/success": _share([s.reward >= success_reward for s in own]),
            f"by_env/{source}/turns_per_episode": statistics.fmean(s.turns for s in own),
            f"by_env/{source}/share": len(own) / len(good),
        }
    by_name: dict[str, list[float]] = defaultdict(list)
    for s in good:
        for name, value in s.env_metrics.items():
            by_name[name].append(value)
    return metrics | {f"env/{name}": statistics.fmean(values) for name, values in by_name.items()}


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
