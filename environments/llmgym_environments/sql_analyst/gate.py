"""A gate with places, passed in the order of coming. Knows threads; knows no query."""

from __future__ import annotations

import threading
from collections import deque


class Gate:
    """As a context manager it gives one of ``places`` to a thread, which waits for it when all are taken.

    Whoever leaves hands the place to the one that has waited longest. (``threading.Semaphore`` lets a thread that comes
    at that moment take it, and the woken one waits anew.) It belongs to no event loop. A waiting thread must not be
    interrupted, as only the main thread can be.
    """

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        turn = threading.Lock()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # until it is released

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
