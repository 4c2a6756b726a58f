"""Tasks from a Hugging Face dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmgym.errors import TaskError, did_you_mean
from llmgym.task import Task, check_unique_ids

FILE_KINDS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def tasks_from_dataset(
    dataset: Any,
    *,
    prompt: str = "prompt",
    target: str | None = None,
    metadata: Sequence[str] = (),
    id: str | None = None,
    limit: int | None = None,
) -> list[Task]:
    """Make tasks of the rows of a dataset.

    Args:
        dataset: A ``datasets.Dataset``, or any iterable of mappings from column to value.
        prompt: Column of the prompt: text, or a conversation of one user message.
        target: Column of what the reward compares with; None for none.
        metadata: Columns that go into ``Task.metadata``.
        id: Column of the id; None makes the id from the task.
        limit: The first rows only.

    Returns:
        The tasks in the order of the rows, without rows that repeat an earlier one.

    Raises:
        TaskError: There is no such column, no row, or a value that a task cannot hold; row and column are named.
    """
    tasks: dict[str, Task] = {}
    for number, row in enumerate(dataset):
        if limit is not None and number >= limit:
            break
        task = _task(row, number, prompt, target, metadata, id)
        check_unique_ids([tasks.setdefault(task.id, task), task])
    if not tasks:
        raise TaskError("the dataset has no rows")
    return list(tasks.values())


def load_dataset_tasks(name: str, *, config: str | None = None, split: str = "train", **columns: Any) -> list[Task]:
    """Load a dataset and make tasks of its rows.

    Args:
        name: Hub name; a folder written by ``Dataset.save_to_disk`` or one that ``datasets.load_dataset`` reads; or a
            JSON, JSONL, CSV or Parquet file.
        config: Name of the dataset's configuration.
        split: Name of the split, slices such as ``"train[:500]"`` included.
        columns: Passed on to :func:`tasks_from_dataset`.

    Raises:
        TaskError: It cannot be loaded, or as :func:`tasks_from_dataset`.
    """
    from datasets import DatasetDict, load_dataset, load_from_disk

    path = Path(name)
    kind = FILE_KINDS.get(path.suffix.lower())
    try:
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            dataset = load_from_disk(name)
            if isinstance(dataset, DatasetDict):
                if split not in dataset:
                    raise TaskError(f"{name} has no split {split!r}; it has {', '.join(dataset)}")
                dataset = dataset[split]
        elif path.is_file() and kind is not None:
            dataset = load_dataset(kind, data_files=name, split=split)
        else:
            dataset = load_dataset(name, config, split=split)
    except TaskError:
        raise
    except Exception as error:
        raise TaskError(f"cannot load dataset {name!r}, split {split!r}: {type(error).__name__}: {error}") from error
    return tasks_from_dataset(dataset, **columns)


def _task(
    row: Mapping[str, Any], number: int, prompt: str, target: str | None, metadata: Iterable[str], id: str | None
) -> Task:
    def value(column: str) -> Any:
        if column not in row:
            raise TaskError(
                f"the dataset has no column {column!r}; it has {', '.join(row)}.{did_you_mean(column, row)}"
            )
        return row[column]

    asked = value(prompt)
    if isinstance(asked, list) and len(asked) == 1 and asked[0].get("role") == "user":
        asked = asked[0].get("content")
    if not isinstance(asked, str):
        raise TaskError(
            f"row {number}: column {prompt!r} must hold text or one user message (a system prompt belongs to the "
            f"environment), got {asked!r:.120}"
        )
    try:
        return Task(
            asked,
            value(target) if target is not None else None,
            {column: value(column) for column in metadata},
            str(value(id)) if id is not None else "",
        )
    except TaskError as error:
        raise TaskError(f"row {number}: {error}") from error
