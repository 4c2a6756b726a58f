"""Runs programs that a model wrote, in the Monty sandbox. Knows programs and values; knows no task and no message.

Monty is an interpreter of its own for a large part of Python, in worker processes that are replaced when they die. A
program has no files, network, environment variables, processes or host objects; time stands still, random numbers have
a fixed seed, and sleeping takes no time, so that a program gives the same result each time it runs. (Python's
``exec`` with fewer names is no sandbox, RestrictedPython bounds neither time nor memory, and containers are no part
of an installation with pip.)
"""

from __future__ import annotations

import atexit
import datetime
import functools
import os
from collections.abc import Generator, Sequence
from typing import Any

import pydantic_monty
from pydantic_monty import (
    CollectString,
    Monty,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
)

from llmgym.errors import ToolError

MAX_PROGRAM_CHARS = 10_000
TIME_LIMIT_S = 0.5
"""Of one program, and of each call of a function. It begins when a worker takes it up; waiting for one does not count."""
GRACE_S = 1.0
"""What a worker has beyond that until it is killed, in a step that the interpreter does not interrupt."""
MEMORY_LIMIT_BYTES = 16 * 2**20
PRINT_LIMIT_BYTES = 100_000
_KILL_S = 5.0
_LIMITS = pydantic_monty.ResourceLimits(
    max_feed_duration_secs=TIME_LIMIT_S, max_memory=MEMORY_LIMIT_BYTES, max_recursion_depth=500, max_suspensions=1
)
_POLICY = pydantic_monty.OSPolicy(datetime=datetime.datetime(2000, 1, 1), sleep="zero", random_start={"seed": 0})


def run(program: str) -> tuple[str, str | None]:
    """Run a program in a session of its own; blocks.

    Returns:
        What it printed, and what it died of: ``NameError: name 'y' is not defined (line 2)``, or None.

    Raises:
        ToolError: The program is longer than ``MAX_PROGRAM_CHARS``.
    """
    _check_length(program)
    printed = CollectString(PRINT_LIMIT_BYTES)
    try:
        with _session() as session:
            session.feed_run(program, print_callback=printed)
    except MontyError as error:
        # What was printed until time was up depends on the machine.
        return ("" if _out_of_time(error) else printed.output), _describe(error)
    return printed.output, None


def call(program: str, function: str, arguments: Sequence[Any]) -> Generator[Any, None, None]:
    """Run a program and call a function of it with each argument, in a session of its own; blocks.

    The program cannot reach the caller: the arguments come one at a time, and only values go back. What the program
    prints is dropped. A value may be as large as the memory of the program, so drop each before you take the next. The worker is
    held until the generator ends or is closed.

    Yields:
        A value for each argument; in the place of a value, the ``MontyError`` that the call died of. After a call that
        was stopped by a limit the others are not made and have its error too.

    Raises:
        ToolError: The program is longer than ``MAX_PROGRAM_CHARS``.
    """
    _check_length(program)
    left = list(arguments)
    try:
        with _session() as session:
            session.feed_run(program, print_callback=CollectString(PRINT_LIMIT_BYTES))
            while left:
                yield _call(session, function, left[0])
                del left[0]
    except MontyError as error:
        for _ in left:
            yield error


def _call(session: MontySession, function: str, argument: Any) -> Any:
    try:
        # A literal: whatever was bound to a name would replace the program's own value of it.
        return session.feed_run(f"{function}({argument!r})", print_callback=CollectString(PRINT_LIMIT_BYTES))
    except MontyRuntimeError as error:
        if _out_of_time(error) or _out_of_memory(error):
            raise  # the session is not to be used any more
        return error


def _session() -> MontySession:
    return _pool(os.getpid()).checkout(limits=_LIMITS, os_policy=_POLICY)


@functools.cache
def _pool(process: int) -> Monty:
    """The workers of this process (a forked one gets its own): as many at a time as there are cores."""
    pool = Monty(request_timeout=_KILL_S, feed_duration_limit_grace=GRACE_S)
    pool.__enter__()
    atexit.register(pool.__exit__, None, None, None)
    return pool


def _check_length(program: str) -> None:
    if len(program) > MAX_PROGRAM_CHARS:
        raise ToolError(f"the program has {len(program)} characters; at most {MAX_PROGRAM_CHARS} are allowed")


def _out_of_time(error: MontyError) -> bool:
    """Whether the sandbox stopped it. What a program raises itself has a traceback; the end of its time has none."""
    if isinstance(error, MontyRuntimeError):
        return isinstance(error.exception(), TimeoutError) and not error.traceback()
    return isinstance(error, MontyCrashedError) and error.timed_out


def _out_of_memory(error: MontyRuntimeError) -> bool:
    """The same for memory. Some of its errors have a traceback: a program that raises their like deceives itself."""
    inner = error.exception()
    return isinstance(inner, MemoryError) and (
        not error.traceback() or str(inner).startswith("memory limit exceeded: ")
    )


def _describe(error: MontyError) -> str:
    if _out_of_time(error):
        took = TIME_LIMIT_S + GRACE_S * isinstance(error, MontyCrashedError)
        return f"TimeoutError: stopped after {took} s"
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return "the sandbox died of it"
    text, frames = error.display("type-msg"), error.traceback()
    if isinstance(error, MontyRuntimeError) and _out_of_memory(error):
        if not frames and text.endswith(f"> {PRINT_LIMIT_BYTES} bytes"):
            return f"MemoryError: it prints more than {PRINT_LIMIT_BYTES} bytes"
        return f"MemoryError: it needs more than {MEMORY_LIMIT_BYTES // 2**20} MB"
    return f"{text[:500]} (line {frames[-1].line})" if frames else text[:500]
