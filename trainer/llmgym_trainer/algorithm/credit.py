"""Which turn earned what: from the rewards of a group's episodes to one advantage a turn. Knows no tensor.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgym.episode import Episode, StopReason
from llmgym.evaluation.statistics import has_reward_variance
from llmgym_trainer.algorithm.advantages import compute_advantages

CREDITS = ("episode", "return", "mt_grpo")


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
        scale: See :func:`llmgym_trainer.algorithm.advantages.compute_advantages`.
        baseline: Likewise.
    """

    kind: str = "episode"
    discount: float = 1.0
    turn_weight: float = 1.0
    scale: str = "group"
    baseline: str = "mean"

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
