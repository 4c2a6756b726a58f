"""Importing llmgym is light: people plug its environments into other libraries."""

from __future__ import annotations

import subprocess
import sys

import llmgym

HEAVY = (
    "torch",
    "transformers",
    "trl",
    "datasets",
    "accelerate",
    "peft",
    "matplotlib",
    "pandas",
    "wandb",
    "openai",
    "bm25s",
)


def test_import_loads_nothing_heavy():
    code = f"import sys, llmgym; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_import_works_where_nothing_heavy_is_installed():
    """Every import of a heavy package fails, as it does with the core alone."""
    code = f"""
import asyncio, sys
for name in {HEAVY!r}:
    sys.modules[name] = None
import gymnasium, llmgym
env = gymnasium.make("ToolUseGame-v0")
env.reset(seed=0)
entry = llmgym.registry.find("ToolUseGame-v0")
task = llmgym.tasks("ToolUseGame-v0")[0]
episode = asyncio.run(llmgym.run_episode(entry.make_env(task), task, llmgym.expert_policy("ToolUseGame-v0")))
print(episode.reward)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1.0\n"


def test_everything_in_all_exists_and_is_sorted():
    assert [name for name in llmgym.__all__ if not hasattr(llmgym, name)] == []
    assert sorted(llmgym.__all__) == list(llmgym.__all__)
