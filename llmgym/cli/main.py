"""The ``llmgym`` command. Knows the commands; each does its work elsewhere, and the trainer is imported only to train."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Sequence

import llmgym
from llmgym._util.versions import install_hint
from llmgym.errors import LLMGymError, TaskError
from llmgym.registry import SPLITS, EnvEntry, find
from llmgym.task import Task

_COMMANDS = {
    "check": "llmgym.cli.check:check_main",
    "eval": "llmgym.cli.eval:eval_main",
    "export": "llmgym.cli.eval:export_main",
    "new": "llmgym.cli.new:new_main",
    "play": "llmgym.cli.play:play_main",
    "view": "llmgym.cli.view:view_main",
}
"""Functions of the arguments that return the exit status, imported when they are needed."""

_TRAINER_COMMANDS = {"train": "llmgym_trainer.cli.train:train_main", "sft": "llmgym_trainer.cli.sft:sft_main"}
"""The same for commands that need the trainer."""

_TRAINER_NEEDS = ("torch", "transformers", "trl", "accelerate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 when llmgym refuses what it was given."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `my_module:MyEnv-v0` means a module in this folder too
    try:
        if arguments and arguments[0] in _TRAINER_COMMANDS and not _has_trainer(arguments[0]):
            return 2
        commands = {**_COMMANDS, **_TRAINER_COMMANDS}
        if arguments and arguments[0] in commands:
            module, function = commands[arguments[0]].split(":")
            status: int = getattr(importlib.import_module(module), function)(arguments[1:])
            return status
        parser = _parser()
        options = parser.parse_args(arguments)
        if options.command == "list":
            return _list()
        parser.print_help()
        return 0
    except LLMGymError as error:
        print(f"llmgym: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="llmgym", description="Tool-use environments for language models.")
    parser.add_argument("--version", action="version", version=f"llmgym {llmgym.__version__}")
    commands = parser.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    commands.add_parser("train", add_help=False, help="train a policy on an environment (see llmgym train --help)")
    commands.add_parser(
        "sft", add_help=False, help="fine-tune a model on episodes before training (see llmgym sft --help)"
    )
    commands.add_parser("check", add_help=False, help="check an environment before training (see llmgym check --help)")
    commands.add_parser("eval", add_help=False, help="evaluate a model on an environment (see llmgym eval --help)")
    commands.add_parser("export", add_help=False, help="write the episodes of a run as rows for an SFT trainer")
    commands.add_parser("view", add_help=False, help="write a run as one HTML file (see llmgym view --help)")
    commands.add_parser(
        "new", add_help=False, help="write a new environment with tests and a page, to change into yours"
    )
    commands.add_parser("play", add_help=False, help="play an episode yourself (see llmgym play --help)")
    commands.add_parser("list", help="show the registered environments")
    return parser


def _has_trainer(command: str) -> bool:
    missing = [name for name in _TRAINER_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"llmgym {command} needs the trainer (not installed: {', '.join(missing)}): {install_hint('train')}",
            file=sys.stderr,
        )
    return not missing


def _list() -> int:
    for id in llmgym.registered_ids():
        try:
            lines = _describe(find(id))
        except Exception as error:  # noqa: BLE001 - one broken environment must not hide the others
            lines = [f"cannot be shown: {type(error).__name__}: {error}"]
        print(id)
        for line in lines:
            print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    "))
    return 0


def _describe(entry: EnvEntry) -> list[str]:
    by_split = {}
    for split in SPLITS:
        with contextlib.suppress(TaskError):  # not every environment has tasks, or every split
            by_split[split] = entry.load_tasks(split)
    environment = entry.make_env(next(iter(by_split.get("train", [])), Task("")))
    page = inspect.cleandoc(type(environment).__doc__ or "no docstring")
    text = re.sub(r"^#.*\n+", "", page, flags=re.MULTILINE)
    about = re.split(r"(?<=[.!?])\s|\n\n", text, maxsplit=1)[0].replace("\n", " ")
    tools = ", ".join(spec["function"]["name"] for spec in environment.tool_specs)
    sizes = ", ".join(f"{split} {len(tasks)}" for split, tasks in by_split.items())
    table = page.partition("| level |")[2].partition("\n\n")[0]
    levels = ", ".join(re.findall(r"^\| (\w+) ", table, re.MULTILINE))
    of_levels = f" (levels {levels})" if levels else ""
    return [about, f"tools: {tools or 'none'}", f"tasks: {sizes or 'none'}{of_levels}"]
