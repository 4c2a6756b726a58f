"""The difficulty table of an environment's page: the length of its expert's episodes by level, and a model's score.

    python benchmarks/difficulty.py Mastermind-v0
    python benchmarks/difficulty.py Mastermind-v0 --model tiny                    # the built-in model after SFT
    python benchmarks/difficulty.py Mastermind-v0 --model tiny --right-steps 2500 # after 2,500 SFT steps
    python benchmarks/difficulty.py Mastermind-v0 --model smollm2                 # SmolLM2 as published

Tokens are those of a tokenizer built for the environment as `--model tiny` builds its own: each word, each number and
each stretch between them is one token. The scores of random policies are in the environment's tests.

A model plays each task once, at temperature 1, in at most 8 turns of at most 64 tokens each; an episode that a limit
stops earns 0 and one with a malformed call -0.1. SmolLM2's own template shows no tools, so it gets `hermes`, which
describes them with their schemas and says how a call is written.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import llmgym
from llmgym import Episode
from llmgym.evaluation.statistics import Estimate
from llmgym.registry import find
from llmgym_trainer.models.builtin.smollm2 import load_pretrained
from llmgym_trainer.models.builtin.tiny import TinyRecipe, build_tokenizer, tiny_model, tiny_recipe
from llmgym_trainer.models.load import resolve_model
from llmgym_trainer.tokens.codec import Codec

RECIPE = TinyRecipe(vocab_size=4000, numbers=999)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", metavar="ENV", help="the id of an environment with levels and a scripted expert")
    parser.add_argument("--levels", type=int, default=3, help="number of levels")
    parser.add_argument("--episodes", type=int, default=300, help="episodes of each level")
    parser.add_argument("--model", choices=["tiny", "smollm2"], help="score this model instead of the expert")
    parser.add_argument("--model-episodes", type=int, default=100, help="its episodes of each level")
    parser.add_argument("--right-steps", type=int, help="tiny: this many SFT steps, all on correct episodes")
    options = parser.parse_args()
    if options.right_steps and options.model != "tiny":
        parser.error("--right-steps needs --model tiny")
    if options.model:
        score_model(options)
        return

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
            f"| {level} | {_mean_and_maximum([len(e.turns) for e in episodes])} | {_mean_and_maximum(lengths)} | "
            f"{reward:.2f} |"
        )


def score_model(options: argparse.Namespace) -> None:
    """Print the model's mean reward and success of each level, with their 95 % intervals."""
    print(f"| level | {options.model}: mean reward | success | malformed |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        model = folder
        if options.right_steps:
            longer = replace(
                tiny_recipe(options.env),
                right_steps=options.right_steps,
                right_episodes=8 * options.right_steps,
                mixed_steps=0,
            )
            model = str(tiny_model(1, recipe=longer))
        elif options.model == "tiny":
            model = resolve_model("tiny", 1, options.env)
        else:
            loaded, tokenizer, _ = load_pretrained("hermes")
            loaded.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        for level in range(1, options.levels + 1):
            report = llmgym.run_and_report(
                options.env,
                model=model,
                split="test",
                task_options={"level": level},
                limit=options.model_episodes,
                episodes_per_task=1,
                concurrency=32,
                max_turns=8,
                max_model_length=2048,
                max_completion_length=64,
                out=Path(folder) / f"level-{level}",
            )
            malformed = report.stop_reasons.get("parse_failure", 0) / report.episodes
            print(f"| {level} | {_mean(report.reward)} | {_mean(report.success)} | {malformed:.2f} |", flush=True)


async def _play(env_id: str, level: int, count: int) -> list[Episode]:
    entry = find(env_id)
    tasks = entry.load_tasks("test", level=level, count=count)
    return [await llmgym.run_episode(entry.make_env(task), task, llmgym.expert_policy(env_id)) for task in tasks]


def _mean(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f" ({estimate.low:.2f} to {estimate.high:.2f})"
    return f"{estimate.mean:.2f}{interval}"


def _mean_and_maximum(values: Sequence[int]) -> str:
    return f"{statistics.fmean(values):.1f} ({max(values)})"


if __name__ == "__main__":
    main()
