import dataclasses
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
from safetensors.torch import load_file

from llmgym.cli.main import main
from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig, TrainResult
from llmgym_trainer.cli.train import main as train_main
from llmgym_trainer.config import DERIVED, REFUSED

ENV = """
from llmgym import Env, StepResult, register

class MyEnv(Env):
    async def reset(self, task):
        self._messages = [{"role": "user", "content": task.prompt}]
        return self.messages

    async def step(self, message):
        self._messages.append(message)
        return StepResult(True, False, self.messages, len(message["content"]) % 5 / 5)

    @property
    def tool_specs(self):
        return []

    @property
    def messages(self):
        return list(self._messages)
"""
REGISTER = """
from llmgym import Task

register("Mine-v0", env=MyEnv, tasks={
    "train": [Task(f"say {number}") for number in range(4)],
    "val": [Task("say val")],
})
"""
SMALL = [
    "--max-turns",
    "3",
    "--batch-size",
    "2",
    "--episodes-per-task",
    "4",
    "--num-steps",
    "1",
    "--max-model-length",
    "120",
    "--run-name",
    "a",
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an environment file and a task file, as the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("my_env.py").write_text(ENV)
    Path("tasks.jsonl").write_text("".join(json.dumps({"prompt": f"say {number}"}) + "\n" for number in range(3)))
    return tmp_path


def test_an_environment_from_a_file(here, model_dir, capsys):
    status = main(["train", "my_env.py:MyEnv", "--tasks", "tasks.jsonl", "--model", str(model_dir), *SMALL])
    assert status == 0
    assert Path("runs/a/checkpoint-1/model.safetensors").is_file()
    printed = capsys.readouterr()
    assert "step 1/1: reward" in printed.out
    assert f"model: {Path('runs/a/checkpoint-1')}" in printed.err
    config = GRPOConfig.from_yaml("runs/a/config.yaml")
    assert (config.max_turns, config.batch_size, config.model) == (3, 2, str(model_dir))
    (episode, *_) = [json.loads(line) for line in Path("runs/a/episodes/train-000000.jsonl").read_text().splitlines()]
    assert episode["env_id"] == "my_env.py:MyEnv"


def test_a_registered_third_party_id_with_lora_and_validation(here, model_dir, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    Path("third_party.py").write_text(ENV + REGISTER)
    status = main(["train", "third_party:Mine-v0", "--lora", "--model", str(model_dir), *SMALL, "--learning-rate=1e-2"])
    assert status == 0
    saved = load_file("runs/a/checkpoint-1/adapter_model.safetensors")
    assert saved
    assert all("lora_" in name for name in saved)
    lines = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val/reward" in line] == [0, 1]
    # A run folder stands for its last checkpoint, an adapter included.
    again = [*SMALL[:-1], "b"]
    assert main(["train", "third_party:Mine-v0", "--model", "runs/a", *again]) == 0
    assert Path("runs/b/checkpoint-1/model.safetensors").is_file()


@pytest.mark.slow
def test_output_written_to_a_file_has_no_carriage_returns(here, model_dir):
    command = [sys.executable, "-c", "import sys; from llmgym.cli.main import main; sys.exit(main())"]
    arguments = ["train", "my_env.py:MyEnv", "--tasks", "tasks.jsonl", "--model", str(model_dir), *SMALL]
    with Path("log").open("wb") as log:
        subprocess.run([*command, *arguments], stdout=log, stderr=subprocess.STDOUT, check=True)
    text = Path("log").read_bytes().decode()
    assert "step 1/1: reward" in text
    assert "\r" not in text
    assert "%|" not in text, "no bar of another library either"


@pytest.fixture
def stand_in(monkeypatch):
    """Replaces the training; a list of what it was called with, and a switch that makes it end by Ctrl-C."""
    seen = types.SimpleNamespace(calls=[], interrupted=False)

    def train(config, **arguments):
        seen.calls.append((config, arguments))
        return TrainResult(Path("runs/a"), Path("runs/a/checkpoint-3"), 3, seen.interrupted)

    monkeypatch.setattr("llmgym_trainer.train.train_multi_turn", train)
    return seen


def test_the_command_line_wins_over_the_file_and_that_over_the_preset(here, stand_in):
    Path("c.yaml").write_text("max_turns: 4\nnum_steps: 7\nlearning_rate: 2e-5\n")
    assert train_main(["my_env.py:MyEnv", "--tasks", "tasks.jsonl", "--config", "c.yaml", "--num-steps", "9"]) == 0
    ((config, arguments),) = stand_in.calls
    assert (config.num_steps, config.max_turns, config.learning_rate, config.batch_size) == (9, 4, 2e-5, 16)
    assert [task.prompt for task in arguments["tasks"]] == ["say 0", "say 1", "say 2"]
    assert arguments["val_tasks"] is None


def test_an_interrupted_run_has_a_status_of_its_own(here, stand_in):
    stand_in.interrupted = True
    assert train_main(["my_env.py:MyEnv", "--tasks", "tasks.jsonl"]) == 130


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--episodes-per-tsk", "4"], "unknown option '--episodes-per-tsk'. Did you mean '--episodes-per-task'?"),
        (["--num-steps", "many"], "num_steps must be a whole number of at least 1, got 'many'"),
        (["--max-steps", "3"], "max_steps='3' is derived here; set num_steps instead"),
        (["--top-p", "0.5"], "top_p=0.5 is not supported (the log-probabilities would be those of another"),
        (["stray"], "unknown argument 'stray'"),
        (["--task-option", "level"], "--task-option takes KEY=VALUE, got 'level'"),
    ],
)
def test_mistakes_are_one_line(here, capsys, arguments, text):
    assert main(["train", "my_env.py:MyEnv", "--tasks", "tasks.jsonl", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_unknown_environments_and_tasks(here, capsys):
    assert main(["train", "ToolUseGam-v0", "--max-turns", "3"]) == 2
    assert "Did you mean 'ToolUseGame-v0'?" in capsys.readouterr().err
    assert main(["train", "my_env.py:MyEnv"]) == 2
    assert "--tasks tasks.jsonl" in capsys.readouterr().err
    assert main(["train", "my_env.py:MyEnv", "--tasks", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_a_file_that_is_no_python(here, capsys):
    Path("my_env.py").write_text("a = 1\ndef (:\n")
    assert main(["train", "my_env.py:MyEnv", "--tasks", "tasks.jsonl"]) == 2
    assert "my_env.py, line 2, is no valid Python: invalid syntax" in capsys.readouterr().err


def test_what_is_refused_after_the_model_loaded_leaves_no_folder(here, model_dir, capsys):
    arguments = ["--tasks", "tasks.jsonl", "--model", str(model_dir), "--chat-template-kwargs", '{"unread": 1}', *SMALL]
    assert main(["train", "my_env.py:MyEnv", *arguments]) == 2
    assert "the chat template never reads 'unread'" in capsys.readouterr().err
    assert not Path("runs/a").exists()


def test_options_may_come_before_the_environment(here, stand_in):
    before = ["--num-steps", "3", "--lora", "--overlong-masking", "--failed_parse_reward", "-0.5"]
    assert train_main([*before, "my_env.py:MyEnv", "--tasks", "tasks.jsonl"]) == 0
    ((config, arguments),) = stand_in.calls
    assert (config.num_steps, config.overlong_masking, config.failed_parse_reward) == (3, True, -0.5)
    assert arguments["peft_config"] is not None


def test_an_environment_is_needed(capsys):
    assert main(["train", "--num-steps", "3"]) == 2
    assert "name an environment, such as llmgym train ToolUseGame-v0" in capsys.readouterr().err


def test_help_has_every_setting_ours_first_but_none_that_is_derived_or_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        train_main(["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "llmgym train ToolUseGame-v0" in printed
    shown = [line.split()[0] for line in printed.splitlines() if line.startswith("  --")]
    fields = [field.name for field in dataclasses.fields(GRPOConfig) if field.init]
    options = [f"--{name.replace('_', '-')}" for name in fields if name not in {*DERIVED, *REFUSED}]
    assert set(options) <= set(shown)
    assert not {"--max-steps", "--use-vllm"} & set(shown)
    assert shown.index("--episodes-per-task") < shown.index("--learning-rate")
    assert "Tasks per optimizer step, over all processes. (default 8)" in " ".join(printed.split())


def test_flags_without_a_value_are_true():
    with pytest.raises(ConfigError, match="overlong_masking must be true or false, got '3'"):
        train_main(["ToolUseGame-v0", "--overlong-masking=3"])


def test_several_environments(here, stand_in):
    arguments = ["ToolUseGame-v0", "--also", "CalculatorMath-v0=0.5", "--also", "ToolUseGame-v0"]
    with pytest.raises(ConfigError, match="takes ENV or ENV=WEIGHT, got 'ToolUseGame-v0=much'"):
        train_main(["ToolUseGame-v0", "--also", "ToolUseGame-v0=much"])
    assert train_main(arguments) == 0
    ((_, given),) = stand_in.calls
    assert [(s.name, s.weight) for s in given["sources"]] == [
        ("ToolUseGame-v0", 1.0), ("CalculatorMath-v0", 0.5), ("ToolUseGame-v0", 1.0),
    ]  # fmt: skip
    assert all(source.tasks and source.val_tasks for source in given["sources"])
    assert "tasks" not in given


def test_tasks_from_a_dataset(here, stand_in, capsys):
    rows = [{"question": f"say {number}", "answer": str(number), "level": 1} for number in range(4)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = ["my_env.py:MyEnv", "--dataset", "rows.jsonl", "--dataset-option", "prompt=question"]
    assert train_main([*dataset, "target=answer", "metadata=level", "limit=2", "--max-turns", "3"]) == 0
    ((config, given),) = stand_in.calls
    assert [(t.prompt, t.target, t.metadata) for t in given["tasks"]] == [
        ("say 0", "0", {"level": 1}), ("say 1", "1", {"level": 1}),
    ]  # fmt: skip
    assert (config.max_turns, given["val_tasks"]) == (3, None)
    for more, text in (
        (["promt=question"], "Did you mean 'prompt'?"),
        (["limit=few"], "limit takes a whole number, got 'few'"),
        (["target=solution"], "no column 'solution'"),
        (["limit"], "--dataset-option takes KEY=VALUE, got 'limit'"),
        (["limit=1", "--tasks", "tasks.jsonl"], "either --tasks or --dataset"),
    ):
        assert main(["train", *dataset, *more]) == 2
        assert text in capsys.readouterr().err


def test_a_run_is_resumed_with_its_own_command_and_new_settings(here, model_dir, capsys):
    assert main(["train", "my_env.py:MyEnv", "--tasks", "tasks.jsonl", "--model", str(model_dir), *SMALL]) == 0
    assert main(["train", "--resume", "runs/a"]) == 2
    assert "the run has done all its 1 steps" in capsys.readouterr().err
    assert main(["train", "--resume", "runs/a", "--num-steps", "2"]) == 0
    lines = [json.loads(line) for line in Path("runs/a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert Path("runs/a/checkpoint-2/model.safetensors").is_file()


def test_what_resume_takes(here, capsys, monkeypatch):
    for arguments, text in (
        (["--resume"], "--resume: expected one argument"),
        (["--resume", "--num-steps", "3"], "--resume: expected one argument"),
        (["--resume", "runs/a"], "there is no run folder 'runs/a' to resume"),
        (["my_env.py:MyEnv", "--resume", "runs/a"], "takes settings only, such as --num-steps 200, but not an environ"),
    ):
        assert main(["train", *arguments]) == 2
        assert text in capsys.readouterr().err
    for option in (["--lora"], ["--tasks", "tasks.jsonl"]):
        assert main(["train", "--resume", "runs/a", "--num-steps", "9", *option]) == 2
        assert f"--resume takes settings only, such as --num-steps 200, but not {option[0]}:" in capsys.readouterr().err
    Path("runs/a/checkpoint-1").mkdir(parents=True)
    monkeypatch.setattr(
        "llmgym_trainer.cli.train.find_checkpoint", lambda run: Path(run, "checkpoint-1")
    )  # it looks whole
    assert main(["train", "--resume", "runs/a"]) == 2
    assert "was not started by `llmgym train`; resume it from its own script" in capsys.readouterr().err
