"""Seconds a GRPO step: llmgym_trainer beside TRL's own ``GRPOTrainer(environment_factory=…)``, on the same game.

    python benchmarks/step_vs_trl.py

Two processes load the same model, one trainer each, and alternate: one optimizer step of the one, then one of the
other, while the first sleeps, so that a busy machine slows both alike. The first step of each is a warm-up and not
counted. Everything between two steps counts (logging and records too); saving and validation are off. What is the same
and what differs is printed below the table. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import multiprocessing
import resource
import statistics
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import TrainerCallback
from trl.chat_template_utils import qwen3_template

import llmgym
from llmgym import Task
from llmgym.errors import ToolError, did_you_mean
from llmgym_environments.calculator import evaluate, format_number, parse_number
from llmgym_environments.tool_use_game import ToolUseGameEnv
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer
from llmgym_trainer.models.builtin import preset
from llmgym_trainer.models.load import load_model, resolve_model
from llmgym_trainer.runs.folder import RunFolder
from llmgym_trainer.runs.reporting import Reporter

ENV_ID = "ToolUseGame-v0"
SYSTEM, TOOL_ORDER = ToolUseGameEnv.system_prompt, ["list_fact_keys", "lookup", "calculator"]
SIDES = ("llmgym", "TRL")


@dataclass(frozen=True)
class Settings:
    """Settings of both sides. Lengths are in tokens."""

    model: str
    tasks: list[Task]
    steps: int
    tasks_a_step: int
    episodes: int
    threads: int | None
    trl_rows: int
    max_turns: int
    max_model_length: int
    learning_rate: float
    seed: int

    @property
    def episodes_a_step(self) -> int:
        return self.tasks_a_step * self.episodes

    def common(self) -> dict[str, Any]:
        """Trainer settings with the same name on both sides."""
        return {
            "learning_rate": self.learning_rate,
            "temperature": 1.0,
            "loss_type": "dapo",
            "beta": 0.0,
            "shuffle_dataset": False,
            "gradient_checkpointing": False,
            "bf16": False,
            "use_cpu": True,
            "logging_steps": 1,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Figures:
    """One optimizer step of one side. Times in seconds, counts over the whole step."""

    total_s: float
    sampling_s: float
    environment_s: float
    sampled_tokens: float
    trained_tokens: float
    trained_episodes: float
    tool_calls: float
    reward: float
    weight_change: float

    @property
    def training_s(self) -> float:
        return self.total_s - self.sampling_s - self.environment_s


@dataclass(frozen=True)
class Ready:
    """A side has built its trainer: prompt ids of the first step's tasks, and torch's threads."""

    prompts: list[list[int]]
    threads: int


@dataclass(frozen=True)
class Failure:
    """A side raised an exception."""

    text: str


class Clock(Counter[str]):
    """Seconds by name."""

    @contextlib.contextmanager
    def counting(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self[name] += time.perf_counter() - began  # type: ignore[assignment]


class Turns(TrainerCallback):  # type: ignore[misc]  # no type information
    """Waits for its turn before each optimizer step, and reports the step when it is over.

    Args:
        connection: To the parent, which says whose turn it is.
        model: What is trained.
        figures: All of a step's figures but the time of the whole and the change of weights, from the trainer's logs.
    """

    def __init__(
        self, connection: Connection, model: torch.nn.Module, figures: Callable[[dict[str, float]], dict[str, float]]
    ) -> None:
        self._connection, self._figures = connection, figures
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._first = self._weights()
        self._began: float | None = None
        self._logs: dict[str, float] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()
        self._connection.recv()
        self._began = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if "reward" in logs:
            self._logs = dict(logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_save = False  # both would write a checkpoint after the last step

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._began is None:
            return
        total = time.perf_counter() - self._began
        change = (self._weights() - self._first).norm() / self._first.norm()
        self._connection.send(Figures(total, weight_change=change.item(), **self._figures(self._logs)))

    def _weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self._parameters])


# llmgym's side


def run_llmgym(settings: Settings, connection: Connection) -> None:
    """Train with llmgym_trainer."""
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            model=settings.model,
            batch_size=settings.tasks_a_step,
            episodes_per_task=settings.episodes,
            num_steps=settings.steps,
            max_turns=settings.max_turns,
            max_model_length=settings.max_model_length,
            failed_parse_reward=0.0,  # TRL's reward function sees no parse failures
            runs_dir=folder,
            **settings.common(),
        )
        model, tokenizer = load_model(settings.model, dtype=torch.float32)
        reporter = Reporter(config, RunFolder.create(folder, "run"), is_main=True)
        trainer = MultiTurnGRPOTrainer(
            model,
            config,
            tasks=settings.tasks,
            env_factory=lambda task: ToolUseGameEnv(),
            tokenizer=tokenizer,
            reporter=reporter,
        )

        def figures(logs: dict[str, float]) -> dict[str, float]:
            return {
                "sampling_s": logs["time/sampling"],
                "environment_s": logs["time/env"],
                "sampled_tokens": logs["completions/mean_length"] * settings.episodes_a_step,
                "trained_tokens": logs["trained_tokens"],
                "trained_episodes": (1.0 - logs["frac_reward_zero_std"]) * settings.episodes_a_step,
                "tool_calls": logs["tools/call_frequency"] * settings.episodes_a_step,
                "reward": logs["reward"],
            }

        trainer.add_callback(Turns(connection, trainer.model, figures))
        prompts = []
        for task in settings.tasks[: settings.tasks_a_step]:
            env = ToolUseGameEnv()
            prompts.append(trainer.codec.render(asyncio.run(env.reset(task)), env.tool_specs))
        connection.send(Ready(prompts, torch.get_num_threads()))
        trainer.train()
        trainer.engine.close()
        reporter.close()


# TRL's side


class GameForTRL:
    """The game as TRL wants it: ``reset`` takes a row, public methods are tools. Texts are those of our environment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def reset(self, facts: str, target: str, **row: Any) -> None:
        with self._clock.counting("environment"), self._clock.counting("environment outside the rollout"):
            self._facts: dict[str, int] = json.loads(facts)
            self._target = parse_number(target)

    def list_fact_keys(self) -> str:
        """List all keys.

        Returns:
            The keys.
        """
        with self._clock.counting("environment"):
            return ", ".join(self._facts)

    def lookup(self, key: str) -> str:
        """Get the number of a key.

        Args:
            key: The key.

        Returns:
            The number.
        """
        with self._clock.counting("environment"):
            if key in self._facts:
                return str(self._facts[key])
            hint = did_you_mean(key[:40], self._facts, likeness=0.5)
            return f"tool_error: no key {key[:40]!r}; list_fact_keys lists them.{hint}"

    def calculator(self, expression: str) -> str:
        """Calculate.

        Args:
            expression: What to calculate.

        Returns:
            The result.
        """
        with self._clock.counting("environment"):
            try:
                return format_number(evaluate(expression))
            except ToolError as error:
                return f"tool_error: {error}"

    def _score(self, message: dict[str, Any]) -> float:
        answered = message["role"] == "assistant" and not message.get("tool_calls")
        return float(answered and parse_number(message["content"]) == self._target)


class TimedTRL(trl.GRPOTrainer):  # type: ignore[misc]  # no type information
    """TRL's trainer, counting the seconds of its rollout: templates, generation, parsing, tools."""

    clock: Clock

    def _generate(self, prompts: list[Any]) -> Any:
        with self.clock.counting("rollout"):
            return super()._generate(prompts)


def run_trl(settings: Settings, connection: Connection) -> None:
    """Train with TRL's own trainer and tool loop."""
    clock = Clock()
    model, tokenizer = load_model(settings.model, dtype=torch.float32)
    tokenizer.response_template = qwen3_template  # parses Hermes calls; TRL does not know our chat template
    stop_ids = {tokenizer.eos_token_id}

    def reward(completions: list[Any], completion_ids: list[Any], environments: list[GameForTRL], **_: Any) -> Any:
        with clock.counting("environment"), clock.counting("environment outside the rollout"):
            return [
                # an answer that was cut is none, as in llmgym
                env._score(completion[-1]) if ids[-1] in stop_ids else 0.0
                for completion, ids, env in zip(completions, completion_ids, environments, strict=True)
            ]

    rows = [
        {
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.prompt}],
            "facts": json.dumps(task.metadata["facts"]),
            "target": str(task.target),
        }
        for task in settings.tasks
    ]
    tools = [getattr(GameForTRL(clock), name) for name in TOOL_ORDER]
    longest_prompt = max(
        len(tokenizer.apply_chat_template(row["prompt"], tools=tools, add_generation_prompt=True, return_dict=False))
        for row in rows
    )
    with tempfile.TemporaryDirectory() as folder:
        config = trl.GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=settings.trl_rows,
            gradient_accumulation_steps=settings.episodes_a_step // settings.trl_rows,
            num_generations=settings.episodes,
            max_steps=settings.steps,
            max_tool_calling_iterations=settings.max_turns - 1,  # a turn before the first call, one after each round
            max_completion_length=settings.max_model_length - longest_prompt,
            disable_dropout=True,
            report_to="none",
            **settings.common(),
        )
        trainer = TimedTRL(
            model,
            reward,
            config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            environment_factory=lambda: GameForTRL(clock),
        )
        trainer.clock = clock
        # TRL offers methods in alphabetical order; the model learnt the order of the game in SFT.
        trainer._env_tools[None].sort(key=lambda method: TOOL_ORDER.index(method.__name__))

        def figures(logs: dict[str, float]) -> dict[str, float]:
            sampled = logs["completions/mean_length"] * settings.episodes_a_step
            # TRL calls one tool after another, so these seconds do not overlap. Those of reset and the reward function
            # lie outside its rollout.
            environment, outside = clock["environment"], clock["environment outside the rollout"]
            rollout = clock["rollout"]
            clock.clear()
            return {
                "sampling_s": rollout - (environment - outside),
                "environment_s": environment,
                "sampled_tokens": sampled,
                "trained_tokens": sampled,
                "trained_episodes": settings.episodes_a_step,
                "tool_calls": logs["tools/call_frequency"] * settings.episodes_a_step,
                "reward": logs["reward"],
            }

        trainer.add_callback(Turns(connection, trainer.model, figures))
        first = [row["prompt"] for row in rows[: settings.tasks_a_step]]
        trainer._batch_environments = [None] * len(first)
        connection.send(Ready(trainer._tokenize_prompts(first)[0], torch.get_num_threads()))
        trainer.train()


# Both


def serve(side: str, settings: Settings, connection: Connection, log: str) -> None:
    """One side's process; what it prints goes to ``log``."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    with open(log, "w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        try:
            (run_llmgym if side == "llmgym" else run_trl)(settings, connection)
            connection.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        except Exception:  # noqa: BLE001 - shown and raised by the parent
            connection.send(Failure(traceback.format_exc()))


def receive(connection: Connection, side: str) -> Any:
    """The next message of a side. Raises :class:`RuntimeError` when that side has failed."""
    try:
        message = connection.recv()
    except EOFError:
        raise RuntimeError(f"the {side} process has died") from None
    if isinstance(message, Failure):
        raise RuntimeError(f"the {side} side failed:\n{message.text}")
    return message


def measure(settings: Settings, console: Console) -> tuple[dict[str, list[Figures]], dict[str, float], int]:
    """Run both sides in turn. Returns the figures of every step, peak memory in MiB, and the number of threads."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    processes = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for side in SIDES:
                ends[side], theirs = context.Pipe()
                log = str(Path(folder) / f"{side}.log")
                processes.append(context.Process(target=serve, args=(side, settings, theirs, log), daemon=True))
                processes[-1].start()
                theirs.close()
            ready: list[Ready] = [receive(ends[side], side) for side in SIDES]
            if ready[0] != ready[1]:
                raise RuntimeError(f"the two sides differ in prompts or threads:\n{ready[0]}\n{ready[1]}")
            figures: dict[str, list[Figures]] = {side: [] for side in SIDES}
            for step in range(settings.steps):
                for side in SIDES if step % 2 == 0 else SIDES[::-1]:
                    ends[side].send("your turn")
                    figures[side].append(receive(ends[side], side))
                note = " (warm-up, not counted)" if step == 0 else ""
                times = ", ".join(
                    f"{s} {figures[s][-1].total_s:.2f} s, reward {figures[s][-1].reward:.3f}" for s in SIDES
                )
                console.print(f"step {step + 1}/{settings.steps}: {times}{note}", highlight=False)
            memory = {side: receive(ends[side], side) for side in SIDES}
        finally:
            for process in processes:
                process.join(timeout=10)
                process.kill()
    return figures, memory, ready[0].threads


def report(
    settings: Settings, figures: dict[str, list[Figures]], memory: dict[str, float], threads: int, console: Console
) -> bool:
    """Print the table and the two checks. Returns whether both checks hold."""
    table = Table(title=f"One GRPO step on {ENV_ID}, level 1: median of {settings.steps - 1} steps (min to max)")
    table.add_column("")
    for side in SIDES:
        table.add_column(side if side == "llmgym" else f"TRL {trl.__version__}", justify="right")
    table.add_column("TRL / llmgym", justify="right")

    def row(name: str, value: Callable[[Figures], float], spec: str) -> None:
        values = {side: [value(f) for f in figures[side][1:]] for side in SIDES}
        ours, theirs = (statistics.median(values[side]) for side in SIDES)
        cells = [
            f"{statistics.median(values[s]):{spec}} ({min(values[s]):{spec}} to {max(values[s]):{spec}})" for s in SIDES
        ]
        table.add_row(name, *cells, f"{theirs / ours:.2f}" if 0 < ours < math.inf else "-")

    row("seconds a step", lambda f: f.total_s, ".2f")
    row("  sampling", lambda f: f.sampling_s, ".2f")
    row("  environment", lambda f: f.environment_s, ".4f")
    row("  training and the rest", lambda f: f.training_s, ".2f")
    table.add_section()
    row("sampled tokens", lambda f: f.sampled_tokens, ",.0f")
    row("tool calls", lambda f: f.tool_calls, ",.0f")
    row("episodes trained on", lambda f: f.trained_episodes, ",.0f")
    row("trained tokens", lambda f: f.trained_tokens, ",.0f")
    row("sampling, s / 1,000 sampled tokens", lambda f: _per_thousand(f.sampling_s, f.sampled_tokens), ".3f")
    row("training, s / 1,000 trained tokens", lambda f: _per_thousand(f.training_s, f.trained_tokens), ".3f")
    table.add_section()
    first = {side: figures[side][0] for side in SIDES}
    table.add_row("reward, first step", *(f"{first[s].reward:.3f}" for s in SIDES), "")
    table.add_row("sampled tokens, first step", *(f"{first[s].sampled_tokens:,.0f}" for s in SIDES), "")
    table.add_row("tool calls, first step", *(f"{first[s].tool_calls:,.0f}" for s in SIDES), "")
    table.add_row("weights moved, first step", *(f"{first[s].weight_change:.2%}" for s in SIDES), "")
    table.add_row("weights moved, all steps", *(f"{figures[s][-1].weight_change:.2%}" for s in SIDES), "")
    table.add_row("peak memory, MiB", *(f"{memory[s]:,.0f}" for s in SIDES), f"{memory['TRL'] / memory['llmgym']:.2f}")
    console.print(table)
    console.print(explain(settings, threads), highlight=False)

    ours, theirs = (first[side].reward for side in SIDES)
    pooled = (ours + theirs) / 2
    error = math.sqrt(2 * pooled * (1 - pooled) / settings.episodes_a_step)
    agree = abs(ours - theirs) <= 3 * error
    console.print(
        f"Check: mean reward of the first step, same weights and tasks: {ours:.3f} and {theirs:.3f}, standard "
        f"error of the difference {error:.3f} at most: {'they agree' if agree else 'THEY DO NOT AGREE'}.",
        highlight=False,
    )
    stepped = all(first[side].weight_change > 0 for side in SIDES)
    console.print(
        f"Check: both took an optimizer step with the first batch: {'yes' if stepped else 'NO'}.", highlight=False
    )
    return agree and stepped


def _per_thousand(seconds: float, tokens: float) -> float:
    return 1e3 * seconds / tokens if tokens else math.inf


def explain(settings: Settings, threads: int) -> str:
    """What is the same and what differs, in words."""
    same = (
        f"The same: the model in fp32 on the CPU, torch threads: {threads}; the tasks of each step "
        f"({settings.tasks_a_step} tasks x {settings.episodes} episodes, one optimizer step); prompts token for "
        f"token; tool results; at most {settings.max_turns} assistant turns and {settings.max_model_length} tokens "
        f"an episode; temperature 1; reward 1 or 0; loss dapo; AdamW with learning rate {settings.learning_rate:g} "
        "falling linearly; no gradient checkpointing."
    )
    split = (
        "The three parts add up to the step. Sampling is the time of the rollout in which tokens are sampled, "
        "environment the time in which none are: reset, tools and score. (llmgym plays all episodes at once, so that "
        "environments at work beside the sampler cost nothing; it counts rendering and parsing as environment "
        "where no episode samples, TRL as sampling.) Training and the rest is all other time: rows, forward, "
        "backward, optimizer, logs, records."
    )
    differs = (
        "Each side trains its own copy, so after the first step the two policies and what they sample differ.",
        "llmgym drops groups whose rewards are all alike before the forward pass; TRL trains on all episodes.",
        f"llmgym packs rows of similar length into passes of at most {GRPOConfig.micro_batch_tokens:,} tokens, padding "
        f"included; TRL runs {settings.trl_rows} rows a pass, padded to the longest prompt and completion of the step.",
        "llmgym keeps the keys and values of an episode between its turns and reads equal prompts once; TRL reads the "
        "whole conversation again at each turn.",
        "llmgym keeps the log-probability of each sampled token, compares it with the training pass, and writes every "
        "episode to disk; TRL does neither.",
        "A call that cannot be parsed ends the episode with reward 0 in both, and TRL's parser is the more lenient. An "
        "unknown tool or wrong arguments are answered with another text.",
        "TRL's tools were put into the order of the game (by itself it sorts them by name). They are synchronous "
        "functions, which it runs fastest.",
    )
    return "\n".join(["", same, "", split, "", "What differs:", *(f"- {text}" for text in differs), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="'tiny' (built by SFT first when not cached), or a directory")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of each side, the first not counted")
    parser.add_argument("--tasks", type=int, default=16, help="tasks a step")
    parser.add_argument("--episodes", type=int, default=8, help="episodes of each task")
    parser.add_argument("--threads", type=int, default=None, help="torch's threads (default: torch's own choice)")
    parser.add_argument("--trl-rows", type=int, default=64, help="rows in one forward pass of TRL's")
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    if options.steps < 2:
        parser.error(f"--steps {options.steps} leaves nothing to count; the first is a warm-up, give 2 or more")
    rows = min(options.trl_rows, options.tasks * options.episodes)
    if options.tasks * options.episodes % rows:
        parser.error(f"--trl-rows {rows} must divide the {options.tasks * options.episodes} episodes of a step")

    tiny = preset("tiny")
    settings = Settings(
        model=resolve_model(options.model, options.seed),
        tasks=llmgym.tasks(ENV_ID, split="train", level=1, count=options.steps * options.tasks),
        steps=options.steps,
        tasks_a_step=options.tasks,
        episodes=options.episodes,
        threads=options.threads,
        trl_rows=rows,
        max_turns=tiny["max_turns"],
        max_model_length=tiny["max_model_length"],
        learning_rate=tiny["learning_rate"],
        seed=options.seed,
    )
    console = Console(width=120)
    figures, memory, threads = measure(settings, console)
    if not report(settings, figures, memory, threads, console):
        raise SystemExit("the two sides did not do the same work; see the checks above")


if __name__ == "__main__":
    main()
