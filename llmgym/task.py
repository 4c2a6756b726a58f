"""Tasks: what is asked, what the reward compares with, and a stable id; and files of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgym.errors import DuplicateTaskError, TaskError, did_you_mean

_A_LINE = '{"prompt": "What is 2 + 3?", "target": "5"}, with "metadata" and "id" where needed'


@dataclass(frozen=True)
class Task:
    """The specification of one episode.

    All fields hold JSON values, which is checked here, so that every task can be recorded and replayed.

    Attributes:
        prompt: What the user asks.
        target: What the reward compares with; never shown to the model.
        metadata: Anything else the environment needs, such as a table of facts.
        id: Stable name. Left empty, it is a hash of the other three fields.

    Raises:
        TaskError: A field holds a value that JSON cannot express.
    """

    prompt: str
    target: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.prompt, str):
            raise TaskError(f"Task.prompt must be a string, got {type(self.prompt).__name__} {self.prompt!r:.80}")
        if not isinstance(self.metadata, dict):
            raise TaskError(f"Task.metadata must be a dictionary, got {type(self.metadata).__name__}")
        if not isinstance(self.id, str):
            raise TaskError(f"Task.id must be a string, got {type(self.id).__name__} {self.id!r:.80}")
        for name in ("target", "metadata"):
            _check_json(getattr(self, name), name)
        if not self.id:
            text = json.dumps([self.prompt, self.target, self.metadata], sort_keys=True)
            object.__setattr__(self, "id", hashlib.sha256(text.encode()).hexdigest()[:16])

    def __hash__(self) -> int:
        return hash(self.id)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as one JSON object."""
        return {"id": self.id, "prompt": self.prompt, "target": self.target, "metadata": self.metadata}

    @classmethod
    def from_json(cls, value: Any) -> Task:
        """Read :meth:`to_json` back. Raises :class:`TaskError` for unknown or missing keys."""
        if not isinstance(value, Mapping):
            raise TaskError(f"a task is a JSON object with a 'prompt', got {value!r:.80}")
        allowed = ("prompt", "target", "metadata", "id")
        for key in value:
            if key not in allowed:
                raise TaskError(
                    f"unknown task field {key!r}; allowed are {', '.join(allowed)}.{did_you_mean(key, allowed)}"
                )
        if "prompt" not in value:
            raise TaskError(f"a task needs a 'prompt'; got the fields {sorted(value)}")
        metadata, id = value.get("metadata"), value.get("id")
        return cls(value["prompt"], value.get("target"), {} if metadata is None else metadata, "" if id is None else id)


def load_tasks(path: str | Path) -> list[Task]:
    """Read tasks from a JSONL file, one object with the fields of :class:`Task` a line.

    Raises:
        TaskError: The file is missing or empty, or a line is not a task; the text names file and line.
    """
    path = Path(path)
    if not path.is_file():
        raise TaskError(f'there is no task file {str(path)!r}; give a JSONL file with one {{"prompt": ...}} a line')
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"the task file {str(path)!r} is not UTF-8: {error}") from error
    tasks = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would also cut at U+2028 inside a string
        if not line.strip():
            continue
        try:
            tasks.append(Task.from_json(json.loads(line)))
        except TaskError as error:
            raise TaskError(f"{path}:{number}: {error}") from error
        except (ValueError, RecursionError) as error:
            why = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
            raise TaskError(
                f"{path}:{number}: {line.strip()[:60]!r} is no JSON ({why}); a line looks like {_A_LINE}"
            ) from error
    if not tasks:
        raise TaskError(f"the task file {str(path)!r} holds no task")
    check_unique_ids(tasks)
    return tasks


def save_tasks(tasks: Iterable[Task], path: str | Path) -> None:
    """Write tasks as JSONL, readable by :func:`load_tasks`."""
    Path(path).write_text("".join(json.dumps(task.to_json()) + "\n" for task in tasks), encoding="utf-8")


def check_unique_ids(tasks: Iterable[Task]) -> None:
    """Raise :class:`DuplicateTaskError` when two different tasks share one id."""
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.setdefault(task.id, task)
        if other is not task and other != task:
            raise DuplicateTaskError(
                f"two different tasks have the id {task.id!r}; leave ids empty or make them unique"
            )


def _check_json(value: Any, where: str) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise TaskError(f"Task.{where} holds {value}, which JSON cannot express")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TaskError(f"Task.{where} has the key {key!r}; JSON objects have string keys only")
            _check_json(item, f"{where}[{key!r}]")
    else:
        raise TaskError(
            f"Task.{where} holds a {type(value).__name__} ({value!r:.60}); use JSON values only: strings, numbers, "
            "booleans, None, lists and dictionaries (a tuple becomes a list)"
        )
