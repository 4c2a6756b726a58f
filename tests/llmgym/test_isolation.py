"""Tools in a process of their own: results, deaths, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import isolated_tools
import pytest

from llmgym import Task, ToolEnv, tool
from llmgym.errors import ToolError


def execute(function, arguments="{}"):
    return asyncio.run(function.execute(arguments))


def is_running(pid):
    """Whether a process runs; a zombie that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition):
    while not condition():  # bounded by the timeout of the test run
        time.sleep(0.02)


def test_results_are_those_of_the_function():
    assert execute(isolated_tools.divide, '{"a": "9"}').content == "4.5"
    assert execute(isolated_tools.renamed, '{"x": 4}').content == "8"
    assert execute(isolated_tools.Holder().static, '{"x": 4}').content == "12"
    stopped = execute(isolated_tools.finish, '{"text": "line\\n\\ud800"}')
    assert (stopped.content, stopped.should_stop) == ("line\n\ud800", True)
    assert isolated_tools.renamed.name == "double"
    assert isolated_tools.divide(9) == 4.5


@pytest.mark.parametrize(
    ("function", "arguments", "message", "error_type"),
    [
        (isolated_tools.divide, '{"a": 1, "b": 0}', "ZeroDivisionError: division by zero", "ZeroDivisionError"),
        (isolated_tools.divide, '{"b": 0}', "missing argument 'a'", "invalid_arguments"),
        (isolated_tools.explain, "{}", "^read this$", "tool_error"),
        (isolated_tools.leave, "{}", "SystemExit: enough", "SystemExit"),
        (isolated_tools.exit_with, '{"code": 3}', r"the tool's process died \(exit code 3\)", "process_died"),
        (isolated_tools.exit_with, '{"code": 0}', r"the tool's process died \(exit code 0\)", "process_died"),
        (isolated_tools.crash, "{}", r"the tool's process died \(SIG(SEGV|BUS)\)", "process_died"),
        (isolated_tools.flood, "{}", "the result is longer than 10000000 bytes", "tool_error"),
    ],
)
def test_a_failure_is_a_tool_error(function, arguments, message, error_type):
    with pytest.raises(ToolError, match=message) as raised:
        execute(function, arguments)
    assert raised.value.error_type == error_type


class HangingEnv(ToolEnv):
    tool_timeout_s = None
    hang = isolated_tools.hang

    async def score(self, message):
        return 1.0


def test_a_call_past_its_time_leaves_no_process_behind(tmp_path):
    pid_file = tmp_path / "pids"

    async def main():
        env = HangingEnv()
        await env.reset(Task("p"))
        step = asyncio.ensure_future(
            env.step(
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "hang", "arguments": {"pid_file": str(pid_file)}}}],
                }
            )
        )
        while not pid_file.exists():
            await asyncio.sleep(0.02)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    asyncio.run(main())
    child, grandchild = map(int, pid_file.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)  # not even a zombie: it has been waited for
    wait_until(lambda: not is_running(grandchild))


def test_the_tool_timeout_cuts_it(tmp_path):
    class Env(HangingEnv):
        tool_timeout_s = 1.0

    async def main():
        env = Env()
        await env.reset(Task("p"))
        calls = [{"function": {"name": "hang", "arguments": {"pid_file": str(tmp_path / "pids")}}}]
        return (await env.step({"role": "assistant", "tool_calls": calls})).messages[-1]["content"]

    assert asyncio.run(main()) == "tool_error: hang took longer than 1.0 s and was stopped"


def test_the_child_ends_when_its_parent_is_killed(tmp_path):
    pid_file = tmp_path / "pids"
    code = f'import asyncio, isolated_tools; asyncio.run(isolated_tools.hang.execute(\'{{"pid_file": "{pid_file}"}}\'))'
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    wait_until(pid_file.exists)
    parent.kill()
    parent.wait()
    child, grandchild = map(int, pid_file.read_text().split())
    wait_until(lambda: not is_running(child))
    if is_running(grandchild):
        os.kill(grandchild, 9)


def test_a_tool_in_the_script_itself_runs_without_running_the_script_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio\nfrom llmgym import tool\n"
        "@tool(isolated=True)\ndef double(x: int) -> int:\n    return 2 * x\n"
        "if __name__ == '__main__':\n    print(asyncio.run(double.execute('{\"x\": 21}')).content)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "42\n"


def test_functions_that_another_process_cannot_find_are_refused():
    def nested(x: int) -> int:
        return x

    with pytest.raises(TypeError, match=r"isolated tool .*nested' must stand at the top level of a module"):
        tool(isolated=True)(nested)
    with pytest.raises(TypeError, match=r"Method\.run' is a method, and the state of its object does not cross"):
        exec("class Method:\n    @tool(isolated=True)\n    def run(self) -> int:\n        return 1", {"tool": tool})
    with pytest.raises(TypeError, match="'typed' must be defined in a file"):
        exec("@tool(isolated=True)\ndef typed(x: int) -> int:\n    return x", {"tool": tool, "__name__": "__main__"})
