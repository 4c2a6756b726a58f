"""The training call of the reference's documentation, with another model and fewer steps and nothing else changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

CALL = """
from llmgym_environments.tool_use_game import (
    TOOL_USE_GAME_TASKS,
    ToolUseGameEnv,
)
from llmgym_trainer import GRPOConfig, train_multi_turn

tasks = list(TOOL_USE_GAME_TASKS)
config = GRPOConfig(
    model="tiny",
    batch_size=4,
    episodes_per_task=8,
    num_steps=1,
    validation_interval=10,
    max_turns=6,
    max_model_length=2048,
    learning_rate=2e-5,
    wandb_project="grpo-tool-use-game",
    sequential_validation=True,
    max_sampling_attempts=2,
)
train_multi_turn(
    config,
    tasks=tasks,
    env_factory=lambda task: ToolUseGameEnv(),
    val_tasks=tasks,
)
"""


@pytest.mark.slow
def test_the_reference_training_call_takes_an_optimizer_step_on_the_tiny_model(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(CALL)
    environment = {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "recipe.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]

    (run,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    (step,) = [line for line in lines if "reward" in line]
    assert step["step_skipped"] == 0
    assert step["grad_norm"] > 0
    assert [line["step"] for line in lines if "val/success" in line] == [0, 1]
    assert list((run / "wandb").glob("offline-run-*"))

    from llmgym_trainer.models.builtin.tiny import tiny_model

    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_model(42), run / "checkpoint-1"))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert moved == list(before)  # AdamW moves every weight, if by little
