"""Checks of how one environment behaves towards whoever drives it. Each returns what it did, or raises ``Skip``."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from llmgym.checking.hostile import MARKERS, TEXTS, HostileAction, call_message, call_of, hostile_actions
from llmgym.checking.session import Session
from llmgym.checking.subject import Skip, Subject, valid_script
from llmgym.messages import Message, copy_message, normalize_message, normalize_messages
from llmgym.tool_env import ToolEnv
from llmgym.tools import FunctionTool, ToolResult

STEPS_PER_EPISODE = 16
BUDGET_TIMEOUTS = 10
"""A check of many calls stops after so many times the timeout of one call."""
LEAK_EPISODES = 8
SETTLE_S = 2.0
NO_TOOL_ENV = "only the tools of a ToolEnv can be looked into"
OWN_DISPATCH = "it dispatches calls in a way of its own, not through ToolEnv"


def check_episode(subject: Subject) -> str:
    """Play valid calls and a plain reply on each task."""
    steps = 0
    for task in subject.tasks:
        with subject.lab.session(task) as session:
            if not session.reset():
                break
            subject.specs = subject.specs or session.specs
            steps += _play(session, valid_script(session.specs))
            if not session.usable:
                break
    return f"{len(subject.tasks)} episodes, {steps} steps"


def check_hostile_actions(subject: Subject, progress: Callable[[str], None]) -> tuple[int, str]:
    """Send every hostile action; return how many, and why no more of them."""
    actions = hostile_actions(subject.specs, subject.lab.seed)
    return _send_all(subject, actions, "hostile-action-raises", progress, _QuotingTool())


def check_hostile_results(subject: Subject, progress: Callable[[str], None]) -> tuple[int, str]:
    """Put a tool that returns hostile texts into a ToolEnv, and call it; return how often, and why not more often."""
    with subject.lab.session(subject.tasks[0]) as session:
        if not isinstance(_begin(session), ToolEnv):
            raise Skip(NO_TOOL_ENV)
    tool = _QuotingTool()
    count, stopped = _send_all(subject, list(_quoted_in_results()), "hostile-result-raises", progress, tool)
    if not tool.called:
        raise Skip(OWN_DISPATCH)
    return count, stopped


def _send_all(
    subject: Subject, actions: list[HostileAction], code: str, progress: Callable[[str], None], tool: _QuotingTool
) -> tuple[int, str]:
    """Send actions, many to an episode, whose ``ToolEnv`` has ``tool`` too; return how many, and why no more."""
    lab = subject.lab
    end = time.monotonic() + BUDGET_TIMEOUTS * lab.timeout_s
    count, session, stopped, lost = 0, None, "", lab.lost_calls
    for action in actions:
        if session is None or session.ended or not session.usable or session.steps >= STEPS_PER_EPISODE:
            if session is not None:
                session.close()
            session = lab.session(subject.tasks[count % len(subject.tasks)], count)
            if not session.reset():
                stopped = "no episode begins any more"
                break
            _equip(session, tool, lab.timeout_s)
        session.step(action.message, sent=action.name, raises=code)
        count += 1
        progress(f"{code.removesuffix('-raises')}s: {count} of {len(actions)}")
        if lab.lost_calls > lost:
            stopped = "a call did not come back"
            break
        if time.monotonic() > end:
            stopped = f"{BUDGET_TIMEOUTS * lab.timeout_s:g} s are over; a longer timeout sends more"
            break
    if session is not None:
        session.close()
    return count, f"stopped after {count} of {len(actions)} actions: {stopped}" if stopped else ""


def check_history(subject: Subject) -> str:
    """Scribble on everything that was handed out or in, and look whether the environment noticed."""
    with subject.lab.session(subject.tasks[0]) as session:
        env = _begin(session)
        handed: list[tuple[str, Any]] = [("the messages of reset", session.raw), ("env.messages", env.messages)]
        for message in valid_script(subject.specs)[:2]:
            action = normalize_message(message, role="assistant")
            if session.send(action, sent="valid") is None:
                raise Skip("a valid step failed")
            handed += [
                ("the message given to step", [action]),
                ("the messages of step", session.raw),
                ("env.messages", env.messages),
            ]
            if session.ended:
                break
        before = normalize_messages(env.messages)
        for name, messages in handed:
            with _scribbled(messages):
                after = normalize_messages(env.messages)
            if after != before:
                place = next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before))
                got = f"message {place} of env.messages changed with it"
                subject.lab.findings.add("history-aliased", sent=f"a change to {name}", got=got)
                break
    return f"{len(handed)} lists changed"


def check_tool_dispatch(subject: Subject) -> str:
    """Put a tool that hangs and one that blocks into a ToolEnv, and call them."""
    with subject.lab.session(subject.tasks[0]) as session:
        env = _begin(session)
        if not isinstance(env, ToolEnv):
            raise Skip(NO_TOOL_ENV)
        given_s = env.tool_timeout_s
        if given_s is None:
            subject.lab.findings.add(
                "hanging-tool", sent="a look at tool_timeout_s", got="None: tools may take for ever"
            )
            return ""
        hanging = _HangingTool()
        slow = FunctionTool(lambda: time.sleep(0.6), name="llmgym_check_slow")
        env._tools |= {hanging.name: hanging, slow.name: slow}
        env.tool_timeout_s = 0.2
        session.step(
            call_message(call_of(hanging.name, "{}")),
            sent="a tool that never returns, with tool_timeout_s = 0.2",
            hangs="hanging-tool",
            timeout_s=min(subject.lab.timeout_s, 5.0),
        )
        if not hanging.called:
            raise Skip(OWN_DISPATCH)
        env.tool_timeout_s = given_s
        if session.usable and not session.ended:
            session.step(call_message(call_of(slow.name, "{}")), sent="a synchronous tool that takes 0.6 s")
    return f"tool_timeout_s is {given_s:g}"


def check_close(subject: Subject) -> str:
    """Close after every kind of end, and count what stays open."""
    lab, task = subject.lab, subject.tasks[0]
    script = valid_script(subject.specs)
    action = normalize_message(script[0], role="assistant")
    with lab.session(task) as session:
        session.build()
    with lab.session(task) as session:
        if session.build():
            session.cut(lambda env: env.reset(copy.deepcopy(task)))
    with lab.session(task) as session:
        _begin(session)
    with lab.session(task) as session:
        _begin(session)
        _play(session, script[:1])
    with lab.session(task) as session:
        _begin(session)
        session.cut(lambda env: env.step(copy_message(action)))
    _play_whole(subject, script)
    before = _settled(subject)
    for _ in range(LEAK_EPISODES):
        _play_whole(subject, script)
    end = time.monotonic() + SETTLE_S
    while (grown := _grown(before, _open(subject))) and time.monotonic() < end:
        time.sleep(0.05)
    if grown:
        got = ", ".join(f"{count} more {name}" for name, count in grown.items())
        lab.findings.add("close-leaks", sent=f"{LEAK_EPISODES} whole episodes, each closed", got=got)
    return f"6 kinds of end, {LEAK_EPISODES} episodes counted"


def _begin(session: Session) -> Any:
    if not session.reset():
        raise Skip("no episode begins")
    return session.env


def _play(session: Session, script: list[Message]) -> int:
    for count, message in enumerate(script):
        if not session.usable or session.ended:
            return count
        session.step(message, sent="valid")
    return len(script)


def _play_whole(subject: Subject, script: list[Message]) -> None:
    with subject.lab.session(subject.tasks[0]) as session:
        _begin(session)
        _play(session, script)


def _open(subject: Subject) -> dict[str, int]:
    gc.collect()
    counts = {"threads": threading.active_count(), "background tasks": subject.lab.worker.count_tasks()}
    with contextlib.suppress(OSError):  # no /proc outside Linux
        counts["open files"] = len(os.listdir("/proc/self/fd"))
    return counts


def _settled(subject: Subject) -> dict[str, int]:
    """What is open once earlier episodes have finished closing: a task about to end would hide one that leaks."""
    end, counts = time.monotonic() + SETTLE_S, _open(subject)
    while time.monotonic() < end:
        time.sleep(0.1)
        last, counts = counts, _open(subject)
        if counts == last:
            break
    return counts


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - count for name, count in before.items() if after[name] - count >= LEAK_EPISODES}


@contextlib.contextmanager
def _scribbled(messages: Any) -> Iterator[None]:
    """Change a list of messages in every way, and put it back as it was."""
    kept_list, kept = list(messages), copy.deepcopy(list(messages))
    for message in kept_list:
        for call in message.get("tool_calls") or []:
            call["function"]["arguments"] = '{"changed": true}'
        message["content"] = "changed"
    if isinstance(messages, list):
        messages.append({"role": "user", "content": "changed"})
    try:
        yield
    finally:
        for message, old in zip(kept_list, kept, strict=True):
            message.clear()
            message.update(old)
        if isinstance(messages, list):
            messages[:] = kept_list


def _equip(session: Session, tool: _QuotingTool, timeout_s: float) -> None:
    """Give a ToolEnv the quoting tool, and do not wait long for its tools that hang."""
    env = session.env
    if isinstance(env, ToolEnv):
        env._tools |= {tool.name: tool}
        if env.tool_timeout_s is not None:
            env.tool_timeout_s = min(env.tool_timeout_s, timeout_s / 4)


def _quoted_in_results() -> Iterator[HostileAction]:
    for name, text in {**TEXTS, "all markers": "".join(MARKERS)}.items():
        call = call_of(_QuotingTool.name, json.dumps({"text": text}), id="q")
        yield HostileAction(f"{_QuotingTool.name}, a tool whose result is {name}", call_message(call))


class _HangingTool:
    """Never returns."""

    name = "llmgym_check_hanging"
    description = ""

    def __init__(self) -> None:
        self.parameters_schema: dict[str, Any] = {"type": "object", "properties": {}}
        self.called = False

    async def execute(self, arguments: str) -> ToolResult:
        self.called = True
        await asyncio.sleep(3600)
        return ToolResult("")


class _QuotingTool:
    """Returns the text it is given."""

    name = "llmgym_check_quoting"
    description = ""

    def __init__(self) -> None:
        self.parameters_schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
        self.called = False

    async def execute(self, arguments: str) -> ToolResult:
        self.called = True
        return ToolResult(json.loads(arguments)["text"])
