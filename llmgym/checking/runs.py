"""Checks that compare or score whole episodes. Each returns what it did, or raises ``Skip``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from llmgym._util.text import first_difference
from llmgym.checking.report import Findings
from llmgym.checking.session import Session
from llmgym.checking.subject import Skip, Subject, valid_script
from llmgym.episode import Episode, EpisodeLimits, StopReason
from llmgym.policy import Policy, ScriptedPolicy
from llmgym.records import compare_replay, episode_from_json, episode_to_json, replay
from llmgym.registry import find
from llmgym.rollout import run_episode
from llmgym.task import Task

EXPERT_TURNS = 100
IDLE_TURNS = 8
PROCESS_TIMEOUT_S = 120.0
HASH_SEEDS = ("1", "2")
_PROCESS = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from llmgym.checking.runs import replay_all; replay_all()"
)


def check_reproducible(subject: Subject) -> str:
    """Play episodes twice from the same seed, and once more from their record."""
    lab = subject.lab
    policies: list[Callable[[], Policy]] = [lambda: ScriptedPolicy(valid_script(subject.specs))]
    if subject.expert is not None:
        policies.append(subject.expert)
    for task in subject.tasks[:2]:
        for policy in policies:
            first = _episode(subject, task, policy, EXPERT_TURNS)
            second = _episode(subject, task, policy, EXPERT_TURNS)
            if first is None or second is None:
                raise Skip("an episode did not come to its end")
            sent = f"task {task.id!r:.60}, seed {lab.seed} and {len(first.turns)} actions, twice"
            differences = compare_replay(first, second)
            if not differences:
                sent = f"the record of task {task.id!r:.60} with {len(first.turns)} actions, to replay"
                recorded = episode_from_json(episode_to_json(first))
                third = lab.run(
                    lambda recorded=recorded: replay(recorded, lab.entry.make_env),  # type: ignore[misc]
                    _whole_s(subject),
                    sent,
                )
                if third is None:
                    raise Skip("the replay did not come to its end")
                differences = compare_replay(first, third)
            if differences:
                lab.findings.add("not-reproducible", sent=sent, got="; ".join(differences))
                return ""
            subject.episodes.append(first)
    return f"{len(subject.episodes)} episodes, each played twice and replayed"


def check_other_process(subject: Subject) -> str:
    """Replay the records in fresh processes whose string hashes differ from ours and each other's."""
    if subject.reference is None:
        raise Skip("another process cannot import the environment; give its id or path")
    if not subject.episodes:
        raise Skip("no episode reproduces in this process")
    records = "\n".join(episode_to_json(episode) for episode in subject.episodes)
    for hash_seed in HASH_SEEDS:
        sent = f"{len(subject.episodes)} records to replay in a process with PYTHONHASHSEED={hash_seed}"
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROCESS, json.dumps(sys.path), subject.reference],
                input=records.encode("utf-8", "surrogatepass"),
                capture_output=True,
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                timeout=PROCESS_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Skip(f"the other process did not end within {PROCESS_TIMEOUT_S:g} s") from None
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        if done.returncode != 0 or not lines:
            last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
            raise Skip(f"the other process failed: {' '.join(last) or f'exit status {done.returncode}'}")
        differences = json.loads(lines[-1])
        if differences:
            subject.lab.findings.add("process-dependent", sent=sent, got="; ".join(differences))
            break
    return f"{len(subject.episodes)} records, {len(HASH_SEEDS)} processes"


def replay_all() -> None:
    """The other process's side: replay the records on stdin, and write a JSON list of all differences."""
    import asyncio

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints must not mix with the answer
    entry = find(sys.argv[2])
    differences = []
    for line in sys.stdin.buffer.read().decode("utf-8", "surrogatepass").split("\n"):
        recorded = episode_from_json(line)
        differences += compare_replay(recorded, asyncio.run(replay(recorded, entry.make_env)))
    answers.write(json.dumps(differences) + "\n")
    answers.flush()
    os._exit(0)  # not waiting for threads that the environment left behind


def check_interleaved(subject: Subject) -> str:
    """Play three episodes one after the other, and then the same three step by step in turn."""
    lab = subject.lab
    if "not-reproducible" in lab.findings:
        raise Skip("an episode that does not reproduce alone cannot be compared")
    known = {episode.task.id: [turn.message for turn in episode.turns if turn.message] for episode in subject.episodes}
    first, second = subject.tasks[0], subject.tasks[-1]
    parts = [(first, 0), (first, 1), (second, 2)]
    scripts: list[list[Any]] = [list(known.get(task.id) or valid_script(subject.specs)) for task, _ in parts]
    alone = []
    for (task, index), script in zip(parts, scripts, strict=True):
        with lab.session(task, index, record=True) as session:
            if not session.reset():
                raise Skip("no episode begins")
            for message in script:
                _step(session, message)
        alone.append(session.transcript)
    together = [lab.session(task, index, record=True) for task, index in parts]
    kept, lab.findings = lab.findings, Findings()  # what goes wrong beside others is one fault: they share something
    for session in together:
        session.reset()
    for turn in range(max(map(len, scripts))):
        for session, script in zip(together, scripts, strict=True):
            if turn < len(script):
                _step(session, script[turn])
    for session in together:
        session.close()
    new = [finding for finding in lab.findings.all() if finding.code not in kept]
    lab.findings = kept
    for (task, _), old, session in zip(parts, alone, together, strict=True):
        if old != session.transcript:
            sent = f"task {task.id!r:.60}, alone and then beside two other episodes, step by step in turn"
            before, after = first_difference("\n".join(old), "\n".join(session.transcript), width=150)
            got = f"alone {before}; beside others {after}" + "".join(f"; {finding.got}" for finding in new[:1])
            lab.findings.add("shared-state", sent=sent, got=got)
            break
    return f"3 episodes, {sum(map(len, scripts))} actions"


def check_expert(subject: Subject) -> str:
    """Let the expert play each task."""
    if subject.expert is None:
        raise Skip("there is no scripted expert")
    rewards = []
    for task in subject.tasks:
        episode = _episode(subject, task, subject.expert, EXPERT_TURNS)
        if episode is None:
            raise Skip("an episode did not come to its end")
        rewards.append(episode.reward)
        solved = episode.stop_reason in (StopReason.TERMINATED, StopReason.ENV) and episode.reward > 0
        if not solved:
            last = episode.turns[-1].message if episode.turns else None
            said = f"; its last message was {(last or {}).get('content', '')!r:.100}" if last else ""
            subject.lab.findings.add(
                "expert-fails",
                sent=f"the expert's {len(episode.turns)} actions for task {task.id!r:.60}",
                got=f"{episode.stop_reason} {episode.stop_detail!r:.200}, reward {episode.reward:g}{said}",
            )
    return f"{len(rewards)} tasks, mean reward {sum(rewards) / len(rewards):.3g}"


def check_do_nothing(subject: Subject) -> str:
    """Answer every turn of each task with an empty message."""
    for task in subject.tasks:
        episode = _episode(subject, task, lambda: ScriptedPolicy([]), IDLE_TURNS)
        if episode is None:
            raise Skip("an episode did not come to its end")
        if episode.stop_reason is StopReason.ERROR:
            raise Skip(f"the episode failed: {episode.stop_detail[:100]}")
        if episode.reward > 0:
            subject.lab.findings.add(
                "do-nothing-scores",
                sent=f"{len(episode.turns)} empty messages for task {task.id!r:.60}",
                got=f"reward {episode.reward:g}, {episode.stop_reason}",
            )
    return f"{len(subject.tasks)} tasks"


def _episode(subject: Subject, task: Task, policy: Callable[[], Policy], max_turns: int) -> Episode | None:
    lab = subject.lab
    limits = EpisodeLimits(max_turns=max_turns, env_timeout_s=lab.timeout_s)

    async def run() -> Episode:
        return await run_episode(lab.entry.make_env(task), task, policy(), limits, seed=lab.seed, env_id=lab.entry.id)

    episode: Episode | None = lab.run(run, _whole_s(subject), f"a whole episode of task {task.id!r:.60}")
    return episode


def _whole_s(subject: Subject) -> float:
    return 2 * subject.lab.timeout_s + 1.0


def _step(session: Session, message: Any) -> None:
    if session.usable and not session.ended:
        session.step(message, sent="valid")


def importable(target: Any) -> str | None:
    """How another process finds a class or function: ``module:name``, or None when it cannot."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is target else None
