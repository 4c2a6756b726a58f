import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig
from toys import TASKS, LetterEnv, SameEnv, TalkEnv, full_logps, make_trainer, settings
from transformers import AutoModelForCausalLM, AutoTokenizer

from llmgym import Task, read_episodes
from llmgym.errors import ConfigError, TaskError
from llmgym_trainer import GRPOConfig, TrainResult, train_multi_turn
from llmgym_trainer.data.task_stream import TaskSource
from llmgym_trainer.errors import NoRewardVarianceError, NothingTrainedError
from llmgym_trainer.models.load import load_model
from llmgym_trainer.runs.folder import read_metrics
from llmgym_trainer.tokens.codec import Codec

HERE = Path(__file__).parent
NOT_REPEATABLE = ("time/", "val/time", "step_time")


def train(model_dir, runs_dir, env=LetterEnv, tasks=TASKS, val_tasks=None, peft_config=None, **changes) -> TrainResult:
    return train_multi_turn(
        GRPOConfig(**settings(model_dir, runs_dir, **changes)),
        tasks=tasks,
        env_factory=env,
        val_tasks=val_tasks,
        peft_config=peft_config,
    )


@pytest.fixture(scope="module")
def run(model_dir, tmp_path_factory) -> TrainResult:
    """Three steps of three-turn episodes with validation."""
    return train(
        model_dir,
        tmp_path_factory.mktemp("runs"),
        env=TalkEnv,
        val_tasks=TASKS[:2],
        num_steps=3,
        validation_interval=2,
        save_steps=2,
        run_name="first",
    )


def test_what_a_run_leaves(run):
    assert (run.steps, run.interrupted) == (3, False)
    assert run.run_dir.name == "first"
    assert sorted(path.name for path in run.run_dir.iterdir()) == [
        ".lock", "checkpoint-2", "checkpoint-3", "config.yaml", "episodes", "metrics.jsonl", "reward.png", "run.json",
    ]  # fmt: skip
    assert run.checkpoint == run.run_dir / "checkpoint-3"


def test_every_episode_is_recorded_with_what_it_trained(run):
    for step in range(3):
        episodes = list(read_episodes(run.run_dir / "episodes" / f"train-{step:06d}.jsonl"))
        assert len(episodes) == 8
        for episode in episodes:
            assert episode.provenance["step"] == step
            assert {"advantage", "shaped_reward", "trained", "template_hash", "model"} <= episode.provenance.keys()
            assert {turn.tokens.policy_version for turn in episode.turns} == {step}
    assert len(list(read_episodes(run.run_dir / "episodes" / "val-000002.jsonl"))) == 2


def test_the_metrics_of_every_step_are_there(run):
    lines = read_metrics(run.run_dir)
    assert [line["step"] for line in lines] == [0, 1, 2, 2, 3, 3]
    steps = [line for line in lines if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in steps)
    assert all(line["turns_per_episode"] <= 3 for line in steps)
    tokens = [line["num_tokens"] for line in steps]
    assert tokens == sorted(tokens)


def test_the_configuration_loads_back(run):
    config = GRPOConfig.from_yaml(run.run_dir / "config.yaml")
    assert (config.num_steps, config.validation_interval, config.learning_rate, config.run_name) == (
        3,
        2,
        1e-3,
        "first",
    )


def test_the_checkpoint_loads_with_transformers_and_holds_trained_weights(run, model_dir):
    trained = AutoModelForCausalLM.from_pretrained(run.checkpoint)
    start = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "say amber"}], return_dict=False)
    assert not torch.allclose(full_logps(trained, ids), full_logps(start, ids), atol=1e-4)


def test_a_run_never_writes_into_another_ones_folder(run, model_dir):
    before = {path: path.read_bytes() for path in run.run_dir.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="there is already a run"):
        train(model_dir, run.run_dir.parent, run_name="first")
    assert {path: path.read_bytes() for path in run.run_dir.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_does_not(model_dir, tmp_path):
    def metrics(name, **changes):
        result = train(model_dir, tmp_path, env=TalkEnv, val_tasks=TASKS[:2], num_steps=2, run_name=name, **changes)
        return [
            {key: value for key, value in line.items() if not key.startswith(NOT_REPEATABLE)}
            for line in read_metrics(result.run_dir)
        ]

    first, again, other = metrics("a"), metrics("b"), metrics("c", seed=7)
    for left, right in zip(first, again, strict=True):
        difference = "sampling/sampling_logp_difference"
        assert left.keys() == right.keys()
        for key in left:
            assert key.startswith(difference) or left[key] == pytest.approx(right[key], rel=1e-3, abs=1e-4), key
    assert [line.get("reward") for line in first] != [line.get("reward") for line in other]


def test_lora_saves_an_adapter_that_loads(model_dir, tmp_path):
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    result = train(model_dir, tmp_path, peft_config=lora, learning_rate=1e-1)
    adapted = AutoPeftModelForCausalLM.from_pretrained(result.checkpoint)
    merged, tokenizer = load_model(str(result.checkpoint), dtype=torch.float32)
    start, _ = load_model(str(model_dir), dtype=torch.float32)
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "say amber"}], return_dict=False)
    torch.testing.assert_close(full_logps(merged, ids), full_logps(adapted, ids), atol=1e-4, rtol=0)
    assert not torch.allclose(full_logps(merged, ids), full_logps(start, ids), atol=1e-3)
    assert read_metrics(result.run_dir)[0]["sampling/sampling_logp_difference/max"] < 1e-3


# Everything is checked before a model loads.


@pytest.mark.parametrize(
    ("changes", "tasks", "text"),
    [
        ({"max_turns": None}, TASKS, "max_turns is not set"),
        ({"batch_size": 9}, TASKS, "there are 8 tasks but batch_size=9"),
        ({"wandb_project": "games"}, TASKS, "WANDB_MODE=offline"),
        ({"env_timeout_s": -1.0}, TASKS, "env_timeout_s"),
    ],
)
def test_mistakes_are_found_before_a_model_loads(tmp_path, monkeypatch, changes, tasks, text):
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(ConfigError, match=text):
        train("/nowhere/model", tmp_path / "runs", tasks=tasks, **changes)
    assert not (tmp_path / "runs").exists()


def test_two_different_tasks_with_one_id(tmp_path):
    twins = [Task("a", id="x"), Task("b", id="x")]
    with pytest.raises(TaskError, match="'x'"):
        train("/nowhere/model", tmp_path / "runs", tasks=twins)
    with pytest.raises(TaskError, match="'x'"):
        train("/nowhere/model", tmp_path / "runs", val_tasks=twins)


def test_a_run_that_could_not_begin_leaves_its_name_free(tmp_path, model_dir):
    with pytest.raises(ConfigError, match="no model directory"):
        train("/nowhere/model", tmp_path, run_name="a")
    assert train(model_dir, tmp_path, run_name="a").steps == 1


def test_the_picture_and_metrics_are_there_after_a_crash(model_dir, tmp_path):
    class Breaking(LetterEnv):
        made = -1  # the one that is tried before the model loads

        async def reset(self, task):
            Breaking.made += 1
            if Breaking.made > 8:
                raise OSError("gone")
            return await super().reset(task)

    with pytest.raises(RuntimeError, match="gone"):
        train(model_dir, tmp_path, env=Breaking, num_steps=3, run_name="a")
    assert [line["step"] for line in read_metrics(tmp_path / "a")] == [1]
    assert (tmp_path / "a" / "reward.png").is_file()
    records = (tmp_path / "a" / "episodes" / "train-000001.jsonl").read_text().splitlines()
    assert [json.loads(line)["stop_reason"] for line in records] == ["error"] * 16


def test_a_run_with_nothing_to_learn_from_ends_and_saves_what_it_has(model_dir, tmp_path):
    class Alike(LetterEnv):
        async def step(self, message):
            result = await super().step(message)
            result.reward = 0.0
            return result

    settings = {"failed_parse_reward": 0.0, "max_steps_without_variance": 2, "run_name": "a", "num_steps": 9}
    with pytest.raises(NoRewardVarianceError, match="in 2 steps in a row"):
        train(model_dir, tmp_path, env=Alike, **settings)
    assert (tmp_path / "a" / "checkpoint-1" / "model.safetensors").is_file()


# Two processes.

TWO = """
import hashlib, os, sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from toys import TASKS, LetterEnv, scripted, settings
from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn

class Env(LetterEnv):
    # On every second task there is no reward variance, so the two processes train on different numbers of rows.
    async def step(self, message):
        result = await super().step(message)
        if TASKS.index(self.task) % 2 == 1:
            result.reward = 0.5
        return result

    async def reset(self, task):
        self.task = task
        return await super().reset(task)

train = MultiTurnGRPOTrainer.train

def train_and_tell(self, *args, **kwargs):
    train(self, *args, **kwargs)
    weights = b"".join(p.detach().numpy().tobytes() for p in self.accelerator.unwrap_model(self.model).parameters())
    with open(f"weights-{{os.environ['RANK']}}", "w") as file:
        file.write(hashlib.sha256(weights).hexdigest())

MultiTurnGRPOTrainer.train = train_and_tell
changes = {{"num_steps": 3, "run_name": "a", "micro_batch_tokens": 100, "batch_size": 4, "use_cpu": True}}
with scripted():
    config = GRPOConfig(**settings({model!r}, "runs", **changes))
    train_multi_turn(config, tasks=TASKS, env_factory=Env, val_tasks=TASKS[:3])
"""


@pytest.mark.slow
def test_two_processes_train_one_model(model_dir, tmp_path):
    (tmp_path / "script.py").write_text(TWO.format(here=str(HERE), model=str(model_dir)))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "script.py"]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "weights-0").read_text() == (tmp_path / "weights-1").read_text()
    steps = [line for line in read_metrics(tmp_path / "runs" / "a") if "reward" in line]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["groups/sampled"] == 4 and line["terminated_ratio"] == 1 for line in steps)
    assert all(line["sampling/sampling_logp_difference/max"] < 1e-3 for line in steps)
    for step, line in enumerate(steps):
        files = [tmp_path / "runs" / "a" / "episodes" / f"train-{step:06d}{rank}.jsonl" for rank in ("", "-rank1")]
        episodes = [episode for path in files for episode in read_episodes(path)]
        assert len(episodes) == 16
        trained = [episode for episode in episodes if episode.provenance["trained"]]
        assert line["trained_tokens"] == sum(episode.num_sampled_tokens for episode in trained)


def test_prompts_that_leave_no_room_end_the_run_with_what_to_set(model_dir, tmp_path):
    prompts = [[{"role": "user", "content": f"say {word * 30}"}] for word in ("amber ", "cobalt ")]
    codec = Codec(load_model(str(model_dir), dtype=torch.float32)[1])
    short, long = sorted(len(codec.render(prompt, [])) for prompt in prompts)
    assert 100 < short < long
    tasks = [Task(prompt[0]["content"]) for prompt in prompts]
    config = GRPOConfig(**settings(model_dir, tmp_path, run_name="a", num_steps=3, max_model_length=100))
    with pytest.raises(ConfigError) as caught:
        train_multi_turn(config, tasks=tasks, env_factory=LetterEnv)
    assert f"the prompts have {short} to {long} tokens and max_model_length=100, of which 16 are reserved" in str(
        caught.value
    )
    assert f"Set max_model_length to {long + 16} plus what 4 turns need" in str(caught.value)
    # One of the two with room for a turn is no reason to stop, and the smallest length that is named is enough.
    for length in (short + 16, long + 16):
        make_trainer(model_dir, tmp_path, tasks=tasks, max_model_length=length).sampler.sample(0)


def test_a_run_that_never_trained_ends_with_an_error(model_dir, tmp_path):
    config = GRPOConfig(**settings(model_dir, tmp_path, run_name="a", num_steps=2, max_steps_without_variance=None))
    with pytest.raises(NothingTrainedError, match=r"none of the 2 steps trained anything.*frac_reward_zero_std"):
        train_multi_turn(config, tasks=TASKS, env_factory=SameEnv)
    assert (tmp_path / "a" / "checkpoint-2").is_dir()


# Environments that cannot be built, found before a model loads.


class Unready(LetterEnv):
    """Its ``reset`` fails at some tasks."""

    def __init__(self, failing=()):
        self.failing = failing

    async def reset(self, task):
        if task.prompt in self.failing:
            raise OSError("the database is gone")
        return await super().reset(task)


def not_built(task):
    raise OSError("no such table")


@pytest.mark.parametrize(
    ("env", "text"),
    [
        (not_built, r"the environment of task .* cannot be built: env_factory raised OSError: no such table"),
        (lambda task: "env", r"the environment of task .* cannot be built: .* 'env', which is no llmgym.Env"),
        (
            lambda task: Unready({"say amber", "say indigo"}),
            r"'test_train:Unready' cannot begin task .*reset raised OSError: the database is gone\); nor task .* gone",
        ),
        (lambda task: Unready({"say amber"}), "no model directory"),  # a flaky backend is met while training
    ],
)
def test_an_environment_that_cannot_begin_is_found_before_the_model(tmp_path, env, text):
    config = GRPOConfig(**settings("/nowhere/model", tmp_path, run_name="a"))
    with pytest.raises(ConfigError, match=text):
        train_multi_turn(config, tasks=TASKS, env_factory=env)
    assert not (tmp_path / "a").exists()


def test_each_environment_of_a_mixture_is_tried_and_closed(tmp_path):
    closed = []

    class Closing(LetterEnv):
        async def close(self):
            closed.append(self.messages[0]["content"])

    sources = [TaskSource("a", TASKS[:4], Closing), TaskSource("b", TASKS[4:], not_built)]
    with pytest.raises(ConfigError, match=r"the environment of task 'b/.*no such table"):
        train_multi_turn(GRPOConfig(**settings("/nowhere/model", tmp_path)), sources=sources)
    assert closed == ["say amber"]
