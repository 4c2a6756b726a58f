"""``llmgym check``: options, output and exit status."""

from __future__ import annotations

import json
from collections.abc import Sequence

from llmgym.checking import print_report
from llmgym.checking.guard import check_guarded
from llmgym.cli.options import CommandParser, key_value


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym check`` and return 0 without errors, 1 with findings of level error (any with ``--strict``)."""
    from rich.console import Console

    options = _parser().parse_args(argv)
    given = {
        "env": options.env,
        "tasks": options.tasks,
        "split": options.split,
        "task_options": dict(key_value(text, "--task-option") for text in options.task_option),
        "episodes": options.episodes,
        "timeout_s": options.timeout,
        "seed": options.seed,
    }
    with Console(stderr=True).status("checking") as status:
        report = check_guarded(given, status.update)
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report, Console())
    return int(not report.ok or (options.strict and bool(report.findings)))


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="llmgym check",
        description="Check an environment before you train on it. "
        "Exit status: 0 without errors, 1 with errors, 2 when there is nothing to check.",
    )
    parser.add_argument("env", metavar="ENV", help="registered id, module:Class, or my_env.py:MyEnv")
    parser.add_argument("--tasks", metavar="JSONL", help="tasks from a file instead of the environment's own")
    parser.add_argument("--split", default="train", help="split to play (default train)")
    parser.add_argument(
        "--task-option", action="append", default=[], metavar="KEY=VALUE", help="option of the environment's tasks"
    )
    parser.add_argument("--episodes", type=int, default=4, metavar="N", help="tasks to play (default 4)")
    parser.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds one call may take (default 30)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seeds environment and hostile actions (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--strict", action="store_true", help="fail on warnings too")
    return parser
