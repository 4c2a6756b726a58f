"""Ctrl-C during training: the first one ends the run in order, the second one at once. Knows no trainer."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from llmgym.errors import LLMGymError


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
