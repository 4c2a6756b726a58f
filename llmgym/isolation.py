"""Runs one tool call in a process of its own, which can die or be killed.

The child is a fresh interpreter with the same ``sys.path`` that imports the function's module, so a module with
isolated tools should be cheap to import. It is killed, with everything it started, when the call ends or is
cancelled, and exits when its parent dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmgym.errors import ToolError, describe_error

MAX_ANSWER_BYTES = 10_000_000
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from llmgym.tools import serve_isolated; serve_isolated()"
)


def address_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return how another process finds a function: module, qualified name and source file.

    Raises:
        TypeError: The function is a method, nested in another function, or in no file, so nothing else can find it.
    """
    inner = inspect.unwrap(function)
    name = f"isolated tool {inner.__qualname__!r}"
    if "<" in inner.__qualname__:
        raise TypeError(f"{name} must stand at the top level of a module; another process cannot find it there")
    if inner.__qualname__ != inner.__name__ and not isinstance(function, staticmethod):
        raise TypeError(
            f"{name} is a method, and the state of its object does not cross processes; "
            "make it a module-level function or a @staticmethod"
        )
    try:
        file = inspect.getsourcefile(inner)
    except TypeError:
        file = None
    if file is None or not Path(file).is_file():
        raise TypeError(f"{name} must be defined in a file, from which another process can import it")
    return {"module": inner.__module__, "qualname": inner.__qualname__, "file": str(Path(file).resolve())}


async def call_isolated(address: dict[str, str], arguments: str) -> dict[str, Any]:
    """Run the tool at ``address`` in a fresh process; return the fields of its :class:`~llmgym.ToolResult`.

    Raises:
        ToolError: The tool raised, its process died, or its answer is longer than ``MAX_ANSWER_BYTES``.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHILD,
        json.dumps(sys.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=MAX_ANSWER_BYTES,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None  # both are pipes
    try:
        process.stdin.write(json.dumps({**address, "arguments": arguments}).encode() + b"\n")
        try:
            line = await process.stdout.readline()
        except ValueError:
            raise ToolError(f"the result is longer than {MAX_ANSWER_BYTES} bytes") from None
        if not line:
            raise ToolError(f"the tool's process died ({_cause(await process.wait())})", error_type="process_died")
    finally:
        process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise ToolError(answer["error"], error_type=answer["error_type"])
    return answer


def serve(run: Callable[[Any, str], dict[str, Any]]) -> None:
    """The child's side: read one call from stdin, run it, write one line, end.

    Args:
        run: Takes what stands at the address and the arguments, and returns the fields of the result.
    """
    # Only the answer goes to the pipe: what the tool prints is dropped, and it reads an empty stdin.
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    request = json.loads(requests.readline())
    threading.Thread(target=lambda: (requests.read(), os._exit(1)), daemon=True).start()  # the parent has died
    try:
        found = functools.reduce(getattr, request["qualname"].split("."), _import(request["module"], request["file"]))
        answer = run(found, request["arguments"])
    except BaseException as error:  # noqa: BLE001 - whatever a tool raises is the model's to read
        error_type, text = describe_error(error)
        answer = {"error": text, "error_type": error_type}
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
    os._exit(0)  # not waiting for threads that the tool left behind


def _import(module: str, file: str) -> Any:
    if module != "__main__" and (module in sys.modules or importlib.util.find_spec(module) is not None):
        return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location("llmgym_isolated", file)
    assert spec is not None and spec.loader is not None  # address_of made sure that it is a source file
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def _cause(returncode: int) -> str:
    return signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"
