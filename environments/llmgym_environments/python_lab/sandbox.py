"""Runs programs that a model wrote, in the Monty sandbox. Knows programs and values; knows no task and no message.

Monty is an interpreter of its own for a large part of Python, in worker processes that are replaced when they die. A
program has no files, network, environment variables, processes or host objects; time stands still, random numbers have
a fixed seed, and sleeping takes no time, so that a program gives the same result each time it runs. (Python's
``exec`` with fewer names is no sandbox, RestrictedPython bounds neither time nor memory, and containers are no part
of an installation with pip.)

All episodes of a process share the workers, and programs that wait are served in the order of their coming. So that
quick ones need not wait for slow ones, there are two pools, each with a worker for each core: the first gives every
program ``QUICK_S``; one that needs more is begun again in the second. As an episode waits with one program at a time, a
quick one waits in the first pool for at most one program of each other episode. Such a program holds the worker for
``QUICK_S + GRACE_S``, or when 8 calls of a function belong to it for ``9 * QUICK_S + GRACE_S``: 0.15 and 0.55 s. In the
second pool the same sum has ``TIME_LIMIT_S`` for ``QUICK_S``.
"""

from __future__ import annotations

import atexit
import datetime
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

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
from llmgym_environments.per_process import per_process

T = TypeVar("T")

MAX_PROGRAM_CHARS = 10_000
TIME_LIMIT_S = 0.5
"""Of one program, and of each call of a function. It begins when a worker takes it up; waiting for one does not count."""
QUICK_S = 0.05
"""The same in the first pool."""
GRACE_S = 0.1
"""What a worker has beyond either until it is killed, in a step that the interpreter does not interrupt."""
MEMORY_LIMIT_BYTES = 16 * 2**20
PRINT_LIMIT_BYTES = 100_000
_KILL_S = 5.0
_POLICY = pydantic_monty.OSPolicy(datetime=datetime.datetime(2000, 1, 1), sleep="zero", random_start={"seed": 0})


def never() -> bool:
    """Nothing is over."""
    return False


def run(program: str, over: Callable[[], bool] = never) -> tuple[str, str | None]:
    """Run a program in a session of its own; blocks.

    Args:
        program: The program.
        over: Whether nobody waits for it any more; then it is not begun.

    Returns:
        What it printed, and what it died of: ``NameError: name 'y' is not defined (line 2)``, or None.

    Raises:
        ToolError: The program is longer than ``MAX_PROGRAM_CHARS``.
    """
    _check_length(program)
    printed = CollectString()

    def work(session: MontySession) -> None:
        nonlocal printed
        printed = CollectString(PRINT_LIMIT_BYTES)
        session.feed_run(program, print_callback=printed)

    try:
        _in_session(work, over)
    except MontyError as error:
        # What was printed until time was up depends on the machine.
        return ("" if _out_of_time(error) else printed.output), _describe(error)
    return printed.output, None


def call(
    program: str,
    function: str,
    arguments: Sequence[Any],
    keep: Callable[[int, Any], T],
    over: Callable[[], bool] = never,
) -> list[T]:
    """Run a program and call a function of it with each argument, in a session of its own; blocks.

    The program cannot reach the caller: the arguments come one at a time, and only values go back. What the program
    prints is dropped.

    Args:
        program: The program.
        function: Name of the function.
        arguments: JSON values.
        keep: Gets the number of an argument, from 0, and the value for it; what it makes of them is all that is kept
            of the value, which may be large: ``MEMORY_LIMIT_BYTES`` of the program are up to 4 times as much here (66 MB
            were measured, for a text with one character beyond the 16-bit ones). In the place of a value it gets the
            ``MontyError`` that the call died of. After a call that was stopped by a limit the others are not made and
            have its error too.
        over: See :func:`run`.

    Returns:
        What ``keep`` made of each; nothing of a program that was not begun.

    Raises:
        ToolError: The program is longer than ``MAX_PROGRAM_CHARS``.
    """
    _check_length(program)
    kept: list[T] = []

    def work(session: MontySession) -> None:
        kept.clear()
        session.feed_run(program, print_callback=CollectString(PRINT_LIMIT_BYTES))
        for number, argument in enumerate(arguments):
            kept.append(keep(number, _call(session, function, argument)))

    try:
        _in_session(work, over)
    except MontyError as error:
        kept += [keep(number, error) for number in range(len(kept), len(arguments))]
    return kept


def _call(session: MontySession, function: str, argument: Any) -> Any:
    try:
        # A literal: whatever was bound to a name would replace the program's own value of it.
        return session.feed_run(f"{function}({argument!r})", print_callback=CollectString(PRINT_LIMIT_BYTES))
    except MontyRuntimeError as error:
        if _out_of_time(error) or _out_of_memory(error):
            raise  # the session is not to be used any more
        return error


def _in_session(work: Callable[[MontySession], None], over: Callable[[], bool]) -> None:
    try:
        with session(QUICK_S) as quick:
            return None if over() else work(quick)
    except MontyError as error:
        if not _out_of_time(error):
            raise
    with session(TIME_LIMIT_S) as slow:  # a program does the same each time
        return None if over() else work(slow)


def session(limit_s: float) -> MontySession:
    """A session in the pool of the programs with this time limit."""
    limits = pydantic_monty.ResourceLimits(
        max_feed_duration_secs=limit_s, max_memory=MEMORY_LIMIT_BYTES, max_recursion_depth=500, max_suspensions=1
    )
    return _pool(limit_s).checkout(limits=limits, os_policy=_POLICY)


@per_process
def _pool(limit_s: float) -> Monty:
    """The workers of this process for a time limit: as many at a time as there are cores."""
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
        return f"TimeoutError: stopped after {TIME_LIMIT_S} s"
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return "the sandbox died of it"
    text, frames = error.display("type-msg"), error.traceback()
    if isinstance(error, MontyRuntimeError) and _out_of_memory(error):
        if not frames and text.endswith(f"> {PRINT_LIMIT_BYTES} bytes"):
            return f"MemoryError: it prints more than {PRINT_LIMIT_BYTES} bytes"
        return f"MemoryError: it needs more than {MEMORY_LIMIT_BYTES // 2**20} MB"
    return f"{text[:500]} (line {frames[-1].line})" if frames else text[:500]
