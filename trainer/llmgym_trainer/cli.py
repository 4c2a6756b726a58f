"""``llmgym train``: from command line to :func:`train_multi_turn`. Knows arguments, no training."""

from __future__ import annotations

import argparse
from typing import Any

from llmgym.errors import ConfigError, TaskError
from llmgym.registry import EnvEntry, find
from llmgym.task import Task, load_tasks
from llmgym_trainer.config import GRPOConfig, parse_settings
from llmgym_trainer.presets import preset

_EPILOG = """\
Every other setting of GRPOConfig can be given as an option of the same name, such as --num-steps 50
--learning-rate 1e-5 --wandb-project my-project. A setting on the command line wins over --config, and that over
the presets of the built-in models.

examples:
  llmgym train ToolUseGame-v0
  llmgym train ToolUseGame-v0 --model Qwen/Qwen3-0.6B --lora
  llmgym train my_env.py:MyEnv --tasks tasks.jsonl --model path/to/model
"""


def train_main(argv: list[str]) -> int:
    """Run ``llmgym train`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can mend; the caller prints it as one line.
    """
    parser = argparse.ArgumentParser(
        prog="llmgym train",
        description="Train a model on an environment with multi-turn GRPO.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("env", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument("--tasks", metavar="JSONL", help="training tasks, instead of the environment's own")
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
    known, rest = parser.parse_known_args(argv)
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

    entry = find(known.env)
    options = dict(_key_value(text) for text in known.task_option)
    tasks = load_tasks(known.tasks) if known.tasks else entry.load_tasks("train", **options)
    val_tasks = _val_tasks(entry, known, options)

    from llmgym_trainer.train import announce, train_multi_turn

    result = train_multi_turn(
        config,
        tasks=tasks,
        env_factory=entry.make_env,
        val_tasks=val_tasks,
        peft_config=default_lora() if known.lora or model == "smollm2" else None,
        env_id=known.env,
    )
    announce(result)
    return 130 if result.interrupted else 0


def default_lora() -> Any:
    """The adapter of ``--lora``: rank 16, alpha 32, no dropout, on every linear layer but the output."""
    from peft import LoraConfig

    return LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def _val_tasks(entry: EnvEntry, known: argparse.Namespace, options: dict[str, str]) -> list[Task] | None:
    if known.val_tasks:
        return load_tasks(known.val_tasks)
    if known.tasks:
        return None
    try:
        return entry.load_tasks("val", **options)
    except TaskError:
        return None


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


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--task-option takes KEY=VALUE, got {text!r}")
    return key, value
