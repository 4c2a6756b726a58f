"""The adapter that ``--lora`` trains."""

from __future__ import annotations

from typing import Any


def default_lora(rank: int = 16) -> Any:
    """A ``peft.LoraConfig``: alpha of twice the rank, no dropout, on every linear layer but the output."""
    from peft import LoraConfig

    return LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
