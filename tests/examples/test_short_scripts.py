"""The scripts of a few lines run as they are; the one that trains runs with fewer steps and another model."""

import runpy
from pathlib import Path

import pytest
from toys import scripted

import llmgym_trainer
from llmgym_trainer.runs.folder import read_metrics

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_a_plain_gymnasium_loop(run):
    question, keys, ending = run("gymnasium_loop.py").splitlines()
    assert question.startswith("What is ")
    assert ", " in keys
    assert ending == "reward 0.0, terminated True, truncated False, stop reason terminated"


def test_an_environment_in_one_file(run, tmp_path):
    lines = run("write_an_environment.py").splitlines()
    assert lines[-2:] == [
        "assistant: anchor",
        "terminated, reward 1.0, {'turns': 3, 'tool_calls': 2, 'tool_errors': 0, 'calls_words': 1, 'calls_define': 1}",
    ]
    assert len((tmp_path / "words.jsonl").read_text().splitlines()) == 3


def test_training_from_python(run, model_dir, monkeypatch):
    config = llmgym_trainer.GRPOConfig
    small = {"model": str(model_dir), "num_steps": 1, "batch_size": 2, "validation_interval": 1, "run_name": "a"}
    monkeypatch.setattr(llmgym_trainer, "GRPOConfig", lambda **given: config(**{**given, **small}))
    with scripted(lambda key, turn, rng: rng.choice(["1", "<tool_call>"])):  # a wrong answer, or none that can be read
        printed = run("train_tool_use_game.py")
    assert printed.splitlines()[-1] == "the trained model is in runs/a/checkpoint-1"
    assert [line["step"] for line in read_metrics(Path("runs/a"))] == [0, 1, 1]
