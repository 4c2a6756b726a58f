"""``llmgym train``: from the command line to :func:`llmgym_trainer.train_multi_turn`."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from llmgym._util.settings import add_options, given, parse
from llmgym.cli.options import CommandParser, key_value
from llmgym.errors import ConfigError, TaskError, did_you_mean
from llmgym.registry import EnvEntry, find
from llmgym.task import Task, load_tasks
from llmgym_trainer.config import DERIVED, REFUSED, GRPOConfig
from llmgym_trainer.models.builtin import preset
from llmgym_trainer.models.lora import default_lora
from llmgym_trainer.runs.folder import RunFolder
from llmgym_trainer.runs.interrupts import TrainingInterrupted
from llmgym_trainer.runs.state import find_checkpoint

INTERRUPTED = 130
"""Exit status of a run that stopped in order because it was asked to."""

_EPILOG = """\
A setting on the command line wins over --config, and that over the presets of the built-in models.

examples:
  llmgym train ToolUseGame-v0
  llmgym train ToolUseGame-v0 --model Qwen/Qwen3-0.6B --lora --num-steps 50 --learning-rate 1e-5
  llmgym train my_env.py:MyEnv --tasks tasks.jsonl --model path/to/model
  llmgym train my_env.py:MyEnv --dataset openai/gsm8k --dataset-option config=main prompt=question target=answer
  llmgym train ToolUseGame-v0 --also CalculatorMath-v0=0.5
  llmgym train --resume runs/NAME --num-steps 200
"""

_DATASET_OPTIONS = ("config", "split", "limit", "prompt", "target", "id", "metadata")


def main(argv: list[str]) -> int:
    """Run ``llmgym train`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can fix; the caller prints it as one line.
    """
    options = _parser().parse_args(argv)
    settings = parse(GRPOConfig, given(options, GRPOConfig), source="command line")
    if options.resume is not None:
        return _resume(options, settings)
    if options.env is None:
        raise ConfigError("name an environment, such as llmgym train ToolUseGame-v0")
    from_file = GRPOConfig.from_yaml(options.config).given if options.config else {}
    model = settings.get("model", from_file.get("model", GRPOConfig.model))
    return _train(options, GRPOConfig(**{**preset(model), **from_file, **settings}), argv)


def _resume(options: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Run the command of an earlier run again, with the settings in its folder and those given now."""
    for name, default in vars(_parser().parse_args([])).items():
        if name != "resume" and getattr(options, name) != default:
            what = "an environment" if name == "env" else f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--resume takes settings only, such as --num-steps 200, but not {what}: environment, tasks and "
                "adapter are those of the command that started the run"
            )
    folder = RunFolder(find_checkpoint(options.resume).parent)
    command = folder.command()
    changes = {**settings, "resume_from_checkpoint": options.resume}
    config = GRPOConfig.from_yaml(folder.path / "config.yaml", **changes)
    return _train(_parser().parse_args(command), config, command)


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="llmgym train",
        description="Train a model on an environment with multi-turn GRPO.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("env", nargs="?", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    add("--resume", metavar="RUN", help="resume a run from its last checkpoint; only settings may be given beside it")
    add("--config", metavar="YAML", help="settings from a file")
    add("--tasks", metavar="JSONL", help="training tasks, instead of the environment's own")
    add(
        "--dataset",
        metavar="NAME",
        help="training tasks from a Hugging Face dataset: a hub name, a folder, or a JSONL, CSV or Parquet file",
    )
    add(
        "--dataset-option",
        metavar="KEY=VALUE",
        action="extend",
        nargs="+",
        default=[],
        help="config, split, limit, or a column: prompt=question target=answer id=name metadata=level,topic",
    )
    add(
        "--also",
        metavar="ENV[=WEIGHT]",
        action="append",
        default=[],
        help="a further environment in the same run, with its own tasks; the first one has weight 1",
    )
    add("--val-tasks", metavar="JSONL", help="held-out tasks, instead of the environment's own")
    add(
        "--task-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="passed to the task generator, such as level=2",
    )
    add("--lora", action="store_true", help="train a LoRA adapter (rank 16, all linear layers)")

    ours = [name for name in GRPOConfig.__annotations__ if name not in REFUSED]
    others = [field.name for field in dataclasses.fields(GRPOConfig) if field.init and field.name not in ours]
    add_options(parser.add_argument_group("settings"), GRPOConfig, ours)
    group = parser.add_argument_group("settings of TRL and transformers")
    add_options(group, GRPOConfig, others)
    for action in group._group_actions:
        if action.dest in DERIVED or action.dest in REFUSED:
            action.help = argparse.SUPPRESS  # an option all the same, so that its error says what to set instead
    return parser


def _train(options: argparse.Namespace, config: GRPOConfig, command: list[str]) -> int:
    entry = find(options.env)
    task_options = dict(key_value(text, "--task-option") for text in options.task_option)
    tasks = _tasks(entry, options, task_options)
    val_tasks = _val_tasks(entry, options, task_options)
    also = [_weighted(text) for text in options.also]

    from llmgym_trainer.data.task_stream import TaskSource
    from llmgym_trainer.train import print_summary, train_multi_turn

    data: dict[str, Any] = {
        "tasks": tasks, "env_factory": entry.make_env, "val_tasks": val_tasks, "env_id": options.env,
    }  # fmt: skip
    if also:
        first = TaskSource(_name(options.env), tasks, entry.make_env, val_tasks=val_tasks or ())
        others = [
            TaskSource(_name(name), found.load_tasks("train"), found.make_env, weight, _own_val_tasks(found, {}) or ())
            for name, found, weight in also
        ]
        data = {"sources": [first, *others]}
    adapter = default_lora() if options.lora or config.model == "smollm2" else None
    try:
        result = train_multi_turn(config, **data, peft_config=adapter, command=command)
    except TrainingInterrupted:
        return INTERRUPTED
    print_summary(result)
    return INTERRUPTED if result.interrupted else 0


def _tasks(entry: EnvEntry, options: argparse.Namespace, task_options: dict[str, str]) -> list[Task]:
    if options.tasks and options.dataset:
        raise ConfigError("give either --tasks or --dataset")
    if options.dataset_option and not options.dataset:
        raise ConfigError("--dataset-option belongs to --dataset")
    if options.tasks:
        return load_tasks(options.tasks)
    if not options.dataset:
        return entry.load_tasks("train", **task_options)

    from llmgym_trainer.data.datasets import load_dataset_tasks

    columns: dict[str, Any] = dict(key_value(text, "--dataset-option") for text in options.dataset_option)
    for name in columns:
        if name not in _DATASET_OPTIONS:
            raise ConfigError(
                f"--dataset-option {name}=…: allowed are {', '.join(_DATASET_OPTIONS)}."
                f"{did_you_mean(name, _DATASET_OPTIONS)}"
            )
    if "metadata" in columns:
        columns["metadata"] = columns["metadata"].split(",")
    if "limit" in columns:
        if not columns["limit"].isdigit():
            raise ConfigError(f"--dataset-option limit takes a whole number, got {columns['limit']!r}")
        columns["limit"] = int(columns["limit"])
    return load_dataset_tasks(options.dataset, **columns)


def _val_tasks(entry: EnvEntry, options: argparse.Namespace, task_options: dict[str, str]) -> list[Task] | None:
    if options.val_tasks:
        return load_tasks(options.val_tasks)
    if options.tasks or options.dataset:
        return None
    return _own_val_tasks(entry, task_options)


def _own_val_tasks(entry: EnvEntry, task_options: dict[str, str]) -> list[Task] | None:
    try:
        return entry.load_tasks("val", **task_options)
    except TaskError:
        return None


def _weighted(text: str) -> tuple[str, EnvEntry, float]:
    """Read ``ENV`` or ``ENV=WEIGHT``."""
    name, equals, weight = text.rpartition("=")
    if not equals:
        return text, find(text), 1.0
    try:
        return name, find(name), float(weight)
    except ValueError:
        raise ConfigError(f"--also takes ENV or ENV=WEIGHT, got {text!r}") from None


def _name(env: str) -> str:
    """The name of an environment in the metrics: its reference without folders."""
    return env.rpartition("/")[2]
