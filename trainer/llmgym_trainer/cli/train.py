"""``llmgym train``: from command line to :func:`train_multi_turn`. Knows arguments, no training."""

from __future__ import annotations

import argparse
from typing import Any

from llmgym.cli.options import key_value
from llmgym.errors import ConfigError, TaskError, did_you_mean
from llmgym.registry import EnvEntry, find
from llmgym.task import Task, load_tasks
from llmgym_trainer.config import GRPOConfig, parse_settings
from llmgym_trainer.models.builtin.presets import preset
from llmgym_trainer.models.lora import default_lora
from llmgym_trainer.runs.folder import RunFolder
from llmgym_trainer.runs.interrupts import TrainingInterrupted
from llmgym_trainer.runs.state import find_checkpoint

INTERRUPTED = 130
"""Exit status of a run that was asked to stop and did so in order."""

_EPILOG = """\
Every other setting of GRPOConfig can be given as an option of the same name, such as --num-steps 50
--learning-rate 1e-5 --wandb-project my-project. A setting on the command line wins over --config, and that over
the presets of the built-in models.

examples:
  llmgym train ToolUseGame-v0
  llmgym train ToolUseGame-v0 --model Qwen/Qwen3-0.6B --lora
  llmgym train my_env.py:MyEnv --tasks tasks.jsonl --model path/to/model
  llmgym train my_env.py:MyEnv --dataset openai/gsm8k --dataset-option config=main prompt=question target=answer
  llmgym train ToolUseGame-v0 --also CalculatorMath-v0=0.5
  llmgym train --resume runs/NAME
"""


def main(argv: list[str]) -> int:
    """Run ``llmgym train`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can mend; the caller prints it as one line.
    """
    if argv and argv[0].partition("=")[0] == "--resume":
        return _resume(argv)
    parser = _parser()
    known, rest = parser.parse_known_args(argv)
    if known.resume is not None:
        raise ConfigError("--resume comes first and takes no environment: llmgym train --resume runs/NAME")
    before = argv[argv.index(known.env) - 1] if known.env != argv[0] else ""
    if before.startswith("--") and "=" not in before and before != "--lora":
        raise ConfigError(f"the environment comes first, as in: llmgym train ToolUseGame-v0 {before} {known.env}")
    given = _settings(rest)
    if known.model is not None:
        given["model"] = known.model
    given = parse_settings(given, source="command line")
    from_file = GRPOConfig.from_yaml(known.config).given if known.config else {}
    model = given.get("model", from_file.get("model", "tiny"))
    config = GRPOConfig(**{**preset(model), **from_file, **given})
    return _train(known, config, argv)


def _resume(argv: list[str]) -> int:
    """Run the command of an earlier run once more, with the settings in its folder and those given now."""
    run, *rest = argv[0].split("=", 1)[1:] + argv[1:] or [""]
    if not run or run.startswith("--"):
        raise ConfigError("--resume takes the folder of a run, as in: llmgym train --resume runs/NAME")
    _check_settings_alone(rest)
    folder = RunFolder(find_checkpoint(run).parent)
    command = folder.command()
    known, _ = _parser().parse_known_args(command)
    changes = {**_settings(rest), "resume_from_checkpoint": run}
    return _train(known, GRPOConfig.from_yaml(folder.path / "config.yaml", **changes), command)


def _check_settings_alone(rest: list[str]) -> None:
    """Raise :class:`ConfigError` where an option that is no setting follows ``--resume``."""
    parser = _parser()
    known = vars(parser.parse_known_args(["env", *rest])[0])
    for name in ("tasks", "dataset", "dataset_option", "also", "val_tasks", "task_option", "lora", "config"):
        if known[name] != parser.get_default(name):
            raise ConfigError(
                f"--resume takes settings only, such as --num-steps 200, but not --{name.replace('_', '-')}: environment, "
                "tasks and adapter are those of the command that began the run"
            )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmgym train",
        description="Train a model on an environment with multi-turn GRPO.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run from its last checkpoint; only settings may follow, such as --num-steps 200",
    )
    parser.add_argument("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument("--tasks", metavar="JSONL", help="training tasks, instead of the environment's own")
    parser.add_argument(
        "--dataset",
        metavar="NAME",
        help="training tasks from a Hugging Face dataset: a hub name, a folder, or a JSONL, CSV or Parquet file",
    )
    parser.add_argument(
        "--dataset-option",
        metavar="KEY=VALUE",
        action="extend",
        nargs="+",
        default=[],
        help="config, split, limit, or a column: prompt=question target=answer id=name metadata=level,topic",
    )
    parser.add_argument(
        "--also",
        metavar="ENV[=WEIGHT]",
        action="append",
        default=[],
        help="a further environment in the same run, with its own tasks; the first one has weight 1",
    )
    parser.add_argument("--val-tasks", metavar="JSONL", help="held-out tasks, instead of the environment's own")
    parser.add_argument(
        "--task-option",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="passed to the task generator, such as level=2",
    )
    parser.add_argument(
        "--model", default=None, help="'tiny' (default), 'smollm2', a directory, a run folder or a hub name"
    )
    parser.add_argument("--lora", action="store_true", help="train a LoRA adapter (rank 16, all linear layers)")
    parser.add_argument("--config", metavar="YAML", help="settings from a file")
    return parser


def _train(known: argparse.Namespace, config: GRPOConfig, command: list[str]) -> int:
    entry = find(known.env)
    options = dict(key_value(text, "--task-option") for text in known.task_option)
    tasks = _tasks(entry, known, options)
    val_tasks = _val_tasks(entry, known, options)
    also = [_weighted(text) for text in known.also]

    from llmgym_trainer.data.task_stream import TaskSource
    from llmgym_trainer.train import announce, train_multi_turn

    data: dict[str, Any] = {
        "tasks": tasks, "env_factory": entry.make_env, "val_tasks": val_tasks, "env_id": known.env,
    }  # fmt: skip
    if also:
        first = TaskSource(_name(known.env), tasks, entry.make_env, val_tasks=val_tasks or ())
        others = [
            TaskSource(_name(name), found.load_tasks("train"), found.make_env, weight, _own_val_tasks(found, {}) or ())
            for name, found, weight in also
        ]
        data = {"sources": [first, *others]}
    adapter = default_lora() if known.lora or config.model == "smollm2" else None
    try:
        result = train_multi_turn(config, **data, peft_config=adapter, command=command)
    except TrainingInterrupted:
        return INTERRUPTED
    announce(result)
    return INTERRUPTED if result.interrupted else 0


def _tasks(entry: EnvEntry, known: argparse.Namespace, options: dict[str, str]) -> list[Task]:
    if known.tasks and known.dataset:
        raise ConfigError("give either --tasks or --dataset")
    if known.dataset_option and not known.dataset:
        raise ConfigError("--dataset-option belongs to --dataset")
    if known.tasks:
        return load_tasks(known.tasks)
    if not known.dataset:
        return entry.load_tasks("train", **options)

    from llmgym_trainer.data.datasets import load_dataset_tasks

    given: dict[str, Any] = dict(key_value(text, "--dataset-option") for text in known.dataset_option)
    allowed = ("config", "split", "limit", "prompt", "target", "id", "metadata")
    for name in given:
        if name not in allowed:
            raise ConfigError(
                f"--dataset-option {name}=…: allowed are {', '.join(allowed)}.{did_you_mean(name, allowed)}"
            )
    if "metadata" in given:
        given["metadata"] = given["metadata"].split(",")
    if "limit" in given:
        if not given["limit"].isdigit():
            raise ConfigError(f"--dataset-option limit takes a whole number, got {given['limit']!r}")
        given["limit"] = int(given["limit"])
    return load_dataset_tasks(known.dataset, **given)


def _val_tasks(entry: EnvEntry, known: argparse.Namespace, options: dict[str, str]) -> list[Task] | None:
    if known.val_tasks:
        return load_tasks(known.val_tasks)
    if known.tasks or known.dataset:
        return None
    return _own_val_tasks(entry, options)


def _own_val_tasks(entry: EnvEntry, options: dict[str, str]) -> list[Task] | None:
    try:
        return entry.load_tasks("val", **options)
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


def _settings(rest: list[str]) -> dict[str, Any]:
    """Read ``--name value``, ``--name=value`` and ``--name`` (true) pairs."""
    settings: dict[str, Any] = {}
    position = 0
    while position < len(rest):
        option = rest[position]
        if not option.startswith("--"):
            raise ConfigError(f"unexpected argument {option!r}; settings are given as --name value")
        name, equals, value = option[2:].partition("=")
        position += 1
        if not equals:
            if position < len(rest) and not rest[position].startswith("--"):
                value = rest[position]
                position += 1
            else:
                value = "true"
        settings[name.replace("-", "_")] = value
    return settings
