"""``llmgym check``: does an environment keep what training relies on? Knows the order of the checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmgym import registry
from llmgym.checking import conduct, runs
from llmgym.checking.codes import CHECKS, CODES, Check, Code, Level
from llmgym.checking.report import CheckReport, CheckResult, Finding, Status, conclude, print_report
from llmgym.checking.session import Lab
from llmgym.checking.subject import Skip, Subject, check_tasks
from llmgym.env import Env
from llmgym.errors import ConfigError, TaskError
from llmgym.from_gym import _FromGym
from llmgym.policy import Policy
from llmgym.registry import EnvEntry
from llmgym.task import Task

__all__ = [
    "CHECKS",
    "CODES",
    "Check",
    "CheckReport",
    "CheckResult",
    "Code",
    "Finding",
    "Level",
    "Status",
    "check_env",
    "print_report",
]

_STOPPING = ("build-fails", "reset-raises", "opening-invalid", "step-raises", "step-result")
MAX_LOST_CALLS = 3
_OBSERVED = ("tool-specs", "tool-results", "rewards", "time")


def check_env(
    env: str | type[Any] | Callable[[Task], Env] | EnvEntry,
    tasks: Sequence[Task] | str | Path | None = None,
    *,
    expert: Callable[[], Policy] | None = None,
    split: str = "train",
    task_options: Mapping[str, Any] | None = None,
    episodes: int = 4,
    timeout_s: float = 30.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> CheckReport:
    """Check whether an environment keeps what training, evaluation and records rely on.

    Everything the environment does is a finding of the report, and nothing it does raises here: it runs on an event
    loop in a thread of its own, with a time limit for each call. What freezes or ends the whole process (a regular
    expression without end, ``os._exit``) does so here too; the command ``llmgym check`` survives it.

    Args:
        env: Anything :func:`llmgym.registry.find` resolves, an ``Env`` or ``gymnasium.Env`` class, a function from
            task to ``Env``, or an :class:`EnvEntry`.
        tasks: The tasks, or a JSONL file of them; None takes those it was registered with. A Gymnasium environment
            without tasks is checked with seeds.
        expert: Makes a policy that solves every task; None takes the registered one.
        split: The split to play.
        task_options: Passed on to the environment's task function.
        episodes: How many tasks to play, spread over the split.
        timeout_s: Seconds that one call of the environment may take.
        seed: Seeds the environment and the hostile actions; the same seed does the same again.
        progress: Told what is being done.

    Raises:
        ConfigError: ``episodes`` or ``timeout_s`` is no positive number.
        TaskError: The environment has no tasks, and none are given.
        UnknownEnvironmentError: No such environment.
    """
    if episodes < 1 or not timeout_s > 0:
        raise ConfigError(f"episodes and timeout_s must be positive, got {episodes!r} and {timeout_s!r}")
    start = time.monotonic()
    say = progress or (lambda text: None)
    entry, reference = _entry(env)
    lab = Lab(entry, timeout_s, seed, lambda sent: None)
    report = CheckReport(entry.id)
    done: dict[str, str] = {}
    skipped: dict[str, str] = {}
    try:
        say("tasks")
        played = _load_tasks(lab, tasks, split, task_options or {}, episodes, done, skipped)
        if played:
            subject = Subject(lab, played, expert or _expert(entry), reference)
            _run(subject, report, done, skipped, say)
        else:
            skipped |= {check.name: "there are no tasks to play" for check in CHECKS if check.name not in done}
    finally:
        lab.close()
    report.findings = lab.findings.all()
    report.checks = conclude(report.findings, done, skipped)
    report.environment_calls = lab.calls
    report.seconds = time.monotonic() - start
    return report


def _run(
    subject: Subject,
    report: CheckReport,
    done: dict[str, str],
    skipped: dict[str, str],
    say: Callable[[str], None],
) -> None:
    lab = subject.lab

    def hostile(subject: Subject) -> str:
        report.hostile_actions, stopped = conduct.check_hostile_actions(subject, say)
        if stopped:
            raise Skip(stopped)
        return f"{report.hostile_actions} actions"

    steps: dict[str, Callable[[Subject], str]] = {
        "hostile-actions": hostile,
        "history": conduct.check_history,
        "tool-dispatch": conduct.check_tool_dispatch,
        "reproducible": runs.check_reproducible,
        "other-process": runs.check_other_process,
        "interleaved": runs.check_interleaved,
        "close": conduct.check_close,
        "expert": runs.check_expert,
        "do-nothing": runs.check_do_nothing,
    }
    say("episode")
    done["episode"] = conduct.check_episode(subject)
    failed = [code for code in _STOPPING if code in lab.findings]
    if failed or lab.lost_calls:
        why = f"mend {failed[0]} first" if failed else "a valid call does not come back"
        skipped |= {name: why for name in (*steps, *_OBSERVED)}
        return
    for name, step in steps.items():
        if lab.lost_calls >= MAX_LOST_CALLS:
            skipped[name] = f"{lab.lost_calls} calls did not come back"
            continue
        say(name)
        try:
            done[name] = step(subject)
        except Skip as reason:
            skipped[name] = str(reason)
    done |= {name: f"{lab.calls} calls watched" for name in _OBSERVED}
    if not subject.specs:
        skipped["tool-specs"] = "it offers no tools"


def _entry(env: Any) -> tuple[EnvEntry, str | None]:
    """The environment, and what another process can find it by."""
    if isinstance(env, str):
        return registry.find(env), env
    if isinstance(env, EnvEntry):
        return env, runs.importable(env.env)
    if not callable(env):
        raise ConfigError(
            f"check_env takes an id, a class, or a function from task to Env, so that each episode gets a fresh one; "
            f"got {type(env).__name__} {env!r:.80}"
        )
    return EnvEntry(f"{env.__module__}:{getattr(env, '__qualname__', repr(env))}", env), runs.importable(env)


def _expert(entry: EnvEntry) -> Callable[[], Policy] | None:
    return None if entry.expert is None else lambda: registry._load(entry.expert)()


def _load_tasks(
    lab: Lab,
    tasks: Sequence[Task] | str | Path | None,
    split: str,
    options: Mapping[str, Any],
    episodes: int,
    done: dict[str, str],
    skipped: dict[str, str],
) -> list[Task]:
    if tasks is None and lab.entry.tasks is None:
        if not _is_gymnasium(lab.entry):
            raise TaskError(f"{lab.entry.id} was registered without tasks; give your own, such as --tasks tasks.jsonl")
        skipped["tasks"] = "it has none; seeds stand in for them"
        return [Task("", metadata={"seed": number}, id=f"seed-{number}") for number in range(episodes)]
    found, done["tasks"] = check_tasks(lab, tasks, split, options)
    count = min(episodes, len(found))
    return [found[index * len(found) // count] for index in range(count)]


def _is_gymnasium(entry: EnvEntry) -> bool:
    try:
        return isinstance(entry.make_env(Task("")), _FromGym)
    except Exception:  # noqa: BLE001 - an environment that cannot be made without a task is no Gymnasium one
        return False
