import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from llmgym_trainer.interrupts import StopRequest, TrainingInterrupted

HERE = Path(__file__).parent


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_takes_effect_at_the_next_check(capsys):
    stop = StopRequest()
    with stop.on_ctrl_c():
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
    with stop.on_ctrl_c(), pytest.raises(TrainingInterrupted), stop.waiting():
        after.append(interrupt())
    assert after == []


def test_the_second_ctrl_c_is_a_keyboard_interrupt():
    stop = StopRequest()
    with stop.on_ctrl_c():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_the_handler_of_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with StopRequest().on_ctrl_c():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_nothing_is_handled():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with StopRequest().on_ctrl_c():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


# A whole run.

SCRIPT = """
import asyncio, pathlib, sys, time
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from toys import TASKS, LetterEnv, settings
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn

WHERE = {where!r}

class Env(LetterEnv):
    made = 0

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
            await asyncio.sleep(2)
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


@pytest.mark.parametrize("where", ["rollout", "backward"])
def test_ctrl_c_saves_the_last_whole_step_and_says_where(tmp_path, model_dir, where):
    status, output = run_and_interrupt(tmp_path, model_dir, where)
    assert status == 0, output
    checkpoint = Path("runs/a/checkpoint-1")
    assert f"stopped after step 1; saved {checkpoint}" in output
    assert re.search(f"RESULT 1 True {checkpoint}", output)
    from llmgym_trainer.models import load_model

    load_model(str(tmp_path / checkpoint), dtype=None)
    assert len((tmp_path / "runs/a/metrics.jsonl").read_text().splitlines()) == 1
    assert (tmp_path / "runs/a/reward.png").is_file()
    # Every environment of the second step was closed, also those that the interruption found at work.
    assert (tmp_path / "closed.txt").read_text() == "x" * 8


def test_a_second_ctrl_c_quits(tmp_path, model_dir):
    status, output = run_and_interrupt(tmp_path, model_dir, "twice")
    assert status == -signal.SIGINT, output
    assert "SAVING" in output
    assert "RESULT" not in output
