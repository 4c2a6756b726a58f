import sys
import types

import pytest

from llmgym import Episode, StopReason, Task
from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig
from llmgym_trainer.reporting import Reporter, check_wandb, step_line
from llmgym_trainer.runs import RunFolder

STEP = {
    "reward": 0.25,
    "success": 0.125,
    "turns_per_episode": 2.5,
    "tools/errors_per_episode": 0.5,
    "groups/zero_spread": 1.0,
    "groups/sampled": 4.0,
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
        "step 2/30: reward 0.250, success 0.12, turns 2.5, tool errors 0.50, groups without spread 1 of 4, "
        "3.2 s (sampling 2.0, environment 0.2, training 1.0)"
    )
    assert step_line(2, 30, {"reward": None}).startswith("step 2/30: reward -, success -")


def test_a_step_and_a_validation_are_recorded_and_printed(tmp_path, capsys):
    reporter, folder = make(tmp_path)
    reporter.validation(0, {"val/success": 0.5, "val/reward": 0.75, "val/time": 1.0})
    reporter.step(1, dict(STEP))
    reporter.step(1, {"train_runtime": 3.0})  # the Trainer's summary at the end is no step
    reporter.close()
    assert folder.read_metrics() == [
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
    assert [line["step"] for line in folder.read_metrics()] == [1]


def test_other_processes_write_their_episodes_only(tmp_path, capsys):
    reporter, folder = make(tmp_path, is_main=False)
    reporter.step(1, dict(STEP))
    reporter.validation(1, {"val/success": 0.5})
    reporter.write("hello")
    reporter.episodes("train", 4, 2, [Episode(Task("x"), StopReason.TERMINATED)])
    reporter.close()
    assert sorted(path.name for path in folder.path.rglob("*")) == ["episodes", "train-000004-rank2.jsonl"]
    assert capsys.readouterr().out == ""


def test_weights_and_biases_gets_the_names_of_metrics_jsonl(tmp_path, monkeypatch):
    logged, started, finished = [], [], []
    run = types.SimpleNamespace(log=lambda values, **_: logged.append(values), finish=lambda: finished.append(True))
    fake = types.SimpleNamespace(init=lambda **settings: started.append(settings) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    reporter, _ = make(tmp_path, wandb_project="games", run_name="a", learning_rate=1e-3)
    reporter.validation(0, {"val/success": 0.5})
    reporter.step(1, dict(STEP))
    reporter.close()
    assert started[0]["project"] == "games"
    assert started[0]["name"] == "a"
    assert started[0]["config"]["learning_rate"] == 1e-3
    assert logged == [{"val/success": 0.5, "step": 0}, {**STEP, "step": 1}]
    assert finished == [True]


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
