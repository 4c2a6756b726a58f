"""From the rewards of a group's episodes to one advantage a turn: shaping, credit to turns, group baseline, scale.

Which turn gets credit for what (:class:`Credit`):

``"episode"``
    Every turn of an episode has the advantage of the episode's reward, as in GRPO (arXiv 2402.03300, section 4.1.2).
``"return"``
    A turn has the advantage of its discounted return ``G_k = r_k + discount * G_(k+1)``: what was earned from it on.
    Turn k is compared with turn k of the group's other episodes; one that ended earlier enters with the return of its
    last turn. So with no reward before the last turn and ``discount=1`` this is ``"episode"``.
``"mt_grpo"``
    MT-GRPO (arXiv 2505.11821): outcome and turn rewards are compared apart, and the last turn of an episode has the
    advantage of the outcome, every other turn that plus ``turn_weight`` times the advantage of its own reward among
    the episodes of the group for which turn k is not the last. (The paper states it for two turns.)

``r_k`` is the :attr:`llmgym.StepResult.reward` of turn k; the episode's shaped reward counts as the last turn's.

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
from llmgym.evaluation.statistics import has_reward_variance

CREDITS = ("episode", "return", "mt_grpo")
BASELINES = ("mean", "leave_one_out")

STD_EPSILON = 1e-4
"""Added to the standard deviation, as TRL does."""


@dataclass(frozen=True)
class OverlongPenalty:
    """What spending the length or turn budget costs.

    Attributes:
        penalty: Cost of an episode that ended with CONTEXT_OVERFLOW or MAX_TURNS.
        buffer_tokens: A terminated episode that used more than ``max_model_length - buffer_tokens`` tokens pays
            the same share of ``penalty`` as it used of the buffer.
        max_model_length: The token budget of an episode.
    """

    penalty: float
    buffer_tokens: int
    max_model_length: int

    def cost(self, episode: Episode) -> float:
        """The cost to subtract from the episode's reward, from 0 to ``penalty``."""
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


@dataclass(frozen=True)
class EpisodeRewards:
    """What an episode earned.

    Attributes:
        outcome: The episode's reward after shaping.
        turns: One reward a turn; ``outcome`` is part of the last one.
    """

    outcome: float
    turns: tuple[float, ...]

    @classmethod
    def of(cls, episode: Episode, outcome: float) -> EpisodeRewards:
        """Read an episode whose reward after shaping is ``outcome``.

        The reward of the step that ends an episode is its outcome; where the loop ended it, the last step has a
        reward of its own and the outcome is added to that.
        """
        turns = [turn.reward for turn in episode.turns]
        if turns and episode.stop_reason in (StopReason.TERMINATED, StopReason.ENV):
            turns[-1] = outcome
        elif turns:
            turns[-1] += outcome
        return cls(outcome, tuple(turns))


@dataclass(frozen=True)
class Credit:
    """How rewards become advantages.

    Attributes:
        kind: One of :data:`CREDITS`.
        discount: Of ``"return"``, from 0 to 1.
        turn_weight: Of ``"mt_grpo"``.
        scale: See :func:`compute_advantages`.
        baseline: Likewise.
        overlong: Subtracted from the reward of an episode; None subtracts nothing.
    """

    kind: str = "episode"
    discount: float = 1.0
    turn_weight: float = 1.0
    scale: str = "group"
    baseline: str = "mean"
    overlong: OverlongPenalty | None = None

    def rewards(self, episode: Episode) -> EpisodeRewards:
        """What an episode earned, after the overlong penalty."""
        return EpisodeRewards.of(episode, episode.reward - (self.overlong.cost(episode) if self.overlong else 0.0))

    def advantages(self, groups: Sequence[Sequence[EpisodeRewards]]) -> list[list[list[float]]]:
        """Advantages of ``groups[group][episode]``, one a turn. With ``scale="batch"`` all groups are looked at."""
        if self.kind == "return":
            compared = [self._compared_returns(group) for group in groups]
            flat = iter(self._advantages([values for group in compared for values in group]))
            by_turn = [[next(flat) for _ in group] for group in compared]
            return [
                [[turns[k][index] for k in range(len(episode.turns))] for index, episode in enumerate(group)]
                for group, turns in zip(groups, by_turn, strict=True)
            ]
        outcomes = self._advantages([[episode.outcome for episode in group] for group in groups])
        result = [
            [[advantage] * len(episode.turns) for episode, advantage in zip(group, of_group, strict=True)]
            for group, of_group in zip(groups, outcomes, strict=True)
        ]
        if self.kind == "mt_grpo":
            places = [
                (number, k, [index for index, episode in enumerate(group) if k < len(episode.turns) - 1])
                for number, group in enumerate(groups)
                for k in range(_longest(group) - 1)
            ]
            turn_rewards = [[groups[number][index].turns[k] for index in indices] for number, k, indices in places]
            for (number, k, indices), of_turn in zip(places, self._advantages(turn_rewards), strict=True):
                for index, advantage in zip(indices, of_turn, strict=True):
                    result[number][index][k] += self.turn_weight * advantage
        return result

    def has_reward_variance(self, group: Sequence[EpisodeRewards]) -> bool:
        """Whether anything that the advantages compare differs within the group, so that it can train anything."""
        if self.kind == "return":
            return any(has_reward_variance(values) for values in self._compared_returns(group))
        if has_reward_variance([episode.outcome for episode in group]):
            return True
        return self.kind == "mt_grpo" and any(
            has_reward_variance([episode.turns[k] for episode in group if k < len(episode.turns) - 1])
            for k in range(_longest(group) - 1)
        )

    def _advantages(self, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        return compute_advantages(groups, self.scale, self.baseline)

    def _compared_returns(self, group: Sequence[EpisodeRewards]) -> list[list[float]]:
        """For each turn of the longest episode, one return an episode."""
        returns = [discounted_returns(episode.turns, self.discount) or [episode.outcome] for episode in group]
        return [[of_episode[min(k, len(of_episode) - 1)] for of_episode in returns] for k in range(_longest(group))]


def discounted_returns(rewards: Sequence[float], discount: float) -> list[float]:
    """The return from each turn on: its reward plus ``discount`` times the return of the next turn."""
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + discount * (returns[-1] if returns else 0.0))
    return returns[::-1]


def _longest(group: Sequence[EpisodeRewards]) -> int:
    return max((len(episode.turns) for episode in group), default=0)
