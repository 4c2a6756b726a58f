"""Coroutines from synchronous code, on one background event loop a process; blocking calls on daemon threads.

The loop runs on a daemon thread, so a caller whose thread already runs a loop (a notebook) can wait for it, and what a
coroutine leaves running in the background continues between two calls. A forked child does not inherit threads: it
forgets its parent's loop and starts its own at the first call.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

BLOCKED_AFTER_S = 30.0
_NO_CULPRITS = (Path(__file__).parents[1], Path(asyncio.__file__).parent)

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None
_loops_of_parents: list[asyncio.AbstractEventLoop] = []


def run_sync(coroutine: Coroutine[Any, Any, T], *, blocked_after_s: float = BLOCKED_AFTER_S) -> T:
    """Run ``coroutine`` to its end on this process's background loop and return its result.

    The calling thread waits. All calls of a process share one loop, so objects bound to a loop (sessions, locks)
    live on from call to call. Interrupting the wait, as Ctrl-C does, cancels the coroutine.

    Code that blocks the loop stops all episodes and every time limit, and cannot be cut. The waiting thread watches for
    it, and logs once, as a warning, what the loop's thread executes.

    Args:
        coroutine: What to run.
        blocked_after_s: Seconds without a sign of life of the loop before that warning, which comes within twice the
            time.

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
        return _watched_result(future, loop, thread, blocked_after_s)
    except BaseException:
        future.cancel()  # does nothing when the exception is the coroutine's own
        raise


def _watched_result(
    future: concurrent.futures.Future[T],
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    blocked_after_s: float,
) -> T:
    asked = None
    while True:
        concurrent.futures.wait([future], blocked_after_s)
        if future.done():
            return future.result()
        if asked is not None and not asked.is_set():
            logger.warning(
                "the event loop, and with it every episode and time limit, has stood still for %g s in %s. Make "
                "blocking code a synchronous tool, which gets a thread, call it with asyncio.to_thread, or make it a "
                "@tool(isolated=True), which can be ended",
                blocked_after_s,
                _where(thread),
            )
            return future.result()
        asked = threading.Event()
        loop.call_soon_threadsafe(asked.set)


def _where(thread: threading.Thread) -> str:
    """The frames in which a thread left llmgym and asyncio and in which it is now."""
    stack = traceback.extract_stack(sys._current_frames().get(thread.ident or 0))
    ours = [i for i, f in enumerate(stack) if any(Path(f.filename).is_relative_to(folder) for folder in _NO_CULPRITS)]
    called = stack[max(ours, default=-1) + 1 :] or stack[-1:]
    frames = dict.fromkeys(f"{f.filename}:{f.lineno} ({f.name})" for f in (called[0], called[-1]))
    return ", at ".join(frames)


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


class CallThread:
    """A daemon thread that runs one blocking call after the other.

    Not a pool: a call that hangs occupies this thread alone, and neither other episodes nor the exit of the process
    wait for it.

    Attributes:
        abandoned: The wait for a call was cancelled, so the thread may hang in it.
    """

    def __init__(self) -> None:
        self.abandoned = False
        self._calls: queue.SimpleQueue[tuple[concurrent.futures.Future[Any], Callable[[], Any], bool]] = (
            queue.SimpleQueue()
        )
        threading.Thread(target=self._work, daemon=True, name="llmgym-calls").start()

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread and return its result."""
        try:
            return await asyncio.wrap_future(self._put(function))
        except asyncio.CancelledError:
            self.abandoned = True
            raise

    def finish(self, function: Callable[[], T]) -> concurrent.futures.Future[T]:
        """Queue the last call, after which the thread ends."""
        return self._put(function, last=True)

    def _put(self, function: Callable[[], T], *, last: bool = False) -> concurrent.futures.Future[T]:
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._calls.put((outcome, functools.partial(contextvars.copy_context().run, function), last))
        return outcome

    def _work(self) -> None:
        last = False
        while not last:
            outcome, function, last = self._calls.get()
            if outcome.set_running_or_notify_cancel():
                try:
                    outcome.set_result(function())
                except BaseException as error:  # noqa: BLE001 - carried to whoever waits, whatever it is
                    if isinstance(error, StopIteration) or not isinstance(error, Exception):
                        # A future cannot hold StopIteration, and sys.exit() in a call must not end the process.
                        error = RuntimeError(f"{type(error).__name__}: {error}")
                    outcome.set_exception(error)
            del outcome, function  # while waiting for the next call, keep nothing of this one alive


def run_in_daemon_thread(function: Callable[[], T]) -> Awaitable[T]:
    """Run a blocking function on a daemon thread of its own and await its result. See :class:`CallThread`."""
    return asyncio.wrap_future(CallThread().finish(function))
