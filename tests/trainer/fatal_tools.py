"""A tool that kills the process it runs in."""

from __future__ import annotations

import os
import signal

from llmgym import tool


@tool(isolated=True)
def die() -> str:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "unreachable"
