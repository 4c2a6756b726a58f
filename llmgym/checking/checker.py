"""The order of the checks and what each needs. Knows no check from the inside."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmgym import registry
from llmgym.checking import conduct, runs
from llmgym.checking.codes import CHECKS
from llmgym.checking.report import CheckReport, conclude
from llmgym.checking.session import Lab
from llmgym.checking.subject import Skip, Subject, check_tasks
from llmgym.checking.worker import describe_error
from llmgym.env import Env
from llmgym.errors import ConfigError, LLMGymError, UnknownEnvironmentError
from llmgym.gym.from_gym import _FromGym
from llmgym.policy import Policy
from llmgym.registry import EnvEntry
from llmgym.task import Task

Tasks = Sequence[Task] | str | Path | None

MAX_LOST_CALLS = 3
_STOPPING = ("build-fails", "reset-raises", "opening-invalid", "step-raises", "step-result")
_OBSERVED = ("tool-specs", "tool-results", "rewards", "time")


def check_env(
    env: str | type[Any] | Callable[[Task], Env] | EnvEntry,
    tasks: Tasks = None,
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
        ConfigError: ``env`` is none of these, or ``episodes`` or ``timeout_s`` is no positive number.
        TaskError: The environment has no tasks and none are given, or has no such split or option; or there is no such
            file of tasks, or a line of it is no task.
        UnknownEnvironmentError: No such environment.
    """
    checker = Checker(
        env,
        tasks,
        expert=expert,
        split=split,
        task_options=task_options or {},
        episodes=episodes,
        timeout_s=timeout_s,
        seed=seed,
        progress=progress or (lambda text: None),
        on_call=lambda sent: None,
    )
    return checker.run()


class Checker:
    """One check of one environment. Arguments as for :func:`check_env`; ``on_call`` is told each call beforehand."""

    def __init__(
        self,
        env: Any,
        tasks: Tasks,
        *,
        expert: Callable[[], Policy] | None,
        split: str,
        task_options: Mapping[str, Any],
        episodes: int,
        timeout_s: float,
        seed: int,
        progress: Callable[[str], None],
        on_call: Callable[[str], None],
    ) -> None:
        if episodes < 1 or not timeout_s > 0:
            raise ConfigError(f"episodes and timeout_s must be positive, got {episodes!r} and {timeout_s!r}")
        self._start = time.monotonic()
        self._entry, self._reference = _resolve(env)
        self._tasks, self._split, self._task_options, self._episodes = tasks, split, task_options, episodes
        registered = self._entry.expert
        self._expert = expert or (None if registered is None else lambda: registry._load(registered)())
        self._say = progress
        self._lab = Lab(self._entry, timeout_s, seed, on_call)
        self._done: dict[str, str] = {}
        self._skipped: dict[str, str] = {}
        self._hostile_actions = 0

    def run(self) -> CheckReport:
        """Run all checks."""
        try:
            self._say("tasks")
            played = self._played_tasks()
            if played:
                self._check(Subject(self._lab, played, self._expert, self._reference))
            else:
                reason = "there are no tasks to play"
                self._skipped |= {check.name: reason for check in CHECKS if check.name not in self._done}
        finally:
            self._lab.close()
        return self.report()

    def report(self) -> CheckReport:
        """The report so far; checks that have not ended are "not checked"."""
        findings = self._lab.findings.all()
        return CheckReport(
            self._entry.id,
            conclude(findings, self._done, self._skipped),
            findings,
            self._lab.calls,
            self._hostile_actions,
            time.monotonic() - self._start,
        )

    def _check(self, subject: Subject) -> None:
        lab = self._lab
        steps: dict[str, Callable[[Subject], str]] = {
            "hostile-actions": lambda subject: self._send(conduct.check_hostile_actions, subject, "actions"),
            "hostile-results": lambda subject: self._send(conduct.check_hostile_results, subject, "results"),
            "history": conduct.check_history,
            "tool-dispatch": conduct.check_tool_dispatch,
            "reproducible": runs.check_reproducible,
            "other-process": runs.check_other_process,
            "interleaved": runs.check_interleaved,
            "close": conduct.check_close,
            "expert": runs.check_expert,
            "do-nothing": runs.check_do_nothing,
        }
        self._say("episode")
        played = conduct.check_episode(subject)
        failed = [code for code in _STOPPING if code in lab.findings]
        if failed or lab.lost_calls:
            why = f"mend {failed[0]} first" if failed else "a valid call does not come back"
            self._skipped |= {name: why for name in (*steps, *_OBSERVED, "episode")}
            return
        self._done["episode"] = played
        for name, step in steps.items():
            if lab.lost_calls >= MAX_LOST_CALLS:
                self._skipped[name] = f"{lab.lost_calls} calls did not come back"
                continue
            self._say(name)
            try:
                self._done[name] = step(subject)
            except Skip as reason:
                self._skipped[name] = str(reason)
        self._done |= {name: f"{lab.calls} calls watched" for name in _OBSERVED}
        if not subject.specs:
            self._skipped["tool-specs"] = "it offers no tools"

    def _send(self, check: Callable[..., tuple[int, str]], subject: Subject, what: str) -> str:
        count, stopped = check(subject, self._say)
        self._hostile_actions += count
        if stopped:
            raise Skip(stopped)
        return f"{count} {what}"

    def _played_tasks(self) -> list[Task]:
        if self._tasks is None and self._entry.tasks is None:
            if not _is_gymnasium(self._entry):
                self._entry.load_tasks(self._split)  # raises, and says what to write
            self._skipped["tasks"] = "it has none; seeds stand in for them"
            return [Task("", metadata={"seed": number}, id=f"seed-{number}") for number in range(self._episodes)]
        found, self._done["tasks"] = check_tasks(self._lab, self._tasks, self._split, self._task_options)
        count = min(self._episodes, len(found))
        return [found[index * len(found) // count] for index in range(count)]


def _resolve(env: Any) -> tuple[EnvEntry, str | None]:
    """The environment, and what another process can find it by."""
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
        return env, runs.importable(env.env)
    if not callable(env):
        raise ConfigError(
            "check_env takes an id, a class, or a function from task to Env, so that each episode gets a fresh one; "
            f"got {type(env).__name__} {env!r:.80}"
        )
    return EnvEntry(f"{env.__module__}:{getattr(env, '__qualname__', repr(env))}", env), runs.importable(env)


def _is_gymnasium(entry: EnvEntry) -> bool:
    try:
        return isinstance(entry.make_env(Task("")), _FromGym)
    except Exception:  # noqa: BLE001 - an environment that cannot be made without a task is no Gymnasium one
        return False
