"""Environment steps and episodes a second under the scripted expert: run_episode beside the Gymnasium API.

    python benchmarks/env_steps.py [SqlAnalyst-v0]
    python benchmarks/env_steps.py --all [--episodes 200 --repeats 7]

The first form compares the ways to play one environment, in steps a second. The second prints a Markdown table of all
shipped environments, in episodes a second: the median of the repeats, and in parentheses their minimum and maximum.

All ways play the same tasks with the same expert. They are interleaved: each repeat runs every way once (with `--all`,
of every environment), so that a busy machine slows all alike. A step is one assistant message; the time of resets and
of the expert counts.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import gymnasium

import llmgym
from llmgym import Task
from llmgym.registry import find

NUM_ENVS = 16
WAYS = ("run_episode", "gym.make", f"gym.make_vec ({NUM_ENVS} episodes at a time)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "env",
        metavar="ENV",
        nargs="?",
        default="ToolUseGame-v0",
        help="a registered id; its expert must solve every task",
    )
    which.add_argument("--all", action="store_true", help="all shipped environments, one row each")
    parser.add_argument("--level", help="of the tasks; by default the environment's own default")
    parser.add_argument("--episodes", type=int, default=200, help="episodes of each way in one repeat")
    parser.add_argument("--repeats", type=int, default=7, help="interleaved repeats; the median counts")
    options = parser.parse_args()

    ids = llmgym.registered_ids() if options.all else [options.env]
    players = [Player(env_id, options.level, options.episodes) for env_id in ids]
    for _ in range(options.repeats):
        for player in players:
            player.repeat()
    print(f"scripted experts, {options.episodes} episodes a repeat, {options.repeats} repeats\n")
    if options.all:
        print_episodes(players)
    else:
        print_steps(players[0])
    for player in players:
        player.close()


class Player:
    """Plays the tasks of one environment in every way, and keeps the steps a second of each repeat in ``rates``."""

    def __init__(self, env_id: str, level: str | None, episodes: int) -> None:
        self.env_id = env_id
        tasks = llmgym.tasks(env_id, **({} if level is None else {"level": level}))[:episodes]
        self._gym_env = gymnasium.make(env_id, tasks=tasks)
        self._vector_env = gymnasium.make_vec(env_id, num_envs=NUM_ENVS, tasks=tasks)
        plays: tuple[Callable[[], Coroutine[Any, Any, int]], ...] = (
            lambda: _through_run_episode(env_id, tasks),
            lambda: _through_gym(env_id, self._gym_env, tasks),
            lambda: _through_vector(env_id, self._vector_env, len(tasks)),
        )
        self._plays = dict(zip(WAYS, plays, strict=True))
        self.rates: dict[str, list[float]] = {way: [] for way in WAYS}
        self.turns = asyncio.run(plays[0]()) / len(tasks)  # also fills what the environment caches

    def repeat(self) -> None:
        """Play all tasks once in every way."""
        for way, play in self._plays.items():
            start = time.perf_counter()
            steps = asyncio.run(play())
            self.rates[way].append(steps / (time.perf_counter() - start))

    def close(self) -> None:
        self._gym_env.close()
        self._vector_env.close()


def print_steps(player: Player) -> None:
    """The ways of one environment, a row each."""
    reference = statistics.median(player.rates["run_episode"])
    print(
        f"{player.env_id:40}{'steps/s, median':>16}{'min':>9}{'max':>9}{'ratio':>8}{'ms a step':>11}{'episodes/s':>12}"
    )
    for way, values in player.rates.items():
        median = statistics.median(values)
        print(
            f"{way:40}{median:16,.0f}{min(values):9,.0f}{max(values):9,.0f}"
            f"{median / reference:8.2f}{1e3 / median:11.3f}"
            f"{median / player.turns:12,.0f}"
        )


def print_episodes(players: Sequence[Player]) -> None:
    """The environments, a row each, with a column for each way."""
    print(f"| environment | turns an episode | {' | '.join(f'episodes/s, {way}' for way in WAYS)} |")
    print(f"| --- | --- |{' --- |' * len(WAYS)}")
    for player in players:
        cells = []
        for values in player.rates.values():
            low, middle, high = (rate / player.turns for rate in (min(values), statistics.median(values), max(values)))
            cells.append(f"{middle:,.0f} ({low:,.0f}–{high:,.0f})")
        print(f"| {player.env_id} | {player.turns:.1f} | {' | '.join(cells)} |")


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
