"""Episodes as rows for supervised fine-tuning: which, in which form, and that a trainer's loader reads them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from adding_env import AddingEnv

import llmgym
from llmgym import Episode, ScriptedPolicy, StopReason, Task, Turn, write_episodes
from llmgym.cli.export import ExportCounts, export_rows
from llmgym.errors import ConfigError, RecordError


def assistant(content="", **fields):
    return {"role": "assistant", "content": content, **fields}


def episode(task, reward, *, turns=1, stop=StopReason.TERMINATED, index=0):
    return Episode(
        Task("?", id=task),
        stop,
        reward,
        [Turn(assistant(f"{task} {index} turn {number}")) for number in range(turns)],
        [{"role": "user", "content": "?"}],
        episode_index=index,
    )


def rows(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def answers(path):
    return [row["messages"][-1]["content"] for row in rows(path)]


@pytest.fixture
def record(tmp_path):
    file = tmp_path / "episodes.jsonl"
    write_episodes(
        file,
        [
            episode("a", 0.5, turns=3),
            episode("a", 1.0, turns=2, index=1),
            episode("a", 1.0, turns=1, index=2),
            episode("a", 1.0, turns=1, index=3),
            episode("b", 0.0),
            episode("b", 0.25, stop=StopReason.ENV, index=1),
            episode("c", 1.0, stop=StopReason.MAX_TURNS),
            episode("c", -0.1, stop=StopReason.PARSE_FAILURE, index=1),
            episode("d", 0.0, stop=StopReason.ERROR),
        ],
    )
    return tmp_path


def test_a_whole_conversation_with_its_tools(tmp_path):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    policy = ScriptedPolicy([assistant(tool_calls=[call]), assistant("2", reasoning_content="1 + 1 \ud800 ü")])
    played = asyncio.run(llmgym.run_episode(AddingEnv(), Task("What is 1 + 1?", "2"), policy))
    write_episodes(tmp_path / "one.jsonl", [played])
    export_rows(tmp_path / "one.jsonl", tmp_path / "out" / "rows.jsonl")
    (row,) = rows(tmp_path / "out" / "rows.jsonl")
    assert sorted(row) == ["messages", "tools"]
    assert row["tools"] == AddingEnv().tool_specs
    assert row["messages"][1:] == [
        {"role": "user", "content": "What is 1 + 1?"},
        assistant(tool_calls=[{**call, "function": {"name": "add", "arguments": {"a": 1, "b": 1}}}]),
        {"role": "tool", "content": "2", "tool_call_id": "c", "name": "add"},
        assistant("2", reasoning_content="1 + 1 ? ü"),  # UTF-8 has no lone surrogates
    ]
    export_rows(tmp_path / "one.jsonl", tmp_path / "text.jsonl", arguments="string")
    assert rows(tmp_path / "text.jsonl")[0]["messages"][2] == assistant(tool_calls=[call])


def test_only_what_the_environment_ended(record):
    counts = export_rows(record, record / "rows.jsonl")
    assert counts == ExportCounts(episodes=9, written=6, unfinished=3)
    assert answers(record / "rows.jsonl")[:2] == ["a 0 turn 2", "a 1 turn 1"]


def test_by_reward(record):
    counts = export_rows(record, record / "rows.jsonl", min_reward=0.25)
    assert counts == ExportCounts(episodes=9, written=5, unfinished=3, low=1)


def test_the_best_of_each_task(record):
    counts = export_rows(record, record / "rows.jsonl", best_per_task=True)
    assert counts == ExportCounts(episodes=9, written=2, unfinished=3, not_best=4)
    # Of the three with reward 1 the first of those with one turn.
    assert answers(record / "rows.jsonl") == ["a 2 turn 0", "b 1 turn 0"]
    export_rows(record, record / "high.jsonl", best_per_task=True, min_reward=0.5)
    assert answers(record / "high.jsonl") == ["a 2 turn 0"]


def test_a_training_run_gives_its_training_episodes(tmp_path):
    for name, task in (("val-000000", "v"), ("train-000002", "b"), ("train-000001", "a"), ("train-000001-rank1", "r")):
        write_episodes(tmp_path / "run" / "episodes" / f"{name}.jsonl", [episode(task, 1.0)])
    export_rows(tmp_path / "run", tmp_path / "rows.jsonl")
    assert sorted(answers(tmp_path / "rows.jsonl")) == ["a 0 turn 0", "b 0 turn 0", "r 0 turn 0"]


def test_corrected_turns_are_not_learnt(tmp_path):
    told = {"role": "user", "content": "once more"}
    one = episode("a", 1.0)
    one.turns.insert(0, Turn(assistant("{{"), [told], failure="no call", raw_text="{{"))
    write_episodes(tmp_path / "e.jsonl", [one])
    export_rows(tmp_path / "e.jsonl", tmp_path / "rows.jsonl")
    (row,) = rows(tmp_path / "rows.jsonl")
    assert row["messages"] == [{"role": "user", "content": "?"}, assistant("a 0 turn 0")]


def test_arguments_that_an_environment_put_there_stay_as_they_are(tmp_path):
    made = episode("a", 1.0)
    odd = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "not JSON"}}
    made.initial_messages.append(assistant(tool_calls=[odd]))
    write_episodes(tmp_path / "episodes.jsonl", [made])
    export_rows(tmp_path, tmp_path / "rows.jsonl")
    assert rows(tmp_path / "rows.jsonl")[0]["messages"][1]["tool_calls"] == [odd]


def test_nothing_is_overwritten_and_no_empty_file_is_left(record):
    (record / "there.jsonl").write_text("precious")
    with pytest.raises(ConfigError, match="exists"):
        export_rows(record, record / "there.jsonl")
    with pytest.raises(ConfigError, match=r"of 9, 3 were not ended by their environment and 6 .* below 2"):
        export_rows(record, record / "rows.jsonl", min_reward=2)
    assert sorted(path.name for path in record.iterdir()) == ["episodes.jsonl", "there.jsonl"]
    assert (record / "there.jsonl").read_text() == "precious"


def test_what_cannot_be_meant_is_refused(record):
    with pytest.raises(ConfigError, match=r"min_reward must be a number .* got nan"):
        export_rows(record, record / "rows.jsonl", min_reward=float("nan"))
    with pytest.raises(ConfigError, match=r"cannot make the folder of .*rows\.jsonl"):
        export_rows(record, record / "episodes.jsonl" / "rows.jsonl")


def test_a_broken_record_leaves_no_half_file(record):
    with (record / "episodes.jsonl").open("a") as file:
        file.write('{"format_version": 1}\n')
    with pytest.raises(RecordError, match=r"episodes\.jsonl:10"):
        export_rows(record, record / "rows.jsonl")
    assert [path.name for path in record.iterdir()] == ["episodes.jsonl"]


def test_what_holds_no_episodes_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no episodes"):
        export_rows(tmp_path / "nothing", tmp_path / "rows.jsonl")


def test_the_loader_of_trl_reads_what_was_written(tmp_path):
    """Calls with different arguments, and tools with different parameters, come back without filled-in nulls."""
    import datasets

    calls = [("add", '{"a": 1, "b": 2}'), ("process", "{}")]
    entries = [{"id": str(i), "function": {"name": name, "arguments": text}} for i, (name, text) in enumerate(calls)]
    policy = ScriptedPolicy([assistant(tool_calls=entries), "2"])
    played = asyncio.run(llmgym.run_episode(AddingEnv(), Task("What is 1 + 1?", "2"), policy))
    write_episodes(tmp_path / "one.jsonl", [played, played])
    export_rows(tmp_path / "one.jsonl", tmp_path / "rows.jsonl")
    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / "rows.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(loaded) == rows(tmp_path / "rows.jsonl")
