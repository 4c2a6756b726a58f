"""Says which setting to turn when a training step does not fit into memory. Knows shapes, no model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from accelerate.utils.memory import should_reduce_batch_size

from llmgym.errors import LLMGymError


class OutOfMemoryError(LLMGymError, RuntimeError):
    """A training step does not fit into memory."""


@contextlib.contextmanager
def explaining_out_of_memory(inputs: Mapping[str, torch.Tensor], micro_batch_tokens: int) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that names the setting.

    Args:
        inputs: The micro-batch, with ``prompt_ids`` (B, P) and ``completion_ids`` (B, C).
        micro_batch_tokens: The setting.

    Raises:
        OutOfMemoryError: The section ran out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
            raise
        rows, width = len(inputs["prompt_ids"]), inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        if rows > 1:
            remedy = f"lower micro_batch_tokens, such as to {max(micro_batch_tokens, rows * width) // 2}"
        else:
            remedy = "lower max_model_length, for no row is cut to micro_batch_tokens"
        raise OutOfMemoryError(
            f"out of memory in a forward and backward pass of {rows} rows of {width} tokens "
            f"(micro_batch_tokens={micro_batch_tokens}): {remedy}; or set gradient_checkpointing=True, or train an "
            f"adapter (--lora). The device said: {str(error).splitlines()[0]}"
        ) from error
