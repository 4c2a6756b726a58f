import json
import struct

import pytest
import wandb
from recorded import episode
from wandb.proto import wandb_internal_pb2

from llmgym import Episode, StopReason, Task, Turn
from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig
from llmgym_trainer.runs.folder import RunFolder, read_metrics
from llmgym_trainer.runs.reporting import Reporter, check_wandb, conversation_text, select_episodes_to_log, step_line

STEP = {
    "reward": 0.25,
    "success": 0.125,
    "turns_per_episode": 2.5,
    "tools/errors_per_episode": 0.5,
    "frac_reward_zero_std": 0.25,
    "step_time": 3.25,
    "time/sampling": 2.0,
    "time/env": 0.25,
    "time/training": 1.0,
}


def make(tmp_path, *, is_main=True, **settings):
    folder = RunFolder.create(tmp_path, "a")
    return Reporter(GRPOConfig(num_steps=3, **settings), folder, is_main=is_main), folder


def test_the_line_of_a_step():
    assert step_line(2, 30, STEP) == (
        "step 2/30: reward 0.250, success 0.12, turns 2.5, tool errors 0.50, zero-variance groups 25%, "
        "3.2 s (sampling 2.0, environment 0.2, training 1.0)"
    )
    assert step_line(2, 30, {"reward": None}).startswith("step 2/30: reward -, success -")


def test_a_step_and_a_validation_are_recorded_and_printed(tmp_path, capsys):
    reporter, folder = make(tmp_path)
    reporter.validation(0, {"val/success": 0.5, "val/reward": 0.75, "val/time": 1.0})
    reporter.step(1, dict(STEP))
    reporter.step(1, {"train_runtime": 3.0})  # the Trainer's summary at the end is no step
    reporter.close()
    assert read_metrics(folder.path) == [
        {"step": 0, "val/success": 0.5, "val/reward": 0.75, "val/time": 1.0},
        {"step": 1, **STEP},
    ]
    printed = capsys.readouterr().out
    assert "validation at step 0: success 0.500, reward 0.750, ended by the task -, 1.0 s" in printed
    assert "step 1/3: reward 0.250" in printed
    assert (folder.path / "reward.png").is_file()


def test_a_step_whose_episodes_all_failed_is_a_step(tmp_path):
    reporter, folder = make(tmp_path)
    reporter.step(1, {"step_time": 1.0, "error_ratio": 1.0})
    assert [line["step"] for line in read_metrics(folder.path)] == [1]


def test_other_processes_write_their_episodes_only(tmp_path, capsys):
    reporter, folder = make(tmp_path, is_main=False)
    reporter.step(1, dict(STEP))
    reporter.validation(1, {"val/success": 0.5})
    reporter.write("hello")
    reporter.episodes("train", 4, 2, [Episode(Task("x"), StopReason.TERMINATED)])
    reporter.close()
    assert sorted(path.name for path in folder.path.rglob("*")) == ["episodes", "train-000004-rank2.jsonl"]
    assert capsys.readouterr().out == ""


def records(run):
    """The records of an offline run. The file is a LevelDB log: blocks of 32 KiB, pieces with 7 bytes of header."""
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:  # no header fits into the rest of the block
            place += 32_768 - place % 32_768
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def logged(run):
    """What each log call of an offline run held, without the entries that Weights & Biases adds."""
    for record in records(run):
        if record.WhichOneof("record_type") == "history":
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            yield {name: value for name, value in items.items() if not name.startswith("_")}


@pytest.mark.slow
def test_weights_and_biases_gets_the_metrics_and_conversations_of_every_step(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    reporter, folder = make(tmp_path, wandb_project="games", run_name="a", learning_rate=1e-3)
    reporter.episodes("val", 0, 0, [episode("fern", answer="lone \ud800")])
    reporter.validation(0, {"val/success": 0.5, "val/reward": 0.25})
    reporter.episodes("train", 0, 0, [episode("lily", index, reward=float(index), advantage=0.7) for index in range(2)])
    reporter.step(1, dict(STEP))
    reporter.step(2, dict(STEP))  # all of its episodes failed
    reporter.episodes("train", 2, 0, [episode("rose")])
    reporter.close()  # as after an exception in step 3
    wandb.teardown()  # its own process has then written everything

    run = next(record.run for record in records(folder.path) if record.WhichOneof("record_type") == "run")
    assert (run.project, run.display_name, run.run_id) == ("games", "a", folder.notes()["wandb_id"])
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["learning_rate"] == 1e-3
    calls = list(logged(folder.path))
    metrics = [{name: value for name, value in call.items() if not name.startswith("conversations/")} for call in calls]
    assert metrics == [*read_metrics(folder.path), {}]
    assert [call.get("conversations/nrows") for call in calls] == [1, 3, None, 4]
    assert [len(call.get("conversations/previous_increments_paths", "")) for call in calls] == [0, 1, 0, 2]
    tables = [json.loads(file.read_text()) for file in folder.path.glob("wandb/offline-run-*/files/media/table/*.json")]
    rows = sorted([row for table in tables for row in table["data"]], key=lambda row: (row[0], row[3]))
    text = '[user] What is rose?\n\n[assistant] lookup({"key": "rose"})\n\n[tool lookup] 48\n\n[assistant] '
    assert tables[0]["columns"] == [
        "step", "phase", "task", "episode", "reward", "advantage", "stop_reason", "turns", "conversation",
    ]  # fmt: skip
    assert rows == [
        [0, "val", "fern", 0, 0.0, None, "terminated", 2, text + "lone \\ud800"],
        [1, "train", "lily", 0, 0.0, 0.7, "terminated", 2, text + "48"],
        [1, "train", "lily", 1, 1.0, 0.7, "terminated", 2, text + "48"],
        [3, "train", "rose", 0, 0.0, None, "terminated", 2, text + "48"],
    ]


def test_groups_that_differ_come_first_in_the_table():
    groups = [("a", (0.0, 0.0)), ("b", (0.0, 1.0)), ("c", (1.0,)), ("d", (0.5, 0.0))]
    made = [episode(task, index, reward=reward) for task, rewards in groups for index, reward in enumerate(rewards)]
    assert [one.task.id for one in select_episodes_to_log(made, 5)] == ["b", "b", "d", "d", "a"]
    assert [one.task.id for one in select_episodes_to_log(made, 100)] == ["b", "b", "d", "d", "a", "a", "c"]


def test_a_conversation_as_text_keeps_what_was_sampled_and_rewritten():
    made = episode("a")
    made.turns[0].message["reasoning_content"] = "Look it up."
    made.turns[0].observation[0]["name"] = ""
    made.turns[1] = Turn(raw_text="<tool_call>{", failure="cut by the length limit")
    made.turns.append(
        Turn({"role": "assistant", "content": "48"}, [{"role": "user", "content": "Only this."}], history_edited=True)
    )
    made.stop_detail = "a budget is spent"
    assert conversation_text(made).split("\n\n") == [
        "[user] What is rose?",
        '[assistant] (reasoning) Look it up.\nlookup({"key": "rose"})',
        "[tool] 48",
        "[as sampled] <tool_call>{",
        "(cut by the length limit)",
        "[assistant] 48",
        "(the environment rewrote the history, which now reads)",
        "[user] Only this.",
        "(a budget is spent)",
    ]


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def test_weights_and_biases_without_a_login_names_both_ways_out(no_login):
    with pytest.raises(ConfigError) as caught:
        check_wandb("games")
    assert "`wandb login`" in str(caught.value)
    assert "WANDB_MODE=offline" in str(caught.value)
    check_wandb(None)


@pytest.mark.parametrize(
    ("name", "value"), [("WANDB_MODE", "offline"), ("WANDB_MODE", "disabled"), ("WANDB_API_KEY", "k")]
)
def test_what_stands_for_a_login(no_login, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    check_wandb("games")


def test_a_login_in_netrc(no_login, monkeypatch):
    no_login.write_text("machine api.wandb.ai login user password secret\n")
    check_wandb("games")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080/x")
    with pytest.raises(ConfigError, match="needs a Weights & Biases login"):
        check_wandb("games")
    no_login.write_text("machine wandb.example.org login user password secret\n")
    check_wandb("games")
