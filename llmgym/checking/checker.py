"""``check_env``: resolves the environment, runs the checks in order, and reports."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmgym import registry
from llmgym.checking import checks
from llmgym.checking.codes import CHECKS
from llmgym.checking.report import CheckReport, CheckResult, Status, conclude
from llmgym.checking.session import Blocked, CheckContext, Skip
from llmgym.checking.worker import describe_error
from llmgym.env import Env
from llmgym.errors import ConfigError, LLMGymError, UnknownEnvironmentError
from llmgym.policy import Policy
from llmgym.registry import EnvEntry
from llmgym.task import Task

MAX_LOST_CALLS = 3

_STEPS = {
    "tasks": checks.check_tasks,
    "episode": checks.check_episode,
    "hostile-actions": checks.check_hostile_actions,
    "hostile-results": checks.check_hostile_results,
    "history": checks.check_history,
    "tool-dispatch": checks.check_tool_dispatch,
    "reproducible": checks.check_reproducible,
    "other-process": checks.check_other_process,
    "interleaved": checks.check_interleaved,
    "close": checks.check_close,
    "expert": checks.check_expert,
    "do-nothing": checks.check_do_nothing,
}
"""In this order. The other checks watch every call of these."""


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
    progress: Callable[[str], None] = lambda text: None,
) -> CheckReport:
    """Check whether an environment does what training, evaluation and records rely on.

    Whatever the environment does becomes a finding of the report; nothing it does raises here. It runs on an event loop
    in a thread of its own, with a time limit for each call. Code that freezes or ends the whole process (a
    catastrophic regular expression, ``os._exit``) does so here too; the command ``llmgym check`` survives it.

    Args:
        env: Anything :func:`llmgym.registry.find` resolves, an ``Env`` or ``gymnasium.Env`` class, a function from
            task to ``Env``, or an :class:`EnvEntry`.
        tasks: The tasks, or a JSONL file of them; None takes the registered ones. A Gymnasium environment without
            tasks is checked with seeds.
        expert: Makes a policy that solves every task; None takes the registered one.
        split: The split to play.
        task_options: Passed on to the environment's task function.
        episodes: How many tasks to play, evenly spaced over the split.
        timeout_s: Seconds that one call of the environment may take.
        seed: Seeds the environment and the hostile actions; the same seed gives the same check.
        progress: Told what is being done.

    Raises:
        ConfigError: ``env`` is none of these, or ``episodes`` or ``timeout_s`` is not a positive number.
        TaskError: The environment has no tasks and none are given, or has no such split or option; or there is no such
            file of tasks, or a line of it is not a task.
        UnknownEnvironmentError: No such environment.
    """
    return run_checks(
        make_context(
            env,
            tasks=tasks,
            expert=expert,
            split=split,
            task_options=task_options or {},
            episodes=episodes,
            timeout_s=timeout_s,
            seed=seed,
            progress=progress,
        )
    )


def make_context(env: Any, *, expert: Callable[[], Policy] | None = None, **options: Any) -> CheckContext:
    """Resolve the environment. Arguments and errors are those of :func:`check_env`, and ``on_call``."""
    entry, reference = _resolve(env)
    if expert is None and entry.expert is not None:
        expert = lambda: registry._load(entry.expert)()  # noqa: E731 - loaded when it is used
    return CheckContext(entry, reference, expert, **options)


def run_checks(context: CheckContext) -> CheckReport:
    """Run all checks."""
    ran, blocked = context.ran, ""
    try:
        for name, check in _STEPS.items():
            if context.lost_calls >= MAX_LOST_CALLS:
                ran[name] = CheckResult(name, Status.NOT_CHECKED, f"{context.lost_calls} calls did not return")
                continue
            context.progress(name)
            try:
                ran[name] = CheckResult(name, Status.PASSED, check(context))
            except Skip as skip:
                ran[name] = CheckResult(name, Status.NOT_CHECKED, str(skip))
                if isinstance(skip, Blocked):
                    blocked = str(skip)
                    break
    finally:
        context.close()
    if not blocked:
        for watching in CHECKS:
            ran.setdefault(watching.name, CheckResult(watching.name, Status.PASSED, f"{context.calls} calls watched"))
        if not context.specs:
            ran["tool-specs"] = CheckResult("tool-specs", Status.NOT_CHECKED, "it offers no tools")
    return report_so_far(context, blocked)


def report_so_far(context: CheckContext, unchecked: str = "") -> CheckReport:
    """The report; checks that have not ended are "not checked", with ``unchecked`` as the reason."""
    findings = context.findings.all()
    return CheckReport(
        context.entry.id,
        conclude(findings, context.ran, unchecked),
        findings,
        context.calls,
        context.hostile_actions,
        time.monotonic() - context.started,
    )


def _resolve(env: Any) -> tuple[EnvEntry, str | None]:
    """The environment, and how another process can find it."""
    if isinstance(env, str):
        try:
            return registry.find(env), env
        except LLMGymError:
            raise
        except Exception as error:
            raise UnknownEnvironmentError(
                f"the module of {env!r} cannot be imported: {describe_error(error)}"
            ) from error
    if isinstance(env, EnvEntry):
        return env, _importable(env.env)
    if not callable(env):
        raise ConfigError(
            "check_env takes an id, a class, or a function from task to Env, so that each episode gets a fresh one; "
            f"got {type(env).__name__} {env!r:.80}"
        )
    return EnvEntry(f"{env.__module__}:{getattr(env, '__qualname__', repr(env))}", env), _importable(env)


def _importable(target: Any) -> str | None:
    """How another process finds a class or function: ``module:name``, or None when it cannot."""
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", "")
    if not isinstance(module, str) or module == "__main__" or not name.isidentifier():
        return None
    return f"{module}:{name}" if getattr(sys.modules.get(module), name, None) is target else None
