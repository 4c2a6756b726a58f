import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from toys import TASKS, LetterEnv, settings

from llmgym import read_episodes
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn
from llmgym_trainer.collection.sampler import StepSampler
from llmgym_trainer.runs.folder import read_metrics
from llmgym_trainer.runs.interrupts import StopRequest, TrainingInterrupted
from llmgym_trainer.runs.state import find_checkpoint

HERE = Path(__file__).parents[1]  # of toys.py


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_takes_effect_at_the_next_check(capsys):
    stop = StopRequest()
    with stop.on_signals():
        stop.check()
        interrupt()
        assert stop.requested
        with pytest.raises(TrainingInterrupted):
            stop.check()
        with pytest.raises(TrainingInterrupted), stop.waiting():
            pytest.fail("a section that waits must not begin after a stop")
    assert "Ctrl-C again quits at once" in capsys.readouterr().out


def test_ctrl_c_takes_effect_at_once_while_waiting():
    stop = StopRequest()
    after = []
    with stop.on_signals(), pytest.raises(TrainingInterrupted), stop.waiting():
        after.append(interrupt())
    assert after == []


def test_the_second_ctrl_c_is_a_keyboard_interrupt():
    stop = StopRequest()
    with stop.on_signals():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_the_handler_of_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest().on_signals():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_asks_as_ctrl_c_does_and_never_quits_at_once():
    stop = StopRequest()
    before = signal.getsignal(signal.SIGTERM)
    with stop.on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.requested
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_processes_stop_when_one_was_asked(monkeypatch):
    stop = StopRequest()
    monkeypatch.setattr("llmgym_trainer.runs.interrupts.gather", lambda own: [own, False])
    stop.check_together()
    monkeypatch.setattr("llmgym_trainer.runs.interrupts.gather", lambda own: [own, True])
    with pytest.raises(TrainingInterrupted):
        stop.check_together()
    assert stop.requested


def test_outside_the_main_thread_nothing_is_handled():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with StopRequest().on_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# A run that is asked to stop in each of its phases.

PHASES = {
    # The phase, steps done when it ends there.
    "validation": 0,
    "rollout": 1,
    "rows": 1,
    "backward": 1,
    "optimizer step": 2,
    "checkpoint": 2,
    "last validation": 3,
}


def stop_in(phase, number, monkeypatch):
    """Send the signal once, in that phase of the second step (or of the first or last validation)."""
    sent = []

    def send():
        if not sent:
            sent.append(os.kill(os.getpid(), number))

    def before(owner, name, act):
        method = getattr(owner, name)

        def wrapper(self, *args, **kwargs):
            act(self, *args)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    def send_at(self, *args):
        if self.state.global_step == (2 if phase == "checkpoint" else 1):
            send()

    class Env(LetterEnv):
        phase = None

        async def step(self, message):
            if Env.phase == phase:
                send()
            return await super().step(message)

    def validating(self, step):
        Env.phase = {0: "validation", 3: "last validation"}.get(step)

    def sampling(self, step):
        Env.phase = "rollout" if step == 1 else None

    before(StepSampler, "validate", validating)
    before(StepSampler, "sample", sampling)
    name = {
        "rows": "_rows",
        "backward": "compute_loss",
        "optimizer step": "_clip_grad_norm",
        "checkpoint": "_get_output_dir",
    }.get(phase)
    if name is not None:
        before(MultiTurnGRPOTrainer, name, send_at)
    return Env


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_stops_in_order_in_every_phase_and_goes_on(model_dir, tmp_path, monkeypatch, phase, number):
    def train(env, resume):
        changes = {"num_steps": 3, "save_steps": 2, "validation_interval": 3, "run_name": "a", "micro_batch_tokens": 1}
        config = GRPOConfig(**settings(model_dir, tmp_path, resume_from_checkpoint=resume, **changes))
        return train_multi_turn(config, tasks=TASKS, env_factory=env, val_tasks=TASKS[:1])

    with monkeypatch.context() as patch:
        result = train(stop_in(phase, number, patch), None)
    steps = PHASES[phase]
    assert (result.steps, result.interrupted) == (steps, True)
    assert result.checkpoint == tmp_path / "a" / f"checkpoint-{steps}"
    assert find_checkpoint(tmp_path / "a") == result.checkpoint
    assert (result.checkpoint / "optimizer.pt").is_file()
    if steps < 3:
        result = train(LetterEnv, str(tmp_path / "a"))
        assert (result.steps, result.interrupted) == (3, False)
        lines = read_metrics(result.run_dir)
        assert [line["step"] for line in lines] == [0, 1, 2, 3, 3]
        names = [f"train-{step:06d}" for step in range(3)] + ["val-000000", "val-000003"]
        files = [result.run_dir / "episodes" / f"{name}.jsonl" for name in names]
        assert [len(read_episodes(file)) for file in files] == [8, 8, 8, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_while_its_model_loads_leaves_nothing(model_dir, tmp_path, monkeypatch, number):
    monkeypatch.setattr("llmgym_trainer.train.load_model", lambda *args, **kwargs: os.kill(os.getpid(), number))
    with pytest.raises(TrainingInterrupted):
        train_multi_turn(GRPOConfig(**settings(model_dir, tmp_path)), tasks=TASKS, env_factory=LetterEnv)
    assert list(tmp_path.iterdir()) == []


# A run in a process of its own.

SCRIPT = """
import asyncio, pathlib, sys, time
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from toys import TASKS, LetterEnv, settings
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn

WHERE = {where!r}

class Env(LetterEnv):
    made = -1  # the one that is tried before the model loads

    async def reset(self, task):
        Env.made += 1
        self.number = Env.made
        return await super().reset(task)

    async def step(self, message):
        if WHERE != "backward" and self.number > 8:  # the second step
            print("HERE", flush=True)
            await asyncio.sleep(600)
        return await super().step(message)

    async def close(self):
        if self.number > 8:
            await asyncio.sleep(0.5)
            with open("closed.txt", "a") as file:
                file.write("x")

compute_loss = MultiTurnGRPOTrainer.compute_loss

def slow_loss(self, *args, **kwargs):
    if WHERE == "backward" and self.state.global_step == 1:
        print("HERE", flush=True)
        time.sleep(1)
    return compute_loss(self, *args, **kwargs)

MultiTurnGRPOTrainer.compute_loss = slow_loss

if WHERE == "twice":
    def slow_save(self):
        print("SAVING", flush=True)
        time.sleep(600)
    MultiTurnGRPOTrainer.save_now = slow_save

config = GRPOConfig(**settings({model!r}, "runs", num_steps=4, run_name="a", micro_batch_tokens=1))
result = train_multi_turn(config, tasks=TASKS, env_factory=Env)
print("RESULT", result.steps, result.interrupted, result.checkpoint, flush=True)
"""


def run_and_interrupt(tmp_path, model_dir, where):
    """Start a run, send Ctrl-C where it says HERE (and again where it says SAVING); return status and output."""
    (tmp_path / "script.py").write_text(SCRIPT.format(here=str(HERE), where=where, model=str(model_dir)))
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    output, sent = [], set()
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        for mark in ("HERE", "SAVING"):
            if mark in line and mark not in sent:
                sent.add(mark)
                process.send_signal(signal.SIGINT)
    process.wait()
    watchdog.cancel()
    return process.returncode, "".join(output)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rollout", "backward"])
def test_ctrl_c_saves_the_last_whole_step_and_says_where(tmp_path, model_dir, where):
    status, output = run_and_interrupt(tmp_path, model_dir, where)
    assert status == 0, output
    checkpoint = Path("runs/a/checkpoint-1")
    assert f"stopped after step 1; saved {checkpoint}. To continue: llmgym train --resume runs/a" in output
    assert re.search(f"RESULT 1 True {checkpoint}", output)
    from llmgym_trainer.models.load import load_model

    load_model(str(tmp_path / checkpoint), dtype=None)
    assert len((tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "runs/a/reward.png").is_file()
    # Every environment of the second step was closed, also those that the interruption found at work.
    assert (tmp_path / "closed.txt").read_text() == "x" * 8


@pytest.mark.slow
def test_a_second_ctrl_c_quits(tmp_path, model_dir):
    status, output = run_and_interrupt(tmp_path, model_dir, "twice")
    assert status == -signal.SIGINT, output
    assert "SAVING" in output
    assert "RESULT" not in output
