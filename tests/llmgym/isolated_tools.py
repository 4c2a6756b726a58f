"""Tools for test_isolation.py. They are in a module of their own because a child process imports it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from llmgym import ToolResult, tool
from llmgym.errors import ToolError


@tool(isolated=True)
def divide(a: int, b: int = 2) -> float:
    """Divide two numbers.

    Args:
        a: The dividend.
        b: The divisor.
    """
    print("what a tool prints is no part of its answer")
    return a / b


@tool(isolated=True)
def explain() -> str:
    """Fail with a text for the model."""
    raise ToolError("read this")


@tool(isolated=True)
async def finish(text: str) -> ToolResult:
    """End the episode."""
    return ToolResult(text, should_stop=True)


@tool(isolated=True)
def exit_with(code: int) -> str:
    """End the process without a word."""
    os._exit(code)


@tool(isolated=True)
def leave() -> str:
    """Call sys.exit."""
    sys.exit("enough")


@tool(isolated=True)
def crash() -> str:
    """Read address 0."""
    return str(ctypes.string_at(0))


@tool(isolated=True)
def hang(pid_file: str) -> str:
    """Start a process of its own and loop for ever."""
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    part = Path(pid_file + ".part")
    part.write_text(f"{os.getpid()} {grandchild.pid}")
    part.rename(pid_file)
    while True:
        time.sleep(1)


@tool(isolated=True)
def flood() -> str:
    """Answer with more than any conversation can hold."""
    return "x" * 11_000_000


def plain(x: int) -> int:
    """Double a number."""
    return 2 * x


renamed = tool(isolated=True, name="double")(plain)


class Holder:
    @tool(isolated=True)
    @staticmethod
    def static(x: int) -> int:
        """Triple a number."""
        return 3 * x
