"""``llmgym eval`` and ``llmgym export``: from command line to evaluation and rows. Knows arguments, no statistics."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence

from llmgym._util.settings import add_options, given, parse
from llmgym.cli.export import export_rows
from llmgym.cli.options import CommandParser, key_value
from llmgym.errors import ConfigError
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.config import EvalConfig
from llmgym.evaluation.report import load_report
from llmgym.evaluation.runner import EvaluationRun
from llmgym.evaluation.tables import print_comparison
from llmgym.task import load_tasks

_EVAL_EXAMPLES = """\
examples:
  llmgym eval ToolUseGame-v0 --policy expert --limit 50
  llmgym eval ToolUseGame-v0 --model my-model --base-url http://127.0.0.1:8000/v1 --out runs/baseline
  llmgym eval my_env.py:MyEnv --tasks tasks.jsonl --model runs/my-run --episodes-per-task 8
  llmgym eval --compare runs/baseline runs/trained

The key of an endpoint is read from the environment variable OPENAI_API_KEY. Exit status: 0; 1 when the evaluation ended
early or every episode failed; 2 when it was refused; 130 after Ctrl-C.
"""


def eval_main(argv: Sequence[str]) -> int:
    """Run ``llmgym eval`` and return its exit status.

    Raises:
        LLMGymError: Anything the user can mend; the caller prints it as one line.
    """
    options = _eval_parser().parse_args(argv)
    if options.compare:
        if options.env is not None:
            raise ConfigError("--compare takes two evaluations and no environment")
        first, second = (load_report(path) for path in options.compare)
        print_comparison(compare_reports(first, second, seed=int(getattr(options, "seed", EvalConfig.seed))))
        return 0
    if options.env is None:
        raise ConfigError("name an environment, such as llmgym eval ToolUseGame-v0 --policy expert")
    if options.tasks and "split" in options:
        raise ConfigError("--split chooses among the environment's own tasks, and --tasks gives others; drop one")
    settings = parse(EvalConfig, given(options, EvalConfig), source="command line")
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
    return 0 if report.stopped is None and report.lost < report.episodes else 1


def export_main(argv: Sequence[str]) -> int:
    """Run ``llmgym export`` and return its exit status. Raises what :func:`llmgym.cli.export.export_rows` does."""
    parser = argparse.ArgumentParser(
        prog="llmgym export",
        description="Write the episodes of a run as rows of `messages` and `tools`, one JSON object a line, for an SFT "
        "trainer. Only episodes that their environment ended are written.",
        allow_abbrev=False,
    )
    parser.add_argument("run", help="folder of an evaluation or of a training run (its training episodes), or a JSONL")
    parser.add_argument("--out", required=True, metavar="JSONL", help="file to write")
    parser.add_argument("--min-reward", type=float, metavar="X", help="leave out episodes with a smaller reward")
    parser.add_argument("--best-per-task", action="store_true", help="only the best episode of each task")
    parser.add_argument(
        "--arguments",
        choices=("object", "string"),
        default="object",
        help="how the arguments of a tool call are written: as an object, which chat templates want (default), or as "
        "JSON text, which OpenAI's fine-tuning wants",
    )
    options = parser.parse_args(argv)
    counts = export_rows(
        options.run,
        options.out,
        min_reward=options.min_reward,
        best_per_task=options.best_per_task,
        arguments=options.arguments,
    )
    print(
        f"{counts.written} of {counts.episodes} episodes written to {options.out}; left out: {counts.unfinished} that "
        f"their environment did not end, {counts.low} of low reward, {counts.not_best} not the best of their task"
    )
    return 0


def _eval_parser() -> CommandParser:
    parser = CommandParser(
        prog="llmgym eval",
        description="Let a model or an expert act in an environment, and report how it did.",
        epilog=_EVAL_EXAMPLES,
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
