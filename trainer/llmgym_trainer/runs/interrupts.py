"""Ctrl-C and SIGTERM during training: the first stops the run in order, a second Ctrl-C stops it at once.

A scheduler sends SIGTERM before it takes the machine away, and torchrun when another process failed. Further SIGTERMs
are ignored; the sender will follow up with SIGKILL.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from llmgym._util.aio import BLOCKED_AFTER_S, run_sync
from llmgym.errors import LLMGymError
from llmgym.rollout import CLOSE_TIMEOUT_S
from llmgym_trainer.distributed import gather

T = TypeVar("T")


class TrainingInterrupted(LLMGymError):
    """Ctrl-C or SIGTERM asked training to stop."""


class StopRequest:
    """A request to stop training.

    Attributes:
        requested: Set by the first Ctrl-C or SIGTERM.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False

    def check(self) -> None:
        """Raise :class:`TrainingInterrupted` if a stop was requested."""
        if self.requested:
            raise TrainingInterrupted("training was asked to stop")

    def check_together(self) -> None:
        """Like :meth:`check`, at a point that every process passes: if one was asked to stop, all stop there."""
        self.requested = any(gather(self.requested))
        self.check()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """In this section a stop takes effect at once instead of at the next :meth:`check`."""
        self.check()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle Ctrl-C and SIGTERM in this section.

        Does nothing outside the main thread, where Python allows no handler.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def handle(number: int, frame: FrameType | None) -> None:
            if self.requested:
                if number == signal.SIGTERM:
                    return
                signal.signal(signal.SIGINT, previous[signal.SIGINT])
                raise KeyboardInterrupt
            self.requested = True
            with contextlib.suppress(OSError):  # the terminal may be gone
                print("\nstopping and saving the last whole step; Ctrl-C again quits at once", flush=True)
            if self._waiting:
                self.check()

        for signal_number in previous:
            signal.signal(signal_number, handle)
        try:
            yield
        finally:
            for signal_number, handler in previous.items():
                signal.signal(signal_number, handler)


def run_until_closed(coroutine: Coroutine[Any, Any, T], *, blocked_after_s: float | None = None) -> T:
    """Run ``coroutine`` as :func:`llmgym._util.aio.run_sync` does, and let it clean up when the user stops it.

    Environments close while their episodes are cancelled, on a thread that would die with the process.

    Args:
        coroutine: What to run.
        blocked_after_s: See :func:`~llmgym._util.aio.run_sync`; None takes its own.
    """
    ended = threading.Event()

    async def run() -> T:
        try:
            return await coroutine
        finally:
            ended.set()

    try:
        return run_sync(run(), blocked_after_s=blocked_after_s or BLOCKED_AFTER_S)
    except TrainingInterrupted:
        ended.wait(CLOSE_TIMEOUT_S)
        raise
