"""Runs programs written by a model in the Monty sandbox.

Monty interprets a large part of Python in worker processes, which are replaced when they die. A program has no files,
network, environment variables, processes or host objects; the clock stands still, random numbers have a fixed seed and
sleeping takes no time, so a program gives the same result each time it runs. (Alternatives: Python's ``exec`` with
fewer names is no sandbox, RestrictedPython bounds neither time nor memory, containers do not come with pip.)

All episodes of a process share the workers, and waiting programs are served in order. Two pools of ``WORKERS``
processes keep quick programs from waiting for slow ones: the first gives every program ``QUICK_S``, and one that
needs more starts again in the second. An episode waits with one program at a time, so a quick one waits for at most
one program of each other episode. Such a program holds its worker for at most ``QUICK_S + GRACE_S`` (0.15 s), or with
8 calls of a function for ``9 * QUICK_S + GRACE_S`` (0.55 s); in the second pool ``TIME_LIMIT_S`` takes the place of
``QUICK_S``.
"""

from __future__ import annotations

import atexit
import datetime
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

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
from llmgym_environments.sharing import once_per_process

T = TypeVar("T")
Pool = Literal["quick", "slow"]

WORKERS = 4
"""Worker processes per pool, whatever the number of cores; a process has two pools."""
MAX_PROGRAM_CHARS = 10_000
TIME_LIMIT_S = 0.5
"""For a program, and for each call of a function, from when a worker starts it; waiting for a worker does not count."""
QUICK_S = 0.05
"""The same limit in the first pool."""
GRACE_S = 0.1
"""Extra time before a worker is killed in a step that the interpreter cannot interrupt."""
MEMORY_LIMIT_BYTES = 16 * 2**20
PRINT_LIMIT_BYTES = 100_000
_KILL_S = 5.0
_POLICY = pydantic_monty.OSPolicy(datetime=datetime.datetime(2000, 1, 1), sleep="zero", random_start={"seed": 0})


def never() -> bool:
    """Nobody has stopped waiting."""
    return False


def run(program: str, over: Callable[[], bool] = never) -> tuple[str, str | None]:
    """Run a program in a session of its own; blocks.

    Args:
        program: The program.
        over: Whether nobody waits for the program any more; then it is not started.

    Returns:
        What it printed, and its error (``NameError: name 'y' is not defined (line 2)``) or None.

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
        # How much was printed before the time limit depends on the machine.
        return ("" if _out_of_time(error) else printed.output), _describe(error)
    return printed.output, None


def call(
    program: str,
    function: str,
    arguments: Sequence[Any],
    keep: Callable[[int, Any], T],
    over: Callable[[], bool] = never,
) -> list[T]:
    """Run a program and call one of its functions with each argument, in a session of its own; blocks.

    The program cannot reach the caller: arguments arrive one at a time, and only values come back. Printed text is
    dropped.

    Args:
        program: The program.
        function: Name of the function.
        arguments: JSON values.
        keep: Called with the index of an argument and its value, or the ``MontyError`` of a failed call; only its
            result is kept, because a value may be large (``MEMORY_LIMIT_BYTES`` in the sandbox can be four times as
            much here). After a call that a limit stopped, no more calls are made and the rest get the same error.
        over: See :func:`run`.

    Returns:
        The results of ``keep``; empty for a program that was not started.

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
        with session("quick") as quick:
            return None if over() else work(quick)
    except MontyError as error:
        if not _out_of_time(error):
            raise
    with session("slow") as slow:  # a program does the same each time
        return None if over() else work(slow)


def session(pool: Pool) -> MontySession:
    """A session on a worker of a pool, with the pool's time limit."""
    limits = pydantic_monty.ResourceLimits(
        max_feed_duration_secs=QUICK_S if pool == "quick" else TIME_LIMIT_S,
        max_memory=MEMORY_LIMIT_BYTES,
        max_recursion_depth=500,
        max_suspensions=1,
    )
    return _pool(pool).checkout(limits=limits, os_policy=_POLICY)


@once_per_process
def _pool(pool: Pool) -> Monty:
    """The workers of one of this process's pools."""
    workers = Monty(max_processes=WORKERS, request_timeout=_KILL_S, feed_duration_limit_grace=GRACE_S)
    workers.__enter__()
    atexit.register(workers.__exit__, None, None, None)
    return workers


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
