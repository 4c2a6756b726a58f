import copy
import hashlib
import inspect
import statistics

import pytest
import torch
import transformers
import trl
from peft import LoraConfig, get_peft_model
from toys import TASKS, LetterEnv, SameEnv, TalkEnv, full_logps, make_trainer, sampled, say_letters, scripted

from llmgym import StepResult, StopReason, Task
from llmgym.errors import ConfigError
from llmgym_trainer.algorithm.advantages import STD_EPSILON
from llmgym_trainer.algorithm.rows import build_rows
from llmgym_trainer.errors import NoRewardVarianceError, TooManyErrorsError
from llmgym_trainer.metrics import VALIDATION_METRICS
from llmgym_trainer.models.load import load_model
from llmgym_trainer.runs.folder import read_metrics

DIFFERENCE = "sampling/sampling_logp_difference/max"


def logged(trainer, name):
    return trainer._metrics["train"][name][-1]


def snapshot(trainer):
    return copy.deepcopy((trainer.model.state_dict(), trainer.optimizer.state_dict()["state"]))


def assert_same(a, b):
    for (name, left), right in zip(a[0].items(), b[0].values(), strict=True):
        assert torch.equal(left, right), name
    assert a[1].keys() == b[1].keys()
    for key in a[1]:
        for name, left in a[1][key].items():
            assert torch.equal(left, b[1][key][name]), (key, name)


# Fidelity: the training forward sees what the sampler saw.


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_training_and_sampling_logprobs_agree_through_a_multi_turn_batch(model_dir, tmp_path, temperature):
    with sampled():
        trainer = make_trainer(model_dir, tmp_path, env=TalkEnv, temperature=temperature, micro_batch_tokens=400)
    rows = trainer._rows(trainer.sampler.sample(0))
    # Three turns stand in one row, so what is trained is cut by context twice.
    assert max("".join(map(str, r.row.mask)).strip("0").count("01") for r in rows) == 2
    trainer._backward(trainer.model, rows)
    assert logged(trainer, DIFFERENCE) < 1e-3
    assert logged(trainer, "trained_tokens") == sum(r.row.num_trained for r in rows)

    spot = rows[-1].row.mask.index(1)
    rows[-1].row.logprobs[spot] += 0.01
    trainer._backward(trainer.model, rows)
    assert logged(trainer, DIFFERENCE) > 5e-3
    rows[-1].row.logprobs[spot] -= 0.01

    rows[-1].row.mask = [0, *rows[-1].row.mask[:-1]]
    trainer._backward(trainer.model, rows)
    assert logged(trainer, DIFFERENCE) > 1e-3


def test_rows_hold_the_sampled_tokens_of_every_turn(model_dir, tmp_path):
    with sampled():
        trainer = make_trainer(model_dir, tmp_path, env=TalkEnv)
    for group in trainer.sampler.sample(0):
        for episode in group.episodes:
            (row,) = build_rows(episode)
            completions = [token for turn in episode.turns for token in turn.tokens.completion_ids]
            assert [token for token, bit in zip(row.ids, row.mask, strict=True) if bit] == completions
            expected = full_logps(trainer.model, row.ids)
            for index, bit in enumerate(row.mask):
                assert not bit or abs(row.logprobs[index] - expected[index - 1].item()) < 1e-4


# Groups without reward variance.


def count_forwards(trainer):
    calls = []
    trainer.model.register_forward_pre_hook(lambda *args: calls.append(1) if trainer.model.training else None)
    return calls


class MixedEnv(LetterEnv):
    """The same reward for all episodes of one task, different ones on the others."""

    async def step(self, message):
        result = await super().step(message)
        return StepResult(True, False, result.messages, 0.5 if "amber" in str(result.messages[0]) else result.reward)


def test_groups_without_reward_variance_cost_nothing_and_leave_the_denominator(model_dir, tmp_path):
    amber_and_cobalt = TASKS[:2]
    trainer = make_trainer(model_dir, tmp_path, env=MixedEnv, tasks=amber_and_cobalt, loss_type="dapo")
    groups = trainer.sampler.sample(0)
    rows = trainer._rows(groups)
    differing = [group for group in groups if group.task.prompt != "say amber"]
    assert len(differing) == 1
    assert len(rows) == 4
    assert logged(trainer, "frac_reward_zero_std") == 0.5
    calls = count_forwards(trainer)
    trainer._backward(trainer.model, rows)
    assert len(calls) == 1
    assert logged(trainer, "trained_tokens") == sum(e.num_sampled_tokens for e in differing[0].episodes)


def test_a_step_without_reward_variance_leaves_weights_and_optimizer_as_they_are(model_dir, tmp_path):
    snapshots = []

    class FirstStepOnly(LetterEnv):
        async def step(self, message):
            result = await super().step(message)
            if trainer.state.global_step > 0:
                result.reward = 0.5
            return result

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            snapshots.append(snapshot(trainer))

    trainer = make_trainer(model_dir, tmp_path, env=FirstStepOnly, num_steps=3, weight_decay=0.1)
    trainer.add_callback(Watch())
    calls = count_forwards(trainer)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    assert len(calls) == 1
    assert not torch.equal(before["lm_head.weight"], snapshots[0][0]["lm_head.weight"])
    assert snapshots[0][1]  # AdamW has a state that a step without gradients could still move
    assert_same(snapshots[0], snapshots[1])
    assert_same(snapshots[0], snapshots[2])
    skipped = [m["step_skipped"] for m in read_metrics(trainer._reporter.folder) if "step_skipped" in m]
    assert skipped == [0, 1, 1]


@pytest.mark.parametrize("peft", [None, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")])
def test_a_kl_term_trains_on_groups_without_reward_variance_too(model_dir, tmp_path, peft):
    trainer = make_trainer(model_dir, tmp_path, env=SameEnv, beta=0.5, peft_config=peft)
    rows = trainer._rows(trainer.sampler.sample(0))
    assert [r.advantages for r in rows] == [[0.0]] * 8
    trainer._backward(trainer.model, rows)
    assert logged(trainer, "trained_tokens") == sum(r.row.num_trained for r in rows)
    assert logged(trainer, "kl") == pytest.approx(0, abs=1e-6)
    with torch.no_grad():  # away from the reference
        for name, parameter in trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
            elif peft is None and "norm" in name:
                parameter.mul_(1.3)
    trainer._backward(trainer.model, rows)
    assert logged(trainer, "kl") > 1e-3
    assert max(p.grad.abs().max() for p in trainer.model.parameters() if p.grad is not None) > 1e-4


def test_the_reference_of_a_merged_adapter_is_the_merged_model(model_dir, tmp_path):
    base, tokenizer = load_model(str(model_dir), dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer.save_pretrained(tmp_path / "adapter")
    trainer = make_trainer(tmp_path / "adapter", tmp_path, beta=0.5)
    trainer._backward(trainer.model, trainer._rows(trainer.sampler.sample(0)))
    assert logged(trainer, "kl") == pytest.approx(0, abs=1e-6)


def test_groups_without_reward_variance_are_replaced_by_fresh_tasks(model_dir, tmp_path):
    seen = []

    class Recording(MixedEnv):
        async def reset(self, task):
            seen.append(task.prompt)
            return await super().reset(task)

    words = ["say amber one", "say amber two", "say cobalt", "say delta", "say ember", "say flint"]
    tasks = [type(TASKS[0])(word) for word in words]
    trainer = make_trainer(
        model_dir, tmp_path, env=Recording, tasks=tasks, max_sampling_attempts=3, shuffle_dataset=False
    )
    groups = trainer.sampler.sample(0)
    assert [g.task.prompt for g in groups if not g.replaced] == ["say cobalt", "say delta"]
    assert list(dict.fromkeys(seen)) == ["say amber one", "say amber two", "say cobalt", "say delta"]
    assert logged(trainer, "groups/sampled") == 4
    assert logged(trainer, "frac_reward_zero_std") == 0.5
    assert len(trainer._rows(groups)) == 8
    trainer.sampler.sample(1)
    assert seen[-1] == "say flint"


def test_replacement_ends_after_its_rounds(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, env=SameEnv, max_sampling_attempts=3)
    groups = trainer.sampler.sample(0)
    assert [g.replaced for g in groups] == [True] * 4 + [False] * 2
    assert logged(trainer, "groups/sampled") == 6
    assert trainer._rows(groups) == []


def test_a_run_that_never_finds_reward_variance_ends_with_an_explanation(model_dir, tmp_path):
    class NothingEnv(LetterEnv):
        async def step(self, message):
            result = await super().step(message)
            result.reward = 0.0
            return result

    settings = {"max_steps_without_variance": 3, "max_sampling_attempts": 2, "failed_parse_reward": 0.0}
    trainer = make_trainer(model_dir, tmp_path, env=NothingEnv, num_steps=9, **settings)
    before = copy.deepcopy(trainer.model.state_dict())
    with pytest.raises(NoRewardVarianceError, match=r"in 3 steps in a row.*\(mean 0\).*max_sampling_attempts=2"):
        trainer.train()
    assert trainer.state.global_step == 2  # the third one did not end
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())
    assert len(list((trainer._reporter.folder / "episodes").glob("train-*"))) == 3


def test_one_step_with_reward_variance_resets_the_count(model_dir, tmp_path):
    class EveryThird(LetterEnv):
        async def step(self, message):
            result = await super().step(message)
            if trainer.state.global_step % 3 != 2:
                result.reward = 0.5
            return result

    trainer = make_trainer(model_dir, tmp_path, env=EveryThird, num_steps=6, max_steps_without_variance=3)
    trainer.train()
    assert trainer.state.global_step == 6


# Stop reasons.


class SomeTruncated(LetterEnv):
    """Truncates every second episode of a group; rewards 1, 0, 1, 0."""

    count = 0

    async def reset(self, task):
        self.index = SomeTruncated.count
        SomeTruncated.count += 1
        return await super().reset(task)

    async def step(self, message):
        result = await super().step(message)
        odd = self.index % 2 == 1
        return StepResult(not odd, odd, result.messages, 0.0 if odd else 1.0)


def test_masked_episodes_count_in_the_baseline_and_train_nothing(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, env=SomeTruncated, overlong_masking=True, batch_size=1)
    groups = trainer.sampler.sample(0)
    rows = trainer._rows(groups)
    # Rewards 1, 0, 1, 0: mean 0.5, standard deviation sqrt(4 * 0.25 / 3).
    advantage = 0.5 / ((1 / 3) ** 0.5 + STD_EPSILON)
    assert [r.advantages for r in rows] == [[pytest.approx(advantage)]] * 2
    episodes = groups[0].episodes
    assert [e.provenance["advantage"] for e in episodes] == pytest.approx([advantage, -advantage] * 2)
    assert [e.provenance["trained"] for e in episodes] == [True, False] * 2
    trainer._backward(trainer.model, rows)
    trained = [e for e in episodes if e.stop_reason is StopReason.TERMINATED]
    assert logged(trainer, "trained_tokens") == sum(e.num_sampled_tokens for e in trained)


def stop_reasons(trainer):
    return {e.stop_reason for g in trainer.sampler.sample(0) for e in g.episodes}


def test_stop_reasons_through_the_engine(model_dir, tmp_path):
    def reasons(env=LetterEnv, **changes):
        return stop_reasons(make_trainer(model_dir, tmp_path, env=env, **changes))

    assert reasons() == {StopReason.TERMINATED}
    assert reasons(TalkEnv, max_turns=2) == {StopReason.MAX_TURNS}
    assert reasons(max_completion_length=1) == {StopReason.CONTEXT_OVERFLOW}
    assert reasons(TalkEnv, max_model_length=34) == {StopReason.CONTEXT_OVERFLOW}


def test_a_parse_failure_through_the_engine(model_dir, tmp_path):
    with scripted(lambda key, turn, rng: "a<tool_call>"):
        trainer = make_trainer(model_dir, tmp_path, failed_parse_reward=-0.25)
    episodes = [e for g in trainer.sampler.sample(0) for e in g.episodes]
    assert [(e.stop_reason, e.reward) for e in episodes] == [(StopReason.PARSE_FAILURE, -0.25)] * 8
    assert all(e.turns[-1].tokens.completion_ids for e in episodes)  # it trains


# Failed episodes.


def test_a_step_in_which_too_many_episodes_fail_stops_the_run(model_dir, tmp_path):
    class Broken(LetterEnv):
        async def reset(self, task):
            raise OSError("the database is gone")

    trainer = make_trainer(model_dir, tmp_path, env=Broken, num_steps=3)
    with pytest.raises(TooManyErrorsError, match=r"max_error_share=50%.*the database is gone"):
        trainer.train()
    (recorded,) = (trainer._reporter.folder / "episodes").glob("*.jsonl")
    assert len(recorded.read_text().splitlines()) == 16  # 8 episodes, each tried twice


def test_the_group_goes_on_with_its_survivors(model_dir, tmp_path):
    class HalfBroken(LetterEnv):
        made = 0

        async def reset(self, task):
            HalfBroken.made += 1
            if HalfBroken.made <= 2:
                raise OSError("not yet")
            return await super().reset(task)

    trainer = make_trainer(model_dir, tmp_path, env=HalfBroken, batch_size=1, episode_retries=0)
    (group,) = trainer.sampler.sample(0)
    assert (len(group.episodes), len(group.failed)) == (2, 2)
    rewards = [e.reward for e in group.episodes]
    deviation = statistics.stdev(rewards)
    assert deviation > 0
    advantages = sorted(r.advantages[0] for r in trainer._rows([group]))
    half = abs(rewards[0] - rewards[1]) / 2 / (deviation + STD_EPSILON)
    assert advantages == pytest.approx([-half, half])
    assert logged(trainer, "error_ratio") == 0.5


def test_an_exception_of_the_engine_ends_the_run_with_its_reason(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path)

    def explode(module, args):
        raise RuntimeError("device lost")

    trainer.model.register_forward_pre_hook(explode)
    with pytest.raises(TooManyErrorsError, match="device lost"):
        trainer.train()


def test_an_exception_of_our_own_in_a_rollout_surfaces(model_dir, tmp_path, monkeypatch):
    trainer = make_trainer(model_dir, tmp_path)

    async def broken(*args, **kwargs):
        raise ZeroDivisionError("a bug of the collector")

    monkeypatch.setattr(trainer.collector, "_attempt", broken)
    with pytest.raises(ExceptionGroup) as caught:
        trainer.train()
    assert caught.group_contains(ZeroDivisionError, match="a bug of the collector")


# LoRA and validation.


def test_lora_trains_the_adapter_only(model_dir, tmp_path):
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make_trainer(model_dir, tmp_path, peft_config=lora, num_steps=2, learning_rate=1e-2)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    changed = {n for n, value in trainer.model.state_dict().items() if not torch.equal(value, before[n])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_validation_runs_at_step_0_each_interval_and_the_end(model_dir, tmp_path):
    trainer = make_trainer(
        model_dir, tmp_path, num_steps=3, validation_interval=2, val_tasks=TASKS[:3], val_max_turns=1, env=TalkEnv
    )
    trainer.train()
    lines = read_metrics(trainer._reporter.folder)
    validations = [line for line in lines if "val/reward" in line]
    assert [line["step"] for line in validations] == [0, 2, 3]
    assert {line["val/turns_per_episode"] for line in validations} == {1.0}
    assert all(key.startswith("val/") or key == "step" for line in validations for key in line)
    files = sorted(path.name for path in (trainer._reporter.folder / "episodes").iterdir())
    assert files == [f"train-00000{i}.jsonl" for i in (0, 1, 2)] + [f"val-00000{i}.jsonl" for i in (0, 2, 3)]


@pytest.mark.parametrize(("greater", "rewards", "best"), [
    (None, [0.2, 0.9, 0.5, 0.7], 1), (False, [0.2, 0.9, 0.1, 0.7], 2), (None, [0.9, 0.5, 0.6, 0.9], None)
])  # fmt: skip
def test_the_best_checkpoint_is_kept(model_dir, tmp_path, greater, rewards, best):
    class Validated(LetterEnv):
        async def reset(self, task):
            self.validates = task.prompt == "val"
            return await super().reset(task)

        async def step(self, message):
            result = await super().step(message)
            if self.validates:
                result.reward = rewards[trainer.state.global_step]
            return result

    settings = {"num_steps": 3, "validation_interval": 1, "save_total_limit": 2, "greater_is_better": greater}
    trainer = make_trainer(
        model_dir, tmp_path, env=Validated, val_tasks=[Task("val")], failed_parse_reward=0.0,
        metric_for_best_model="val/reward", max_completion_length=100, **settings,
    )  # fmt: skip
    trainer.train()
    kept = sorted(path.name for path in trainer._reporter.folder.glob("checkpoint-*"))
    assert kept == sorted({"checkpoint-3", *([f"checkpoint-{best}"] if best else [])})
    path = trainer.state.best_model_checkpoint
    assert (path and path.rpartition("-")[2]) == (str(best) if best else None)


def test_the_metric_of_the_best_checkpoint_must_exist(model_dir, tmp_path):
    with pytest.raises(ConfigError, match="needs validation tasks"):
        make_trainer(model_dir, tmp_path, metric_for_best_model="val/reward")
    trainer = make_trainer(model_dir, tmp_path, metric_for_best_model="val/env/sad", val_tasks=TASKS[:1])
    with pytest.raises(ConfigError, match=r"no metric of this validation, which has .*Did you mean 'val/env/said'"):
        trainer.train()


def test_the_metrics_that_every_validation_has(model_dir, tmp_path):
    metrics = make_trainer(model_dir, tmp_path, val_tasks=TASKS[:2]).validate()
    assert set(metrics) - {"val/env/said"} == set(VALIDATION_METRICS)


def test_validation_episodes_carry_the_version_of_the_weights(model_dir, tmp_path):
    trainer = make_trainer(model_dir, tmp_path, num_steps=2, validation_interval=1, val_tasks=TASKS[:1])
    recorded = []
    episodes = trainer._reporter.episodes
    trainer._reporter.episodes = lambda phase, step, rank, found: (
        recorded.extend((phase, step, t.tokens.policy_version) for e in found for t in e.turns),
        episodes(phase, step, rank, found),
    )
    trainer.train()
    assert {phase for phase, _, _ in recorded} == {"train", "val"}
    assert all(step == version for _, step, version in recorded)


def test_sequential_validation_plays_one_episode_at_a_time(model_dir, tmp_path):
    alive, most = 0, []

    class Counting(LetterEnv):
        async def reset(self, task):
            nonlocal alive
            alive += 1
            most.append(alive)
            return await super().reset(task)

        async def close(self):
            nonlocal alive
            alive -= 1

    trainer = make_trainer(model_dir, tmp_path, env=Counting, val_tasks=TASKS, sequential_validation=True)
    trainer.validate()
    assert most == [1] * 8
    (path,) = (trainer._reporter.folder / "episodes").iterdir()
    assert len(path.read_text().splitlines()) == 8


def test_greedy_validation_repeats_itself(model_dir, tmp_path):
    with sampled():
        trainer = make_trainer(model_dir, tmp_path, val_tasks=TASKS[:4], val_temperature=0.0)
    first = trainer.validate()
    trainer.run_state.validated_at = None
    second = trainer.validate()
    assert {k: v for k, v in first.items() if k != "val/time"} == {k: v for k, v in second.items() if k != "val/time"}


# What we override in TRL and the Trainer beneath it.

PINNED = {
    "_compute_loss": "80295546bbdbf6f7",
    "compute_loss": "a2d6ef8bd29c3e26",
    "_get_per_token_logps_and_entropies": "ea73c3909275851d",
    "training_step": "9e18632f7dd8e8d8",
    "log": "1e7772819cc8cf09",
    "_save_checkpoint": "ec91bde123649111",
    "__init__": "18f01b7a46c9544b",
}


PINNED_TRAINER = {
    "_run_epoch": "31aff00f34c302a2",
    "_save_checkpoint": "a9111e30faa99339",
    "_load_rng_state": "d5ebdfc0a0884c4b",
    "_load_optimizer_and_scheduler": "741032f57d6fb802",
}


@pytest.mark.parametrize("name", PINNED_TRAINER)
def test_transformers_still_has_the_code_that_resuming_builds_on(name):
    source = inspect.getsource(getattr(transformers.Trainer, name))
    found = hashlib.sha256(source.encode()).hexdigest()[:16]
    assert found == PINNED_TRAINER[name], (
        f"transformers {transformers.__version__} changed Trainer.{name}. Read what it saves, where, and in which "
        f"order a resumed run reads it back (see llmgym_trainer/runs/state.py), then put {found!r} here."
    )


@pytest.mark.parametrize("name", PINNED)
def test_trl_still_has_the_code_we_build_on(name):
    source = inspect.getsource(getattr(trl.GRPOTrainer, name))
    found = hashlib.sha256(source.encode()).hexdigest()[:16]
    assert found == PINNED[name], (
        f"trl {trl.__version__} changed GRPOTrainer.{name}. Read the new code beside the list of departures at the top "
        f"of llmgym_trainer/trainer.py (inputs of the loss, its denominators, metric names, what is saved), then "
        f"put {found!r} here."
    )


def test_corrected_turns_can_be_left_out_of_the_loss(model_dir, tmp_path):
    limits = {"max_model_length": 1000, "max_completion_length": 40, "parse_retries": 1}
    for trained in (True, False):
        with scripted(lambda key, turn, rng: "<tool_call>" if turn == 0 else say_letters(key, turn, rng)):
            trainer = make_trainer(model_dir, tmp_path, env=TalkEnv, train_corrected_turns=trained, **limits)
        groups = trainer.sampler.sample(0)
        assert all(e.turns[0].corrected for g in groups for e in g.episodes)
        assert logged(trainer, "parse_retries_per_episode") == 1
        rows = trainer._rows(groups)
        assert [0 in row.row.turns for row in rows] == [trained] * 8
