"""run_sync: from plain code, inside a running loop, after a fork, and with what coroutines may raise."""

import asyncio
import contextvars
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from llmgym._util import aio
from llmgym._util.aio import run_sync


async def loop_and_thread():
    return asyncio.get_running_loop(), threading.current_thread()


def test_all_calls_share_one_loop_on_another_thread():
    first, second = run_sync(loop_and_thread()), run_sync(loop_and_thread())
    assert first == second
    assert first[1] is not threading.current_thread()
    assert first[1].daemon


def test_background_work_goes_on_between_calls():
    done = threading.Event()

    async def start():
        async def later():
            await asyncio.sleep(0)
            done.set()

        start.task = asyncio.create_task(later())

    run_sync(start())
    assert done.wait(10)


def test_inside_a_running_loop_as_in_a_notebook():
    async def cell():
        return run_sync(loop_and_thread())[0] is asyncio.get_running_loop()

    assert asyncio.run(cell()) is False


def test_context_variables_of_the_caller_are_seen():
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("by the caller")

    async def read():
        return variable.get()

    assert run_sync(read()) == "by the caller"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_exceptions_reach_the_caller_and_the_loop_lives_on(error):
    async def fail():
        raise error

    before = run_sync(loop_and_thread())
    with pytest.raises(type(error)):
        run_sync(fail())
    assert run_sync(loop_and_thread()) == before


def test_an_interrupt_cancels_the_coroutine():
    cancelled = threading.Event()

    caller = threading.get_ident()

    async def interrupt_the_caller():
        while sys._current_frames()[caller].f_code.co_name != "wait":  # it is not waiting for us yet
            await asyncio.sleep(0.001)
        signal.pthread_kill(caller, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        run_sync(interrupt_the_caller())
    assert cancelled.wait(10)


def test_code_that_blocks_the_loop_is_named_once(caplog):
    async def blocking_step():
        ends = time.monotonic() + 30
        while not caplog.records and time.monotonic() < ends:
            time.sleep(0.5)
        time.sleep(0.5)
        return "done"

    assert run_sync(blocking_step(), blocked_after_s=0.1) == "done"
    (record,) = caplog.records
    assert "stood still for 0.1 s in " in record.getMessage()
    assert re.search(r"test_aio\.py:\d+ \(blocking_step\)\. Make", record.getMessage())


def test_a_library_that_blocks_is_named_with_who_called_it(caplog):
    async def step():
        subprocess.run([sys.executable, "-c", "import time; time.sleep(1)"], check=True)

    run_sync(step(), blocked_after_s=0.1)
    assert re.search(r"test_aio\.py:\d+ \(step\), at .*subprocess\.py:\d+ \(", caplog.records[0].getMessage())


def test_an_error_of_the_coroutine_that_is_a_timeout_is_not_taken_for_the_watch_s():
    async def late():
        await asyncio.sleep(0.2)
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        run_sync(late(), blocked_after_s=0.05)


def test_a_loop_that_turns_is_not_warned_of(caplog, monkeypatch):
    loop, _ = aio._background_loop()
    looks = []

    def wait(futures, timeout):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)  # the loop has turned since the last look
        looks.append(timeout)

    async def until_watched():
        while len(looks) < 5:
            await asyncio.sleep(0.001)

    monkeypatch.setattr(aio.concurrent.futures, "wait", wait)
    run_sync(until_watched(), blocked_after_s=0.3)
    assert looks[:5] == [0.3] * 5
    assert not caplog.records


def test_a_call_from_the_loop_itself_is_an_error_and_no_deadlock():
    async def inner():
        return 1

    async def outer():
        return run_sync(inner())

    with pytest.raises(RuntimeError, match="from_gym"):
        run_sync(outer())


def test_a_fork_gets_a_loop_of_its_own():
    run_sync(loop_and_thread())
    parent, child = os.pipe()
    pid = os.fork()
    if pid == 0:  # the child: report and leave without running pytest's exit handlers
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # a child that hangs must not outlive the test

        async def add():
            await asyncio.sleep(0.001)
            return 41 + 1

        os.write(child, str(run_sync(add())).encode())
        os._exit(0)
    os.close(child)
    with os.fdopen(parent) as answer:
        assert answer.read() == "42"
    assert os.waitpid(pid, 0)[1] == 0

    async def still_sleeps():
        await asyncio.sleep(0.001)
        return "parent"

    assert run_sync(still_sleeps()) == "parent"


def _answer_in_worker(queue):
    queue.put(run_sync(asyncio.sleep(0.001, "worker")))


def test_a_forked_worker_process():
    run_sync(loop_and_thread())
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_answer_in_worker, args=(queue,), daemon=True)
    worker.start()
    assert queue.get(timeout=60) == "worker"
    worker.join(60)
    assert worker.exitcode == 0


def test_a_call_while_the_interpreter_shuts_down_does_not_hang():
    program = """
import asyncio, os
from llmgym._util import aio
from llmgym._util.aio import run_sync

class Late:
    def __del__(self, run_sync=run_sync, sleep=asyncio.sleep, write=os.write):
        try:
            run_sync(sleep(0))
        except RuntimeError as error:
            write(1, str(error).encode())

run_sync(asyncio.sleep(0))
late = Late()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "the interpreter is shutting down" in result.stdout
