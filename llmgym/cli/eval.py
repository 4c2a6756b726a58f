"""``llmgym eval``: an evaluation, or the comparison of two, from the command line."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Sequence

from llmgym._util.settings import add_options, given, parse
from llmgym.cli.options import CommandParser, key_value
from llmgym.errors import ConfigError
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.report import load_report
from llmgym.evaluation.runner import EvaluationRun
from llmgym.task import load_tasks

_EXAMPLES = """\
examples:
  llmgym eval ToolUseGame-v0 --policy expert --limit 50
  llmgym eval ToolUseGame-v0 --model my-model --base-url http://127.0.0.1:8000/v1 --out runs/baseline
  llmgym eval my_env.py:MyEnv --tasks tasks.jsonl --model runs/my-run --episodes-per-task 8
  llmgym eval --compare runs/baseline runs/trained

The key of an endpoint is read from the environment variable OPENAI_API_KEY. Exit status: 0; 1 when the evaluation ended
early or every episode failed; 2 when it was refused; 130 after Ctrl-C.
"""


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym eval`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can fix; the caller prints it as one line.
    """
    options = _parser().parse_args(argv)
    settings = parse(EvalConfig, given(options, EvalConfig), source="command line")
    if options.compare:
        if options.env is not None:
            raise ConfigError("--compare takes two evaluations and no environment")
        first, second = (load_report(path) for path in options.compare)
        compare_reports(first, second, seed=settings.get("seed", EvalConfig.seed)).print()
        return 0
    if options.env is None:
        raise ConfigError("name an environment, such as llmgym eval ToolUseGame-v0 --policy expert")
    if options.tasks and "split" in options:
        raise ConfigError("--split chooses among the environment's own tasks, and --tasks gives others; drop one")
    config = EvalConfig(
        **{
            **settings,
            "tasks": load_tasks(options.tasks) if options.tasks else None,
            "task_options": dict(key_value(text, "--task-option") for text in options.task_option),
        }
    )
    try:
        report = asyncio.run(EvaluationRun(config).run())
    except KeyboardInterrupt:
        print("llmgym: interrupted; episodes that had ended are saved, and --resume runs the rest", file=sys.stderr)
        return 130
    report.print()
    print(f"folder: {report.folder} (episodes.jsonl, report.json, report.md)", file=sys.stderr)
    return 0 if report.stopped is None and report.failed < report.episodes else 1


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="llmgym eval",
        description="Let a model or an expert act in an environment, and report how it did.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("env", nargs="?", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="show two evaluations side by side, and a test")
    parser.add_argument("--tasks", metavar="JSONL", help="tasks from a file, instead of the environment's own")
    parser.add_argument(
        "--task-option", metavar="KEY=VALUE", action="append", default=[], help="passed to the task generator"
    )
    names = [field.name for field in dataclasses.fields(EvalConfig)]
    special = ("env", "tasks", "task_options")
    add_options(parser.add_argument_group("settings"), EvalConfig, [name for name in names if name not in special])
    return parser
