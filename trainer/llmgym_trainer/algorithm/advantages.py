"""From episode rewards to advantages: shaping, group baseline, scale. Plain numbers; knows no tensor.

Sources: the group's mean as baseline and the division by its standard deviation are GRPO's (arXiv 2402.03300, section
4.1.2); no division is Dr. GRPO's (arXiv 2503.20783, section 3.1); one deviation for the whole batch is REINFORCE++'s
(arXiv 2501.03262); the mean of the other episodes as baseline is leave-one-out, RLOO (arXiv 2402.14740, section 3.3);
the soft overlong penalty is DAPO's (arXiv 2503.14476, section 3.4), stated for an episode's tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llmgym.episode import Episode, StopReason

BASELINES = ("mean", "leave_one_out")

STD_EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


@dataclass(frozen=True)
class OverlongPenalty:
    """What spending the length or turn budget costs. With ``penalty=None`` it costs nothing.

    Attributes:
        penalty: Cost of an episode that ended with CONTEXT_OVERFLOW or MAX_TURNS.
        buffer_tokens: A terminated episode that used more than ``max_model_length - buffer_tokens`` tokens pays
            the same share of ``penalty`` as it used of the buffer.
        max_model_length: The token budget of an episode.
    """

    penalty: float | None
    buffer_tokens: int
    max_model_length: int

    def cost(self, episode: Episode) -> float:
        """The cost to subtract from the episode's reward, from 0 to ``penalty``."""
        if self.penalty is None:
            return 0.0
        if episode.stop_reason in (StopReason.CONTEXT_OVERFLOW, StopReason.MAX_TURNS):
            return self.penalty
        if episode.stop_reason is not StopReason.TERMINATED or self.buffer_tokens == 0:
            return 0.0
        inside = episode_length(episode) - (self.max_model_length - self.buffer_tokens)
        return self.penalty * min(max(inside, 0) / self.buffer_tokens, 1.0)


def episode_length(episode: Episode) -> int:
    """Tokens in the model's context at the end of an episode."""
    length = 0
    for turn in episode.turns:
        if turn.tokens is not None:
            new = len(turn.tokens.context_ids) + len(turn.tokens.completion_ids)
            length = length + new if turn.tokens.extends else new
    return length


def compute_advantages(
    groups: Sequence[Sequence[float]], scale_rewards: str, baseline: str = "mean"
) -> list[list[float]]:
    """Advantages of each episode: its reward minus a baseline, divided by a standard deviation.

    Args:
        groups: Rewards, one sequence a group. A group of fewer than two has advantages 0.
        scale_rewards: ``"group"`` divides by the group's standard deviation, ``"batch"`` by that of all
            rewards, ``"none"`` by 1 (TRL's ``scale_rewards``). Deviations are the sample's (n - 1), plus 1e-4.
        baseline: ``"mean"`` subtracts the mean of the group, ``"leave_one_out"`` that of its other episodes, which
            does not depend on the episode's own reward and makes advantages n / (n - 1) times as large.

    Returns:
        The advantages in the shape of ``groups``.
    """
    everything = [reward for rewards in groups for reward in rewards]
    batch_std = statistics.stdev(everything) if len(everything) > 1 else 0.0
    result = []
    for rewards in groups:
        if len(rewards) < 2:
            result.append([0.0] * len(rewards))
            continue
        mean = statistics.fmean(rewards)
        if scale_rewards == "none":
            divisor = 1.0
        else:
            divisor = (statistics.stdev(rewards) if scale_rewards == "group" else batch_std) + STD_EPSILON
        if baseline == "leave_one_out":
            divisor *= (len(rewards) - 1) / len(rewards)
        result.append([(reward - mean) / divisor for reward in rewards])
    return result
