"""From rows to the tensors of the forward passes of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llmgym_trainer.algorithm.loss import LossScale
from llmgym_trainer.algorithm.rows import TrainRow


def pack(rows: Sequence[TrainRow], micro_batch_tokens: int) -> list[list[TrainRow]]:
    """Group rows of similar length into micro-batches of at most ``micro_batch_tokens`` tokens with padding.

    A row longer than that gets a micro-batch of its own; none is cut.
    """
    batches: list[list[TrainRow]] = []
    for row in sorted(rows, key=lambda r: len(r.row.ids)):
        if not batches or len(row.row.ids) * (len(batches[-1]) + 1) > micro_batch_tokens:
            batches.append([])
        batches[-1].append(row)
    return batches


def to_tensors(
    rows: Sequence[TrainRow], scale: LossScale, *, count: int, pad_token_id: int, device: torch.device
) -> dict[str, torch.Tensor]:
    """Build the inputs of TRL's loss, padded on the right.

    Every token then has the position it was sampled at, whatever the model: some take positions from the attention
    mask, some from ``position_ids``, some only from the order of the tokens. TRL wants a prompt and a completion, and
    scores the completion; here the prompt is a row's first token, which nothing predicts.

    Args:
        rows: The rows of a micro-batch.
        scale: Token weights.
        count: Rows B of the tensors, at least ``len(rows)``; the others are padding that trains nothing.
        pad_token_id: What fills the padding.
        device: Where the tensors go.

    Returns:
        ``prompt_ids``, ``prompt_mask`` (B, 1); ``completion_ids``, ``completion_mask``, ``tool_mask`` (the weight
        of trained tokens, else 0), ``sampling_per_token_logps`` and ``advantages`` (B, C).
    """
    width = max((len(r.row.ids) for r in rows), default=2)
    ids = torch.full((count, width), pad_token_id)
    attention = torch.zeros(count, width, dtype=torch.long)
    attention[:, 0] = 1  # a row of nothing has no finite attention
    weights, logps, advantages = (torch.zeros(count, width) for _ in range(3))
    for i, train_row in enumerate(rows):
        row, length = train_row.row, len(train_row.row.ids)
        ids[i, :length] = torch.tensor(row.ids)
        attention[i, :length] = 1
        weights[i, :length] = torch.tensor(row.mask, dtype=torch.float) * scale.weight(train_row)
        logps[i, :length] = torch.tensor(row.logprobs)
        advantages[i, :length] = torch.tensor([train_row.advantages[k] if k >= 0 else 0.0 for k in row.turns])
    tensors = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": attention[:, :1],
        "completion_ids": ids[:, 1:],
        "completion_mask": attention[:, 1:],
        "tool_mask": weights[:, 1:],
        "sampling_per_token_logps": logps[:, 1:],
        "advantages": advantages[:, 1:],
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}
