"""Reports and comparisons as terminal tables and as Markdown. Knows how they look; works nothing out.

What comes from a model or a task is shown with its control characters escaped, and as text alone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgym._util.text import printable
from llmgym.episode import StopReason
from llmgym.evaluation.comparison import Comparison
from llmgym.evaluation.report import Report, TaskRow
from llmgym.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN_TASKS = 20


@dataclass
class _Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def print_report(report: Report, console: Console | None = None) -> None:
    """Show a report on a terminal; of its tasks the first 20."""
    from rich.console import Console

    console = console or Console()
    _print_tables(_title(report), _report_tables(report, _SHOWN_TASKS), console)
    _print_end(report.trainable.advice, report.warnings, console)


def report_markdown(report: Report) -> str:
    """A report as Markdown."""
    lines = [f"# {_escape(_title(report))}", ""]
    lines += [f"> **Warning.** {_escape(warning)}\n" for warning in report.warnings]
    lines += [f"**{_escape(report.trainable.advice)}**", ""]
    for table in _report_tables(report, len(report.tasks)):
        lines += [f"## {_escape(table.title)}", ""]
        lines += [_markdown_row(table.columns), _markdown_row(["---"] * len(table.columns))]
        lines += [_markdown_row(row) for row in table.rows]
        lines += ["", _escape(table.note), ""] if table.note else [""]
    return "\n".join(lines)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Show two reports side by side, and the test."""
    from rich.console import Console

    console = console or Console()
    first, second = comparison.first, comparison.second
    columns = ["", f"A: {first.policy}", f"B: {second.policy}"]
    pairs = zip(_overview(first), _overview(second), strict=True)
    rows = [[name, before, after] for (name, before), (_, after) in pairs]
    rows += [
        [f"stopped: {reason}", _stop_share(first, reason), _stop_share(second, reason)]
        for reason in StopReason
        if reason in first.stop_reasons or reason in second.stop_reasons
    ]
    where = [[name, report.folder] for name, report in (("A", first), ("B", second)) if report.folder]
    _print_tables("", [_Table("comparison", columns, rows), _Table("folders", ["", ""], where)], console)
    verdict = (
        f"B - A: {_estimate(comparison.difference, sign=True)} mean reward over {comparison.tasks} common tasks, "
        f"p = {comparison.p_value:.3g} ({comparison.test})"
    )
    _print_end(verdict, comparison.warnings, console)


def _title(report: Report) -> str:
    return f"{report.env_id}, {report.policy}"


def _overview(report: Report) -> list[tuple[str, str]]:
    """Name and value of every figure that is one number."""
    trainable = report.trainable
    tokens = f"{report.prompt_tokens:,} in, {report.completion_tokens:,} out"
    if report.turns_without_usage:
        tokens += f"; {report.turns_without_usage} turns uncounted"
    rows = [
        ("episodes", f"{report.episodes} of {report.planned}, {len(report.tasks)} tasks"),
        ("mean reward", _estimate(report.reward)),
        ("mean reward, failed episodes as 0", f"{_estimate(report.reward_failed_as_0)}; {report.failed} failed"),
        (f"success (reward of {report.success_reward:g} or more)", _estimate(report.success)),
        (
            "trainable share",
            f"{_number(trainable.share)} of {trainable.tasks} tasks; alike: {trainable.all_succeed} with success, "
            f"{trainable.none_succeeds} without",
        ),
        ("turns an episode", _number(report.turns, ".1f")),
        ("tool calls an episode", _per_episode(report, sum(count.calls for count in report.tools.values()))),
        ("tool errors an episode", _per_episode(report, sum(report.tool_errors.values()))),
        ("tokens", tokens),
        (
            "seconds an episode",
            f"{_number(report.policy_s, '.2f')} policy, {_number(report.env_s, '.2f')} environment",
        ),
    ]
    if report.cost is not None:
        rows.append(("cost", f"{report.cost:.4f}"))
    return rows


def _report_tables(report: Report, shown_tasks: int) -> list[_Table]:
    tables = [
        _Table(
            "result",
            ["", "value"],
            _overview(report),
            "In brackets: 95 % interval, clustered by task.",
        ),
        _Table(
            "pass@k and pass^k",
            ["k", "pass@k: one succeeds", "pass^k: all succeed", "tasks"],
            [
                [str(row.k), _number(row.at_least_one), _number(row.all_of_them), str(row.tasks)]
                for row in report.passes
            ],
        ),
        _Table(
            "why episodes stopped",
            ["stop reason", "episodes", "share"],
            [[reason, str(count), _stop_share(report, reason)] for reason, count in report.stop_reasons.items()],
        ),
        _Table(
            "failures",
            ["stop reason", "times", "what happened"],
            [[failure.stop_reason, str(failure.count), failure.detail] for failure in report.failures],
        ),
        _Table(
            "tools",
            ["tool", "calls", "errors"],
            [[name, str(count.calls), str(count.errors)] for name, count in report.tools.items()],
        ),
        _Table(
            "tool errors",
            ["type", "times"],
            [[name, str(count)] for name, count in report.tool_errors.items()],
        ),
        _Table(
            "metrics of the environment",
            ["metric", "mean"],
            [[name, _number(value)] for name, value in report.metrics.items()],
        ),
        _Table(
            "tasks",
            ["task", "mean reward", "rewards", "turns", "prompt"],
            [_task_cells(row) for row in report.tasks[:shown_tasks]],
            f"{len(report.tasks) - shown_tasks} more are in report.md." if len(report.tasks) > shown_tasks else "",
        ),
    ]
    return [table for table in tables if table.rows]


def _task_cells(row: TaskRow) -> list[str]:
    rewards = " ".join("failed" if reward is None else f"{reward:.3g}" for reward in row.rewards)
    return [row.id, _number(row.mean_reward), rewards, _number(row.turns, ".1f"), row.prompt]


def _print_tables(title: str, tables: Sequence[_Table], console: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    if title:
        console.print(Text(printable(title), style="bold"))
    for table in tables:
        if not table.rows:
            continue
        grid = Table(title=Text(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for column in table.columns:
            grid.add_column(Text(printable(column)))
        for row in table.rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        console.print(grid)
        if table.note:
            console.print(Text(table.note, style="dim"))


def _print_end(verdict: str, warnings: Sequence[str], console: Console) -> None:
    from rich.text import Text

    for warning in warnings:
        console.print(Text(f"WARNING: {printable(warning)}", style="bold red"))
    console.print(Text(printable(verdict), style="bold"))


def _stop_share(report: Report, reason: StopReason) -> str:
    return f"{report.stop_reasons.get(reason, 0) / max(1, report.episodes):.1%}"


def _per_episode(report: Report, count: int) -> str:
    good = report.episodes - report.failed
    return _number(count / good if good else None, ".2f")


def _estimate(estimate: Estimate, *, sign: bool = False) -> str:
    spec = "+.3f" if sign else ".3f"
    text = _number(estimate.mean, spec)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:{spec}}, {estimate.high:{spec}}]"


def _number(value: float | None, spec: str = ".3f") -> str:
    return "-" if value is None else format(value, spec)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell) for cell in cells)} |"


def _escape(text: str) -> str:
    text = html.escape(printable(text), quote=False)
    for char in "\\`*_[]|":
        text = text.replace(char, f"\\{char}")
    return text
