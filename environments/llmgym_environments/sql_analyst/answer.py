"""The reading of answers: one number, one name, or a set of rows."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from llmgym.errors import TaskError
from llmgym_environments.calculator import parse_number

MAX_CHARACTERS = 10_000

Row = tuple[Fraction | str, ...]
"""The cells of a row: a number where the text is one, else the text."""


def parse_rows(text: str) -> Counter[Row]:
    """Read rows, a line each, cells separated by ``|``; blanks around cells and empty lines do not count.

    A text longer than ``MAX_CHARACTERS`` holds no rows.
    """
    lines = text.split("\n") if len(text) <= MAX_CHARACTERS else []
    return Counter(tuple(map(_value, line.split("|"))) for line in lines if line.strip())


def target_rows(target: Any) -> Counter[Row]:
    """The rows of a task's target: a number or a name is one row of one cell, a list holds rows, which are lists.

    Raises:
        TaskError: It is none of these, or holds no row: an empty answer must never be right.
    """
    rows = target if isinstance(target, list) else [[target]]
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise TaskError(f"the target must be a number, a name, or a list of rows (lists), got {target!r:.80}")
    cells = [cell for row in rows for cell in row]
    if not all(isinstance(cell, int | float | str) and str(cell).strip() for cell in cells):
        raise TaskError(f"the cells of the target must be numbers or texts that are not empty, got {target!r:.80}")
    return Counter(tuple(_value(str(cell)) for cell in row) for row in rows)


def _value(cell: str) -> Fraction | str:
    number = parse_number(cell)
    return cell.strip() if number is None else number
