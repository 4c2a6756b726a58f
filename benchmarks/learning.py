"""Learning curves of a built-in policy, and of a control that learns from shuffled rewards.

For each seed: build the policy by SFT (with an empty cache), score it on 200 level-1 test tasks at temperature 1, train
it with the settings of ``llmgym train``, and score it again. The control is the same run with the rewards shuffled
within their groups. Each run is a process of its own, so that peak memory is measured for each.

    python benchmarks/learning.py --out docs/learning            # three seeds and three controls
    python benchmarks/learning.py --out docs/learning --plot     # redraw the picture from results.json
    python benchmarks/learning.py --out somewhere --env Mastermind-v0 --no-control
    python benchmarks/learning.py --out docs/learning --overview # draw all environments with results below

Writes ``<out>/results.json`` and ``<out>/learning.png``. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

TARGETS = {("ToolUseGame-v0", "tiny"): 0.9, ("ToolUseGame-v0", "smollm2"): 0.75}
"""The success rate that a built-in model should reach."""


def run_one(env_id: str, seed: int, shuffled: bool, model: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """SFT, score, train, score. Returns the measurements of one run."""
    import torch

    import llmgym
    from llmgym.registry import find
    from llmgym_trainer import GRPOConfig, train_multi_turn
    from llmgym_trainer.collection.sampler import StepSampler
    from llmgym_trainer.models.builtin import preset
    from llmgym_trainer.models.load import resolve_model
    from llmgym_trainer.models.lora import default_lora
    from llmgym_trainer.runs.folder import read_metrics

    class ShuffledRewards(StepSampler):
        """The control: the rewards of each group are assigned to its episodes at random."""

        def sample(self, step: int) -> Any:
            groups = super().sample(step)
            for number, group in enumerate(groups):
                rewards = [episode.reward for episode in group.episodes]
                random.Random(f"{seed}/{step}/{number}").shuffle(rewards)
                for episode, reward in zip(group.episodes, rewards, strict=True):
                    episode.reward = reward
            return groups

    began = time.perf_counter()
    path = resolve_model(model, seed, env_id)
    warmed = time.perf_counter()
    settings = {**preset(model), "seed": seed, **overrides}
    config = GRPOConfig(**{**settings, "model": path, "runs_dir": tempfile.mkdtemp()})
    entry = find(env_id)
    with mock.patch("llmgym_trainer.trainer.StepSampler", ShuffledRewards if shuffled else StepSampler):
        result = train_multi_turn(
            config,
            tasks=entry.load_tasks("train", level=1),
            env_factory=entry.make_env,
            val_tasks=entry.load_tasks("test", level=1, count=200),
            peft_config=default_lora() if model == "smollm2" else None,
            env_id=entry.id,
        )
    ended = time.perf_counter()
    lines = read_metrics(result.run_dir)
    return {
        "env": env_id,
        "seed": seed,
        "shuffled": shuffled,
        "model": model,
        "warm_up_s": warmed - began,
        "train_s": ended - warmed,
        "validation_s": sum(line.get("val/time", 0.0) for line in lines),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "threads": torch.get_num_threads(),
        "llmgym": llmgym.__version__,
        "validation": [(line["step"], line["val/success"]) for line in lines if "val/success" in line],
        "validation_reward": [(line["step"], line["val/reward"]) for line in lines if "val/reward" in line],
        "reward": [(line["step"], line["reward"]) for line in lines if "reward" in line],
        "step_s": [(line["step"], line["step_time"]) for line in lines if "step_time" in line],
        "max_logp_difference": [
            (line["step"], line["sampling/sampling_logp_difference/max"])
            for line in lines
            if "sampling/sampling_logp_difference/max" in line
        ],
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw held-out success of all runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for run in results:
        color = "tab:gray" if run["shuffled"] else "tab:orange"
        label = "control: rewards shuffled within groups" if run["shuffled"] else "multi-turn GRPO"
        known = axes.get_legend_handles_labels()[1]
        axes.plot(
            *zip(*run["validation"], strict=True), color=color, marker="o", label=None if label in known else label
        )
        label = "mean reward of each training step"
        if not run["shuffled"]:
            label_once = None if label in known else label
            axes.plot(*zip(*run["reward"], strict=True), color=color, linewidth=1, alpha=0.4, label=label_once)
    target = TARGETS.get((results[0]["env"], results[0]["model"]))
    if target is not None:
        axes.axhline(target, color="tab:green", linestyle=":", linewidth=1)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("success on 200 test tasks, temperature 1")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(loc="center right")
    axes.set_title(f"{results[0]['env']}, level 1, --model {results[0]['model']}, one line a seed")
    figure.savefig(path, dpi=130)


def plot_overview(folder: Path) -> None:
    """Draw and print the tiny model's success in each environment with figures in or just below ``folder``."""
    from matplotlib.figure import Figure

    runs: dict[str, list[dict[str, Any]]] = {}
    for file in [folder / "results.json", *sorted(folder.glob("*/results.json"))]:
        for run in json.loads(file.read_text()):
            if run["model"] == "tiny" and not run["shuffled"]:
                runs.setdefault(run["env"], []).append(run)
    rows = math.ceil(len(runs) / 4)
    figure = Figure(figsize=(10, 2.4 * rows), layout="constrained")
    grid = figure.subplots(rows, 4, sharey=True, squeeze=False)
    for axes in grid.flat[len(runs) :]:
        axes.set_axis_off()
    for axes, (env_id, seeds) in zip(grid.flat, runs.items(), strict=False):
        for run in seeds:
            axes.plot(*zip(*run["validation"], strict=True), color="tab:orange", marker="o", markersize=3)
        axes.set_title(env_id, fontsize=10)
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.3)
    figure.supxlabel("optimizer step", fontsize=10)
    figure.supylabel("success on 200 test tasks", fontsize=10)
    figure.savefig(folder / "suite.png", dpi=130)
    for env_id, seeds in runs.items():
        ends = [
            (run["validation"][0][1], run["validation"][-1][1]) for run in sorted(seeds, key=lambda run: run["seed"])
        ]
        print(f"| `{env_id}` | {' | '.join(f'{first:.3f} → {last:.3f}' for first, last in ends)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--env", default="ToolUseGame-v0", help="a registered id with an expert and levels")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-control", action="store_true")
    parser.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="setting that differs from the preset"
    )
    parser.add_argument("--plot", action="store_true", help="only draw the picture from results.json")
    parser.add_argument(
        "--overview", action="store_true", help="only draw suite.png from all results below --out, and print them"
    )
    parser.add_argument("--one", metavar="SEED,SHUFFLED", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        from llmgym._util.settings import parse
        from llmgym_trainer import GRPOConfig

        seed, shuffled = map(int, args.one.split(","))
        overrides = parse(GRPOConfig, dict(item.split("=", 1) for item in args.set), source="--set")
        json.dump(run_one(args.env, seed, bool(shuffled), args.model, overrides), args.out.open("w"))
        return
    if args.overview:
        plot_overview(args.out)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    results = json.loads(file.read_text()) if args.plot else []
    if not args.plot:
        runs = [(seed, shuffled) for shuffled in ([0] if args.no_control else [0, 1]) for seed in args.seeds]
        with tempfile.TemporaryDirectory() as cache:  # empty at first; a control reuses the policy of its seed
            for seed, shuffled in runs:
                part = Path(cache) / "part.json"
                command = [sys.executable, __file__, "--out", str(part), "--env", args.env, "--model", args.model]
                command += ["--one", f"{seed},{shuffled}", *(f"--set={item}" for item in args.set)]
                subprocess.run(command, check=True, env={**os.environ, "LLMGYM_CACHE": cache})
                results.append(json.loads(part.read_text()))
                file.write_text(json.dumps(results, indent=1))
    plot(results, args.out / "learning.png")
    for run in results:
        first, last = run["validation"][0][1], run["validation"][-1][1]
        print(
            f"seed {run['seed']} {'control' if run['shuffled'] else 'GRPO   '}: success {first:.3f} -> {last:.3f}, "
            f"SFT {run['warm_up_s']:.0f} s, training {run['train_s']:.0f} s of which validation "
            f"{run['validation_s']:.0f} s, peak {run['peak_memory_mib']:.0f} MiB"
        )


if __name__ == "__main__":
    main()
