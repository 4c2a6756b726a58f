"""Tables and figures as text: on a terminal and as Markdown.

What comes from a model or a task is shown with its control characters escaped, and as text alone.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmgym._util.text import printable
from llmgym.evaluation.statistics import Estimate

if TYPE_CHECKING:
    from rich.console import Console


@dataclass
class Table:
    """One table; without rows it is not shown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def print_tables(
    title: str, tables: Sequence[Table], warnings: Sequence[str], verdict: str, console: Console | None = None
) -> None:
    """Show tables on a terminal, below them the warnings and one sentence."""
    from rich import table as rich_table
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    if title:
        console.print(Text(printable(title), style="bold"))
    for table in tables:
        if not table.rows:
            continue
        grid = rich_table.Table(title=Text(table.title), title_justify="left", title_style="bold", box=SIMPLE_HEAD)
        for column in table.columns:
            grid.add_column(Text(printable(column)))
        for row in table.rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        console.print(grid)
        if table.note:
            console.print(Text(table.note, style="dim"))
    for warning in warnings:
        console.print(Text(f"WARNING: {printable(warning)}", style="bold red"))
    console.print(Text(printable(verdict), style="bold"))


def markdown(table: Table) -> str:
    """A table as Markdown, with its title as a heading."""
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    lines = [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return "\n".join([f"## {escape(table.title)}", "", *lines, "", *([escape(table.note), ""] if table.note else [])])


def escape(text: str) -> str:
    """Text that Markdown shows as it is."""
    text = html.escape(printable(text), quote=False)
    for char in "\\`*_[]|":
        text = text.replace(char, f"\\{char}")
    return text


def number_text(value: float | None, spec: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, spec)


def estimate_text(estimate: Estimate, *, sign: bool = False) -> str:
    """A mean with its interval in brackets."""
    spec = "+.3f" if sign else ".3f"
    text = number_text(estimate.mean, spec)
    if estimate.low is None or estimate.high is None:
        return text
    return f"{text} [{estimate.low:{spec}}, {estimate.high:{spec}}]"
