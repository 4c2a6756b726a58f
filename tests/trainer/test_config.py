import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import trl
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig
from llmgym_trainer.config import DERIVED, LOSS_TYPES, OTHER_LOSS_TYPES, REFUSED, parse_settings

DEFAULTS = {
    "model": "tiny",
    "batch_size": 8,
    "episodes_per_task": 8,
    "num_steps": 100,
    "max_turns": None,
    "val_max_turns": None,
    "max_model_length": 2048,
    "max_completion_length": None,
    "failed_parse_reward": -0.1,
    "overlong_penalty": None,
    "overlong_buffer_tokens": 0,
    "overlong_masking": False,
    "max_sampling_attempts": 1,
    "validation_interval": 10,
    "sequential_validation": False,
    "val_temperature": None,
    "temperature": 1.0,
    "max_concurrent_episodes": None,
    "max_steps_off_policy": None,
    "groups_in_flight": None,
    "wandb_project": None,
    "run_name": None,
    "seed": 42,
}


def test_defaults():
    config = GRPOConfig()
    assert {name: getattr(config, name) for name in DEFAULTS} == DEFAULTS
    base = {f.name: f.default for f in dataclasses.fields(trl.GRPOConfig)}
    assert {n: getattr(config, n) for n in ("loss_type", "scale_rewards", "beta")} == {
        n: base[n] for n in ("loss_type", "scale_rewards", "beta")
    }
    assert config.given == {}


def test_the_sampler_is_corrected_by_default_where_precision_is_low():
    assert GRPOConfig(use_cpu=True).sampling_correction == "off"
    assert GRPOConfig(use_cpu=True, bf16=True).sampling_correction == "token"
    assert GRPOConfig(use_cpu=True, bf16=True, sampling_correction="off").sampling_correction == "off"


@pytest.mark.parametrize("truncation", [{"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}])
def test_a_correction_goes_with_the_whole_distribution_only(truncation):
    with pytest.raises(ConfigError, match="another distribution than the one trained"):
        GRPOConfig(sampling_correction="token", **truncation)


def test_without_a_gpu_training_is_in_fp32():
    config = GRPOConfig(use_cpu=True)
    assert (config.bf16, config.fp16, config.gradient_checkpointing) == (False, False, False)


def test_every_setting_of_ours_has_a_help_sentence():
    ours = {f.name: f for f in dataclasses.fields(GRPOConfig) if f.name not in trl.GRPOConfig.__dataclass_fields__}
    assert "max_turns" in ours
    assert all(f.metadata["help"].endswith(".") for f in ours.values())


@pytest.mark.parametrize("name", DERIVED)
def test_a_derived_setting_names_ours(name):
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**{name: 4})
    assert f"{name}=4 is derived here; set {DERIVED[name]} instead" in str(caught.value)
    first = DERIVED[name].split(" ")[0]
    assert first in GRPOConfig.__dataclass_fields__ or first == "val_tasks"


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_setting_says_why(name):
    allowed, why = REFUSED[name]
    value = True if allowed is False else 3
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert why in str(caught.value)
    assert getattr(GRPOConfig(**{name: allowed}), name) == allowed


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_what_accelerate_was_configured_for(monkeypatch, variable):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ConfigError, match="launch with --multi_gpu, and train an adapter"):
        GRPOConfig()
    monkeypatch.setenv(variable, "false")
    GRPOConfig()


@pytest.mark.parametrize("loss_type", [*LOSS_TYPES, *OTHER_LOSS_TYPES, "dpoa"])
def test_loss_types(loss_type):
    if loss_type in LOSS_TYPES:
        assert GRPOConfig(loss_type=loss_type, epsilon_high=5.0).loss_type == loss_type
    else:
        with pytest.raises(
            ConfigError, match=f"loss_type='{loss_type}'.*allowed are dapo, cispo, bnpo, grpo, dr_grpo, luspo"
        ):
            GRPOConfig(loss_type=loss_type)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"episodes_per_task": 1}, "episodes_per_task=1 never trains"),
        ({"episodes_per_task": 2.5}, "episodes_per_task"),
        ({"loss_type": "cispo"}, "cut at epsilon_high=None (None: epsilon=0.2)"),
        ({"loss_type": "cispo", "epsilon_high": 0.28}, "cut at epsilon_high=0.28"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.0}, "batch_size must be a whole number"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"num_steps": 0}, "num_steps must be"),
        ({"max_turns": 0}, "max_turns must be"),
        ({"val_max_turns": 0}, "val_max_turns must be"),
        ({"max_sampling_attempts": 0}, "max_sampling_attempts must be"),
        ({"validation_interval": 0}, "validation_interval must be"),
        ({"micro_batch_tokens": 0}, "micro_batch_tokens must be"),
        ({"max_concurrent_episodes": 0}, "max_concurrent_episodes must be"),
        ({"episode_retries": -1}, "episode_retries must be"),
        ({"overlong_buffer_tokens": -1}, "overlong_buffer_tokens must be"),
        ({"max_model_length": 16}, "max_model_length=16 leaves no room for a prompt"),
        (
            {"max_model_length": 100, "max_completion_length": 100},
            "max_completion_length=100 leaves no room for a prompt within max_model_length=100",
        ),
        ({"overlong_buffer_tokens": 2048, "overlong_penalty": 1.0}, "must be under max_model_length=2048"),
        ({"overlong_penalty": -0.5}, "overlong_penalty=-0.5 must be a positive cost"),
        ({"overlong_buffer_tokens": 10}, "overlong_buffer_tokens needs overlong_penalty"),
        ({"env_timeout_s": [3]}, "env_timeout_s must be a number, got [3]"),
        ({"temperature": {"a": 1}}, "temperature must be a number, got {'a': 1}"),
        ({"deterministic": 3}, "deterministic must be true or false, got 3"),
        ({"learning_rate": True}, "learning_rate must be a number, got True"),
        ({"run_name": 7}, "run_name must be a text, got 7"),
        ({"seed": 2**32}, "seed=4294967296 must be under 4294967296"),
        ({"logging_steps": 0}, "logging_steps=0 must be positive"),
        ({"save_steps": -1}, "save_steps=-1 must be positive"),
        (
            {"fp16": True, "bf16": True, "use_cpu": True},
            "transformers and TRL refuse these settings: At most one of fp16 and bf16",
        ),
        (
            {"metric_for_best_model": "val/rewards"},
            "is no metric of a validation, which has val/terminated_ratio",
        ),
        ({"temperature": 0.0}, "temperature=0.0 must be positive"),
        ({"val_temperature": -1.0}, "val_temperature=-1.0"),
        ({"max_error_share": 1.5}, "max_error_share=1.5"),
        ({"scale_rewards": "grup"}, "scale_rewards='grup'"),
        ({"scale_rewards": None}, "scale_rewards=None"),
        ({"advantage_baseline": "median"}, "advantage_baseline='median' is unknown; allowed are mean, leave_one_out"),
        (
            {"credit": "returns"},
            "credit='returns' is unknown; allowed are episode, return, mt_grpo. Did you mean 'return'?",
        ),
        ({"turn_discount": 1.5, "credit": "return"}, "turn_discount=1.5 must be from 0 to 1"),
        ({"turn_discount": 0.5}, "turn_discount belongs to credit='return', but credit='episode'"),
        ({"turn_reward_weight": 0.5, "credit": "return"}, "turn_reward_weight belongs to credit='mt_grpo'"),
        (
            {"sampling_correction": "tokens"},
            "sampling_correction='tokens' is unknown; allowed are off, token, sequence",
        ),
        ({"sampling_correction_cap": 0.5}, "sampling_correction_cap=0.5 must be at least 1"),
        ({"max_steps_without_variance": 0}, "max_steps_without_variance must be"),
        ({"parse_retries": -1}, "parse_retries must be"),
        ({"metric_for_best_model": "reward"}, "metric_for_best_model='reward' must be a metric of the validation"),
        ({"metric_for_best_model": "val/reward", "save_total_limit": 1}, "save_total_limit=1 has no room for the best"),
        ({"optim": "adamw"}, "optim='adamw' is unknown; allowed are adamw_torch, adamw_torch_fused, "),
        ({"optim": "adamw_torhc"}, "Did you mean 'adamw_torch'?"),
        ({"lr_scheduler_type": "linaer"}, "lr_scheduler_type='linaer' is unknown; allowed are linear, cosine, "),
        ({"lr_scheduler_type": "linaer"}, "Did you mean 'linear'?"),
        ({"chat_template_kwargs": "yes"}, "chat_template_kwargs must be a mapping, got 'yes'"),
    ],
)
def test_values_out_of_range(changes, text):
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**changes)
    assert text in str(caught.value)


def test_names_of_transformers_may_be_given_as_its_enumerations():
    config = GRPOConfig(optim=OptimizerNames.SGD, lr_scheduler_type=SchedulerType.COSINE)
    assert config.given == {"optim": "sgd", "lr_scheduler_type": "cosine"}


def test_a_batch_divides_over_the_processes(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"batch_size=8 tasks do not divide over 3 processes.*a multiple of 3"):
        GRPOConfig()
    assert GRPOConfig(batch_size=9).batch_size == 9


def test_limits():
    config = GRPOConfig(max_turns=6, max_model_length=500, max_completion_length=90, failed_parse_reward=-1.0)
    limits = config.limits()
    assert (limits.max_turns, limits.max_model_length, limits.max_completion_length) == (6, 500, 90)
    assert limits.failed_parse_reward == -1.0
    assert config.limits(validation=True) == limits
    assert config.replace(val_max_turns=9).limits(validation=True).max_turns == 9
    with pytest.raises(ConfigError, match="max_turns is not set"):
        GRPOConfig(val_max_turns=3).limits()
    with pytest.raises(ConfigError, match="env_timeout_s must be a positive number"):
        GRPOConfig(max_turns=3, env_timeout_s=0).limits()


def test_yaml_round_trip(tmp_path):
    given = {
        "model": "some/model",
        "learning_rate": 2e-5,
        "max_turns": 6,
        "overlong_masking": True,
        "loss_type": "grpo",
        "lr_scheduler_kwargs": {"min_lr": 1e-6},
        "adam_beta2": 0.95,
    }
    config = GRPOConfig(**given)
    assert config.given == given
    config.to_yaml(tmp_path / "config.yaml")
    assert GRPOConfig.from_yaml(tmp_path / "config.yaml").given == given
    assert GRPOConfig.from_yaml(tmp_path / "config.yaml", max_turns=7).given == given | {"max_turns": 7}


def test_settings_given_as_enums_or_paths_come_back_from_yaml(tmp_path):
    from transformers import SchedulerType

    config = GRPOConfig(lr_scheduler_type=SchedulerType.COSINE, runs_dir=tmp_path / "runs")
    config.to_yaml(tmp_path / "config.yaml")
    again = GRPOConfig.from_yaml(tmp_path / "config.yaml")
    assert again.lr_scheduler_type == SchedulerType.COSINE
    assert str(again.runs_dir) == str(tmp_path / "runs")


def test_a_setting_that_yaml_cannot_hold(tmp_path):
    with pytest.raises(ConfigError, match="plain value"):
        GRPOConfig(lr_scheduler_kwargs={"x": object()}).to_yaml(tmp_path / "config.yaml")
    assert not (tmp_path / "config.yaml").exists()


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("learning_rate: 2e-5", "learning_rate", 2e-5),
        ("learning_rate: '2e-5'", "learning_rate", 2e-5),
        ("failed_parse_reward: -1", "failed_parse_reward", -1.0),
        ("max_turns: '6'", "max_turns", 6),
        ("val_temperature: none", "val_temperature", None),
        ("wandb_project: '123'", "wandb_project", "123"),
        ("overlong_masking: 'true'", "overlong_masking", True),
        ("seed: 7", "seed", 7),
        ("scale_rewards: none", "scale_rewards", "none"),
        ("chat_template_kwargs: '{\"enable_thinking\": false}'", "chat_template_kwargs", {"enable_thinking": False}),
        ("chat_template_kwargs: {enable_thinking: false}", "chat_template_kwargs", {"enable_thinking": False}),
        ("lr_scheduler_kwargs: '{\"min_lr\": 0.1}'", "lr_scheduler_kwargs", {"min_lr": 0.1}),
    ],
)
def test_yaml_values_take_the_type_of_their_setting(tmp_path, text, name, value):
    (tmp_path / "c.yaml").write_text(text)
    found = getattr(GRPOConfig.from_yaml(tmp_path / "c.yaml"), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_turn: 6", "c.yaml: unknown setting 'max_turn'. Did you mean 'max_turns'?"),
        ("episode_per_task: 6", "Did you mean 'episodes_per_task'?"),
        ("1: 6", "unknown setting 1"),
        ("batch_size: eight", "batch_size takes int, got 'eight'"),
        ("- max_turns", "must hold a mapping of settings, got list"),
        ("a: [", "is not valid YAML"),
        ("max_steps: 5", "set num_steps instead"),
    ],
)
def test_yaml_errors(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        GRPOConfig.from_yaml(tmp_path / "c.yaml")
    assert message in str(caught.value)


def test_a_missing_yaml_file():
    with pytest.raises(ConfigError, match=r"no configuration file 'nowhere.yaml'"):
        GRPOConfig.from_yaml("nowhere.yaml")


def test_an_empty_yaml_file_is_the_defaults(tmp_path):
    (tmp_path / "c.yaml").write_text("")
    assert GRPOConfig.from_yaml(tmp_path / "c.yaml").given == {}


def test_texts_that_are_no_boolean():
    with pytest.raises(ConfigError, match="overlong_masking takes bool, got 'maybe'"):
        parse_settings({"overlong_masking": "maybe"}, source="command line")


def test_the_page_of_rules_says_what_each_loss_type_of_trl_is():
    page = (Path(__file__).parents[2] / "docs" / "rules.md").read_text()
    table = dict(
        re.findall(r"^\| `(\w+)`(?: \(default\))? \| (.*) \|$", page.partition("## The loss")[2], re.MULTILINE)
    )
    assert table.pop("loss_type") == "here"
    assert table == LOSS_TYPES | {name: f"refused: {why}" for name, why in OTHER_LOSS_TYPES.items()}
    about = inspect.getdoc(trl.GRPOConfig).partition("loss_type (")[2].partition("mask_truncated_completions")[0]
    assert set(re.findall(r'^\s*- `"(\w+)"`', about, re.MULTILINE)) == table.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", float("nan")),
        ("learning_rate", -1.0),
        ("weight_decay", float("nan")),
        ("failed_parse_reward", float("inf")),
        ("beta", -3.0),
        ("seed", -5),
    ],
)
def test_a_number_that_cannot_train_is_refused_by_name(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value}"):
        GRPOConfig(max_turns=4, **{name: value})
