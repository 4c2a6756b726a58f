import json

import pytest
from datasets import Dataset, DatasetDict

from llmgym import Task
from llmgym.errors import TaskError
from llmgym_trainer.data.datasets import load_dataset_tasks, tasks_from_dataset

ROWS = [
    {"question": "What is 2 plus 2?", "answer": "4", "level": 1, "name": "q1"},
    {"question": "What is 3 plus 3?", "answer": "6", "level": 2, "name": "q2"},
]
COLUMNS = {"prompt": "question", "target": "answer", "metadata": ["level"], "id": "name"}
TASKS = [Task("What is 2 plus 2?", "4", {"level": 1}, "q1"), Task("What is 3 plus 3?", "6", {"level": 2}, "q2")]


def test_columns_become_fields():
    assert tasks_from_dataset(Dataset.from_list(ROWS), **COLUMNS) == TASKS
    assert tasks_from_dataset(ROWS, **COLUMNS, limit=1) == TASKS[:1]
    assert tasks_from_dataset([{"prompt": "hi"}]) == [Task("hi")]


def test_a_conversation_of_one_user_message_is_a_prompt():
    rows = [{"prompt": [{"role": "user", "content": "hi"}]}]
    assert tasks_from_dataset(Dataset.from_list(rows)) == [Task("hi")]


def test_rows_that_repeat_are_one_task():
    assert tasks_from_dataset([{"prompt": "hi"}, {"prompt": "ho"}, {"prompt": "hi"}]) == [Task("hi"), Task("ho")]


@pytest.mark.parametrize(
    ("rows", "columns", "text"),
    [
        (
            ROWS,
            {"prompt": "questions"},
            "no column 'questions'; it has question, answer, level, name. Did you mean 'question'?",
        ),
        (ROWS, {"prompt": "question", "target": "solution"}, "no column 'solution'"),
        (ROWS, {"prompt": "level"}, "row 0: column 'level' must hold text or one user message"),
        (
            [{"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]}],
            {},
            "row 0: column 'prompt'",
        ),
        ([{"prompt": "a", "x": 1}, {"prompt": "b", "x": b"\x00"}], {"target": "x"}, "row 1: Task.target holds a bytes"),
        ([{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}], {"id": "id"}, "two different tasks have the id '1'"),
        ([], {}, "the dataset has no rows"),
    ],
)  # fmt: skip
def test_mistakes(rows, columns, text):
    with pytest.raises(TaskError) as caught:
        tasks_from_dataset(rows, **columns)
    assert text in str(caught.value)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "disk", "dict"])
def test_datasets_on_disk(tmp_path, kind):
    path = tmp_path / (f"rows.{kind}" if kind in ("jsonl", "csv") else kind)
    dataset = Dataset.from_list(ROWS)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "csv":
        dataset.to_csv(path)
    elif kind == "disk":
        dataset.save_to_disk(path)
    else:
        DatasetDict({"train": dataset}).save_to_disk(path)
    found = load_dataset_tasks(str(path), **COLUMNS)
    assert [(task.id, task.prompt, str(task.target)) for task in found] == [(t.id, t.prompt, t.target) for t in TASKS]


def test_no_such_split(tmp_path):
    DatasetDict({"train": Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "d")
    with pytest.raises(TaskError, match="no split 'val'; it has train"):
        load_dataset_tasks(str(tmp_path / "d"), split="val")


def test_what_cannot_be_loaded(tmp_path):
    (tmp_path / "broken.jsonl").write_text("{")
    with pytest.raises(TaskError, match=r"cannot load dataset .*broken\.jsonl"):
        load_dataset_tasks(str(tmp_path / "broken.jsonl"))
