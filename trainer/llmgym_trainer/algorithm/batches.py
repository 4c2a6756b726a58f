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
