"""Ctrl-C during training: the first one ends the run in order, the second one at once. Knows no trainer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from llmgym.errors import LLMGymError
from llmgym.event_loop import run_sync
from llmgym.rollout import CLOSE_TIMEOUT_S

T = TypeVar("T")


class TrainingInterrupted(LLMGymError):
    """The user asked training to stop."""


class StopRequest:
    """Whether the user asked to stop.

    Attributes:
        requested: Set by the first Ctrl-C.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False

    def check(self) -> None:
        """Raise :class:`TrainingInterrupted` when a stop was requested."""
        if self.requested:
            raise TrainingInterrupted("stopped by the user")

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A section in which a stop takes effect at once instead of at the next :meth:`check`."""
        self.check()
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    @contextlib.contextmanager
    def on_ctrl_c(self) -> Iterator[None]:
        """Handle Ctrl-C in this section. Does nothing outside the main thread, where Python allows no handler."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = signal.getsignal(signal.SIGINT)

        def handle(number: int, frame: FrameType | None) -> None:
            if self.requested:
                signal.signal(signal.SIGINT, previous)
                raise KeyboardInterrupt
            self.requested = True
            print("\nstopping and saving the last whole step; Ctrl-C again quits at once", flush=True)
            if self._waiting:
                self.check()

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)


def run_until_closed(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run ``coroutine`` as :func:`llmgym.event_loop.run_sync` does, and let it clean up when the user stops it.

    Environments close while their episodes are cancelled, on a thread that would die with the process.
    """
    ended = threading.Event()

    async def run() -> T:
        try:
            return await coroutine
        finally:
            ended.set()

    try:
        return run_sync(run())
    except TrainingInterrupted:
        ended.wait(CLOSE_TIMEOUT_S)
        raise
