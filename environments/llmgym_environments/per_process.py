"""What there is one of in a process, made when it is first asked for. Knows threads and forks; knows no environment."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def per_process(make: Callable[P, T]) -> Callable[P, T]:
    """Cache what ``make`` returns for its arguments: once a process (a forked one makes its own), whoever comes first.

    (Of ``functools.cache`` every thread that comes before the first result gets one of its own.)
    """
    lock = threading.Lock()
    made: Callable[..., T] = functools.cache(lambda process, *args, **kwargs: make(*args, **kwargs))

    @functools.wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        with lock:
            return made(os.getpid(), *args, **kwargs)

    return get
