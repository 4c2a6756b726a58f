"""The watched event loop: outcomes of calls that return, raise, hang, block, or ignore cancellation."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest

from llmgym.checking.worker import Trouble, Worker, describe_error


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.stop()


async def value():
    return 42


async def forever():
    await asyncio.Event().wait()


async def exits():
    raise SystemExit(3)


async def cancels_itself():
    raise asyncio.CancelledError


def test_a_call_returns_its_value(worker):
    outcome = worker.start().call(value, 5)
    assert (outcome.value, outcome.error, outcome.trouble, outcome.blocked_at) == (42, None, None, None)


@pytest.mark.parametrize(("make", "kind"), [(exits, SystemExit), (cancels_itself, asyncio.CancelledError)])
def test_any_exception_is_the_outcome_and_the_actor_survives(worker, make, kind):
    actor = worker.start()
    assert type(actor.call(make, 5).error) is kind
    assert actor.call(value, 5).value == 42


def test_a_task_that_ends_the_loop_loses_only_the_worker(worker):
    async def spawn():
        await asyncio.gather(exits())

    outcome = worker.start().call(spawn, 5)
    assert isinstance(outcome.error, SystemExit)
    assert worker.lost


def test_calls_of_an_actor_share_one_task(worker):
    async def current():
        return asyncio.current_task()

    actor = worker.start()
    assert actor.call(current, 5).value is actor.call(current, 5).value
    assert actor.call(current, 5).value is not worker.start().call(current, 5).value


def test_a_hanging_call_is_cancelled(worker):
    actor = worker.start()
    assert actor.call(forever, 0.1).trouble is Trouble.TIMED_OUT
    assert not worker.lost
    assert actor.call(value, 5).value == 42


def test_a_timeout_error_raised_by_the_call_is_an_error(worker):
    async def raises():
        raise TimeoutError("of its own")

    assert isinstance(worker.start().call(raises, 5).error, TimeoutError)


def test_a_call_that_blocks_too_long_is_abandoned_and_located(worker):
    release = threading.Event()

    async def blocks():
        release.wait(30)

    outcome = worker.start().call(blocks, 0.1)
    release.set()
    assert outcome.trouble is Trouble.BLOCKS
    assert worker.lost
    assert outcome.blocked_at is not None
    assert "in blocks: release.wait(30)" in outcome.blocked_at


def test_a_call_that_blocks_for_a_while_is_located(worker):
    async def blocks():
        time.sleep(1)
        return 42

    outcome = worker.start().call(blocks, 10)
    assert outcome.value == 42
    assert (
        outcome.blocked_at
        == f"{__file__.rpartition('/')[2]}:{blocks.__code__.co_firstlineno + 1} in blocks: time.sleep(1)"
    )


def test_a_call_that_waits_does_not_block(worker):
    async def waits():
        await asyncio.sleep(1)

    assert worker.start().call(waits, 10).blocked_at is None


def test_a_call_that_ignores_cancellation_is_abandoned(worker):
    release = threading.Event()

    async def stays():
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    outcome = worker.start().call(stays, 0.1)
    release.set()
    assert outcome.trouble is Trouble.IGNORES_CANCELLATION
    assert worker.lost


def test_an_error_is_described_with_the_line_outside_libraries():
    try:
        json.loads("{")
    except ValueError as error:
        text = describe_error(error)
    assert text.startswith("JSONDecodeError: Expecting property name")
    assert "(test_worker.py:" in text


def test_an_error_without_text_is_described():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert describe_error(Mute()) == "Mute: (its text cannot be shown)"
