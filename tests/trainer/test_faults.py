"""Each fault is injected into a run that works; the run goes on, or stops with the reason, and nothing is lost."""

import copy
import time
from collections import Counter

import pytest
import torch
from fatal_tools import die
from toys import TASKS, LetterEnv, TalkEnv, make_trainer, sampled, settings

import llmgym.records
from llmgym import StepResult, Task, read_episodes
from llmgym._util.aio import run_in_daemon_thread
from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig, train_multi_turn
from llmgym_trainer.errors import NonFiniteError, OutOfMemoryError, RuinedWeightsError, TooManyErrorsError
from llmgym_trainer.runs.folder import RunFolderError, read_metrics
from llmgym_trainer.trainer import MAX_NON_FINITE_STEPS


def train(model_dir, tmp_path, env=LetterEnv, resume=False, **changes):
    config = GRPOConfig(
        **settings(model_dir, tmp_path, run_name="a", resume_from_checkpoint=str(tmp_path / "a") if resume else None)
        | {"num_steps": 2, **changes}
    )
    return train_multi_turn(config, tasks=TASKS, env_factory=env)


def records(run_dir, step):
    return read_episodes(run_dir / "episodes" / f"train-{step:06d}.jsonl")


# Faults of environments. Two of the first environments of a run have them; their episodes are tried again.


NONE_YET = -1
"""Environments made before a run begins, which tries one before its model loads."""


class FaultyEnv(TalkEnv):
    made = NONE_YET

    def __init__(self):
        type(self).made += 1
        self.faulty = type(self).made in (1, 3)  # not 2, which may be the second try of the first episode

    async def fault(self):
        """Misbehave."""


class ResetRaises(FaultyEnv):
    async def reset(self, task):
        if self.faulty:
            raise OSError("the database is gone")
        return await super().reset(task)


class StepRaises(FaultyEnv):
    async def step(self, message):
        if self.faulty and len(self.messages) > 1:
            raise OSError("the database is gone")
        return await super().step(message)


class ScoreIsNan(FaultyEnv):
    async def step(self, message):
        result = await super().step(message)
        return StepResult(True, False, result.messages, float("nan")) if self.faulty else result


class CloseRaises(FaultyEnv):
    async def close(self):
        if self.faulty:
            raise OSError("the database is gone")


class ToolHangs(FaultyEnv):
    async def step(self, message):
        if self.faulty:
            await run_in_daemon_thread(lambda: time.sleep(30))
        return await super().step(message)


class ToolFloods(FaultyEnv):
    async def step(self, message):
        result = await super().step(message)
        if self.faulty:
            result.messages.append({"role": "user", "content": "flood " * 20_000})
        return result


class ToolKillsItsProcess(FaultyEnv):
    async def step(self, message):
        if self.faulty and len(self.messages) == 1:
            await die.execute("{}")
        return await super().step(message)


@pytest.mark.parametrize(
    ("env", "reason", "detail", "retried"),
    [
        (ResetRaises, "error", "reset raised OSError: the database is gone", True),
        (StepRaises, "error", "step raised OSError: the database is gone", True),
        (ScoreIsNan, "error", "StepResult.reward must be a finite number, got nan", True),
        (CloseRaises, "terminated", "", False),
        pytest.param(ToolHangs, "timeout", "step exceeded env_timeout_s=3.0", False, marks=pytest.mark.slow),
        (ToolFloods, "context_overflow", "max_model_length=160", False),
        (ToolKillsItsProcess, "error", "the tool's process died (SIGKILL)", True),
    ],
)
def test_the_run_goes_on_and_every_episode_is_recorded(model_dir, tmp_path, env, reason, detail, retried):
    env.made = NONE_YET
    result = train(model_dir, tmp_path, env, **({"env_timeout_s": 3.0} if env is ToolHangs else {}))
    assert result.steps == 2
    first, second = records(result.run_dir, 0), records(result.run_dir, 1)
    assert (len(first), len(second)) == (8 + 2 * retried, 8)
    hit = [e for e in first if detail and detail in e.stop_detail] or [e for e in first if e.close_error]
    assert [e.stop_reason for e in hit] == [reason] * 2
    assert [e.stop_reason for e in first if e not in hit] == ["terminated"] * 8 if retried else ["terminated"] * 6
    assert (hit[0].close_error is not None) == (env is CloseRaises)
    names = Counter((e.task.id, e.episode_index, e.provenance["attempt"]) for e in first)
    assert set(names.values()) == {1}
    steps = read_metrics(result.run_dir)
    assert [line["trained_tokens"] > 0 for line in steps] == [True, True]
    assert steps[0]["error_ratio"] == (2 / 10 if retried else 0)


def test_a_whole_batch_that_failed_ends_the_run_with_the_reason_and_its_last_whole_step(model_dir, tmp_path, capsys):
    class Outage(LetterEnv):
        made = NONE_YET
        over = False

        async def reset(self, task):
            Outage.made += 1
            if Outage.made > 8 and not Outage.over:
                raise OSError("the database is gone")
            return await super().reset(task)

    with pytest.raises(TooManyErrorsError, match=r"100% of the episodes of step 1 failed.*the database is gone"):
        train(model_dir, tmp_path, Outage, num_steps=3)
    saved = tmp_path / "a" / "checkpoint-1"
    assert f"training stops with an error after step 1; saved {saved}" in capsys.readouterr().out
    assert len(records(tmp_path / "a", 1)) == 16
    Outage.over = True
    assert train(model_dir, tmp_path, Outage, num_steps=3, resume=True).steps == 3
    assert [line["step"] for line in read_metrics(tmp_path / "a")] == [1, 2, 3]
    assert {e.stop_reason for e in records(tmp_path / "a", 1)} == {"terminated"}


def test_a_whole_batch_that_failed_is_a_skipped_step_where_that_is_allowed(model_dir, tmp_path):
    class Outage(LetterEnv):
        made = NONE_YET

        async def reset(self, task):
            Outage.made += 1
            if 1 <= Outage.made <= 16:
                raise OSError("the database is gone")
            return await super().reset(task)

    result = train(model_dir, tmp_path, Outage, max_error_share=1.0)
    assert [line["step_skipped"] for line in read_metrics(result.run_dir)] == [1, 0]


class ValidationOutage(LetterEnv):
    """Of four validation episodes of each validation, ``failing`` cannot begin; those of training always can."""

    failing = 4

    async def reset(self, task):
        if task.prompt in [f"validate {number}" for number in range(self.failing)]:
            raise OSError("the database is gone")
        return await super().reset(task)


class TwoOfFour(ValidationOutage):
    failing = 2


VAL_TASKS = [Task(f"validate {number}") for number in range(4)]


@pytest.mark.parametrize("metric", [None, "val/reward"])
def test_a_validation_that_failed_whole_ends_the_run_with_the_reason(model_dir, tmp_path, metric):
    trainer = make_trainer(model_dir, tmp_path, ValidationOutage, val_tasks=VAL_TASKS, metric_for_best_model=metric)
    with pytest.raises(TooManyErrorsError, match=r"100% of the validation episodes of step 0 .*the database is gone"):
        trainer.train()
    assert len(read_episodes(trainer._reporter.folder / "episodes" / "val-000000.jsonl")) == 8


@pytest.mark.parametrize(("env", "allowed"), [(TwoOfFour, 0.7), (ValidationOutage, 1.0)])
def test_a_validation_with_fewer_failures_than_allowed_goes_on(model_dir, tmp_path, env, allowed):
    trainer = make_trainer(
        model_dir, tmp_path, env, val_tasks=VAL_TASKS, metric_for_best_model="val/reward", max_error_share=allowed
    )
    trainer.train()
    validations = [line for line in read_metrics(trainer._reporter.folder) if "val/error_ratio" in line]
    assert [line["val/error_ratio"] for line in validations] == [2 * env.failing / (4 + env.failing)] * 2
    assert ["val/reward" in line for line in validations] == [env is TwoOfFour] * 2


@pytest.mark.parametrize(("before", "batch_size"), [(0, 1), (1, 2)])
def test_prompts_that_are_too_long_are_found_in_the_first_step_that_runs(model_dir, tmp_path, before, batch_size):
    if before:
        train(model_dir, tmp_path, num_steps=before)
    with pytest.raises(ConfigError, match=rf"no episode of step {before} had room for a turn: .*max_model_length=20"):
        train(model_dir, tmp_path, resume=before > 0, batch_size=batch_size, max_model_length=20)


# Faults of the engine.


def hooked(model_dir, tmp_path, hook, env=TalkEnv, **changes):
    """A trainer whose model calls ``hook(number of the sampling forward pass, output)``, which may change it."""
    with sampled():
        trainer = make_trainer(model_dir, tmp_path, env=env, **{"num_steps": 2, **changes})
    count = 0

    def on_forward(module, args, output):
        nonlocal count
        if not module.training:
            count += 1
            hook(count, output)

    trainer.model.register_forward_hook(on_forward)
    return trainer


def test_an_engine_that_dies_in_mid_rollout_and_comes_back(model_dir, tmp_path):
    def die_once(number, output):
        if number == 4:
            raise RuntimeError("device lost")

    trainer = hooked(model_dir, tmp_path, die_once)
    trainer.train()
    first = records(trainer._reporter.folder, 0)
    failed = [e for e in first if e.stop_reason == "error"]
    assert failed
    assert all("policy.act raised RuntimeError: device lost" in e.stop_detail for e in failed)
    assert len(first) == 8 + len(failed)
    assert trainer.engine._kept == {} and trainer.engine._live == set()
    assert [line["trained_tokens"] > 0 for line in read_metrics(trainer._reporter.folder)] == [True, True]


def test_an_engine_that_stays_dead(model_dir, tmp_path):
    def die(number, output):
        if number >= 4:
            raise RuntimeError("device lost")

    trainer = hooked(model_dir, tmp_path, die)
    with pytest.raises(TooManyErrorsError, match="device lost"):
        trainer.train()


@pytest.mark.parametrize("always", [False, True])
def test_logprobs_that_are_nan(model_dir, tmp_path, always):
    def spoil(number, output):
        if number == 2 or (always and number > 2):
            output.logits[0] = float("nan")

    trainer = hooked(model_dir, tmp_path, spoil, max_error_share=0.1 if always else 0.5)
    reason = "the logprob of sampled token 0 is nan, not a finite number"
    if always:
        with pytest.raises(TooManyErrorsError, match=reason):
            trainer.train()
        return
    trainer.train()
    failed = [e for e in records(trainer._reporter.folder, 0) if e.stop_reason == "error"]
    assert [reason in e.stop_detail for e in failed] == [True] * len(failed) != []
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


# Faults of the training step.


def spoil_the_loss(trainer, monkeypatch, steps):
    compute = type(trainer).compute_loss

    def spoiled(self, *args, **kwargs):
        return compute(self, *args, **kwargs) * (float("nan") if self.state.global_step in steps else 1.0)

    monkeypatch.setattr(type(trainer), "compute_loss", spoiled)


def test_gradients_that_are_not_finite_move_nothing(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path, num_steps=3, weight_decay=0.1)
    spoil_the_loss(trainer, monkeypatch, {1})
    seen = []

    def note(optimizer, args, kwargs):
        seen.append(copy.deepcopy((trainer.model.state_dict(), optimizer.state_dict()["state"])))

    create = type(trainer).create_optimizer

    def create_and_watch(self, *args, **kwargs):
        optimizer = create(self, *args, **kwargs)
        optimizer.register_step_post_hook(note)
        return optimizer

    monkeypatch.setattr(type(trainer), "create_optimizer", create_and_watch)
    trainer.train()
    for name, value in seen[0][0].items():
        assert torch.equal(value, seen[1][0][name]), name
    for key, state in seen[0][1].items():
        for name, value in state.items():
            assert torch.equal(value, seen[1][1][key][name]), (key, name)
    assert not torch.equal(seen[1][0]["model.norm.weight"], seen[2][0]["model.norm.weight"])
    lines = read_metrics(trainer._reporter.folder)
    assert [line["non_finite_gradients"] for line in lines] == [0, 1, 0]


def test_gradients_that_stay_not_finite_end_the_run_with_good_weights(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path, num_steps=9)
    spoil_the_loss(trainer, monkeypatch, range(2, 9))
    with pytest.raises(
        NonFiniteError, match=r"3 steps in a row.*The weights are still those before: lower learning_rate"
    ):
        trainer.train()
    assert trainer.state.global_step == 2 + MAX_NON_FINITE_STEPS - 1
    assert (trainer._reporter.folder / "checkpoint-4").is_dir()
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_weights_that_are_not_finite_are_not_saved_and_the_last_good_checkpoint_stays(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path, num_steps=9, save_steps=1)
    create = type(trainer).create_optimizer

    def create_and_spoil(self, *args, **kwargs):
        def spoil(optimizer, args, kwargs):
            if self.state.global_step == 2:  # in the third step
                self.model.model.norm.weight.data[3] = float("inf")

        optimizer = create(self, *args, **kwargs)
        optimizer.register_step_post_hook(spoil)
        return optimizer

    monkeypatch.setattr(type(trainer), "create_optimizer", create_and_spoil)
    with pytest.raises(RuinedWeightsError, match=r"after step 3, most likely because learning_rate=0\.001 is too high"):
        trainer.train()
    assert sorted(path.name for path in trainer._reporter.folder.glob("checkpoint*")) == [
        "checkpoint-1",
        "checkpoint-2",
    ]


def test_a_sampler_that_gives_nan_for_everything_after_a_step_blames_the_learning_rate(model_dir, tmp_path, capsys):
    def spoil(number, output):
        if trainer.state.global_step == 1:
            output.logits[:] = float("nan")

    trainer = hooked(model_dir, tmp_path, spoil, max_grad_norm=0.0)
    with pytest.raises(RuinedWeightsError, match=r"NaN after step 1, .*learning_rate=0\.001 .*\(max_grad_norm=0\)"):
        trainer.train()
    assert not list(trainer._reporter.folder.glob("checkpoint*"))
    assert "--resume" not in capsys.readouterr().out


def big_allocation():
    torch.empty(2**60, dtype=torch.uint8)


def as_on_cuda():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize("allocate", [big_allocation, as_on_cuda])
def test_out_of_memory_in_the_training_step_names_the_knob(model_dir, tmp_path, monkeypatch, allocate):
    trainer = make_trainer(model_dir, tmp_path, num_steps=3, micro_batch_tokens=1000)
    compute = type(trainer).compute_loss

    def hungry(self, *args, **kwargs):
        if self.state.global_step == 1:
            allocate()
        return compute(self, *args, **kwargs)

    monkeypatch.setattr(type(trainer), "compute_loss", hungry)
    with pytest.raises(OutOfMemoryError, match=r"micro_batch_tokens=1000\): lower micro_batch_tokens, such as to 500;"):
        trainer.train()
    assert (trainer._reporter.folder / "checkpoint-1").is_dir()
    assert len(records(trainer._reporter.folder, 1)) == 8


def test_out_of_memory_of_a_single_row_names_another_knob(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path, micro_batch_tokens=1)
    monkeypatch.setattr(type(trainer), "compute_loss", lambda *args, **kwargs: big_allocation())
    with pytest.raises(OutOfMemoryError, match=r"of 1 rows of .*lower max_model_length, for no row is cut"):
        trainer.train()


def test_other_errors_of_the_training_step_stay_what_they_are(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path)

    def broken(*args, **kwargs):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(type(trainer), "compute_loss", broken)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        trainer.train()


# A full disk: what /dev/full says.


def test_a_disk_that_is_full_while_episodes_are_written(model_dir, tmp_path, monkeypatch):
    class Filling(LetterEnv):
        steps = 0

        async def step(self, message):
            Filling.steps += 1
            if Filling.steps == 9:
                (tmp_path / "a" / "episodes" / "train-000001.jsonl").symlink_to("/dev/full")
            return await super().step(message)

    monkeypatch.setattr(
        llmgym.records.EpisodeWriter, "_repair", lambda self: None
    )  # it would read /dev/full to its end
    with pytest.raises(RunFolderError, match=r"cannot write the records.*No space left.*--resume .*/a"):
        train(model_dir, tmp_path, Filling, num_steps=3)
    monkeypatch.undo()
    assert len(records(tmp_path / "a", 0)) == 8
    assert (tmp_path / "a" / "reward.png").is_file()

    assert train(model_dir, tmp_path, Filling, num_steps=3, resume=True).steps == 3
    assert [line["step"] for line in read_metrics(tmp_path / "a")] == [1, 2, 3]
    assert [len(records(tmp_path / "a", step)) for step in range(3)] == [8, 8, 8]


def test_a_disk_that_is_full_while_metrics_are_written(model_dir, tmp_path):
    class Filling(LetterEnv):
        async def step(self, message):
            path = tmp_path / "a" / "metrics.jsonl"
            if not path.is_symlink():
                path.symlink_to("/dev/full")
            return await super().step(message)

    with pytest.raises(RunFolderError, match="No space left"):
        train(model_dir, tmp_path, Filling)
    assert len(records(tmp_path / "a", 0)) == 8
