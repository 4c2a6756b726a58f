"""What is checked: an environment with its tasks, and actions that fit its tools. Judges nothing but the tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgym.checking.hostile import call_message, call_of
from llmgym.checking.schemas import valid_arguments
from llmgym.checking.session import Lab
from llmgym.checking.worker import describe_error
from llmgym.episode import Episode
from llmgym.errors import DuplicateTaskError, TaskError
from llmgym.messages import Message, normalize_message
from llmgym.policy import Policy
from llmgym.registry import SPLITS
from llmgym.task import Task, check_unique_ids, load_tasks

LOAD_TIMEOUT_S = 300.0
MAX_TOOLS = 6


class Skip(Exception):
    """A check cannot be made, or not to its end; the text says why."""


@dataclass
class Subject:
    """What the checks work on.

    Attributes:
        lab: Makes and drives the environments.
        tasks: The tasks that are played, a few of the split.
        expert: Makes a scripted expert; None without one.
        reference: What another process can find the environment by; None when there is nothing.
        specs: The tool specifications, once an episode has begun; empty when they are malformed.
        episodes: Recorded episodes that reproduced, for the checks that follow.
    """

    lab: Lab
    tasks: list[Task]
    expert: Callable[[], Policy] | None
    reference: str | None
    specs: list[Any] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)


def valid_script(specs: Sequence[Any]) -> list[Message]:
    """Assistant messages that call each tool with arguments that fit, then two in one message, and then answer."""
    calls = [
        call_of(spec["function"]["name"], json.dumps(valid_arguments(spec)), id=f"valid_{index}")
        for index, spec in enumerate(specs[:MAX_TOOLS])
    ]
    messages = [call_message(call) for call in calls]
    if calls:
        messages.append(call_message({**calls[0], "id": "first"}, {**calls[-1], "id": "second"}))
    return [*map(normalize_message, messages), {"role": "assistant", "content": "0"}]


def check_tasks(
    lab: Lab, tasks: Sequence[Task] | str | Path | None, split: str, options: Mapping[str, Any]
) -> tuple[list[Task], str]:
    """Load the tasks of every split, or those given, and note what is wrong with them.

    Returns:
        The tasks of ``split``, empty when they cannot be used, and what was looked at.

    Raises:
        TaskError: There is no such split, option or task file, or a line of the file is no task.
    """
    if tasks is not None:
        shown = str(tasks) if isinstance(tasks, str | Path) else "the given tasks"
        loaded = _load(lab, lambda: _given(tasks), shown)
        return loaded or [], f"{len(loaded or [])} tasks; one split only, so overlap is not looked for"
    by_split: dict[str, list[Task]] = {}
    for name in dict.fromkeys([split, *SPLITS]):
        loaded = _load(lab, lambda name=name: lab.entry.load_tasks(name, **options), f"split {name!r}", name != split)  # type: ignore[misc]
        if loaded is not None:
            by_split[name] = loaded
    _check_overlap(lab, by_split)
    return by_split.get(split, []), ", ".join(f"{name} {len(found)}" for name, found in by_split.items())


def _given(tasks: Sequence[Task] | str | Path) -> list[Task]:
    if isinstance(tasks, str | Path):
        return load_tasks(tasks)
    check_unique_ids(tasks)
    return list(tasks)


def _load(lab: Lab, load: Callable[[], list[Task]], sent: str, may_be_missing: bool = False) -> list[Task] | None:
    async def run() -> list[Task]:
        return load()

    actor = lab.worker.start()
    outcome = actor.call(run, LOAD_TIMEOUT_S)
    actor.end()
    sent = f"load {sent}"
    if isinstance(outcome.error, DuplicateTaskError):
        lab.findings.add("duplicate-task-ids", sent=sent, got=str(outcome.error))
    elif isinstance(outcome.error, TaskError):  # no such split, option or file: nothing is wrong with the environment
        if may_be_missing:
            return None
        raise outcome.error
    elif outcome.error is not None:
        lab.findings.add("tasks-fail", sent=sent, got=describe_error(outcome.error))
    elif outcome.trouble is not None:
        lab.findings.add("tasks-fail", sent=sent, got=f"nothing within {LOAD_TIMEOUT_S:g} s")
    elif not outcome.value or not all(isinstance(task, Task) for task in outcome.value):
        lab.findings.add("tasks-fail", sent=sent, got=f"no list of tasks but {outcome.value!r:.200}")
    else:
        found: list[Task] = outcome.value
        return found
    return None


def _content(task: Task) -> str:
    return Task(task.prompt, task.target, task.metadata).id


def _check_overlap(lab: Lab, by_split: Mapping[str, list[Task]]) -> None:
    names = list(by_split)
    for index, one in enumerate(names):
        known = {key for task in by_split[one] for key in (task.id, _content(task))}
        for other in names[index + 1 :]:
            shared = [task for task in by_split[other] if task.id in known or _content(task) in known]
            if shared:
                got = (
                    f"{len(shared)} of {len(by_split[other])} tasks of {other!r} are in {one!r} too, such as "
                    f"{shared[0].id!r}: {shared[0].prompt!r:.100}"
                )
                lab.findings.add("splits-overlap", sent=f"load the splits {one!r} and {other!r}", got=got)
