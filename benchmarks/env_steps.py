"""Environment steps and episodes a second under the scripted expert: run_episode beside the Gymnasium face.

    python benchmarks/env_steps.py [SqlAnalyst-v0]

Every way plays the same tasks with the same expert, and every way is run in every repeat, one after the other, so that a
busy machine slows all of them alike. A step is one assistant message; resets and the expert's own time count in all.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

import gymnasium

import llmgym
from llmgym import Task
from llmgym.registry import find

NUM_ENVS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", metavar="ENV", nargs="?", default="ToolUseGame-v0", help="id; its expert must solve all")
    parser.add_argument("--level", help="of the tasks; by default the environment's own default")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each way in one repeat")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats; the median counts")
    options = parser.parse_args()

    env_id, level = options.env, {} if options.level is None else {"level": options.level}
    tasks = llmgym.tasks(env_id, **level)[: options.episodes]
    gym_env = gymnasium.make(env_id, tasks=tasks)
    vector_env = gymnasium.make_vec(env_id, num_envs=NUM_ENVS, tasks=tasks)
    ways: dict[str, Callable[[], int]] = {
        "run_episode": lambda: asyncio.run(_through_run_episode(env_id, tasks)),
        "gym.make": lambda: asyncio.run(_through_gym(env_id, gym_env, tasks)),
        f"gym.make_vec ({NUM_ENVS} episodes at a time)": lambda: asyncio.run(
            _through_vector(env_id, vector_env, len(tasks))
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    turns = ways["run_episode"]() / len(tasks)  # also fills what the environment caches
    for _ in range(options.repeats):
        for name, play in ways.items():
            start = time.perf_counter()
            steps = play()
            rates[name].append(steps / (time.perf_counter() - start))

    reference = statistics.median(rates["run_episode"])
    print(f"{env_id}, scripted expert, {len(tasks)} episodes a repeat, {options.repeats} repeats")
    print(f"{'':40}{'steps/s, median':>16}{'min':>9}{'max':>9}{'ratio':>8}{'ms a step':>11}{'episodes/s':>12}")
    for name, values in rates.items():
        median = statistics.median(values)
        print(
            f"{name:40}{median:16,.0f}{min(values):9,.0f}{max(values):9,.0f}{median / reference:8.2f}{1e3 / median:11.3f}"
            f"{median / turns:12,.0f}"
        )
    gym_env.close()
    vector_env.close()


async def _through_run_episode(env_id: str, tasks: list[Task]) -> int:
    entry = find(env_id)
    steps = 0
    for task in tasks:
        episode = await llmgym.run_episode(entry.make_env(task), task, llmgym.expert_policy(env_id))
        assert episode.reward == 1.0, episode.stop_detail
        steps += len(episode.turns)
    return steps


async def _through_gym(env_id: str, env: gymnasium.Env[Any, Any], tasks: list[Task]) -> int:
    steps = 0
    for task in tasks:
        policy = llmgym.expert_policy(env_id)
        messages, info = env.reset(options={"task": task})
        await policy.start(task)
        ended = False
        while not ended:
            messages, reward, terminated, truncated, info = env.step(await policy.act(messages, info["tool_specs"]))
            ended = terminated or truncated
            steps += 1
        assert reward == 1.0, info
    return steps


async def _through_vector(env_id: str, env: gymnasium.vector.VectorEnv[Any, Any, Any], episodes: int) -> int:
    """Play until so many episodes have ended; a step that only begins the next episode is none."""
    steps = finished = 0
    observations, infos = env.reset(seed=0)
    policies = [llmgym.expert_policy(env_id) for _ in range(env.num_envs)]
    fresh = [True] * env.num_envs
    ended = [False] * env.num_envs
    while finished < episodes:
        actions: list[Any] = []
        for index, policy in enumerate(policies):
            if ended[index]:
                actions.append(None)
                continue
            if fresh[index]:
                await policy.start(infos["task"][index])
            actions.append(await policy.act(observations[index], infos["tool_specs"][index]))
        fresh = ended
        steps += sum(action is not None for action in actions)
        observations, rewards, terminated, truncated, infos = env.step(actions)
        ended = [bool(value) for value in terminated | truncated]
        assert all(rewards[index] == 1.0 for index in range(env.num_envs) if ended[index]), infos
        finished += sum(ended)
    return steps


if __name__ == "__main__":
    main()
