"""The environment PythonLab-v0: write a function, test it, submit it."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable
from typing import Any

from llmgym import Message, StepResult, ToolEnv, ToolResult, tool
from llmgym._util.aio import run_in_daemon_thread
from llmgym.errors import TaskError, ToolError
from llmgym_environments.python_lab import sandbox

MAX_SHOWN_CHARS = 2_000
MAX_RUNS_PER_MESSAGE = 4


class PythonLabEnv(ToolEnv):
    """
    ## Description
    A task asks for a Python function; the policy writes it, tries it in a sandboxed interpreter, reads the errors,
    fixes it, and submits it once.

    | level | question |
    | --- | --- |
    | 1 | f(x) is x plus 7, then times 3. Example: f(5) is 36. |
    | 2 | f(xs) gets a list of whole numbers: keep those that are multiples of 4, add 3 to each, … |
    | 3 | the same, with a program of six lines that has two faults: one that raises, and one that does not |

    Programs run in the Monty sandbox (`pydantic-monty`), an interpreter of its own for a large part of Python:
    functions, classes without inheritance, comprehensions, f-strings, exceptions, and some modules such as `math`,
    `re` and `json`.

    ## Tools
    - `run_python(code)`: runs a program and gives what it prints, and the error with its line when it fails. Nothing
      is kept for the next program.
    - `submit(code)`: ends the episode. The hidden tests call `f` of the program.

    A program may have 10,000 characters, 0.5 seconds (0.6 in a step that the interpreter cannot interrupt; waiting
    for a free worker does not count) and 16 MB. One that takes less than 0.05 seconds waits for no slower one
    (:mod:`llmgym_environments.python_lab.sandbox`). At most 4 programs of a message are run; `run_python` answers
    further ones with `tool_error: …`. A program has no files, network, environment variables, processes or threads;
    the clock stands still, and random numbers have a fixed seed. Of what it prints 2,000 characters are shown, with a
    note that says how to see the rest; past 100,000 bytes it is stopped.

    ## Observation
    The opening is a system message and the question as a user message. Each tool call adds one tool message with its
    id: what was printed, the error, or `tool_error: …`.

    ## Action
    One assistant message with tool calls. One without ends the episode unsubmitted.

    ## Rewards
    1.0 when the submitted function passes all hidden tests, else 0.0; nothing in between. There are eight tests, none
    of them the example. A test passes when the result has the expected type and value: `36` is right, `36.0` and
    `"36"` are wrong. The function runs in the sandbox, gets one argument at a time and never an expected result;
    results are compared outside. What is printed counts nothing.

    ## Episode End
    1. Termination: `submit`, or an assistant message without tool calls.
    2. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share a function, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with `tool_error: …`; a program that fails is none.
    - `failed_runs`: programs run with `run_python` that ended with an error.
    - `submitted`: whether a program was submitted.
    - `passed`: share of the hidden tests that it passed, from 0 to 1.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Write the Python function. Try it with run_python, then submit it."
    _over = threading.Event()  # of the episode; this one is nobody's
    tool_timeout_s = 3600.0  # the sandbox bounds a program once a worker takes it up; this one counts the waiting too

    async def setup(self) -> None:
        """Take the hidden tests from the task. Raises :class:`TaskError` when they are out of shape."""
        tests = self.task.target
        if not isinstance(tests, list) or not tests or not all(isinstance(t, list) and len(t) == 2 for t in tests):
            raise TaskError(
                "the target of the task must be a list of tests, each a list of argument and result, such as "
                f"[[5, 36]]; got {tests!r:.80}"
            )
        await self.close()
        self._over = threading.Event()
        self._tests: list[list[Any]] = copy.deepcopy(tests)  # whoever holds the task cannot edit the check
        self._failed_runs = 0
        self._passed: int | None = None

    async def step(self, message: Message) -> StepResult:
        """Run the message's tool calls, of ``run_python`` the first ``MAX_RUNS_PER_MESSAGE``."""
        self._runs_left = MAX_RUNS_PER_MESSAGE
        return await super().step(message)

    @tool
    async def run_python(self, code: str) -> str:
        """Run a program and see what it prints."""
        if not self._runs_left:
            raise ToolError(
                f"not run: at most {MAX_RUNS_PER_MESSAGE} programs of a message are; read their output, then send more"
            )
        self._runs_left -= 1
        printed, error = await run_in_daemon_thread(functools.partial(sandbox.run, code, self._over.is_set))
        self._failed_runs += error is not None
        printed = printed.rstrip("\n")
        if len(printed) > MAX_SHOWN_CHARS:
            printed = (
                f"{printed[:MAX_SHOWN_CHARS]}\n[cut: {MAX_SHOWN_CHARS} of {len(printed)} characters shown; print less "
                "at a time to see the rest]"
            )
        return "\n".join(part for part in (printed, error) if part) or "nothing printed"

    @tool
    async def submit(self, code: str) -> ToolResult:
        """Hand in the program. Only once."""
        self._passed = await self.count_passed(code)
        return ToolResult(f"{self._passed} of {len(self._tests)} tests passed", should_stop=True)

    async def count_passed(self, code: str) -> int:
        """How many hidden tests a program passes. The expected results never leave this process."""
        return await run_in_daemon_thread(functools.partial(_count_passed, code, self._tests, self._over.is_set))

    async def close(self) -> None:
        """A program that still waits for a worker is not begun any more."""
        self._over.set()

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        return float(self._passed == len(self._tests))

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        return {
            **super().metrics(),
            "failed_runs": self._failed_runs,
            "submitted": self._passed is not None,
            "passed": (self._passed or 0) / len(self._tests),
        }


def _count_passed(code: str, tests: list[list[Any]], over: Callable[[], bool]) -> int:
    arguments = [argument for argument, _ in tests]
    return sum(sandbox.call(code, "f", arguments, lambda number, value: same(value, tests[number][1]), over))


def same(value: Any, expected: Any) -> bool:
    """Whether a value from the sandbox has the type and value of a JSON value. Runs no code of ``value``."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(same, value, expected))
    return bool(value == expected)
