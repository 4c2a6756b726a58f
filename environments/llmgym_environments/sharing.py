"""What the episodes of one process share: an object made once per process, and a semaphore that serves in order."""

from __future__ import annotations

import functools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once_per_process(make: Callable[P, T]) -> Callable[P, T]:
    """Cache what ``make`` returns for its arguments, once per process; a forked process makes its own.

    Unlike with ``functools.cache``, threads that ask at the same time all get the same object.
    """
    lock = threading.Lock()
    made: Callable[..., T] = functools.cache(lambda process, *args, **kwargs: make(*args, **kwargs))

    @functools.wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            return made(os.getpid(), *args, **kwargs)

    return get


class FairSemaphore:
    """A context manager that lets ``places`` threads in at a time and serves waiting threads in order of arrival.

    A released place is handed to the thread that has waited longest. (``threading.Semaphore`` lets a newcomer take it
    first.) It belongs to no event loop. Only the main thread can be interrupted while it waits, so it must not wait
    here.
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
        turn.acquire()  # blocks until another thread releases it

    def __exit__(self, *_: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
