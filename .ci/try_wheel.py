"""Tries the installed wheel where only the core is installed: run by .ci/run outside the clone."""

import asyncio
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time

start = time.perf_counter()
import llmgym  # noqa: E402

seconds = time.perf_counter() - start

assert "site-packages" in llmgym.__file__, llmgym.__file__
assert importlib.util.find_spec("torch") is None, "the core alone brought torch"
assert os.path.exists(os.path.join(os.path.dirname(llmgym.__file__), "py.typed"))
assert importlib.metadata.version("llmgym-rl") == llmgym.__version__

import gymnasium  # noqa: E402

env = gymnasium.make("llmgym:ToolUseGame-v0")
observation, info = env.reset(seed=0)
expert = llmgym.expert_policy("ToolUseGame-v0")


async def play() -> float:
    """Let the expert play one episode through the Gymnasium face."""
    messages, reward, ended = list(observation), 0.0, False
    await expert.start(info["task"])
    while not ended:
        action = await expert.act(messages, info["tool_specs"])
        messages, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    return reward


assert asyncio.run(play()) == 1.0
env.close()

assert "ToolUseGame-v0" in subprocess.run(["llmgym", "list"], check=True, capture_output=True, text=True).stdout
train = subprocess.run(["llmgym", "train", "ToolUseGame-v0"], capture_output=True, text=True)
assert train.returncode == 2, train
assert 'pip install -e ".[train]"' in train.stderr, train.stderr
sys.stdout.write(f"the wheel works without torch; import llmgym took {seconds:.2f} s\n")
