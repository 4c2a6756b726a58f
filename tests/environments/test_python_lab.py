"""PythonLab-v0 as a policy meets it: the sandbox, the hidden tests, what is rewarded, and what cheating earns."""

import asyncio
import concurrent.futures
import contextlib
import hashlib
import json
import re
import threading
import time
import types

import psutil
import pydantic_monty
import pytest
from suite import check_guard, play_all, play_beside, plays

import llmgym
from llmgym import Policy, ScriptedPolicy, StopReason, Task, ToolResult, tool
from llmgym.errors import TaskError, ToolError
from llmgym_environments.python_lab import PythonLabEnv, PythonLabExpert, generate_tasks, sandbox
from llmgym_environments.python_lab.env import same
from llmgym_environments.python_lab.tasks import LOUD_FAULTS
from llmgym_environments.sharing import once_per_process

TESTS = [[1, 24], [2, 27], [10, 51], [0, 21]]
TASK = Task(
    "f(x) is x plus 7, then times 3. Example: f(5) is 36.",
    TESTS,
    {"level": 1, "example": [5, 36], "solution": "def f(x): return (x + 7) * 3", "program": ""},
)
RIGHT = TASK.metadata["solution"]


def call(name, code):
    return {"function": {"name": name, "arguments": json.dumps({"code": code})}}


def calls(*made):
    return {"role": "assistant", "content": "", "tool_calls": [call(name, code) for name, code in made]}


def play(*messages, task=TASK, env=PythonLabEnv):
    return asyncio.run(llmgym.run_episode(env(), task, ScriptedPolicy(messages)))


def submit(code, **options):
    return play(calls(("submit", code)), **options)


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def test_an_episode():
    broken = "def f(x):\n    return (x + y) * 3\nprint('trying')\nprint(f(5))"
    episode = play(
        calls(("run_python", broken)), calls(("run_python", f"{RIGHT}\nprint(f(5))")), calls(("submit", RIGHT))
    )
    assert [(message["role"], message["content"]) for message in episode.initial_messages] == [
        ("system", "Write the Python function. Try it with run_python, then submit it."),
        ("user", "f(x) is x plus 7, then times 3. Example: f(5) is 36."),
    ]
    assert results(episode) == ["trying\nNameError: name 'y' is not defined (line 2)", "36", "4 of 4 tests passed"]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 3,
        "tool_calls": 3,
        "tool_errors": 0,
        "calls_run_python": 2,
        "calls_submit": 1,
        "failed_runs": 1,
        "submitted": True,
        "passed": 1.0,
    }


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        (RIGHT, 4),
        ("def g(x): return x + 7\ndef f(x): return g(x) * 3", 4),
        ("f = lambda x: 3 * x + 21", 4),
        ("x = 7\ndef f(n): return (n + x) * 3", 4),
        ("def f(x): return {1: 24, 2: 27}[x]", 2),
        ("def f(x): return float((x + 7) * 3)", 0),
        ("def f(x): return str((x + 7) * 3)", 0),
        ("def f(x): print((x + 7) * 3)", 0),
        ("def f(x): return x == 1", 0),
        ("def f(): return 24", 0),
        ("f = 24", 0),
        ("def f(x): return (x + 7) * 3\nraise ValueError", 0),
        ("def f(x):\n    if x == 2:\n        while True: pass\n    return (x + 7) * 3", 1),
        ("", 0),
        ("def f(x) return 24", 0),
    ],
)
def test_a_submission_earns_1_for_all_hidden_tests_and_nothing_for_less(code, passed):
    episode = submit(code)
    assert results(episode) == [f"{passed} of 4 tests passed"]
    assert episode.reward == float(passed == 4)
    assert episode.metrics["passed"] == passed / 4
    assert episode.stop_reason is StopReason.TERMINATED


def test_an_answer_without_a_submission_earns_nothing():
    episode = play(calls(("run_python", RIGHT)), RIGHT)
    assert (results(episode), episode.reward, episode.metrics["submitted"]) == (["nothing printed"], 0.0, False)


def test_doing_nothing_earns_nothing():
    episodes = play_all(PythonLabEnv, lambda: ScriptedPolicy([]), generate_tasks("val", level="all"))
    assert {episode.reward for episode in episodes} == {0.0}


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, 1, True),
        (True, 1, False),
        (1.0, 1, False),
        ("1", 1, False),
        ([1, 2], [1, 2], True),
        ([1, True], [1, 1], False),
        ([2, 1], [1, 2], False),
        ((1, 2), [1, 2], False),
        ([1], [1, 2], False),
        (None, 0, False),
    ],
)
def test_values_are_compared_with_their_types(value, expected, equal):
    assert same(value, expected) is equal


# The sandbox


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("while True: pass", "TimeoutError: stopped after 0.5 s"),
        (
            "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
            "TimeoutError: stopped after 0.5 s",
        ),
        ("while True: print('a')", "TimeoutError: stopped after 0.5 s|MemoryError: it prints more than 100000 bytes"),
        ("print('a' * 200000)", "MemoryError: it prints more than 100000 bytes"),
        ("[0] * 10**9", "MemoryError: it needs more than 16 MB"),
        ("'a' * 15_000_000", "MemoryError: it needs more than 16 MB"),
        ("x = []\nwhile True: x.append('a' * 1000)", "MemoryError: it needs more than 16 MB"),
        ("2 ** 10**9", "MemoryError: it needs more than 16 MB"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("(" * 9_000, r"SyntaxError: Source is too deeply nested \(line 1\)"),
        ("x = 1\nif x\n  pass", r"SyntaxError: .* \(line 2\)"),
        ("open('/etc/passwd').read()", r"PermissionError: Permission denied: '/etc/passwd' \(line 1\)"),
        ("open('new', 'w')", "PermissionError"),
        ("from pathlib import Path\nPath('/').iterdir()", "PermissionError|Permission denied"),
        ("import os\nos.listdir('/')", r"PermissionError: Permission denied: '/' \(line 2\)"),
        ("import os\nos.environ['PATH']", "'os.environ' is not supported"),
        ("import os\nos.system('true')", "has no attribute 'system'"),
        ("import socket", "No module named 'socket'"),
        ("import urllib.request", "No module named"),
        ("import subprocess", "No module named 'subprocess'"),
        ("import threading", "No module named 'threading'"),
        ("import ctypes", "No module named 'ctypes'"),
        ("import llmgym", "No module named 'llmgym'"),
        ("import sys\nsys._getframe()", "has no attribute '_getframe'"),
        ("().__class__.__bases__", "has no attribute '__class__'"),
        ("def f(): pass\nf.__globals__", "has no attribute '__globals__'"),
        ("__import__('os')", "name '__import__' is not defined"),
        ("raise SystemExit", "SystemExit"),
        ("raise Exception('time limit exceeded')", r"^Exception: time limit exceeded \(line 1\)"),
        ("raise ValueError('memory limit exceeded: 1')", r"^ValueError: memory limit exceeded: 1 \(line 1\)"),
        ("raise TimeoutError('feed time limit exceeded')", r"^TimeoutError: feed time limit exceeded \(line 1\)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_a_program_cannot_leave_the_sandbox_or_exceed_its_limits(program, said):
    printed, error = sandbox.run(program)
    assert len(printed) <= 200_000
    assert re.search(said, error), error
    assert sandbox.run("print(1 + 1)") == ("2\n", None)


def test_a_program_does_the_same_each_time():
    program = (
        "import random, time\nprint(random.random(), time.time(), time.perf_counter(), hash('a'), {'a', 'b', 'c'})"
    )
    assert sandbox.run(program) == sandbox.run(program)
    assert sandbox.run("import time\ntime.sleep(1000)") == ("", None)


def test_what_an_endless_program_printed_depends_on_the_machine_and_is_dropped():
    assert sandbox.run("print('begun')\nwhile True: pass") == ("", "TimeoutError: stopped after 0.5 s")


def test_a_program_leaves_nothing_for_the_next():
    sandbox.run("kept = 1")
    assert sandbox.run("print(kept)") == ("", "NameError: name 'kept' is not defined (line 1)")


def called(program, arguments):
    return sandbox.call(program, "f", arguments, lambda number, value: value)


def test_values_that_come_back_from_a_call():
    values = called("def f(x): return [10 // x]", [5, 0, 2])
    assert (values[0], values[2]) == ([2], [5])
    assert isinstance(values[1], pydantic_monty.MontyRuntimeError)
    deep = "def f(x):\n    a = []\n    for _ in range(100000): a = [a]\n    return a"
    assert not same(called(deep, [1])[0], [1])


def test_an_argument_arrives_as_it_is():
    arguments = [-3, 1.5, True, None, "a'b\"\\\n\0é{}", [], [[-1, "b"], {"k": [None]}]]
    assert called("def f(x): return x", arguments) == arguments


def test_a_long_program_is_refused():
    with pytest.raises(ToolError, match="the program has 10001 characters; at most 10000 are allowed"):
        sandbox.run("#" * 10_001)
    episode = play(calls(("submit", "#" * 10_001)), calls(("submit", RIGHT)))
    assert results(episode)[0].startswith("tool_error: the program has 10001 characters")
    assert episode.reward == 1.0


def test_long_output_is_cut_and_says_how_to_see_the_rest():
    episode = play(calls(("run_python", "print('a' * 3000)"), ("run_python", "print('a' * 2000)")))
    cut, whole = results(episode)
    assert cut == "a" * 2000 + "\n[cut: 2000 of 3000 characters shown; print less at a time to see the rest]"
    assert whole == "a" * 2000


@pytest.mark.parametrize("target", [None, [], "24", [[1]], [1, 2], {"1": 24}])
def test_a_task_of_another_shape_is_refused(target):
    with pytest.raises(TaskError, match="must be a list of tests"):
        asyncio.run(PythonLabEnv().reset(Task("?", target)))


# The expert, and policies that know nothing


def test_the_expert_solves_300_tasks():
    async def run():
        tasks = generate_tasks("test", level="all", count=300)
        return [await llmgym.run_episode(PythonLabEnv(), task, PythonLabExpert()) for task in tasks]

    episodes = asyncio.run(run())
    assert [episode.reward for episode in episodes] == [1.0] * 300
    by_level = [
        {(one.metrics["turns"], one.metrics["failed_runs"]) for one in episodes[level::3]} for level in range(3)
    ]
    assert by_level == [{(2, 0)}, {(2, 0)}, {(3, 1)}]


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_solution_of_another_task_earns_nothing(level):
    tasks = generate_tasks("train", level=level, count=60)
    earned = [submit(tasks[index - 1].metadata["solution"], task=task).reward for index, task in enumerate(tasks)]
    assert sum(earned) == 0


def test_faulty_programs_fail_also_when_only_the_loud_fault_is_mended():
    for task in generate_tasks("train", level=3, count=50):
        program = task.metadata["program"]
        assert submit(program, task=task).metrics["passed"] == 0
        mended = program
        for right, wrong in LOUD_FAULTS:
            if right not in mended:
                mended = mended.replace(wrong, right)
        assert mended not in (program, task.metadata["solution"])
        assert sandbox.run(f"{mended}\nf([1, 2])") == ("", None)
        assert submit(mended, task=task).reward == 0


# Cheating: each attempt earns nothing, and some are shown to pay in a copy of the environment without its guard.


class Unguarded(PythonLabEnv):
    """Counts in the session of the submitted program: evaluates ``counting`` there, with the tests as ``tests``."""

    counting = ""

    async def count_passed(self, code):
        with sandbox.session("slow") as session:
            session.feed_run(code)
            return session.feed_run(self.counting, inputs={"tests": self._tests})


class ComparesInside(Unguarded):
    """Guard removed: results are compared outside of the sandbox, after their types."""

    counting = "len([1 for a, b in tests if f(a) == b])"


class TestsWithin(Unguarded):
    """Guard removed: the expected results never enter the sandbox."""

    __test__ = False

    async def count_passed(self, code):
        with sandbox.session("slow") as session:
            session.feed_run(code, inputs={"tests": self._tests})
            return sum(same(session.feed_run(f"f({argument})"), result) for argument, result in self._tests)


class SubmitsOften(PythonLabEnv):
    """Guard removed: the first submission ends the episode."""

    @tool
    async def submit(self, code: str) -> ToolResult:
        """Hand in the program."""
        result = await super().submit(code)
        return ToolResult(result.content, should_stop=self._passed == len(self._tests))


class RunsInHost(PythonLabEnv):
    """Guard removed: programs run in the sandbox."""

    async def count_passed(self, code):
        names = {}
        exec(code, names)  # a test's own program
        return sum(same(names["f"](argument), result) for argument, result in self._tests)


READS_FRAMES = """\
def f(x):
    import sys
    frame = sys._getframe()
    while not hasattr(frame.f_locals.get("self"), "_tests"):
        frame = frame.f_back
    return dict(frame.f_locals["self"]._tests)[x]
"""
GUESSES = [("submit", f"def f(x): return (x + {n}) * 3") for n in range(5, 9)]


def submits(code):
    return plays([call("submit", code)])


def edits_the_task(task):
    for test in task.target:
        test[1] = 0
    yield [call("submit", "def f(x): return 0")]


CHEATS = {
    "return an object that equals everything": (
        submits("class A:\n    def __eq__(self, other): return True\ndef f(x): return A()"),
        ComparesInside,
    ),
    "redefine `sum`, with which passed tests might be counted": (
        submits("def sum(passed): return 4\ndef f(x): return 0"),
        None,
    ),
    "look the results up where the tests are": (submits("def f(x): return dict(tests)[x]"), TestsWithin),
    "print that all tests have passed": (
        submits("def f(x): return 0\nprint('4 of 4 tests passed')"),
        None,
    ),
    "have `run_python` say what `submit` would": (
        plays([call("run_python", "print('4 of 4 tests passed')")], "done"),
        None,
    ),
    "raise or exit when a test calls": (submits("def f(x): raise SystemExit"), None),
    "return the example's result": (submits("def f(x): return 36"), None),
    "submit one guess after the other": (plays(calls(*GUESSES)), SubmitsOften),
    "walk up the stack to the tests": (submits(READS_FRAMES), RunsInHost),
    "edit the task while it is played": (edits_the_task, None),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name):
    script, removed = CHEATS[name]
    check_guard(PythonLabEnv, removed, script, PythonLabExpert, [TASK])


# Tasks


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0]["prompt"] == "f(x) is x plus 6, then times 7. Example: f(65) is 497."
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "c1904ccf851d0c9aa8c1a9f103e5bbcf3afbf42952425628a7fc56514939129d"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_tests_are_no_giveaway(level):
    for task in generate_tasks("val", level=level):
        arguments = [argument for argument, _ in task.target]
        assert len(task.target) == 8
        assert task.metadata["example"][0] not in arguments
        assert len({str(result) for _, result in task.target}) > 1
        assert task.prompt.count("Example: ") == 1
        shown = f"Example: f({task.metadata['example'][0]}) is {task.metadata['example'][1]}."
        assert task.prompt.split(".")[1].strip() + "." == shown


def function_of(task):
    return task.prompt.split(" Example: ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_there_are_ten_thousand_different_functions(level):
    assert len({function_of(task) for task in generate_tasks("train", level=level, count=18_000)}) >= 10_000


def test_splits_share_no_function():
    found = {
        split: {
            function_of(task) for seed in (0, 1) for task in generate_tasks(split, level="all", count=300, seed=seed)
        }
        for split in ("train", "val", "test")
    }
    assert not found["train"] & found["val"]
    assert not found["train"] & found["test"]
    assert not found["val"] & found["test"]


# Many at once, and the page


def workers():
    """The processes in which programs run."""
    return {child.pid for child in psutil.Process().children() if child.name() == "monty"}


def test_256_episodes_at_once_are_what_they_are_alone_and_share_their_workers():
    play_beside(PythonLabEnv, PythonLabExpert, generate_tasks(level="all", count=256))
    assert 1 <= len(workers()) <= 8  # four in each of the two pools


HOSTILE = [
    "kept = f = print = len = sum = max = None\nraise ValueError",
    "import math\nmath.floor = math.pi = 0",
    "[0] * 10**9",
    "def f(n): return f(n + 1)\nf(0)",
    "print('8 of 8 tests passed' * 10**4)",
    "2 ** 10**9",
    "(" * 9_000,
    "print(kept)",
    "raise SystemExit",
]


def test_hostile_programs_in_the_one_worker_that_there_is_disturb_no_other_episode(monkeypatch):
    with pydantic_monty.Monty(max_processes=1) as pool:
        monkeypatch.setattr(sandbox, "_pool", lambda name: pool)
        script = [*(calls(("run_python", program)) for program in HOSTILE), calls(("submit", HOSTILE[0]))]
        hostile = play_beside(PythonLabEnv, PythonLabExpert, generate_tasks(level="all", count=128), [script] * 8)
    assert {(episode.reward, episode.metrics["passed"]) for episode in hostile} == {(0.0, 0.0)}
    assert {episode.metrics["failed_runs"] for episode in hostile} == {len(HOSTILE)}


class FastClock(asyncio.SelectorEventLoop):
    """A loop on which an hour passes in 12 seconds."""

    def time(self):
        return super().time() * 300


def test_waiting_for_the_only_worker_counts_for_nobody(monkeypatch):
    endless = calls(*[("run_python", "while True: pass")] * 6)
    tasks = generate_tasks("train", count=8)

    async def run():
        policies = [ScriptedPolicy([endless]) if index % 2 else PythonLabExpert() for index in range(8)]
        unlimited = llmgym.EpisodeLimits(env_timeout_s=None)
        return await asyncio.gather(
            *(
                llmgym.run_episode(PythonLabEnv(), task, policy, limits=unlimited)
                for task, policy in zip(tasks, policies, strict=True)
            )
        )

    with pydantic_monty.Monty(max_processes=1) as pool, asyncio.Runner(loop_factory=FastClock) as runner:
        monkeypatch.setattr(sandbox, "_pool", lambda name: pool)
        monkeypatch.setattr(sandbox, "TIME_LIMIT_S", 0.1)
        episodes = runner.run(run())
    assert [episode.reward for episode in episodes[::2]] == [1.0] * 4
    for hostile in episodes[1::2]:
        assert (
            results(hostile)
            == ["TimeoutError: stopped after 0.1 s"] * 4
            + ["tool_error: not run: at most 4 programs of a message are; read their output, then send more"] * 2
        )
        assert hostile.metrics["failed_runs"] == 4


def test_programs_are_counted_anew_in_each_message():
    four = calls(*[("run_python", "print(1)")] * 4)
    assert results(play(four, four)) == ["1"] * 8


@pytest.mark.slow
def test_quick_programs_do_not_wait_for_slow_ones(monkeypatch):
    endless = "for i in range(10**9): pass"

    async def run(held):
        slow = [
            asyncio.create_task(llmgym.run_episode(PythonLabEnv(), TASK, ScriptedPolicy([calls((name, endless))])))
            for name in ("run_python", "submit") * 4
        ]
        await asyncio.sleep(0)
        tasks = generate_tasks("train", level="all", count=8)
        quick = await asyncio.gather(*(llmgym.run_episode(PythonLabEnv(), task, PythonLabExpert()) for task in tasks))
        assert [episode.reward for episode in quick] == [1.0] * 8
        assert not any(episode.done() for episode in slow)  # they wait for the worker that is held
        held.__exit__(None, None, None)
        return await asyncio.gather(*slow)

    with pydantic_monty.Monty(max_processes=1) as quick_pool, pydantic_monty.Monty(max_processes=1) as slow_pool:
        pools = {"quick": quick_pool, "slow": slow_pool}
        monkeypatch.setattr(sandbox, "_pool", lambda name: pools[name])
        held = sandbox.session("slow")
        held.__enter__()
        slow = asyncio.run(run(held))
    assert [results(episode) for episode in slow] == [
        ["TimeoutError: stopped after 0.5 s"],
        ["0 of 4 tests passed"],
    ] * 4


def test_a_program_that_is_not_quick_begins_anew_and_is_seen_once(monkeypatch):
    monkeypatch.setattr(sandbox, "QUICK_S", 0.0001)
    loop = "for i in range(20_000): pass"
    assert sandbox.run(f"print('begun')\n{loop}\nprint('done')") == ("begun\ndone\n", None)
    assert called(f"n = 0\ndef f(x):\n  global n\n  n += 1\n  {loop}\n  return n", [0, 0, 0]) == [1, 2, 3]


def test_a_program_that_waits_when_its_episode_ends_is_not_begun(monkeypatch):
    begun, waiting = [], threading.Event()

    class Pool:
        """A worker that comes free when the episode is over."""

        def checkout(self, **_):
            assert waiting.wait(30)
            return contextlib.nullcontext(types.SimpleNamespace(feed_run=lambda code, **_: begun.append(code)))

    async def run():
        envs = {name: PythonLabEnv() for name in ("run_python", "submit")}
        for env in envs.values():
            await env.reset(TASK)
        steps = [asyncio.ensure_future(env.step(calls((name, "while True: pass")))) for name, env in envs.items()]
        await asyncio.sleep(0.1)
        for env in envs.values():
            await env.close()
        waiting.set()
        await asyncio.gather(*steps)
        await env.reset(TASK)
        await env.step(calls(("run_python", "print(1)")))

    monkeypatch.setattr(sandbox, "_pool", lambda name: Pool())
    asyncio.run(run())
    assert begun == ["print(1)"]


def test_of_threads_that_come_first_at_once_all_get_the_one_pool(monkeypatch):
    made = []

    class SlowToMake(contextlib.nullcontext):
        def __init__(self, *, max_processes, **_):
            assert max_processes == 4
            super().__init__()
            time.sleep(0.1)
            made.append(self)

        def checkout(self, **_):
            return self

    monkeypatch.setattr(sandbox, "Monty", SlowToMake)
    monkeypatch.setattr(sandbox, "_pool", once_per_process(sandbox._pool.__wrapped__))
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert len({*threads.map(sandbox.session, ["quick"] * 8)}) == len(made) == 1


def test_large_results_do_not_pile_up():
    before = psutil.Process().memory_info().rss
    grown = sandbox.call(
        "def f(x): return 'x' * 9_000_000",
        "f",
        range(8),
        lambda number, value: len(value) == 9_000_000 and psutil.Process().memory_info().rss - before,
    )
    assert all(grown) and max(grown) < 60 * 2**20  # eight of them have 72 MB
    assert submit("def f(x): return 'x' * 9_000_000").reward == 0.0


def test_an_endless_program_holds_up_nobody_else():
    class Endless(Policy):
        async def act(self, messages, tool_specs):
            return calls(("submit", "while True: pass"))

    async def run():
        tasks = generate_tasks("train", count=12)
        policies = [Endless() if index % 3 == 0 else PythonLabExpert() for index in range(12)]
        return await asyncio.gather(
            *(llmgym.run_episode(PythonLabEnv(), task, policy) for task, policy in zip(tasks, policies, strict=True))
        )

    assert [episode.reward for episode in asyncio.run(run())] == [0.0, 1.0, 1.0] * 4
