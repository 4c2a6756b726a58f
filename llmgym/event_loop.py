"""Runs coroutines from synchronous code, on one background event loop a process. Knows no environment.

The loop runs on a daemon thread of its own, so a caller whose thread already runs a loop (a notebook) can wait
for it, and whatever a coroutine leaves running in the background goes on between two calls. A forked child does
not inherit threads: it forgets its parent's loop and starts one of its own at the first call.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_loops_of_parents: list[asyncio.AbstractEventLoop] = []


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` to its end on this process's background loop and return its result.

    The calling thread waits. All calls of a process share one loop, so objects bound to a loop (sessions, locks)
    live on from call to call. Interrupting the wait, as Ctrl-C does, cancels the coroutine.

    Raises:
        RuntimeError: Called from a coroutine on the background loop itself, which would wait for ever, or while
            the interpreter shuts down.
        BaseException: Whatever the coroutine raises.
    """
    if sys.is_finalizing():
        coroutine.close()
        raise RuntimeError("the interpreter is shutting down; close environments before the program ends")
    loop, thread = _background_loop()
    if threading.current_thread() is thread:
        coroutine.close()
        raise RuntimeError(
            "a synchronous environment was called from a coroutine on llmgym's own event loop, which would wait for "
            "ever; await its reset_async and step_async instead, or wrap it with llmgym.from_gym"
        )
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()  # does nothing when the exception is the coroutine's own
        raise


def _background_loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    global _loop, _thread
    with _lock:
        if _loop is None or _thread is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_run, args=(_loop,), daemon=True, name="llmgym-event-loop")
            _thread.start()
        return _loop, _thread


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        # asyncio hands these two to the waiting caller and then leaves run_forever; the loop must live on.
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def _forget_loop_of_parent() -> None:
    """Start afresh in a forked child."""
    global _lock, _loop, _thread
    _lock = threading.Lock()  # another thread of the parent may have held the old one
    if _loop is not None:
        # Kept for good: collecting it here would deregister files from the epoll set shared with the parent.
        _loops_of_parents.append(_loop)
    _loop = _thread = None


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_forget_loop_of_parent)
