import dataclasses
import inspect
import re

import pytest
import trl
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from llmgym.errors import ConfigError
from llmgym_trainer import GRPOConfig
from llmgym_trainer.algorithm.loss import LOSS_TYPES, OTHER_LOSS_TYPES
from llmgym_trainer.config import DERIVED, REFUSED

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


def refusal(**settings):
    """The error of a configuration that is refused."""
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**settings)
    return str(caught.value)


def test_a_derived_setting_names_ours():
    for name, ours in DERIVED.items():
        assert refusal(**{name: 4}) == f"{name}=4 is derived here; set {ours} instead"
        assert ours.split(" ")[0] in {*GRPOConfig.__dataclass_fields__, "val_tasks"}
    assert "is derived here" in refusal(num_generations=trl.GRPOConfig.num_generations), (
        "its default in TRL is noticed too"
    )


def test_a_refused_setting_says_why():
    for name, (allowed, why) in REFUSED.items():
        value = True if allowed is False else 3
        assert refusal(**{name: value}) == f"{name}={value} is not supported ({why}); leave it at {allowed!r}"
        assert getattr(GRPOConfig(**{name: allowed}), name) == allowed


@pytest.mark.parametrize("variable", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_what_accelerate_was_configured_for(monkeypatch, variable):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ConfigError, match="launch with --multi_gpu, and train an adapter"):
        GRPOConfig()
    monkeypatch.setenv(variable, "false")
    GRPOConfig()


def test_loss_types():
    for loss_type in LOSS_TYPES:
        assert GRPOConfig(loss_type=loss_type, epsilon_high=5.0).loss_type == loss_type
    for loss_type, why in OTHER_LOSS_TYPES.items():
        assert refusal(loss_type=loss_type) == (
            f"loss_type='{loss_type}' is not supported ({why}); allowed are dapo, cispo, bnpo, grpo, dr_grpo, luspo"
        )
    assert refusal(loss_type="dpoa").endswith("'dr_grpo' or 'luspo', got 'dpoa'. Did you mean 'dapo'?")


NAN, INFINITE = float("nan"), float("inf")
BAD_VALUES = {
    # type
    "batch_size must be a whole number of at least 1, got 2.0": {"batch_size": 2.0},
    "batch_size must be a whole number of at least 1, got True": {"batch_size": True},
    "env_timeout_s must be a number above 0 or None, got [3]": {"env_timeout_s": [3]},
    "temperature must be a number above 0, got {'a': 1}": {"temperature": {"a": 1}},
    "deterministic must be true or false, got 3": {"deterministic": 3},
    "learning_rate must be a number, got True": {"learning_rate": True},
    "run_name must be a text or None, got 7": {"run_name": 7},
    "chat_template_kwargs must be a mapping or None, got 'yes'": {"chat_template_kwargs": "yes"},
    # bounds
    "batch_size must be a whole number of at least 1, got 0": {"batch_size": 0},
    "episodes_per_task must be a whole number of at least 1, got 0": {"episodes_per_task": 0},
    "episodes_per_task=1 never trains: an advantage compares the episodes of one task": {"episodes_per_task": 1},
    "num_steps must be a whole number of at least 1": {"num_steps": 0},
    "max_turns must be a whole number of at least 1 or None": {"max_turns": 0},
    "val_max_turns must be a whole number of at least 1 or None": {"val_max_turns": 0},
    "max_sampling_attempts must be a whole number of at least 1": {"max_sampling_attempts": 0},
    "validation_interval must be a whole number of at least 1": {"validation_interval": 0},
    "micro_batch_tokens must be a whole number of at least 1": {"micro_batch_tokens": 0},
    "max_concurrent_episodes must be a whole number of at least 1": {"max_concurrent_episodes": 0},
    "max_steps_without_variance must be a whole number of at least 1": {"max_steps_without_variance": 0},
    "episode_retries must be a whole number of at least 0": {"episode_retries": -1},
    "parse_retries must be a whole number of at least 0": {"parse_retries": -1},
    "overlong_buffer_tokens must be a whole number of at least 0": {"overlong_buffer_tokens": -1},
    "overlong_penalty must be a number above 0 or None, got -0.5": {"overlong_penalty": -0.5},
    "env_timeout_s must be a number above 0 or None, got 0": {"env_timeout_s": 0},
    "policy_timeout_s must be a number above 0 or None, got 0": {"policy_timeout_s": 0},
    "seed must be a whole number from 0 to 4294967295, got 4294967296": {"seed": 2**32},
    "seed must be a whole number from 0 to 4294967295, got -5": {"seed": -5},
    "logging_steps must be a number above 0, got 0": {"logging_steps": 0},
    "save_steps must be a number above 0, got -1": {"save_steps": -1},
    "temperature must be a number above 0, got 0.0": {"temperature": 0.0},
    "val_temperature must be a number of at least 0 or None, got -1.0": {"val_temperature": -1.0},
    "max_error_share must be a number from 0 to 1, got 1.5": {"max_error_share": 1.5},
    "turn_discount must be a number from 0 to 1, got 1.5": {"turn_discount": 1.5, "credit": "return"},
    "sampling_correction_cap must be a number of at least 1, got 0.5": {"sampling_correction_cap": 0.5},
    "learning_rate must be a number, got nan": {"learning_rate": NAN},
    "weight_decay must be a number, got nan": {"weight_decay": NAN},
    "failed_parse_reward must be a number, got inf": {"failed_parse_reward": INFINITE},
    "learning_rate=-1.0 must be 0 or more; beta=-3.0 must be 0 or more": {"learning_rate": -1.0, "beta": -3.0},
    # names
    "scale_rewards must be 'group', 'batch', 'none', True or False, got 'grup'. Did you mean 'group'?": {
        "scale_rewards": "grup"
    },
    "scale_rewards must be 'group', 'batch', 'none', True or False, got None": {"scale_rewards": None},
    "advantage_baseline must be 'mean' or 'leave_one_out', got 'median'": {"advantage_baseline": "median"},
    "credit must be 'episode', 'return' or 'mt_grpo', got 'returns'. Did you mean 'return'?": {"credit": "returns"},
    "sampling_correction must be 'off', 'token', 'sequence' or None, got 'tokens'": {"sampling_correction": "tokens"},
    "optim must be 'adamw_torch', 'adamw_torch_fused', ": {"optim": "adamw"},
    "got 'adamw_torhc'. Did you mean 'adamw_torch'?": {"optim": "adamw_torhc"},
    "got 'linaer'. Did you mean 'linear'?": {"lr_scheduler_type": "linaer"},
    # one setting against another
    "cut at epsilon_high=None (None: epsilon=0.2)": {"loss_type": "cispo"},
    "cut at epsilon_high=0.28": {"loss_type": "cispo", "epsilon_high": 0.28},
    "max_model_length=16 leaves no room for a prompt": {"max_model_length": 16},
    "max_completion_length=100 leaves no room for a prompt within max_model_length=100": {
        "max_model_length": 100,
        "max_completion_length": 100,
    },
    "must be under max_model_length=2048": {"overlong_buffer_tokens": 2048, "overlong_penalty": 1.0},
    "overlong_buffer_tokens needs overlong_penalty": {"overlong_buffer_tokens": 10},
    "turn_discount belongs to credit='return', but credit='episode'": {"turn_discount": 0.5},
    "turn_reward_weight belongs to credit='mt_grpo'": {"turn_reward_weight": 0.5, "credit": "return"},
    "metric_for_best_model='reward' is no metric of a validation": {"metric_for_best_model": "reward"},
    "is no metric of a validation, which has val/terminated_ratio": {"metric_for_best_model": "val/rewards"},
    "save_total_limit=1 has no room for the best": {"metric_for_best_model": "val/reward", "save_total_limit": 1},
    "transformers and TRL refuse these settings: At most one of fp16 and bf16": {
        "fp16": True,
        "bf16": True,
        "use_cpu": True,
    },
}


@pytest.mark.parametrize("message", BAD_VALUES)
def test_bad_values_are_refused_with_what_is_allowed(message):
    assert message in refusal(**BAD_VALUES[message])


def test_values_that_look_wrong_and_are_not():
    assert GRPOConfig(sampling_correction_cap=INFINITE).sampling_correction_cap == INFINITE
    assert GRPOConfig(scale_rewards=False).scale_rewards == "none"
    assert GRPOConfig(metric_for_best_model="val/env/solved").metric_for_best_model == "val/env/solved"


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
        ("batch_size: eight", "c.yaml: batch_size must be a whole number of at least 1, got 'eight'"),
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


def test_a_text_that_is_no_boolean(tmp_path):
    (tmp_path / "c.yaml").write_text("overlong_masking: maybe")
    with pytest.raises(ConfigError, match=r"c\.yaml: overlong_masking must be true or false, got 'maybe'"):
        GRPOConfig.from_yaml(tmp_path / "c.yaml")


def test_every_loss_type_of_trl_is_supported_or_refused_with_a_reason():
    about = inspect.getdoc(trl.GRPOConfig).partition("loss_type (")[2].partition("mask_truncated_completions")[0]
    assert set(re.findall(r'^\s*- `"(\w+)"`', about, re.MULTILINE)) == {*LOSS_TYPES, *OTHER_LOSS_TYPES}
