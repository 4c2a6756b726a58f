import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file
from toys import TASKS, make_trainer
from two_processes import ADAPTER, ALIKE, BROKEN

from llmgym import read_episodes
from llmgym_trainer.collection.collector import Group
from llmgym_trainer.runs.folder import read_metrics
from llmgym_trainer.runs.state import ABANDONED

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("two_processes.py")
LIMIT_S = 500
"""A deadlock ends here. Alone on a core the run takes about 30 s."""


def launch(folder, *arguments):
    """Run the script with arguments on two processes in a folder, through the launcher that a user would take.

    ``accelerate launch --cpu`` starts one process. With ``--multi_gpu`` it starts as many as it is told, and
    ``ACCELERATE_USE_CPU`` says that they have no GPU. Port 0 takes a free one.
    """
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--multi_gpu"]
    command += ["--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no", "--main_process_port", "0"]
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    launcher = subprocess.Popen(
        [*command, str(SCRIPT), *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "ACCELERATE_USE_CPU": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = launcher.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        launcher.terminate()  # it ends its processes, which are in sessions of their own
        said, _ = launcher.communicate(timeout=120)
        pytest.fail(f"still running after {LIMIT_S} s: {said[-8000:]}")
    assert launcher.returncode == 0, said[-8000:]


@pytest.fixture(scope="module", params=["all weights", "adapter"])
def what(request):
    """What trains."""
    return request.param


@pytest.fixture(scope="module")
def folder(model_dir, tmp_path_factory, what):
    """Where two processes ran the script."""
    folder = tmp_path_factory.mktemp("two")
    launch(folder, model_dir, "runs", what)
    return folder


def episodes(folder, phase, step, rank):
    suffix = "-rank1" if rank else ""
    return read_episodes(folder / "runs" / "a" / "episodes" / f"{phase}-{step:06d}{suffix}.jsonl")


def noted(folder, step, rank):
    return torch.load(folder / f"step-{step}-{rank}.pt")


def test_the_processes_had_different_numbers_of_rows_and_turns(folder):
    turns = [[sum(len(e.turns) for e in episodes(folder, "train", step, rank)) for rank in (0, 1)] for step in range(5)]
    rows = [[noted(folder, step, rank)["rows"] for rank in (0, 1)] for step in range(5)]
    assert all(first != second for first, second in turns)
    assert rows[0][0] == 4 < rows[0][1]
    assert rows[1][0] == 0 < rows[1][1]  # all groups of one process dropped: no reward variance
    assert rows[2][1] == 0 < rows[2][0]  # … or all failed
    assert rows[3] == [0, 0]
    assert rows[4][0] == 4 < rows[4][1]
    assert ({2, 6, 7}, {5}) == (ALIKE, BROKEN)


def test_the_gradients_are_those_of_one_process(folder, what, model_dir, tmp_path):
    peft = ADAPTER if what == "adapter" else None
    for step in range(5):
        trainer = make_trainer(model_dir, tmp_path, peft_config=peft, max_grad_norm=0.0, micro_batch_tokens=100)
        if peft is not None:
            adapter = load_file(folder / "runs" / "a" / "checkpoint-5" / "adapter_model.safetensors")
            set_peft_model_state_dict(trainer.model, adapter)
        groups = defaultdict(list)
        for rank in (0, 1):
            for episode in episodes(folder, "train", step, rank):
                if episode.stop_reason != "error":
                    groups[episode.task.id].append(episode)
        rows = trainer._rows([Group(found[0].task, found) for found in groups.values()])
        trainer._backward(trainer.model, rows)
        expected = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
        for rank in (0, 1):
            gradients = noted(folder, step, rank)["gradients"]
            assert gradients.keys() == expected.keys()
            for name, gradient in gradients.items():
                torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-5)
        assert (expected == {}) == (step == 3)
        assert all(("lora_" in name) == (what == "adapter") and bool(expected[name].any()) for name in expected)


def test_both_processes_sample_from_what_trains(folder):
    trained = [line for line in read_metrics(folder / "runs" / "a") if line.get("trained_tokens")]
    assert [line["step"] for line in trained] == [1, 2, 3, 5]
    assert max(line["sampling/sampling_logp_difference/max"] for line in trained) < 1e-4


def test_evaluation_splits_its_tasks_over_the_processes(folder):
    for step in (0, 2, 4, 5):
        mine, yours = ([e.task for e in episodes(folder, "val", step, rank)] for rank in (0, 1))
        assert (mine, yours) == ([TASKS[0], TASKS[2]], [TASKS[1]])
    lines = read_metrics(folder / "runs" / "a")
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert [line["step_skipped"] for line in lines if "loss" in line] == [0, 0, 0, 1, 0]


def test_when_one_process_is_asked_to_stop_both_stop_and_both_go_on(folder):
    assert {(folder / f"result-{rank}").read_text() for rank in (0, 1)} == {"4 True 5 False"}
    run = folder / "runs" / "a"
    assert sorted(path.name for path in run.glob("checkpoint*")) == ["checkpoint-4", "checkpoint-5"]
    assert not (run / ABANDONED).exists()
    assert sorted(path.name for path in (run / "checkpoint-4").glob("rng*")) == ["rng_state_0.pth", "rng_state_1.pth"]
    for rank in (0, 1):
        assert len(episodes(folder, "train", 4, rank)) == 4
