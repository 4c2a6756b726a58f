"""Tasks: JSON values only, stable ids, and task files."""

from __future__ import annotations

import math

import pytest

from llmgym import Task, load_tasks, save_tasks
from llmgym.errors import TaskError
from llmgym.task import check_unique_ids


def test_ids_are_stable_across_versions_and_processes():
    assert Task("What is 2 + 2?").id == "55af32e062dc9954"
    assert Task("What is 2 + 2?", 4, {"level": 1, "facts": {"a": [1, 2.5, None]}}).id == "eb5e35d5b9bc7093"


def test_ids_ignore_the_order_of_keys_and_see_every_field():
    assert Task("p", 1, {"a": 1, "b": 2}).id == Task("p", 1, {"b": 2, "a": 1}).id
    assert len({Task("p").id, Task("q").id, Task("p", 1).id, Task("p", 1.0).id, Task("p", None, {"a": 1}).id}) == 5
    assert Task("p", id="mine").id == "mine"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": 3}, "Task.prompt must be a string, got int 3"),
        ({"prompt": "p", "metadata": [1]}, "Task.metadata must be a dictionary, got list"),
        ({"prompt": "p", "id": 7}, "Task.id must be a string, got int 7"),
        ({"prompt": "p", "target": (1, 2)}, r"Task.target holds a tuple.*use JSON values only"),
        ({"prompt": "p", "target": math.nan}, "Task.target holds nan"),
        ({"prompt": "p", "metadata": {"a": [1, {"b": -math.inf}]}}, r"Task.metadata\['a'\]\[1\]\['b'\] holds -inf"),
        ({"prompt": "p", "metadata": {"a": {1: 2}}}, r"Task.metadata\['a'\] has the key 1"),
        ({"prompt": "p", "metadata": {"a": {1, 2}}}, r"Task.metadata\['a'\] holds a set"),
    ],
)
def test_other_values_than_json_are_refused(fields, message):
    with pytest.raises(TaskError, match=message):
        Task(**fields)


def test_files_keep_every_task(tmp_path):
    tasks = [
        Task("plain"),
        Task("line\u2028separators\x85and\nnewlines \ud800 😀", 0.1 + 0.2, {"deep": [None, True, {"x": "y"}]}),
        Task("named", id="n1"),
    ]
    save_tasks(tasks, tmp_path / "tasks.jsonl")
    assert load_tasks(tmp_path / "tasks.jsonl") == tasks


def test_a_file_written_by_hand(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('\ufeff{"prompt": "a\u2028b"}\r\n\n{"prompt": "c", "target": 1}', encoding="utf-8")
    assert load_tasks(str(path)) == [Task("a\u2028b"), Task("c", 1)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            " What is 2 + 3?",
            r"""tasks.jsonl:2: 'What is 2 \+ 3\?' is no JSON \(Expecting value, column 2\); a line looks like """,
        ),
        ("{" + "x" * 100, r"tasks.jsonl:2: '{x{59}' is no JSON \(Expecting property name .*, column 2\)"),
        ("[" * 100_000, r"tasks.jsonl:2: '\[{60}' is no JSON \("),
        ('"text"', "tasks.jsonl:2: a task is a JSON object with a 'prompt'"),
        ('{"target": 1}', r"tasks.jsonl:2: a task needs a 'prompt'; got the fields \['target'\]"),
        ('{"prompt": "p", "targett": 1}', "tasks.jsonl:2: unknown task field 'targett'.*Did you mean 'target'?"),
        ('{"prompt": "p", "metadata": [1]}', "tasks.jsonl:2: Task.metadata must be a dictionary, got list"),
        ('{"prompt": "p", "target": NaN}', "tasks.jsonl:2: Task.target holds nan"),
        ('{"prompt": "p", "id": 0}', "tasks.jsonl:2: Task.id must be a string"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(TaskError, match=message):
        load_tasks(path)


@pytest.mark.parametrize(("content", "message"), [(b"\n\n", "holds no task"), (b"\xff\xfe{", "is not UTF-8")])
def test_an_unusable_file(tmp_path, content, message):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=message):
        load_tasks(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(TaskError, match=r"there is no task file .*missing\.jsonl"):
        load_tasks(tmp_path / "missing.jsonl")


def test_two_tasks_with_one_id_are_refused_and_repeats_are_not():
    check_unique_ids([Task("p"), Task("p"), Task("q")])
    with pytest.raises(TaskError, match="two different tasks have the id 'x'"):
        check_unique_ids([Task("p", id="x"), Task("q", id="x")])
