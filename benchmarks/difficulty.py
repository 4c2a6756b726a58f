"""The difficulty table of an environment's page: how long its scripted expert's episodes are, level by level.

    python benchmarks/difficulty.py Mastermind-v0

Tokens are those of a tokenizer built for the environment as `--model tiny` builds its own: a word, a number, or what
stands between them is one token. No model is made. What a random policy scores is in the environment's tests.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace

import llmgym
from llmgym import Episode
from llmgym.registry import find
from llmgym_trainer.codec import Codec
from llmgym_trainer.tiny import TinyRecipe, build_tokenizer

RECIPE = TinyRecipe(vocab_size=4000, numbers=999)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", metavar="ENV", help="the id of an environment with levels and a scripted expert")
    parser.add_argument("--levels", type=int, default=3, help="number of levels")
    parser.add_argument("--episodes", type=int, default=300, help="episodes of each level")
    options = parser.parse_args()

    print("| level | expert's turns, mean (most) | tokens an episode, mean (most) | expert's reward |")
    print("| --- | --- | --- | --- |")
    for level in range(1, options.levels + 1):
        episodes = asyncio.run(_play(options.env, level, options.episodes))
        codec = Codec(build_tokenizer(replace(RECIPE, env_id=options.env), episodes))
        lengths = [
            len(codec.render(episode.messages, episode.tool_specs, add_generation_prompt=False)) for episode in episodes
        ]
        reward = statistics.fmean(episode.reward for episode in episodes)
        print(
            f"| {level} | {_spread([len(episode.turns) for episode in episodes])} | {_spread(lengths)} | {reward:.2f} |"
        )


async def _play(env_id: str, level: int, count: int) -> list[Episode]:
    entry = find(env_id)
    tasks = entry.load_tasks("test", level=level, count=count)
    return [await llmgym.run_episode(entry.make_env(task), task, llmgym.expert_policy(env_id)) for task in tasks]


def _spread(values: Sequence[int]) -> str:
    return f"{statistics.fmean(values):.1f} ({max(values)})"


if __name__ == "__main__":
    main()
