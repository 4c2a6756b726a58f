"""A read-only SQLite database in memory that bounds what a query can do and cost.

What bounds a query, whatever its text:

1. Rights. The authorizer allows reading the tables, and the functions in ``FUNCTIONS``; nothing that writes, attaches,
   recurses, or differs between machines or moments is allowed.
2. Preparation. At most ``MAX_QUERY`` characters, and no ``WITH`` outside of texts, quoted names and comments: SQLite
   copies a common table expression to every place that names it, so that twenty short ones become a million subqueries
   before any other limit applies.
3. Running. ``MAX_STEPS`` instructions of SQLite's virtual machine, which is the same everywhere, and ``MAX_CPU_S``.
   Both are looked at every ``_STEPS_A_CHECK`` instructions; one alone, such as a sort, is not interrupted (the
   longest that we found takes 0.04 s).
4. Memory. No text and no row is longer than ``MAX_LENGTH`` bytes, and a step makes less than one row.
5. Output. ``MAX_ROWS`` rows and ``MAX_CHARACTERS`` characters; the note behind them says how to get the rest.

What bounds the wait for others: the queries of a process pass two fair semaphores of ``PLACES`` places. The first gives
every query ``QUICK_CPU_S``; one that needs more starts again at the second, with ``MAX_CPU_S``. An episode waits with
one query at a time, so a quick query waits for at most one query of each other episode, each of which holds its place
for ``QUICK_CPU_S`` and one instruction, 0.06 s of CPU time.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import threading
import time
from collections.abc import Mapping
from typing import Any

from llmgym.errors import ToolError, did_you_mean
from llmgym_environments.sharing import FairSemaphore, once_per_process

PLACES = 4
"""Queries that run at once at each of the two semaphores, whatever the number of cores."""
MAX_QUERY = 1000
MAX_STEPS = 500_000
MAX_CPU_S = 0.5
QUICK_CPU_S = 0.02
MAX_LENGTH = 1000
MAX_ROWS = 20
MAX_CHARACTERS = 2000
CUT_NOTE = "[cut: LIMIT and OFFSET show more rows, substr shows more of a text]"
FUNCTIONS = frozenset(
    (
        *("abs", "avg", "coalesce", "count", "dense_rank", "group_concat", "ifnull", "iif", "instr", "length", "like"),
        *("lower", "max", "min", "nullif", "rank", "round", "row_number", "substr", "sum", "total", "trim", "upper"),
    )
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: MAX_LENGTH,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: MAX_QUERY,
    sqlite3.SQLITE_LIMIT_COLUMN: 30,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
_STEPS_A_CHECK = 100
_REFUSED = re.compile(
    r"""
    '(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\]  # texts and quoted names, as SQLite reads them,
    | --[^\n]* | /\*.*?(?:\*/|\Z)  # and comments: in these nothing is refused
    | (\bWITH\b | \bEXPLAIN\b | [?$@\#:])  # a parameter such as $a(') would hide where a text begins
    """,
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_INSTEAD = {"WITH": "write a subquery in FROM", "EXPLAIN": "allowed is only SELECT"}


class Database:
    """A private copy of a database; safe to query from any thread, one query at a time.

    Args:
        script: SQL statements that make it. They are the task's, not the model's, and run without limits; but a row
            of more than ``MAX_LENGTH`` bytes cannot be queried afterwards.

    Attributes:
        columns: From table name to its columns with types and references, as text.

    Raises:
        sqlite3.Error: The script fails.
    """

    def __init__(self, script: str) -> None:
        content, self.columns = _template(script)
        self._readable = {*self.columns, "sqlite_master"}
        self._lock = threading.Lock()
        self._closed = False
        self._connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._connection.deserialize(content)
        for statement in ("PRAGMA query_only = ON", "PRAGMA temp_store = MEMORY", "PRAGMA trusted_schema = OFF"):
            self._connection.execute(statement)
        for limit, value in _LIMITS.items():
            self._connection.setlimit(limit, value)
        self._connection.set_authorizer(self._authorize)
        self._connection.set_progress_handler(self._out_of_bounds, _STEPS_A_CHECK)

    def describe(self, table: str) -> str:
        """The columns of a table with their types. Raises :class:`ToolError` when there is no such table."""
        if table not in self.columns:
            raise ToolError(
                f"no table {table[:40]!r}; list_tables lists them."
                f"{did_you_mean(table[:40], self.columns, likeness=0.5)}"
            )
        return self.columns[table]

    def query(self, text: str) -> str:
        """Run one SELECT and return its rows, a line each, cells separated by ``" | "``.

        Raises:
            ToolError: The query is wrong, not allowed, or exceeds a limit; the text is meant for the model.
        """
        if len(text) > MAX_QUERY:
            raise ToolError(f"the query has {len(text)} characters; at most {MAX_QUERY} are allowed")
        for word in filter(None, map(str.upper, _REFUSED.findall(text))):
            raise ToolError(f"{word} is not available; {_INSTEAD.get(word, 'write the value itself')}")
        for limit_s in (QUICK_CPU_S, MAX_CPU_S):  # nothing changes the data: a query gives the same each time
            with _semaphore(limit_s), self._lock:  # in this order: close waits for the lock
                self._checks_left = MAX_STEPS // _STEPS_A_CHECK
                self._end_s = time.thread_time() + limit_s  # CPU time: a busy machine changes no result
                self._late = False
                try:
                    return _as_text(self._connection.execute(text).fetchmany(MAX_ROWS + 1))
                except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
                    said, late = self._explained(str(error)), self._late
            if not late:
                break
        raise ToolError(said)

    def close(self) -> None:
        """Stop a query that still runs or waits in another thread, and free the database."""
        self._closed = True
        with self._lock:
            self._connection.close()

    def _explained(self, error: str) -> str:
        if error == "interrupted":
            return "the query takes too long; join on keys, or read fewer rows"
        if "function:" in error:
            return f"{error}; the functions are {', '.join(sorted(FUNCTIONS))}"
        if "vtable" in error:  # a table that SQLite builds in, such as json_each: the authorizer forbids to make it
            error = f"not authorized: {error.rpartition(': ')[2]}"
        if "authoriz" in error or "prohibited" in error:
            return f"{error}; allowed is only SELECT from {', '.join(self.columns)}"
        return error

    def _authorize(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        allowed = (
            action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and first in self._readable)
            or (action == sqlite3.SQLITE_FUNCTION and str(second).lower() in FUNCTIONS)
        )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _out_of_bounds(self) -> bool:
        self._checks_left -= 1
        if self._closed or self._checks_left < 0:
            return True
        self._late = time.thread_time() > self._end_s
        return self._late


@once_per_process
def _semaphore(limit_s: float) -> FairSemaphore:
    """Where the queries of this process with a time limit wait."""
    return FairSemaphore(PLACES)


@functools.lru_cache(maxsize=256)
def _template(script: str) -> tuple[bytes, Mapping[str, str]]:
    """The database file and its columns, made once for all episodes of a task."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)  # in memory it stays, whatever the script
        connection.executescript(script)
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return connection.serialize(), {name: _columns(connection, name) for name in names}
    finally:
        connection.close()


def _columns(connection: sqlite3.Connection, table: str) -> str:
    references = {
        own: f" references {other}({column})"
        for other, own, column in connection.execute(
            'SELECT "table", "from", "to" FROM pragma_foreign_key_list(?)', (table,)
        )
    }
    return ", ".join(
        f"{name} {kind.lower()}{' primary key' if key else ''}{references.get(name, '')}"
        for name, kind, key in connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (table,))
    )


def _as_text(rows: list[tuple[Any, ...]]) -> str:
    text = "\n".join(" | ".join(map(_cell, row)) for row in rows[:MAX_ROWS])
    if len(rows) <= MAX_ROWS and len(text) <= MAX_CHARACTERS:
        return text or "no rows"
    return f"{text[:MAX_CHARACTERS]}\n{CUT_NOTE}"


def _cell(value: Any) -> str:
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "NULL" if value is None else str(value)
