"""The models that llmgym builds itself, ``tiny`` and ``smollm2``, and training settings for them on two CPU cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmgym.errors import UnknownEnvironmentError
from llmgym.registry import find

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
"""Settings that ``llmgym train`` starts from, for each built-in model."""


def preset(model: str) -> dict[str, Any]:
    """The settings that ``llmgym train`` starts from."""
    return {"max_turns": 10, **PRESETS.get(model, {})}


def built_in_model(name: str, seed: int, env_id: str = "") -> Path:
    """The folder of a built-in model; it is built and fine-tuned first if it is not cached.

    Args:
        name: One of :data:`PRESETS`.
        seed: Each seed gives another model.
        env_id: The environment whose scripted expert it learns from; ToolUseGame-v0 if that has none.
    """
    try:
        learns_here = find(env_id).expert is not None
    except UnknownEnvironmentError:
        learns_here = False
    if name == "tiny":
        from llmgym_trainer.models.builtin.tiny import tiny_model, tiny_recipe

        return tiny_model(seed, recipe=tiny_recipe(env_id) if learns_here else None)
    from llmgym_trainer.models.builtin.smollm2 import SmolLM2Recipe, smollm2_model

    return smollm2_model(seed, recipe=SmolLM2Recipe(env_id=env_id) if learns_here else None)
