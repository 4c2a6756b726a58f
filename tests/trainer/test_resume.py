import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from resumed_run import STEPS, run
from safetensors.torch import load_file, save_file
from toys import TASKS, LetterEnv, SameEnv, make_trainer, sampled, settings

from llmgym import Task, read_episodes
from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn
from llmgym_trainer.data.task_stream import Mixture, TaskSource
from llmgym_trainer.errors import NonFiniteError, NoRewardVarianceError
from llmgym_trainer.runs.checkpoints import CheckpointError
from llmgym_trainer.runs.folder import RunFolder, RunFolderError, read_metrics
from llmgym_trainer.runs.interrupts import TrainingInterrupted
from llmgym_trainer.runs.state import RunState, find_checkpoint, set_aside
from llmgym_trainer.train import _base_model

SCRIPT = Path(__file__).with_name("resumed_run.py")
NOT_COMPARED = ("time/", "val/time", "step_time", "epoch")  # an epoch is num_steps here


def in_a_process(model_dir, runs_dir, where, how, seed):
    """Run the script; return its exit status."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(model_dir), str(runs_dir), where, how],
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def recorded(run_dir):
    """What was sampled, by file and place; everything but the times."""
    found = {}
    for path in sorted((run_dir / "episodes").glob("*.jsonl")):
        for number, episode in enumerate(read_episodes(path)):
            assert episode.stop_reason != "error"
            turns = [dataclasses.replace(turn, policy_s=0, env_s=0) for turn in episode.turns]
            found[path.name, number] = dataclasses.replace(episode, turns=turns, reset_s=0, provenance={})
            found[path.name, number].provenance = {
                key: episode.provenance.get(key) for key in ("step", "phase", "advantage", "trained")
            }
    return found


def lines(run_dir):
    return [{k: v for k, v in line.items() if not k.startswith(NOT_COMPARED)} for line in read_metrics(run_dir)]


@pytest.mark.slow
def test_six_steps_equal_three_and_three_more_after_kill_9(model_dir, tmp_path):
    assert in_a_process(model_dir, tmp_path, "rollout", "start", 1) == -signal.SIGKILL
    killed = tmp_path / "killed"
    assert not (killed / "checkpoint-6").exists()
    assert in_a_process(model_dir, tmp_path, "backward", "resume", 2) == -signal.SIGKILL
    assert in_a_process(model_dir, tmp_path, "nowhere", "resume", 3) == 0
    with sampled():
        whole = run(str(model_dir), str(tmp_path), "whole").run_dir

    left, right = recorded(whole), recorded(killed)
    assert left.keys() == right.keys()
    assert len({key for key in left if key[0].startswith("train")}) == STEPS * 12
    for key, episode in left.items():
        assert episode == right[key], key
    assert len({len(episode.turns) for episode in left.values()}) > 1
    assert lines(whole) == lines(killed)

    for name in ("checkpoint-3", "checkpoint-6"):
        weights, again = (load_file(path / name / "model.safetensors") for path in (whole, killed))
        for key in weights:
            torch.testing.assert_close(again[key], weights[key], atol=1e-6, rtol=0)
    before, after = (load_file(whole / name / "model.safetensors") for name in ("checkpoint-3", "checkpoint-6"))
    assert not torch.equal(before["model.norm.weight"], after["model.norm.weight"])
    # Both times the fifth step was under way: in its rollout, where nothing is recorded yet, and in its backward pass.
    aside = {path.relative_to(killed / "abandoned").as_posix() for path in (killed / "abandoned").rglob("*.jsonl")}
    assert aside == {
        *(f"{number}/{name}" for number in (1, 2) for name in ("metrics.jsonl", "episodes/train-000003.jsonl")),
        *(f"{number}/episodes/val-000003.jsonl" for number in (1, 2)),
        "2/episodes/train-000004.jsonl",
    }
    assert [line["step"] for line in read_metrics(killed / "abandoned/1")] == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("peft", [None, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")])
def test_a_finished_run_goes_on_when_it_gets_more_steps(model_dir, tmp_path, peft):
    def train(name, steps, resume=None):
        changes = {"run_name": name, "num_steps": steps, "deterministic": True, "lr_scheduler_type": "constant"}
        config = GRPOConfig(**settings(model_dir, tmp_path, **changes, resume_from_checkpoint=resume))
        with sampled():
            return train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv, peft_config=peft)

    whole, first = train("whole", 3), train("parts", 1)
    with pytest.raises(ConfigError, match="the run has done all its 1 steps; give a num_steps above that"):
        train("parts", 1, resume=str(first.run_dir))
    parts = train("parts", 3, resume=str(first.checkpoint))
    assert parts.run_dir == first.run_dir
    assert recorded(whole.run_dir) == recorded(parts.run_dir)
    assert lines(whole.run_dir) == lines(parts.run_dir)
    name = "adapter_model.safetensors" if peft else "model.safetensors"
    left, right = load_file(whole.checkpoint / name), load_file(parts.checkpoint / name)
    for key in left:
        torch.testing.assert_close(right[key], left[key], atol=1e-6, rtol=0)
    config = GRPOConfig.from_yaml(parts.run_dir / "config.yaml")
    assert (config.num_steps, config.resume_from_checkpoint) == (3, None)


def test_the_trainer_resumes_as_trl_does(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, num_steps=2, save_steps=1)
    trainer.train()
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    folder = trainer._reporter.folder
    (folder / "checkpoint-2").rename(tmp_path / "gone")
    trainer.train(resume_from_checkpoint=True)
    assert trainer.run_state.cursor == 4
    for name, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, weights[name], atol=1e-4, rtol=0)
    assert [line["step"] for line in read_metrics(folder)] == [1, 2]
    assert (folder / "abandoned/1/episodes/train-000001.jsonl").is_file()
    with pytest.raises(ConfigError, match="not in this run's folder"):
        make_trainer(model_dir, tmp_path).train(resume_from_checkpoint=str(folder))


def test_steps_in_a_row_are_counted_on(model_dir, tmp_path, monkeypatch):
    changes = {"num_steps": 6, "max_steps_without_variance": 4}
    trainer = make_trainer(model_dir, tmp_path, env=SameEnv, **changes)
    monkeypatch.setattr(trainer, "_check_variance", stop_when(trainer, lambda: trainer.state.global_step == 2))
    with pytest.raises(TrainingInterrupted):
        trainer.train()
    trainer.save_now()
    again = make_trainer(model_dir, tmp_path, env=SameEnv, **changes)
    again.args.output_dir = trainer.args.output_dir
    with pytest.raises(NoRewardVarianceError, match="in 4 steps in a row"):
        again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3  # two steps before, a third, and the fourth that ended it


def test_steps_without_finite_gradients_are_counted_on(model_dir, tmp_path, monkeypatch):
    monkeypatch.setattr("llmgym_trainer.trainer.weights_are_finite", lambda model: True)
    monkeypatch.setattr(torch.Tensor, "isfinite", lambda self: torch.zeros(self.shape, dtype=torch.bool))
    trainer = make_trainer(model_dir, tmp_path, num_steps=6)
    monkeypatch.setattr(trainer, "_check_variance", stop_when(trainer, lambda: trainer.state.global_step == 1))
    with pytest.raises(TrainingInterrupted):
        trainer.train()
    trainer.save_now()
    again = make_trainer(model_dir, tmp_path, num_steps=6)
    again.args.output_dir = trainer.args.output_dir
    with pytest.raises(NonFiniteError, match="3 steps in a row"):
        again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 2


def stop_when(trainer, now):
    """What a check at the end of a step does when a signal arrives there."""

    def check():
        if now():
            raise TrainingInterrupted

    return check


@pytest.mark.slow
@pytest.mark.parametrize(("later", "best"), [([0.5, 0.7], 1), ([0.5, 0.95], 4)])
def test_the_best_checkpoint_survives_a_resume(model_dir, tmp_path, monkeypatch, later, best):
    rewards = [0.2, 0.9, 0.4, *later]

    class Validated(LetterEnv):
        async def step(self, message):
            result = await super().step(message)
            if self.messages[0]["content"] == "val":
                result.reward = rewards[int(os.environ["LETTERS"])]
            return result

    class Noting(MultiTurnGRPOTrainer):
        def validate(self):
            os.environ["LETTERS"] = str(self.state.global_step)
            return super().validate()

    monkeypatch.setenv("LETTERS", "0")
    monkeypatch.setattr("llmgym_trainer.train.MultiTurnGRPOTrainer", Noting)
    monkeypatch.chdir(tmp_path)
    data = {"tasks": TASKS, "env_factory": Validated, "val_tasks": [Task("val")]}
    config = GRPOConfig(
        **settings(
            model_dir, "runs", run_name="a", num_steps=2, validation_interval=1, metric_for_best_model="val/reward",
            failed_parse_reward=0.0, max_completion_length=100, save_total_limit=2,
        )
    )  # fmt: skip
    assert train_multi_turn(config, **data).best_checkpoint == Path("runs/a/checkpoint-1")
    where = tmp_path / "runs" / "a"  # the same folder under another name
    result = train_multi_turn(config.replace(num_steps=4, resume_from_checkpoint=str(where)), **data)
    assert result.best_checkpoint == where / f"checkpoint-{best}"
    # The last one was written before the validation that may find it the best.
    assert sorted(path.name for path in where.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-4"]


@pytest.mark.slow
def test_metrics_between_two_lines_are_kept(model_dir, tmp_path, monkeypatch):
    def train(name, resume=None):
        changes = {"run_name": name, "num_steps": 4, "save_steps": 1, "logging_steps": 2, "deterministic": True}
        config = GRPOConfig(**settings(model_dir, tmp_path, **changes, resume_from_checkpoint=resume))
        return train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv).run_dir

    whole, parts = train("whole"), train("parts")
    assert [line["step"] for line in lines(whole)] == [2, 4]
    train("parts", str(parts / "checkpoint-3"))
    assert lines(parts) == lines(whole)

    with monkeypatch.context() as patch:  # a step that does not end takes nothing of the steps before with it
        backward = MultiTurnGRPOTrainer._backward

        def interrupted(self, *args):
            if self.state.global_step == 1:
                raise TrainingInterrupted
            return backward(self, *args)

        patch.setattr(MultiTurnGRPOTrainer, "_backward", interrupted)
        stopped = train("stopped")
    train("stopped", str(stopped))
    assert lines(stopped) == lines(whole)


def test_an_interrupted_last_validation_is_made_up_for(model_dir, tmp_path, monkeypatch):
    changes = {"run_name": "a", "num_steps": 1, "metric_for_best_model": "val/reward"}
    config = GRPOConfig(**settings(model_dir, tmp_path, **changes))
    data = {"tasks": TASKS, "env_factory": LetterEnv, "val_tasks": TASKS[:2]}
    with monkeypatch.context() as patch:
        validate = MultiTurnGRPOTrainer.validate

        def interrupted(self):
            if self.state.global_step == 1:
                raise TrainingInterrupted
            return validate(self)

        patch.setattr(MultiTurnGRPOTrainer, "validate", interrupted)
        first = train_multi_turn(config, **data)
    assert (first.interrupted, first.steps) == (True, 1)
    validated = [line["step"] for line in read_metrics(first.run_dir) if "val/reward" in line]
    assert validated == [0]
    again = config.replace(resume_from_checkpoint=str(first.run_dir))
    result = train_multi_turn(again, **data)
    found = {line["step"]: line["val/reward"] for line in read_metrics(first.run_dir) if "val/reward" in line}
    assert (list(found), result.interrupted, result.steps) == ([0, 1], False, 1)
    assert result.best_checkpoint == (first.checkpoint if found[1] > found[0] else None)
    with pytest.raises(ConfigError, match="the run has done all its 1 steps"):
        train_multi_turn(again, **data)


# A resume that fails leaves the run as it was.


class BrokenEnv(LetterEnv):
    async def reset(self, task):
        raise OSError("gone")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_that_cannot_be_loaded_changes_nothing(model_dir, tmp_path):
    config = GRPOConfig(**settings(model_dir, tmp_path, run_name="a", num_steps=2, save_steps=1))
    run = train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv).run_dir
    torch.save({"state": {}, "param_groups": []}, run / "checkpoint-1" / "optimizer.pt")  # of another model
    before = contents(run)
    again = config.replace(resume_from_checkpoint=str(run / "checkpoint-1"), learning_rate=1e-5)
    loaded = r"a/checkpoint-1' cannot be loaded: .*parameter group.* There is no earlier one"
    for env, error, text in [(LetterEnv, CheckpointError, loaded), (BrokenEnv, ConfigError, "gone")]:
        with pytest.raises(error, match=text):
            train_multi_turn(again, tasks=TASKS, env_factory=env)
        after = contents(run)
        assert after.keys() == before.keys()
        assert [name for name in before if name.name != "reward.png" and after[name] != before[name]] == []


def test_a_disk_that_is_full_when_a_run_goes_on(model_dir, tmp_path, monkeypatch):
    config = GRPOConfig(**settings(model_dir, tmp_path, run_name="a", num_steps=2, save_steps=1))
    run = train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv).run_dir

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = (run / "config.yaml").read_text()
    monkeypatch.setattr("llmgym._util.files.os.replace", full)
    again = config.replace(resume_from_checkpoint=str(run / "checkpoint-1"), num_steps=3)
    with pytest.raises(RunFolderError, match=r"No space left.*MiB are free there. Free some space, then resume"):
        train_multi_turn(again, tasks=TASKS, env_factory=LetterEnv)
    assert (run / "config.yaml").read_text() == before
    assert not [*run.glob("*.tmp"), *run.glob("abandoned")]
    with pytest.raises(RunFolderError, match=r"No space left on device.*MiB are free"):
        train_multi_turn(config.replace(run_name="b"), tasks=TASKS, env_factory=LetterEnv)
    assert not (tmp_path / "b").exists()


# What cannot be resumed, found before a model loads.

STATE = dataclasses.replace(RunState.start(TASKS, {}, 2, 1), step=3, logged_step=3, cursor=6, trained_steps=3)


@pytest.fixture
def stopped(tmp_path):
    """Folder of a run that was stopped after its third step."""
    run = tmp_path / "a"
    (run / "checkpoint-3").mkdir(parents=True)
    (run / "episodes").mkdir()
    GRPOConfig(**settings("/nowhere/model", tmp_path, num_steps=6, seed=3)).to_yaml(run / "config.yaml")
    fill(run / "checkpoint-3")
    return run


def fill(checkpoint, state=STATE):
    """Write the files that a checkpoint has, of next to nothing."""
    checkpoint.mkdir(exist_ok=True)
    state.save(checkpoint)
    for name in ("llmgym.json", "trainer_state.json"):
        (checkpoint / name).write_text("{}")
    save_file({"a": torch.zeros(1)}, checkpoint / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({}, checkpoint / name)


@pytest.mark.parametrize(
    ("changes", "tasks", "text"),
    [
        ({"seed": 4}, TASKS, "seed=4 cannot change when a run is resumed; it began with seed=3"),
        ({"model": "tiny"}, TASKS, "model='tiny' cannot change"),
        ({"num_steps": 3}, TASKS, "has done all its 3 steps"),
        ({}, TASKS[::-1], r"the training tasks are not those of the run .*, or are in another order"),
        (
            {},
            [Task(t.prompt, "x", id=t.id) for t in TASKS],
            "training tasks are not .*a prompt, target, metadata or id",
        ),
        ({}, TASKS[:7], "the training tasks are not those of the run"),
    ],
)
def test_what_must_stay_the_same(stopped, changes, tasks, text):
    config = GRPOConfig.from_yaml(stopped / "config.yaml", resume_from_checkpoint=str(stopped), **changes)
    with pytest.raises(ConfigError, match=text):
        train_multi_turn(config, tasks=tasks, env_factory=LetterEnv)


def test_two_processes_never_train_in_one_folder(stopped):
    config = GRPOConfig.from_yaml(stopped / "config.yaml", resume_from_checkpoint=str(stopped))
    running = r"a training run in '.*/a' is running; wait until it has ended, or stop"
    with RunFolder(stopped).locked(), pytest.raises(ConfigError, match=running):
        train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv)
    with pytest.raises(ConfigError, match="no model directory"):  # given back: it goes as far as it can
        train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv)


def test_a_run_holds_its_folder_to_the_end(model_dir, tmp_path):
    held = []

    class AskingEnv(LetterEnv):
        async def reset(self, task):
            try:
                with RunFolder(tmp_path / "a").locked():
                    held.append(False)
            except ConfigError:
                held.append(True)
            return await super().reset(task)

    config = GRPOConfig(**settings(model_dir, tmp_path, run_name="a"))
    train_multi_turn(config, tasks=TASKS, env_factory=AskingEnv)
    assert held == [True] * (1 + 8)  # one before the model loads
    again = config.replace(num_steps=2, resume_from_checkpoint=str(tmp_path / "a"))
    train_multi_turn(again, tasks=TASKS, env_factory=AskingEnv)
    assert held == [True] * (1 + 8) * 2
    with RunFolder(tmp_path / "a").locked():
        pass


def test_an_adapter_must_stay_one(stopped):
    config = GRPOConfig.from_yaml(stopped / "config.yaml", resume_from_checkpoint=str(stopped))
    with pytest.raises(ConfigError, match=r"holds all weights, not an adapter.*without peft_config"):
        train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv, peft_config=LoraConfig())
    checkpoint = stopped / "checkpoint-3"
    (checkpoint / "adapter_config.json").touch()
    (checkpoint / "model.safetensors").rename(checkpoint / "adapter_model.safetensors")
    with pytest.raises(ConfigError, match=r"holds an adapter; resume it with peft_config \(--lora\)"):
        train_multi_turn(config, tasks=TASKS, env_factory=LetterEnv)


def test_what_the_model_stood_for_when_the_run_began(tmp_path, monkeypatch):
    folder, config = RunFolder.create(tmp_path, "run"), GRPOConfig(model="runs/other")
    meant = tmp_path / "checkpoint-1"
    monkeypatch.setattr("llmgym_trainer.train.resolve_model", lambda *args: str(meant))
    meant.mkdir()
    assert _base_model(config, folder, "") == str(tmp_path / "checkpoint-1")
    meant = tmp_path / "checkpoint-2"
    assert _base_model(config, folder, "") == str(tmp_path / "checkpoint-1")
    (tmp_path / "checkpoint-1").rmdir()
    assert _base_model(config, folder, "") == str(tmp_path / "checkpoint-2")


def test_the_number_of_processes_must_stay_the_same():
    with pytest.raises(ConfigError, match="trained on 1 processes, so it cannot be resumed on 2"):
        STATE.check_same_run(RunState.start(TASKS, {}, 2, 2))


@pytest.mark.parametrize(
    ("again", "text"),
    [
        ({"b": {"weight": 3.0}}, r"environment 'b' has .* \[3.0, 0, None\], but \[2.0, 0, None\] in the run"),
        ({"a": {"until_step": 7}}, r"environment 'a' has .* \[1.0, 0, 7\], but \[1.0, 0, None\] in the run"),
    ],
)
def test_the_shares_of_a_mixture_must_stay_the_same(stopped, again, text):
    def mixture(changes):
        names = {"a": {}, "b": {"weight": 2.0}}
        return [TaskSource(name, TASKS, LetterEnv, **given | changes.get(name, {})) for name, given in names.items()]

    run = Mixture(mixture({}))
    dataclasses.replace(RunState.start(run.tasks, run.shares, 2, 1), step=3).save(stopped / "checkpoint-3")
    config = GRPOConfig.from_yaml(stopped / "config.yaml", resume_from_checkpoint=str(stopped))
    with pytest.raises(ConfigError, match=text):
        train_multi_turn(config, sources=mixture(again))
    with pytest.raises(ConfigError, match="no model directory"):  # the same shares are none to refuse
        train_multi_turn(config, sources=mixture({}))


def test_the_steps_of_a_mixture_must_stay_the_same():
    shares = {"a": [1.0, 0, 5], "b": [1.0, 5, None]}
    state = RunState.start(TASKS, shares, 2, 1)
    state.check_same_run(RunState.start(TASKS, shares, 2, 1))
    with pytest.raises(ConfigError, match=r"batch_size=4 cannot change .*it began with batch_size=2"):
        state.check_same_run(RunState.start(TASKS, shares, 4, 1))
    STATE.check_same_run(RunState.start(TASKS, {}, 4, 1))


def test_what_to_resume(stopped, tmp_path):
    assert find_checkpoint(stopped) == find_checkpoint(stopped / "checkpoint-3") == stopped / "checkpoint-3"
    fill(stopped / "checkpoint-20")
    assert find_checkpoint(stopped) == stopped / "checkpoint-20"
    with pytest.raises(ConfigError, match=r"no run folder '.*nowhere' to resume"):
        find_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no checkpoint"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["llmgym.json", "optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_checkpoint_without_one_of_its_files(stopped, name):
    fill(stopped / "checkpoint-20")
    (stopped / "checkpoint-20" / name).unlink()
    earlier = r"Resume an earlier one: llmgym train --resume \S+a/checkpoint-3"
    new = r"or start a new run from its weights with --model \S+checkpoint-20$"
    with pytest.raises(ConfigError, match=rf"checkpoint-20' cannot be resumed: it has no {name}\. {earlier}, {new}"):
        find_checkpoint(stopped)
    shutil.rmtree(stopped / "checkpoint-3")
    with pytest.raises(ConfigError, match=rf"it has no {name}\. There is no earlier one"):
        find_checkpoint(stopped)


@pytest.mark.parametrize("content", [None, "", "[1]", "{}", '{"color": 1}', json.dumps(vars(STATE))[:-9]])
def test_a_state_that_cannot_be_read(stopped, content):
    path = stopped / "checkpoint-3" / "run_state.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"its run_state\.json is missing, broken or of another version of llmgym"):
        find_checkpoint(stopped)


def test_a_state_is_read_as_it_was_saved(tmp_path):
    state = dataclasses.replace(
        STATE, validated_at=2, unlogged={"reward": [0.5, float("inf")]}, mixture={"a": [1.0, 0, None]}
    )
    state.save(tmp_path)
    assert RunState.load(tmp_path) == state
    assert RunState.load(tmp_path).unlogged["new"] == []  # TRL appends to it


# What moves to abandoned/.


@pytest.mark.parametrize("validated", [False, True])
def test_set_aside(stopped, validated):
    names = ["train-000002", "train-000003", "train-000003-rank1", "train-000011", "val-000002", "val-000003"]
    for name in names:
        (stopped / "episodes" / f"{name}.jsonl").write_text(name)
    (stopped / "metrics.jsonl").write_text("one\ntwo\ncut sho")
    for name in ("checkpoint-2", "checkpoint-6", "checkpoint.partial"):
        (stopped / name).mkdir()
    state = dataclasses.replace(STATE, metrics_bytes=4, validated_at=3 if validated else 0)
    assert set_aside(stopped, state) == stopped / "abandoned" / "1"

    kept = ["train-000002.jsonl", "val-000002.jsonl"] + ["val-000003.jsonl"] * validated
    assert sorted(path.name for path in (stopped / "episodes").iterdir()) == kept
    assert sorted(path.name for path in (stopped / "abandoned/1/episodes").iterdir()) == sorted(
        {f"{name}.jsonl" for name in names} - set(kept)
    )
    assert (stopped / "abandoned/1/episodes/train-000011.jsonl").read_text() == "train-000011"
    assert (stopped / "metrics.jsonl").read_text() == "one\n"
    assert (stopped / "abandoned/1/metrics.jsonl").read_text() == "two\ncut sho"
    assert sorted(path.name for path in stopped.glob("checkpoint*")) == ["checkpoint-2", "checkpoint-3"]
    assert (stopped / "abandoned/1/checkpoint-6").is_dir()

    assert set_aside(stopped, state) is None
    (stopped / "episodes" / "train-000003.jsonl").write_text("again")
    assert set_aside(stopped, state) == stopped / "abandoned" / "2"
