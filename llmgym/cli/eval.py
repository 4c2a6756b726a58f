"""``llmgym eval`` and ``llmgym export``: from command line to evaluation and rows. Knows arguments, no statistics."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from llmgym.cli.export import export_rows
from llmgym.cli.options import key_value
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError
from llmgym.evaluation.comparison import compare_reports
from llmgym.evaluation.config import Evaluation
from llmgym.evaluation.report import load_report
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
        print_comparison(compare_reports(first, second, seed=options.seed))
        return 0
    if options.env is None:
        raise ConfigError("name an environment, such as llmgym eval ToolUseGame-v0 --policy expert")
    if options.tasks and options.split:
        raise ConfigError("--split chooses among the environment's own tasks, and --tasks gives others; drop one")
    evaluation = Evaluation(
        env=options.env,
        tasks=load_tasks(options.tasks) if options.tasks else None,
        model=options.model,
        base_url=options.base_url,
        policy=options.policy,
        episodes_per_task=options.episodes_per_task,
        concurrency=options.concurrency,
        split=options.split or Evaluation.split,
        task_options=dict(key_value(text, "--task-option") for text in options.task_option),
        limit=options.limit,
        limits=EpisodeLimits(
            max_turns=options.max_turns,
            max_model_length=options.max_model_length,
            max_completion_length=options.max_completion_length,
            env_timeout_s=options.timeout,
            parse_retries=options.parse_retries,
        ),
        temperature=options.temperature,
        chat_template=options.chat_template,
        chat_template_kwargs=_json_object(options.chat_template_kwargs),
        seed=options.seed,
        success_reward=options.success_reward,
        price_in=options.price_in,
        price_out=options.price_out,
        max_cost=options.max_cost,
        request_timeout_s=options.request_timeout,
        out=options.out,
        resume=options.resume,
    )
    try:
        report = asyncio.run(evaluation.prepare().to_the_end())
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


def _eval_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llmgym eval",
        description="Let a model or an expert act in an environment, and report how it did.",
        epilog=_EVAL_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("env", nargs="?", help="registered id, module:Id-v0, module:Class or my_env.py:MyEnv")

    def group(title: str) -> Any:
        added = parser.add_argument_group(title)

        def add(name: str, help: str, kind: Any = str, metavar: str = "N", default: Any = None) -> None:
            shown = f"{help} (default {default})" if default is not None else help
            added.add_argument(name, help=shown, type=kind, metavar=metavar, default=default)

        return add

    add = group("what acts")
    add("--policy", "'expert', the scripted expert of the environment", metavar="NAME")
    add("--model", "name of a model at --base-url; else 'tiny', 'smollm2', a run folder, a directory", metavar="NAME")
    add("--base-url", "address of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1", metavar="URL")
    add("--temperature", "sampling temperature", float, "T", Evaluation.temperature)
    add("--chat-template", "name or file of a chat template for a local model", metavar="TEMPLATE")
    add(
        "--chat-template-kwargs",
        'variables of a local model\'s template, as {"enable_thinking": false}',
        metavar="JSON",
    )

    add = group("which tasks")
    add("--split", f"train, val or test (default {Evaluation.split})", metavar="SPLIT")
    add("--tasks", "tasks from a file, instead of the environment's own", metavar="JSONL")
    parser.add_argument(
        "--task-option", metavar="KEY=VALUE", action="append", default=[], help="passed to the task generator"
    )
    add("--limit", "the first N tasks only", int)
    add("--episodes-per-task", "episodes of each task", int, default=Evaluation.episodes_per_task)

    add = group("what ends an episode")
    limits = EpisodeLimits()
    add("--max-turns", "assistant turns", int, default=limits.max_turns)
    add("--max-model-length", "tokens of an episode, prompt and completions", int)
    add("--max-completion-length", "tokens of one turn", int)
    add("--parse-retries", "malformed turns that get a correction and another turn", int, default=limits.parse_retries)
    add("--timeout", "seconds that the environment has in one episode", float, "S", limits.env_timeout_s)

    add = group("how it runs")
    add("--concurrency", "episodes under way at once", int, default=Evaluation.concurrency)
    add("--request-timeout", "seconds that an endpoint has for one answer", float, "S", Evaluation.request_timeout_s)
    add("--seed", "seed of environments and sampling", int, default=Evaluation.seed)
    add("--success-reward", "a reward from which on an episode is a success", float, "X", Evaluation.success_reward)
    add("--price-in", "price of a million prompt tokens", float, "X")
    add("--price-out", "price of a million completion tokens", float, "X")
    add("--max-cost", "begin no episode that is expected to take the cost above X", float, "X")
    add("--out", "folder of the evaluation (default runs/eval-<time>)", metavar="DIR")
    parser.add_argument("--resume", action="store_true", help="go on with the evaluation in --out")

    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help="show two evaluations side by side, and a test")
    return parser


def _json_object(text: str | None) -> dict[str, Any] | None:
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        value = text
    if not isinstance(value, (dict, type(None))):
        raise ConfigError(f"--chat-template-kwargs takes a JSON object, got {text!r}")
    return value
