"""The checks. Each plays episodes, notes what it finds, and returns what it did, or raises ``Skip``."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from llmgym._util.text import first_difference
from llmgym.checking.hostile import MARKERS, TEXTS, call_message, call_of, hostile_actions
from llmgym.checking.report import Findings
from llmgym.checking.schemas import valid_arguments
from llmgym.checking.session import Blocked, CheckContext, Session, Skip, common_length
from llmgym.checking.worker import describe_error
from llmgym.episode import Episode, EpisodeLimits, StopReason
from llmgym.errors import DuplicateTaskError, TaskError
from llmgym.from_gymnasium import FromGym
from llmgym.messages import Message, copy_message, normalize_message, normalize_messages
from llmgym.policy import Policy, ScriptedPolicy
from llmgym.records import compare_replay, episode_from_json, episode_to_json, replay
from llmgym.registry import SPLITS, EnvEntry, find
from llmgym.rollout import run_episode
from llmgym.task import Task, check_unique_ids, load_tasks
from llmgym.tool_env import ToolEnv
from llmgym.tools import FunctionTool

LOAD_TIMEOUT_S = 300.0
MAX_TOOLS = 6
STEPS_PER_EPISODE = 16
BUDGET_TIMEOUTS = 10
"""A check of many calls stops after this many times the timeout of one call."""
HANG_S = 5.0
"""How long a tool that never returns is waited for, at most, when its timeout is 0.2 s."""
LEAK_EPISODES = 8
SETTLE_S = 2.0
"""How long what an episode opened may take to be freed after ``close``."""
EXPERT_TURNS = 100
IDLE_TURNS = 8
PROCESS_TIMEOUT_S = 120.0
HASH_SEEDS = ("1", "2")
_PROCESS = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from llmgym.checking.checks import replay_all; replay_all()"
)
_NO_TOOL_ENV = "only possible with the tools of a ToolEnv"
_OWN_DISPATCH = "it dispatches calls itself, not through ToolEnv"
_STOPPING = ("build-fails", "reset-raises", "opening-invalid", "step-raises", "step-result")


def check_tasks(context: CheckContext) -> str:
    """Load the tasks of every split, or those given, and choose those to play.

    Raises:
        TaskError: There is no such split, option or task file, or a line of the file is not a task.
    """
    entry, tasks = context.entry, context.tasks
    by_split: dict[str, list[Task]] = {}
    if tasks is not None:
        name = str(tasks) if isinstance(tasks, str | Path) else "the given tasks"
        by_split[context.split] = _load(context, partial(_given, tasks), name)
    elif entry.tasks is None and _is_gymnasium(entry):
        context.played = [
            Task("", metadata={"seed": number}, id=f"seed-{number}") for number in range(context.episodes)
        ]
        raise Skip("it has none; seeds are used instead")
    else:
        for split in dict.fromkeys([context.split, *SPLITS]):
            try:
                load = partial(entry.load_tasks, split, **context.task_options)
                by_split[split] = _load(context, load, f"split {split!r}")
            except TaskError:
                if split == context.split:
                    raise
    for one, other in itertools.combinations(by_split, 2):
        known = {key for task in by_split[one] for key in (task.id, _content(task))}
        shared = [task for task in by_split[other] if not known.isdisjoint((task.id, _content(task)))]
        if shared:
            got = (
                f"{len(shared)} of {len(by_split[other])} tasks of {other!r} are also in {one!r}, such as "
                f"{shared[0].id!r}: {shared[0].prompt!r:.100}"
            )
            context.findings.add("splits-overlap", sent=f"load the splits {one!r} and {other!r}", got=got)
    found = by_split[context.split]
    if not found:
        raise Blocked("there are no tasks to play")
    count = min(context.episodes, len(found))
    context.played = [found[index * len(found) // count] for index in range(count)]
    if tasks is not None:
        return f"{len(found)} tasks; one split only, so overlap is not checked"
    return ", ".join(f"{split} {len(found)}" for split, found in by_split.items() if found)


def _load(context: CheckContext, load: Callable[[], list[Task]], name: str) -> list[Task]:
    """The tasks, or an empty list when they cannot be used; the fault is noted."""

    async def run() -> list[Task]:
        return load()

    actor = context.worker.start()
    outcome = actor.call(run, LOAD_TIMEOUT_S)
    actor.end()
    code = "tasks-fail"
    if isinstance(outcome.error, DuplicateTaskError):
        code, got = "duplicate-task-ids", str(outcome.error)
    elif isinstance(outcome.error, TaskError):  # no such split, option or file: the environment is not to blame
        raise outcome.error
    elif outcome.error is not None:
        got = describe_error(outcome.error)
    elif outcome.trouble is not None:
        got = f"nothing within {LOAD_TIMEOUT_S:g} s"
    elif not outcome.value or not all(isinstance(task, Task) for task in outcome.value):
        got = f"not a list of tasks but {outcome.value!r:.200}"
    else:
        tasks: list[Task] = outcome.value
        return tasks
    context.findings.add(code, sent=f"load {name}", got=got)
    return []


def _given(tasks: Sequence[Task] | str | Path) -> list[Task]:
    if isinstance(tasks, str | Path):
        return load_tasks(tasks)
    check_unique_ids(tasks)
    return list(tasks)


def _is_gymnasium(entry: EnvEntry) -> bool:
    try:
        return isinstance(entry.make_env(Task("")), FromGym)
    except Exception:  # noqa: BLE001 - an environment that cannot be made without a task is no Gymnasium one
        return False


def _content(task: Task) -> str:
    return Task(task.prompt, task.target, task.metadata).id


def check_episode(context: CheckContext) -> str:
    """Play valid calls and a plain reply on each task."""
    steps = 0
    for task in context.played:
        with Session(context, task) as session:
            if session.reset():
                context.specs = context.specs or session.specs
                session.play(valid_script(session.specs))
                steps += session.steps
            if not session.usable:
                break
    for code in _STOPPING:
        if code in context.findings:
            raise Blocked(f"fix {code} first")
    if context.lost_calls:
        raise Blocked("a valid call does not return")
    return f"{len(context.played)} episodes, {steps} steps"


def check_hostile_actions(context: CheckContext) -> str:
    """Send every hostile action."""
    actions = hostile_actions(context.specs, context.seed)
    return f"{_send_all(context, actions, 'hostile-action-raises')} actions"


def check_hostile_results(context: CheckContext) -> str:
    """Add a tool that returns hostile texts to a ToolEnv, and call it."""
    texts = {**TEXTS, "all markers": "".join(MARKERS)}
    quoted: list[str] = []

    async def quote(name: str) -> str:
        quoted.append(name)
        return texts[name]

    tool = FunctionTool(quote, name="llmgym_check_quoting")
    actions = {
        f"{tool.name}, a tool whose result is {name}": call_message(
            call_of(tool.name, json.dumps({"name": name}), id="q")
        )
        for name in texts
    }
    count = _send_all(context, actions, "hostile-result-raises", tool)
    if not quoted:
        raise Skip(_OWN_DISPATCH)
    return f"{count} results"


def _send_all(context: CheckContext, actions: Mapping[str, Any], raises: str, *tools: FunctionTool) -> int:
    """Send actions, several to an episode, whose ``ToolEnv`` has ``tools`` too, and return their number."""
    end = time.monotonic() + BUDGET_TIMEOUTS * context.timeout_s
    session, lost, stopped = None, context.lost_calls, ""
    with contextlib.ExitStack() as sessions:
        for count, (name, message) in enumerate(actions.items()):
            if session is None or session.ended or not session.usable or session.steps >= STEPS_PER_EPISODE:
                sessions.close()
                session = sessions.enter_context(Session(context, context.played[count % len(context.played)], count))
                env = session.begin()
                if isinstance(env, ToolEnv):
                    env._tools |= {tool.name: tool for tool in tools}
                    if env.tool_timeout_s is not None:  # do not wait long for tools that hang
                        env.tool_timeout_s = min(env.tool_timeout_s, context.timeout_s / 4)
                elif tools:
                    raise Skip(_NO_TOOL_ENV)
            session.step(message, sent=name, raises=raises)
            context.hostile_actions += 1
            context.progress(f"{raises.removesuffix('-raises')}s: {count + 1} of {len(actions)}")
            if context.lost_calls > lost:
                stopped = "a call did not return"
            elif time.monotonic() > end:
                stopped = f"{BUDGET_TIMEOUTS * context.timeout_s:g} s are over; a longer timeout sends more"
            if stopped:
                raise Skip(f"stopped after {count + 1} of {len(actions)} actions: {stopped}")
    return len(actions)


def check_history(context: CheckContext) -> str:
    """Change every message that was handed out or in, and look whether the environment noticed."""
    with Session(context, context.played[0]) as session:
        env = session.begin()
        handed: list[tuple[str, Any]] = [("the messages of reset", session.raw), ("env.messages", env.messages)]
        for message in valid_script(context.specs)[:2]:
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
            with _changed(messages):
                after = normalize_messages(env.messages)
            if after != before:
                got = f"message {common_length(before, after)} of env.messages changed with it"
                context.findings.add("history-aliased", sent=f"a change to {name}", got=got)
                break
    return f"{len(handed)} lists changed"


def check_tool_dispatch(context: CheckContext) -> str:
    """Add a tool that hangs and one that blocks to a ToolEnv, and call them."""
    called = False

    async def hang() -> str:
        nonlocal called
        called = True
        await asyncio.sleep(3600)
        return ""

    hanging = FunctionTool(hang, name="llmgym_check_hanging")
    slow = FunctionTool(lambda: time.sleep(0.6), name="llmgym_check_slow")
    with Session(context, context.played[0]) as session:
        env = session.begin()
        if not isinstance(env, ToolEnv):
            raise Skip(_NO_TOOL_ENV)
        given_s = env.tool_timeout_s
        if given_s is None:
            context.findings.add("hanging-tool", sent="a look at tool_timeout_s", got="None: tools may take forever")
            return ""
        env._tools |= {hanging.name: hanging, slow.name: slow}
        env.tool_timeout_s = 0.2
        session.step(
            call_message(call_of(hanging.name, "{}")),
            sent="a tool that never returns, with tool_timeout_s = 0.2",
            hangs="hanging-tool",
            timeout_s=min(context.timeout_s, HANG_S),
        )
        if not called:
            raise Skip(_OWN_DISPATCH)
        env.tool_timeout_s = given_s
        if session.usable and not session.ended:
            session.step(call_message(call_of(slow.name, "{}")), sent="a synchronous tool that takes 0.6 s")
    return f"tool_timeout_s is {given_s:g}"


def check_reproducible(context: CheckContext) -> str:
    """Play episodes twice from the same seed, and once more from their record."""
    policies: list[Callable[[], Policy]] = [lambda: ScriptedPolicy(valid_script(context.specs))]
    if context.expert is not None:
        policies.append(context.expert)
    for task in context.played[:2]:
        for policy in policies:
            first = _play_whole(context, task, policy, EXPERT_TURNS)
            sent = f"{_task(task)}, seed {context.seed} and {len(first.turns)} actions, twice"
            differences = compare_replay(first, _play_whole(context, task, policy, EXPERT_TURNS))
            if not differences:
                sent = f"the record of {_task(task)} with {len(first.turns)} actions, to replay"
                recorded = episode_from_json(episode_to_json(first))
                again = _run(context, partial(replay, recorded, context.entry.make_env), sent)
                differences = compare_replay(first, again)
            if differences:
                context.findings.add("not-reproducible", sent=sent, got="; ".join(differences))
                return ""
            context.reproduced.append(first)
    return f"{len(context.reproduced)} episodes, each played twice and replayed"


def check_other_process(context: CheckContext) -> str:
    """Replay the records in fresh processes whose string hashes differ from ours and from each other's."""
    if context.reference is None:
        raise Skip("another process cannot import the environment; give its id or path")
    if not context.reproduced:
        raise Skip("no episode reproduces in this process")
    command = [sys.executable, "-c", _PROCESS, json.dumps(sys.path), context.reference]
    records = "\n".join(map(episode_to_json, context.reproduced)).encode("utf-8", "surrogatepass")

    def start(hash_seed: str) -> subprocess.CompletedProcess[bytes]:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, input=records, capture_output=True, env=env, timeout=PROCESS_TIMEOUT_S)

    try:
        with ThreadPoolExecutor() as threads:
            processes = list(threads.map(start, HASH_SEEDS))
    except subprocess.TimeoutExpired:
        raise Skip(f"the other process did not end within {PROCESS_TIMEOUT_S:g} s") from None
    for hash_seed, process in zip(HASH_SEEDS, processes, strict=True):
        lines = process.stdout.decode("utf-8", "replace").splitlines()
        if process.returncode != 0 or not lines:
            last = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise Skip(f"the other process failed: {' '.join(last) or f'exit status {process.returncode}'}")
        if differences := json.loads(lines[-1]):
            sent = f"{len(context.reproduced)} records to replay in a process with PYTHONHASHSEED={hash_seed}"
            context.findings.add("process-dependent", sent=sent, got="; ".join(differences))
            break
    return f"{len(context.reproduced)} records, {len(HASH_SEEDS)} processes"


def replay_all() -> None:
    """The other process's side: replay the records on stdin, and write a JSON list of all differences."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints must not mix with the answer
    entry = find(sys.argv[2])
    differences = []
    for line in sys.stdin.buffer.read().decode("utf-8", "surrogatepass").split("\n"):
        recorded = episode_from_json(line)
        differences += compare_replay(recorded, asyncio.run(replay(recorded, entry.make_env)))
    answers.write(json.dumps(differences) + "\n")
    answers.flush()
    os._exit(0)  # without waiting for threads that the environment left behind


def check_interleaved(context: CheckContext) -> str:
    """Play three episodes one after the other, then the same three step by step in turn."""
    if "not-reproducible" in context.findings:
        raise Skip("an episode that does not reproduce alone cannot be compared")
    known = {
        episode.task.id: [turn.message for turn in episode.turns if turn.message] for episode in context.reproduced
    }
    parts = [(context.played[0], 0), (context.played[0], 1), (context.played[-1], 2)]
    scripts: list[Sequence[Any]] = [known.get(task.id) or valid_script(context.specs) for task, _ in parts]
    alone = []
    for (task, index), script in zip(parts, scripts, strict=True):
        with Session(context, task, index, record=True) as session:
            session.begin()
            session.play(script)
        alone.append(session.transcript)
    kept, context.findings = context.findings, Findings()  # faults beside others are one fault: they share something
    with contextlib.ExitStack() as stack:
        together = [stack.enter_context(Session(context, task, index, record=True)) for task, index in parts]
        for session in together:
            session.reset()
        for turn in range(max(map(len, scripts))):
            for session, script in zip(together, scripts, strict=True):
                session.play(script[turn : turn + 1])
    new = [finding for finding in context.findings.all() if finding.code not in kept]
    context.findings = kept
    for (task, _), old, session in zip(parts, alone, together, strict=True):
        if old != session.transcript:
            sent = f"{_task(task)}, alone and then beside two other episodes, step by step in turn"
            before, after = first_difference("\n".join(old), "\n".join(session.transcript), width=150)
            got = f"alone {before}; beside others {after}" + "".join(f"; {finding.got}" for finding in new[:1])
            context.findings.add("shared-state", sent=sent, got=got)
            break
    return f"3 episodes, {sum(map(len, scripts))} actions"


def check_close(context: CheckContext) -> str:
    """Close after every kind of end, and count what stays open."""
    task, script = context.played[0], valid_script(context.specs)

    def whole(session: Session) -> None:
        session.begin()
        session.play(script)

    def cut_reset(session: Session) -> None:
        if session.build():
            session.cut(lambda env: env.reset(copy.deepcopy(task)))

    def cut_step(session: Session) -> None:
        session.begin()
        session.cut(lambda env: env.step(copy_message(script[0])))

    def first_step(session: Session) -> None:
        session.begin()
        session.play(script[:1])

    for end in (Session.build, cut_reset, Session.begin, first_step, cut_step, whole):
        with Session(context, task) as session:
            end(session)
    before = _settled(context)
    for _ in range(LEAK_EPISODES):
        with Session(context, task) as session:
            whole(session)
    deadline = time.monotonic() + SETTLE_S
    while (grown := _grown(before, _open(context))) and time.monotonic() < deadline:
        time.sleep(0.05)
    if grown:
        got = ", ".join(f"{count} more {name}" for name, count in grown.items())
        context.findings.add("close-leaks", sent=f"{LEAK_EPISODES} whole episodes, each closed", got=got)
    return f"6 kinds of end, {LEAK_EPISODES} episodes counted"


def check_expert(context: CheckContext) -> str:
    """Let the expert play each task."""
    if context.expert is None:
        raise Skip("there is no scripted expert")
    rewards = []
    for task in context.played:
        episode = _play_whole(context, task, context.expert, EXPERT_TURNS)
        rewards.append(episode.reward)
        if episode.stop_reason not in (StopReason.TERMINATED, StopReason.ENV) or episode.reward <= 0:
            last = episode.turns[-1].message if episode.turns else None
            said = f"; its last message was {last.get('content', '')!r:.100}" if last else ""
            context.findings.add(
                "expert-fails",
                sent=f"the expert's {len(episode.turns)} actions for {_task(task)}",
                got=f"{episode.stop_reason} {episode.stop_detail!r:.200}, reward {episode.reward:g}{said}",
            )
    return f"{len(rewards)} tasks, mean reward {sum(rewards) / len(rewards):.3g}"


def check_do_nothing(context: CheckContext) -> str:
    """Answer every turn of each task with an empty message."""
    for task in context.played:
        episode = _play_whole(context, task, lambda: ScriptedPolicy([]), IDLE_TURNS)
        if episode.stop_reason is StopReason.ERROR:
            raise Skip(f"the episode failed: {episode.stop_detail[:100]}")
        if episode.reward > 0:
            context.findings.add(
                "do-nothing-scores",
                sent=f"{len(episode.turns)} empty messages for {_task(task)}",
                got=f"reward {episode.reward:g}, {episode.stop_reason}",
            )
    return f"{len(context.played)} tasks"


def valid_script(specs: Sequence[Any]) -> list[Message]:
    """Assistant messages that call each tool with arguments that fit, then two in one message, then a plain reply."""
    calls = [
        call_of(spec["function"]["name"], json.dumps(valid_arguments(spec)), id=f"valid_{index}")
        for index, spec in enumerate(specs[:MAX_TOOLS])
    ]
    messages = [call_message(call) for call in calls]
    if calls:
        messages.append(call_message({**calls[0], "id": "first"}, {**calls[-1], "id": "second"}))
    return [*map(normalize_message, messages), {"role": "assistant", "content": "0"}]


def _play_whole(context: CheckContext, task: Task, policy: Callable[[], Policy], max_turns: int) -> Episode:
    limits = EpisodeLimits(max_turns=max_turns, env_timeout_s=context.timeout_s)
    entry, seed = context.entry, context.seed

    async def run() -> Episode:
        return await run_episode(entry.make_env(task), task, policy(), limits, seed=seed, env_id=entry.id)

    return _run(context, run, f"a whole episode of {_task(task)}")


def _run(context: CheckContext, make: Callable[[], Any], sent: str) -> Episode:
    """Await ``make()``, a whole episode. Raises :class:`Skip` when it fails; the fault is noted."""
    actor = context.worker.start()
    outcome = context.call(actor, make, sent, raises="step-raises", timeout_s=2 * context.timeout_s + 1)
    actor.end()
    if not outcome.returned:
        raise Skip(f"{sent} was not completed")
    episode: Episode = outcome.value
    return episode


def _task(task: Task) -> str:
    return f"task {task.id!r:.60}"


def _open(context: CheckContext) -> dict[str, int]:
    gc.collect()
    counts = {"threads": threading.active_count(), "background tasks": context.worker.count_tasks()}
    with contextlib.suppress(OSError):  # no /proc outside Linux
        counts["open files"] = len(os.listdir("/proc/self/fd"))
    return counts


def _settled(context: CheckContext) -> dict[str, int]:
    """What is open once earlier episodes have finished closing: a task about to end would hide one that leaks."""
    end, counts = time.monotonic() + SETTLE_S, _open(context)
    while time.monotonic() < end:
        time.sleep(0.1)
        last, counts = counts, _open(context)
        if counts == last:
            break
    return counts


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - count for name, count in before.items() if after[name] - count >= LEAK_EPISODES}


@contextlib.contextmanager
def _changed(messages: Any) -> Iterator[None]:
    """Change a list of messages in every way, and restore it."""
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
