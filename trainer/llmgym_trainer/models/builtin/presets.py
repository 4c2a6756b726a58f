"""Settings that suit the built-in models on two CPU cores. Used by the command line where the user says nothing."""

from __future__ import annotations

from typing import Any

COMMON: dict[str, Any] = {"max_turns": 10}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "learning_rate": 7e-4,
        "batch_size": 16,
        "episodes_per_task": 8,
        "num_steps": 50,
        "max_turns": 6,
        "max_model_length": 384,
    },
    "smollm2": {
        "learning_rate": 4e-4,
        "batch_size": 4,
        "episodes_per_task": 8,
        "num_steps": 16,
        "max_turns": 6,
        "max_model_length": 384,
        "max_completion_length": 48,
        "validation_interval": 16,
        "micro_batch_tokens": 2048,
    },
}


def preset(model: str) -> dict[str, Any]:
    """Settings for a model: those common to all, and those of a built-in one."""
    return {**COMMON, **PRESETS.get(model, {})}
