"""The ``llmgym`` command: finds the module of a subcommand and runs it. Only ``train`` and ``sft`` need the trainer."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from llmgym._util.versions import __version__, install_hint
from llmgym.cli.options import CommandParser
from llmgym.errors import ConfigError, LLMGymError, did_you_mean

_COMMANDS = {
    "train": ("llmgym_trainer.cli.train", "train a policy on an environment"),
    "sft": ("llmgym_trainer.cli.sft", "fine-tune a model on episodes before training"),
    "check": ("llmgym.cli.check", "check an environment before training"),
    "eval": ("llmgym.cli.eval", "evaluate a model on an environment"),
    "export": ("llmgym.cli.export", "write the episodes of a run as rows for an SFT trainer"),
    "view": ("llmgym.cli.view", "write a run as one HTML file"),
    "new": ("llmgym.cli.new", "scaffold an environment with tests and docs"),
    "play": ("llmgym.cli.play", "play an episode yourself"),
    "list": ("llmgym.cli.list", "show the registered environments"),
}
"""Module and meaning of each command. A module is imported only to run its ``main(argv)``, the exit status."""

_TRAINER_NEEDS = ("torch", "transformers", "trl", "accelerate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status: 0, or 2 when llmgym refuses what it was given."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # `my_module:MyEnv-v0` means a module in this folder too
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of other libraries fill a file with carriage returns
    try:
        if not arguments or arguments[0].startswith("-"):
            parser = _parser()
            parser.parse_args(arguments)
            parser.print_help()
            return 0
        name = arguments[0]
        if name not in _COMMANDS:
            raise ConfigError(
                f"there is no command {name!r:.80}; there are {', '.join(_COMMANDS)}.{did_you_mean(name, _COMMANDS)}"
            )
        module, _ = _COMMANDS[name]
        missing = [needed for needed in _TRAINER_NEEDS if importlib.util.find_spec(needed) is None]
        if missing and module.startswith("llmgym_trainer."):
            raise ConfigError(
                f"llmgym {name} needs the trainer, {install_hint('train')} (not installed: {', '.join(missing)})"
            )
        status: int = importlib.import_module(module).main(arguments[1:])
        return status
    except LLMGymError as error:
        print(f"llmgym: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {name:8} {about}" for name, (_, about) in _COMMANDS.items()]
    parser = CommandParser(
        prog="llmgym",
        usage="llmgym COMMAND ...",
        description="Tool-use environments for language models.",
        epilog="\n".join(["commands:", *lines, "", "llmgym COMMAND --help describes each."]),
    )
    parser.add_argument("--version", action="version", version=f"llmgym {__version__}")
    return parser
