"""From rows to the tensors of forward passes, and each loss type's denominator. Knows no episode and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from llmgym_trainer.algorithm.rows import Row


@dataclass
class TrainRow:
    """A row with what the loss needs.

    Attributes:
        row: The tokens.
        advantages: The advantage of each turn of its episode.
        episode_tokens: Trained tokens of the whole episode, over all its rows.
    """

    row: Row
    advantages: Sequence[float]
    episode_tokens: int


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
        """The scale of a loss type in :data:`llmgym_trainer.config.LOSS_TYPES` for the totals of a step."""
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


def pack(rows: Sequence[TrainRow], micro_batch_tokens: int) -> list[list[TrainRow]]:
    """Group rows of similar length into micro-batches of at most ``micro_batch_tokens`` tokens with padding.

    A row longer than that gets a micro-batch of its own; none is cut.
    """
    batches: list[list[TrainRow]] = []
    prompt = completion = 0
    for row in sorted(rows, key=lambda r: (len(r.row.ids), r.row.prompt_length)):
        row_completion = len(row.row.ids) - row.row.prompt_length
        wider = max(prompt, row.row.prompt_length) + max(completion, row_completion)
        if not batches or wider * (len(batches[-1]) + 1) > micro_batch_tokens:
            batches.append([])
            prompt = completion = 0
        batches[-1].append(row)
        prompt, completion = max(prompt, row.row.prompt_length), max(completion, row_completion)
    return batches


def to_tensors(
    rows: Sequence[TrainRow], scale: LossScale, *, count: int, pad_token_id: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Build the inputs of TRL's loss: prompts padded left, completions padded right.

    Args:
        rows: The rows of a micro-batch.
        scale: Token weights.
        count: Rows B of the tensors, at least ``len(rows)``; the others are padding that trains nothing.
        pad_token_id: What fills the padding.
        device: Where the tensors go.

    Returns:
        ``prompt_ids``, ``prompt_mask`` (B, P); ``completion_ids``, ``completion_mask``, ``tool_mask`` (the weight
        of trained tokens, else 0), ``sampling_per_token_logps`` (B, C); ``advantages`` (B, C).
    """
    width_p = max((r.row.prompt_length for r in rows), default=1)
    width_c = max((len(r.row.ids) - r.row.prompt_length for r in rows), default=1)
    prompt_ids = torch.full((count, width_p), pad_token_id)
    completion_ids = torch.full((count, width_c), pad_token_id)
    prompt_mask, completion_mask = torch.zeros(count, width_p, dtype=torch.long), torch.zeros(count, width_c).long()
    tool_mask, logps, advantages = (torch.zeros(count, width_c) for _ in range(3))
    for i, train_row in enumerate(rows):
        row, split = train_row.row, train_row.row.prompt_length
        length = len(row.ids) - split
        prompt_ids[i, width_p - split :] = torch.tensor(row.ids[:split])
        prompt_mask[i, width_p - split :] = 1
        completion_ids[i, :length] = torch.tensor(row.ids[split:])
        completion_mask[i, :length] = 1
        tool_mask[i, :length] = torch.tensor(row.mask[split:], dtype=torch.float) * scale.weight(train_row)
        logps[i, :length] = torch.tensor(row.logprobs[split:])
        advantages[i, :length] = torch.tensor([train_row.advantages[k] if k >= 0 else 0.0 for k in row.turns[split:]])
    prompt_mask[len(rows) :, -1] = completion_mask[len(rows) :, 0] = 1  # a row of nothing has no finite attention
    tensors = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": tool_mask,
        "sampling_per_token_logps": logps,
        "advantages": advantages,
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}
