"""The weight of each token in the loss: the normalisation of the loss types, and the off-policy correction.

The loss of a token itself (clipped ratio, KL, entropy) is TRL's.

**Off-policy correction.** The same weights give other probabilities in another precision or kernel, so the episodes
come from a slightly different policy than the one that trains. Weighting each token by ``trainer's probability /
sampler's probability`` corrects for that; a cap bounds the variance (truncated importance sampling: IMPALA, arXiv
1802.01561; in this use: fengyao.notion.site/off-policy-rl, 2025). With ``"sequence"`` all tokens of a row have the
geometric mean of their ratios (GSPO's length-normalised ratio, arXiv 2507.18071): the plain product explodes with the
length of an episode. The weights are exact only if the sampler drew from its whole distribution, so truncated sampling
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from llmgym_trainer.algorithm.rows import TrainRow

LOSS_TYPES = {
    "dapo": "sum over trained tokens / trained tokens of the whole step",
    "cispo": "as dapo, with CISPO's clipped-ratio objective; needs epsilon_high of 1 or more",
    "bnpo": "as dapo: the step is one batch, however many micro-batches it takes",
    "grpo": "mean over episodes of the mean over the episode's trained tokens",
    "dr_grpo": "sum over trained tokens / (episodes x max_model_length)",
    "luspo": "sum over trained tokens / episodes: a long episode weighs more, however many rows it has (TRL's "
    "advice on importance_sampling_level changes nothing at a ratio of 1)",
}
"""Loss types that train correctly on rows that vary in number, and their denominator."""

OTHER_LOSS_TYPES = {
    "sapo": "each batch is trained on once, and at that ratio of 1 its soft gate has the gradient of grpo: use that",
    "vespo": "each batch is trained on once, and at that ratio of 1 its sequence weight is 1, which is dapo: use that",
}
"""Loss types of TRL that are refused, and why."""

CORRECTIONS = ("off", "token", "sequence")
"""How far off-policy correction goes: not at all, one ratio a token, or one a row."""


@dataclass(frozen=True)
class StepTotals:
    """What all processes train on in one step.

    Attributes:
        tokens: Trained tokens.
        episodes: Episodes with a trained token.
        longest: Trained tokens of the longest episode.
        micro_batch_rows: Rows of each forward pass, of the process that needs most. All run as many passes, with as
            many rows: TRL gathers one number a row.
    """

    tokens: int
    episodes: int
    longest: int
    micro_batch_rows: tuple[int, ...]

    @property
    def micro_batches(self) -> int:
        """Forward passes of each process."""
        return len(self.micro_batch_rows)

    @classmethod
    def of(cls, batches: Sequence[Sequence[TrainRow]]) -> StepTotals:
        """Totals of the micro-batches of one process."""
        rows = [row for batch in batches for row in batch]
        return cls(
            sum(row.row.num_trained for row in rows),
            len({row.row.episode for row in rows}),
            max((row.episode_tokens for row in rows), default=0),
            tuple(len(batch) for batch in batches),
        )

    @classmethod
    def merge(cls, parts: Sequence[StepTotals]) -> StepTotals:
        """Totals over processes."""
        return cls(
            sum(part.tokens for part in parts),
            sum(part.episodes for part in parts),
            max(part.longest for part in parts),
            tuple(map(max, zip_longest(*(part.micro_batch_rows for part in parts), fillvalue=0))),
        )


@dataclass(frozen=True)
class LossScale:
    """A loss type as weights of tokens and one denominator: ``sum(weight * token loss) / denominator``.

    Every supported loss type is of this form, so an episode counts the same in one row or in five, and in
    whatever micro-batch its rows land. TRL's own normalisers count rows or the tokens of one micro-batch.
    """

    weights_by_length: bool
    factor: float
    denominator: float

    @classmethod
    def of(cls, loss_type: str, totals: StepTotals, max_model_length: int) -> LossScale:
        """The scale of a loss type in :data:`LOSS_TYPES` for the totals of a step."""
        by_length = loss_type == "grpo"
        if by_length or loss_type == "luspo":
            # Weights and denominator are `longest` times as large, so that neither is under 1: TRL clamps sums there.
            return cls(by_length, totals.longest, float(totals.episodes * totals.longest))
        if loss_type == "dr_grpo":
            return cls(False, 1, float(totals.episodes * max_model_length))
        return cls(False, 1, float(totals.tokens))

    def weight(self, row: TrainRow) -> float:
        """Weight of each trained token of a row."""
        return self.factor / row.episode_tokens if self.weights_by_length else self.factor


def importance_ratios(
    logps: torch.Tensor, sampling_logps: torch.Tensor, mask: torch.Tensor, correction: str
) -> torch.Tensor:
    """Ratios of the trainer's probabilities to the sampler's, before any cap. No gradient flows through them.

    Args:
        logps: Log-probabilities of the training forward pass, shape (B, T).
        sampling_logps: The sampler's, shape (B, T).
        mask: Above 0 on trained tokens, shape (B, T).
        correction: ``"sequence"`` for one length-normalised ratio a row, else one a token.

    Returns:
        The ratios, shape (B, T); 1 where nothing is trained.
    """
    trained = mask > 0
    differences = torch.where(trained, logps.detach() - sampling_logps, 0.0).float()
    if correction == "sequence":
        mean = differences.sum(-1, keepdim=True) / trained.sum(-1, keepdim=True).clamp(min=1)
        differences = torch.where(trained, mean, 0.0)
    return differences.exp()


def corrected_advantages(advantages: torch.Tensor, ratios: torch.Tensor, correction: str, cap: float) -> torch.Tensor:
    """Advantages times capped importance ratios: the off-policy correction of the loss.

    Multiplying an advantage by a non-negative factor multiplies the loss of its token, in every loss type.

    Args:
        advantages: Shape (B, T).
        ratios: See :func:`importance_ratios`, shape (B, T).
        correction: One of :data:`CORRECTIONS`; ``"off"`` leaves the advantages as they are.
        cap: The largest weight.
    """
    return advantages if correction == "off" else advantages * ratios.clamp(max=cap)
