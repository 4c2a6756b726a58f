"""The environment SqlAnalyst-v0: explore an unknown database, query it, answer."""

from __future__ import annotations

import sqlite3
from typing import Any

from llmgym import Message, ToolEnv, tool
from llmgym.errors import TaskError
from llmgym_environments.sql_analyst.answer import parse_rows, target_rows
from llmgym_environments.sql_analyst.database import Database


class SqlAnalystEnv(ToolEnv):
    """
    ## Description
    A task asks a question about an SQLite database that the policy does not know: it explores, queries, and answers.
    Schemas and rows are generated: what they are about, the names of keys and links, all numbers.

    | level | tables | rows | question, for example | answer |
    | --- | --- | --- | --- | --- |
    | 1 | 1 | 4 | What is the price of plum? Which item has the highest price? | number or name |
    | 2 | 2 | 19 | What is the total amount of all sales whose shop has city oslo? | number or name |
    | 3 | 4 | 96 | For each city, what is the total amount of sales whose product has color red? | rows, number, name |

    Level 2 needs a join, level 3 joins of three tables, groups, `HAVING` and `NOT IN`; its fourth table is an outdated
    copy of the records that the question does not mean. Names are single lower-case words that stand in a question as
    they stand in the data; the name of the column that holds them has to be found.

    ## Tools
    - `list_tables()`: the tables, separated by `, `.
    - `describe_table(table)`: its columns with their types and references.
    - `run_sql(query)`: one SELECT in SQLite's dialect; a row a line, cells separated by ` | `, or `no rows`.

    Several calls in one message are allowed; results come in their order. What a query may do, and how long, is said
    in :mod:`llmgym_environments.sql_analyst.database`: reading only, no `WITH`, 20 rows and 2,000 characters of
    output (the note behind cut output says how to get the rest).

    ## Observation
    The opening is a system message, which says how to answer, and the question as a user message. Each tool call adds
    one tool message with its id: a bare result, or `tool_error: …`.

    ## Action
    One assistant message. With tool calls it runs them; without, its content is the final answer.

    ## Rewards
    1.0 when the final answer has exactly the rows of the target, else 0.0; nothing in between. The whole content is
    read as `run_sql` writes rows: a row a line, cells separated by `|`. A number or a name is one row of one cell.
    Cells are compared as numbers (`42` and `42.0` are the same) or as texts; the order of rows does not count; a row
    too many, too few or twice is wrong, and so is any other word.

    ## Episode End
    1. Termination: an assistant message without tool calls.
    2. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share a database, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with an error.
    - `tables_described`: different tables looked at; `tables`: how many there are.
    - `queries`: queries that ran; `queries_failed`: those refused, wrong or stopped.
    - `answer_rows`: rows in the final answer; `answer_rows_right`: those that the target has too.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Use the tools. Then reply with only the answer, as run_sql would show it."
    tool_timeout_s = 3600.0  # the database bounds a query once it has a place; this one counts the waiting too
    _database: Database | None = None

    async def setup(self) -> None:
        """Open the task's database. Raises :class:`TaskError` when script or target are missing or malformed."""
        self._target = target_rows(self.task.target)
        await self.close()
        script = self.task.metadata.get("database")
        if not isinstance(script, str):
            raise TaskError(f"metadata['database'] of the task must be an SQL script, got {script!r:.80}")
        try:
            self._database = Database(script)
        except (sqlite3.Error, ValueError) as error:  # a ValueError for text that SQLite cannot take
            raise TaskError(f"metadata['database'] of the task is no working SQL script: {error}") from error
        self._described: set[str] = set()
        self._queries = self._queries_failed = 0
        self._answer: tuple[int, int] = (0, 0)

    @property
    def database(self) -> Database:
        """The database of this episode."""
        assert self._database is not None  # reset opens it, and no tool runs before or after
        return self._database

    @tool
    async def list_tables(self) -> str:
        """List all tables."""
        return ", ".join(self.database.columns)

    @tool
    async def describe_table(self, table: str) -> str:
        """Get the columns of a table."""
        columns = self.database.describe(table)
        self._described.add(table)
        return columns

    @tool
    def run_sql(self, query: str) -> str:
        """Run one SELECT (SQLite)."""
        self._queries_failed += 1
        rows = self.database.query(query)
        self._queries_failed -= 1
        self._queries += 1
        return rows

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        answer = parse_rows(message["content"])
        self._answer = (answer.total(), (answer & self._target).total())
        return float(answer == self._target)

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        rows, right = self._answer
        return {
            **super().metrics(),
            "tables": len(self.database.columns),
            "tables_described": len(self._described),
            "queries": self._queries,
            "queries_failed": self._queries_failed,
            "answer_rows": rows,
            "answer_rows_right": right,
        }

    async def close(self) -> None:
        """Free the database; a query that still runs in a thread is stopped."""
        if self._database is not None:
            self._database.close()
            self._database = None
