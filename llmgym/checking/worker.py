"""Runs untrusted coroutines on an event loop in a thread of its own, watched from outside.

A call that awaits forever is cancelled by its timeout. One that blocks the loop cannot be cancelled: it is noticed from
outside, its thread is abandoned, and the next call gets a new worker.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

BEAT_S = 0.02
POLL_S = 0.05
BLOCKED_POLLS = 6
"""The loop counts as blocked when it has not moved in this many polls of ``POLL_S`` seconds each. Polls are counted,
not seconds, so that a pause of the whole machine is no evidence."""
GRACE_S = 1.0
"""How long after its timeout a call may take to obey its cancellation."""

LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).parent),
)
"""Folders of code that is not the environment's own."""


class Trouble(StrEnum):
    """Why a call did not return."""

    TIMED_OUT = "timed out"
    """It awaited past its timeout and was cancelled."""
    BLOCKS = "blocks"
    """It holds the event loop."""
    IGNORES_CANCELLATION = "ignores cancellation"
    """It goes on awaiting although it was cancelled."""


@dataclass
class Outcome:
    """What became of one call.

    Attributes:
        value: What it returned.
        error: What it raised.
        trouble: Why it did not return.
        blocked_at: Where it stood while it blocked the event loop, even if it returned in the end.
    """

    value: Any = None
    error: BaseException | None = None
    trouble: Trouble | None = None
    blocked_at: str | None = None

    @property
    def returned(self) -> bool:
        """Whether it returned a value, in time and without raising."""
        return self.error is None and self.trouble is None


_Job = tuple[Callable[[], Awaitable[Any]], float, "concurrent.futures.Future[Outcome]"]


class Worker:
    """A daemon thread with an event loop of its own.

    Attributes:
        lost: The loop is blocked, has ended, or runs a call that cannot be ended; make a new worker.
    """

    def __init__(self) -> None:
        self.lost = False
        self._beats = 0
        self._ended_by: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda loop, context: None)
        self._thread = threading.Thread(target=self._run, daemon=True, name="llmgym-check")
        self._thread.start()

    def start(self) -> Actor:
        """Start an actor: one asyncio task that runs one call after another."""
        actor = Actor(self)
        self._loop.call_soon_threadsafe(actor.begin, self._loop)
        return actor

    def put(self, queue: asyncio.Queue[_Job | None], job: _Job | None) -> None:
        """Hand a job to an actor's queue."""
        with contextlib.suppress(RuntimeError):  # the loop has ended; wait() says so
            self._loop.call_soon_threadsafe(queue.put_nowait, job)

    def wait(self, future: concurrent.futures.Future[Outcome], timeout_s: float) -> Outcome:
        """Wait for a job while watching the loop."""
        end = time.monotonic() + timeout_s + GRACE_S
        beats, still, where = self._beats, 0, None
        while True:
            with contextlib.suppress(concurrent.futures.TimeoutError):
                outcome = future.result(timeout=POLL_S)
                outcome.blocked_at = where
                return outcome
            if not self._thread.is_alive():
                self.lost = True
                return Outcome(error=self._ended_by or RuntimeError("the event loop was stopped"))
            if self._beats == beats:
                still += 1
                if still >= BLOCKED_POLLS and where is None:
                    where = self._current_line()
            else:
                beats, still = self._beats, 0
            if time.monotonic() > end:
                self.lost = True
                return Outcome(
                    trouble=Trouble.BLOCKS if still >= BLOCKED_POLLS else Trouble.IGNORES_CANCELLATION, blocked_at=where
                )

    def count_tasks(self) -> int:
        """Tasks on the loop, actors included."""
        return len(asyncio.all_tasks(self._loop))

    def stop(self) -> None:
        """End the loop. The daemon thread of a lost one stays until the process ends."""
        if not self.lost:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(GRACE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._beat()
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=GRACE_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:  # noqa: BLE001 - a task's SystemExit ends run_forever; the caller gets it
            self._ended_by = error
        finally:
            with contextlib.suppress(RuntimeError):
                self._loop.close()

    def _beat(self) -> None:
        self._beats += 1
        self._loop.call_later(BEAT_S, self._beat)

    def _current_line(self) -> str | None:
        """The innermost line outside libraries that the thread executes, with its code."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        last = _last_own(traceback.extract_stack(frame)) if frame else None
        return f"{Path(last.filename).name}:{last.lineno} in {last.name}: {last.line or '?'}" if last else None


class Actor:
    """Runs the calls of one episode in one asyncio task, as :func:`llmgym.run_episode` does."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._queue: asyncio.Queue[_Job | None] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the task; called on the loop."""
        self._task = loop.create_task(self._serve())

    def call(self, make: Callable[[], Awaitable[Any]], timeout_s: float) -> Outcome:
        """Await ``make()`` on the worker's loop and return what became of it."""
        future: concurrent.futures.Future[Outcome] = concurrent.futures.Future()
        self.worker.put(self._queue, (make, timeout_s, future))
        return self.worker.wait(future, timeout_s)

    def end(self) -> None:
        """Let the task end when it is idle."""
        self.worker.put(self._queue, None)

    async def _serve(self) -> None:
        while (job := await self._queue.get()) is not None:
            make, timeout_s, future = job
            deadline = asyncio.timeout(timeout_s)
            try:
                async with deadline:
                    outcome = Outcome(value=await make())
            except GeneratorExit:  # the loop is gone, and this coroutine with it
                raise
            except BaseException as error:  # noqa: BLE001 - SystemExit too must not end the check
                late = isinstance(error, TimeoutError) and deadline.expired()
                outcome = Outcome(trouble=Trouble.TIMED_OUT) if late else Outcome(error=error)
            future.set_result(outcome)


def describe_error(error: BaseException) -> str:
    """Type and text of an exception, and the last line outside libraries that it passed."""
    last = _last_own(traceback.extract_tb(error.__traceback__))
    place = f" ({Path(last.filename).name}:{last.lineno} in {last.name})" if last else ""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an exception whose text raises
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text[:300]}{place}"


def _last_own(frames: Sequence[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """The innermost frame outside libraries; the innermost of all when there is none."""
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    return next(reversed(own or frames), None)
