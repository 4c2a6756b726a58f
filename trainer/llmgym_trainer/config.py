"""Every training setting, checked before any model loads. Knows TRL's configuration, no trainer and no task."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import trl
import yaml
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from llmgym._util.files import write_whole
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError, did_you_mean
from llmgym.task import Task
from llmgym_trainer.algorithm.advantages import BASELINES
from llmgym_trainer.algorithm.credit import CREDITS, Credit
from llmgym_trainer.algorithm.loss import LEVELS
from llmgym_trainer.collection.metrics import VALIDATION_METRICS

DERIVED = {
    "num_generations": "episodes_per_task",
    "num_generations_eval": "val_tasks (one episode each)",
    "generation_batch_size": "batch_size",
    "steps_per_generation": "batch_size",
    "gradient_accumulation_steps": "micro_batch_tokens",
    "per_device_train_batch_size": "batch_size (tasks a step) and micro_batch_tokens (memory)",
    "per_device_eval_batch_size": "max_concurrent_episodes",
    "max_steps": "num_steps",
    "num_train_epochs": "num_steps",
    "do_eval": "validation_interval",
    "eval_strategy": "validation_interval",
    "eval_steps": "validation_interval",
    "eval_on_start": "validation_interval (there is always a validation at step 0)",
    "eval_delay": "validation_interval",
    "eval_accumulation_steps": "max_concurrent_episodes",
    "mask_truncated_completions": "overlong_masking",
    "max_tool_calling_iterations": "max_turns",
    "output_dir": "runs_dir and run_name",
    "report_to": "wandb_project",
    "vllm_max_model_length": "max_model_length",
}
"""TRL settings that follow from ours, and the name to use instead."""

REFUSED = {
    "use_vllm": (False, "only the embedded transformers engine samples so far"),
    "use_transformers_continuous_batching": (False, "the embedded engine already batches continuously in its own way"),
    "num_iterations": (1, "each batch of episodes is trained on once"),
    "importance_sampling_level": ("token", "each batch is trained on once, where both levels have one gradient"),
    "top_p": (1.0, "the log-probabilities would be those of another distribution than the one trained"),
    "top_k": (0, "the log-probabilities would be those of another distribution than the one trained"),
    "min_p": (None, "the log-probabilities would be those of another distribution than the one trained"),
    "repetition_penalty": (1.0, "the log-probabilities would be those of another distribution than the one trained"),
    "generation_kwargs": (None, "the sampling engine has no further settings"),
    "cache_implementation": (None, "the sampling engine brings its own cache"),
    "reward_weights": (None, "the parts of a reward are weighed in the environment: ToolEnv.reward_weights"),
    "log_completions": (False, "every episode is written to runs/<run_name>/episodes/ already"),
    "sync_ref_model": (False, "the reference model stays the initial one"),
    "save_strategy": ("steps", "a run ends with a checkpoint; save_steps says how often there is one before"),
    "save_only_model": (False, "no run could go on from such a checkpoint; save_total_limit says how many are kept"),
    "use_adaptive_entropy": (False, "its controller would act once a micro-batch instead of once a step"),
    "load_best_model_at_end": (False, "metric_for_best_model keeps the best checkpoint beside the last one"),
    "vllm_importance_sampling_correction": (True, "it acts with vLLM only; set sampling_correction"),
    "auto_find_batch_size": (False, "lower micro_batch_tokens instead"),
    "fsdp": (None, "the embedded engine samples in every process at its own pace, which needs whole weights there"),
    "deepspeed": (None, "a step takes as many backward passes as its rows need, which DeepSpeed counts itself"),
    "max_steps_off_policy": (
        None,
        "asynchronous training does not exist yet; every episode is sampled by the weights it trains",
    ),
    "groups_in_flight": (None, "asynchronous training does not exist yet; a step's batch_size groups run together"),
}
"""Settings with one allowed value so far, and why."""

LOSS_TYPES = {
    "dapo": "sum over trained tokens / trained tokens of the whole step",
    "cispo": "as dapo, with CISPO's clipped-ratio objective; needs epsilon_high of 1 or more",
    "bnpo": "as dapo: the step is one batch, however many micro-batches it takes",
    "grpo": "mean over episodes of the mean over the episode's trained tokens",
    "dr_grpo": "sum over trained tokens / (episodes x max_model_length)",
    "luspo": "sum over trained tokens / episodes: a long episode weighs more, however many rows it became (TRL's "
    "advice on importance_sampling_level changes nothing at a ratio of 1)",
}
"""Loss types that train correctly on rows that vary in number, and their denominator."""

OTHER_LOSS_TYPES = {
    "sapo": "each batch is trained on once, and at that ratio of 1 its soft gate has the gradient of grpo: use that",
    "vespo": "each batch is trained on once, and at that ratio of 1 its sequence weight is 1, which is dapo: use that",
}

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}

SCALES = ("group", "batch", "none", True, False)
"""What may divide the advantages; TRL reads True as ``"group"`` and False as ``"none"``."""


def _setting(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class GRPOConfig(trl.GRPOConfig):  # type: ignore[misc]  # trl has no type information
    """Settings of :func:`llmgym_trainer.train_multi_turn`: ours below, and those of ``trl.GRPOConfig``.

    TRL settings that follow from ours (:data:`DERIVED`) or that cannot work here (:data:`REFUSED`) raise
    :class:`llmgym.errors.ConfigError` with the setting to use, as does every value out of range.
    """

    model: str = _setting("tiny", "Hub name or directory of the model; 'tiny' and 'smollm2' are built in.")
    chat_template: str | None = _setting(
        None, "Template file, 'compact' or 'hermes', for a model whose own template cannot show tools."
    )
    batch_size: int = _setting(8, "Tasks an optimizer step, over all processes.")
    episodes_per_task: int = _setting(
        8, "Episodes of each task in a step: the group that advantages compare. At least 2."
    )
    num_steps: int = _setting(100, "Optimizer steps.")
    max_turns: int | None = _setting(None, "Assistant turns an episode. Required by train_multi_turn.")
    val_max_turns: int | None = _setting(None, "The same in validation. None takes max_turns.")
    max_model_length: int = _setting(2048, "Tokens of a whole episode, prompt and all turns.")
    max_completion_length: int | None = _setting(
        None, "Tokens of one assistant turn. None: what is left of the episode."
    )
    failed_parse_reward: float = _setting(-0.1, "Reward of an episode whose output is no valid message or tool call.")
    parse_retries: int = _setting(
        0, "Malformed turns of an episode that get a correction and another turn instead of ending it."
    )
    train_corrected_turns: bool = _setting(
        True, "Malformed turns that were corrected train with their episode; False leaves their tokens out of the loss."
    )
    env_timeout_s: float | None = _setting(120.0, "Seconds inside the environment an episode may use in all.")
    policy_timeout_s: float | None = _setting(
        None, "Seconds one turn may take to sample, waiting included; past it the episode fails. None: no limit."
    )
    overlong_penalty: float | None = _setting(
        None, "What a spent length or turn budget costs (a positive number). None: nothing."
    )
    overlong_buffer_tokens: int = _setting(
        0, "Terminated episodes in the last part of max_model_length pay a linear share."
    )
    overlong_masking: bool = _setting(False, "Truncated episodes train nothing; their rewards stay in the baseline.")
    advantage_baseline: str = _setting(
        "mean", "What a reward is compared with: 'mean' of its group, or 'leave_one_out', the mean of the others."
    )
    credit: str = _setting(
        "episode",
        "What a turn's advantage comes from: the 'episode' reward; its discounted 'return' of turn rewards; or "
        "'mt_grpo', turn rewards beside the outcome. An environment gives turn rewards as StepResult.reward.",
    )
    turn_discount: float = _setting(1.0, "Discount from turn to turn of credit='return', from 0 to 1.")
    turn_reward_weight: float = _setting(1.0, "Weight of the turn rewards in credit='mt_grpo'.")
    sampling_correction: str | None = _setting(
        None,
        "Importance weights for samplers whose probabilities differ a little: 'token', 'sequence' (one "
        "length-normalised ratio a row), or 'off'. None: 'token' in bf16 and fp16, else 'off'.",
    )
    sampling_correction_cap: float = _setting(2.0, "Largest importance weight; larger ratios are cut to it.")
    max_steps_without_variance: int | None = _setting(
        20, "The run ends after this many steps in a row without a group that could train anything. None: never."
    )
    max_sampling_attempts: int = _setting(
        1, "Rounds of sampling; groups without reward variance are replaced by fresh tasks."
    )
    validation_interval: int = _setting(10, "Steps between validations; there is one at step 0 and at the end too.")
    sequential_validation: bool = _setting(False, "Run validation episodes one at a time.")
    val_temperature: float | None = _setting(None, "Sampling temperature of validation. None takes temperature.")
    success_reward: float = _setting(1.0, "An episode with at least this reward counts as a success in the metrics.")
    max_concurrent_episodes: int | None = _setting(None, "Episodes alive at once in one process. None: all of a step.")
    max_steps_off_policy: int | None = _setting(None, "Not available yet.")
    groups_in_flight: int | None = _setting(None, "Not available yet.")
    micro_batch_tokens: int = _setting(
        16_384, "Tokens (with padding) in one forward and backward pass. Lower it when memory runs out."
    )
    episode_retries: int = _setting(1, "Times a failed episode is tried again on a fresh environment.")
    max_error_share: float = _setting(
        0.5, "The run stops when more than this share of the episodes of a step or a validation fails."
    )
    deterministic: bool = _setting(
        False,
        "Sample in batches that do not depend on the speed of the environments, so that a run repeats and resumes "
        "exactly on the same machine. A slow tool then holds all episodes up. On a GPU set full_determinism too.",
    )
    resume_from_checkpoint: str | None = _setting(
        None, "Go on with a run: its folder, for its last checkpoint, or one of its checkpoints."
    )
    wandb_project: str | None = _setting(None, "Log to this Weights & Biases project.")
    run_name: str | None = _setting(None, "Name of the run and of its folder. None takes the time.")
    runs_dir: str = _setting("runs", "Folder that holds the run folders.")

    metric_for_best_model: str | None = _setting(
        None,
        "A metric of the validation, such as val/success: the checkpoint where it is best is one of the "
        "save_total_limit kept (highest, unless greater_is_better=False).",
    )
    logging_steps: float = _setting(1, "Steps between two lines of metrics.")
    save_steps: float = _setting(50, "Steps between checkpoints; there is one at the end too.")
    save_total_limit: int | None = _setting(2, "Checkpoints kept.")
    gradient_checkpointing: bool | None = _setting(None, "Recompute activations to save memory. None: on a GPU only.")
    bf16: bool | None = _setting(None, "Mixed precision. None: on a GPU that has it.")
    disable_dropout: bool = _setting(True, "Sampling has no dropout, so training has none either.")

    # Derived: see DERIVED. None says "not set by the user".
    num_generations: Any = None
    num_generations_eval: Any = None
    generation_batch_size: Any = None
    steps_per_generation: Any = None
    gradient_accumulation_steps: Any = None
    per_device_train_batch_size: Any = None
    per_device_eval_batch_size: Any = None
    max_steps: Any = None
    num_train_epochs: Any = None
    do_eval: Any = None
    eval_strategy: Any = None
    eval_steps: Any = None
    eval_on_start: Any = None
    eval_delay: Any = None
    eval_accumulation_steps: Any = None
    mask_truncated_completions: Any = None
    max_tool_calling_iterations: Any = None
    output_dir: Any = None
    report_to: Any = None
    vllm_max_model_length: Any = None

    def __post_init__(self) -> None:
        self._given = {
            f.name: plain(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != _default(f)
        }
        self._check()
        self._derive()
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigError(f"transformers and TRL refuse these settings: {error}") from error

    def _check(self) -> None:
        for name, ours in DERIVED.items():
            if getattr(self, name) is not None:
                raise ConfigError(f"{name}={getattr(self, name)!r} is derived here; set {ours} instead")
        for name, (allowed, why) in REFUSED.items():
            if getattr(self, name) != allowed:
                raise ConfigError(f"{name}={getattr(self, name)!r} is not supported ({why}); leave it at {allowed!r}")
        self._check_types()
        if self.loss_type not in LOSS_TYPES:
            why = OTHER_LOSS_TYPES.get(self.loss_type, "no such loss type")
            raise ConfigError(
                f"loss_type={self.loss_type!r} is not supported ({why}); allowed are {', '.join(LOSS_TYPES)}"
            )
        self._one_of("optim", [name.value for name in OptimizerNames])
        self._one_of("lr_scheduler_type", [name.value for name in SchedulerType])
        if self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1):
            raise ConfigError(
                f"loss_type='cispo' weighs each token by its ratio cut at epsilon_high={self.epsilon_high} (None: epsilon="
                f"{self.epsilon}). The ratio is 1 here, so a cut below 1 only makes all gradients smaller; set epsilon_high "
                "to 1 or more, such as 5.0 (arXiv 2510.13786)"
            )
        self._check_numbers()
        self._at_least("batch_size", 1)
        if self.episodes_per_task in (0, 1):
            raise ConfigError(
                f"episodes_per_task={self.episodes_per_task} never trains: an advantage compares the episodes of one "
                "task, so it takes 2 or more"
            )
        self._at_least("episodes_per_task", 2)
        for name in (
            "num_steps",
            "max_sampling_attempts",
            "validation_interval",
            "micro_batch_tokens",
            "max_model_length",
        ):
            self._at_least(name, 1)
        for name in (
            "max_turns",
            "val_max_turns",
            "max_completion_length",
            "max_concurrent_episodes",
            "max_steps_without_variance",
        ):
            if getattr(self, name) is not None:
                self._at_least(name, 1)
        for name in ("overlong_buffer_tokens", "episode_retries", "parse_retries"):
            self._at_least(name, 0)
        reserve = EpisodeLimits().reply_reserve_tokens
        if self.max_model_length <= reserve:
            raise ConfigError(
                f"max_model_length={self.max_model_length} leaves no room for a prompt: {reserve} tokens are kept for a reply"
            )
        if self.max_completion_length is not None and self.max_completion_length >= self.max_model_length:
            raise ConfigError(
                f"max_completion_length={self.max_completion_length} leaves no room for a prompt within "
                f"max_model_length={self.max_model_length}; raise the second or lower the first"
            )
        if self.overlong_buffer_tokens >= self.max_model_length:
            raise ConfigError(
                f"overlong_buffer_tokens={self.overlong_buffer_tokens} must be under max_model_length={self.max_model_length}"
            )
        if self.overlong_penalty is not None and not self.overlong_penalty > 0:
            raise ConfigError(
                f"overlong_penalty={self.overlong_penalty} must be a positive cost, or None for no penalty"
            )
        if self.overlong_buffer_tokens and self.overlong_penalty is None:
            raise ConfigError("overlong_buffer_tokens needs overlong_penalty, the full cost that its ramp leads to")
        if not self.temperature > 0:
            raise ConfigError(f"temperature={self.temperature} must be positive; GRPO compares different samples")
        if self.val_temperature is not None and self.val_temperature < 0:
            raise ConfigError(f"val_temperature={self.val_temperature} must be 0 (greedy) or positive")
        if self.scale_rewards not in SCALES:
            raise ConfigError(f"scale_rewards={self.scale_rewards!r} is unknown; allowed are {', '.join(SCALES[:3])}")
        self._one_of("advantage_baseline", BASELINES)
        self._one_of("credit", CREDITS)
        if not 0 <= self.turn_discount <= 1:
            raise ConfigError(f"turn_discount={self.turn_discount} must be from 0 to 1")
        for name, credit in (("turn_discount", "return"), ("turn_reward_weight", "mt_grpo")):
            if getattr(self, name) != 1.0 and self.credit != credit:
                raise ConfigError(f"{name} belongs to credit={credit!r}, but credit={self.credit!r}")
        if self.sampling_correction is not None:
            self._one_of("sampling_correction", LEVELS)
        if not self.sampling_correction_cap >= 1:
            raise ConfigError(f"sampling_correction_cap={self.sampling_correction_cap} must be at least 1")
        best = self.metric_for_best_model
        if best is not None and not best.startswith("val/"):
            raise ConfigError(
                f"metric_for_best_model={best!r} must be a metric of the validation, such as 'val/success'"
            )
        if best is not None and best not in VALIDATION_METRICS and not best.startswith(("val/env/", "val/by_env/")):
            raise ConfigError(
                f"metric_for_best_model={best!r} is no metric of a validation, which has {', '.join(VALIDATION_METRICS)}, and "
                f"those of the environments (val/env/…, val/by_env/…).{did_you_mean(best, VALIDATION_METRICS)}"
            )
        if self.metric_for_best_model is not None and self.save_total_limit == 1:
            raise ConfigError(
                "save_total_limit=1 has no room for the best checkpoint beside the last one; use 2 or more"
            )
        if not isinstance(self.chat_template_kwargs, (dict, type(None))):
            raise ConfigError(f"chat_template_kwargs must be a mapping, got {self.chat_template_kwargs!r}")
        if not 0 <= self.max_error_share <= 1:
            raise ConfigError(f"max_error_share={self.max_error_share} is a share, from 0 to 1")
        for variable, name in (("ACCELERATE_USE_FSDP", "fsdp"), ("ACCELERATE_USE_DEEPSPEED", "deepspeed")):
            if os.environ.get(variable, "false").lower() in ("true", "1"):
                raise ConfigError(
                    f"accelerate is configured for {name}, which is not supported ({REFUSED[name][1]}); launch with "
                    "--multi_gpu, and train an adapter (--lora) where a GPU cannot hold all weights and their optimizer"
                )
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        if self.batch_size % world_size:
            raise ConfigError(
                f"batch_size={self.batch_size} tasks do not divide over {world_size} processes (a task's group stays "
                f"on one); use a multiple of {world_size}"
            )

    def check_tasks(self, tasks: Sequence[Task], val_tasks: Sequence[Task] | None) -> None:
        """Raise :class:`ConfigError` when these tasks are too few for the settings."""
        if len(tasks) < self.batch_size:
            raise ConfigError(
                f"there are {len(tasks)} tasks but batch_size={self.batch_size}; give more tasks or lower batch_size"
            )
        if self.metric_for_best_model is not None and not val_tasks:
            raise ConfigError(
                f"metric_for_best_model={self.metric_for_best_model!r} needs validation tasks (val_tasks)"
            )

    def _check_types(self) -> None:
        """What was given for a setting of a plain type is of that type; a whole number is a number too."""
        hints = typing.get_type_hints(type(self))
        for name, value in self._given.items():
            kinds = typing.get_args(hints[name]) or (hints[name],)
            known = [kind for kind in _KINDS if kind in kinds]
            if name == "scale_rewards" or len(known) != len(set(kinds) - {type(None)}):
                continue
            accepted = {*kinds, *([int] if float in kinds else [])}
            if type(value) not in accepted and not isinstance(value, tuple(accepted - {int})):
                allowed = " or ".join(_KINDS[kind] for kind in known)
                raise ConfigError(f"{name} must be {allowed}, got {value!r}")

    def _check_numbers(self) -> None:
        """No setting is NaN or infinite, and those that cannot be negative are not."""
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, float) and not math.isfinite(value) and setting.name != "sampling_correction_cap":
                raise ConfigError(f"{setting.name}={value} must be a finite number")
        for name in ("learning_rate", "weight_decay", "beta", "seed", "warmup_steps", "max_grad_norm"):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and value < 0:
                raise ConfigError(f"{name}={value} must be 0 or more")
        if self.seed >= 2**32:
            raise ConfigError(f"seed={self.seed} must be under {2**32}, which is what the generators take")
        for name in ("logging_steps", "save_steps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)} must be positive")

    def _one_of(self, name: str, allowed: Sequence[str]) -> None:
        value = plain(getattr(self, name))
        if value not in allowed:
            raise ConfigError(
                f"{name}={value!r} is unknown; allowed are {', '.join(allowed)}.{did_you_mean(str(value), allowed)}"
            )

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")

    def _derive(self) -> None:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.num_generations = self.episodes_per_task
        self.per_device_train_batch_size = self.batch_size // world_size * self.episodes_per_task
        self.per_device_eval_batch_size = self.per_device_train_batch_size
        self.gradient_accumulation_steps = 1
        self.max_steps = self.num_steps
        self.num_train_epochs = 1.0
        self.do_eval = self.eval_on_start = False
        self.eval_strategy = "no"
        self.eval_delay = 0
        self.mask_truncated_completions = False
        self.report_to = []
        self.output_dir = str(Path(self.runs_dir) / (self.run_name or "unnamed"))
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        if self.bf16 is None:
            self.bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported()
        if self.sampling_correction is None:
            self.sampling_correction = "token" if self.bf16 or self.fp16 else "off"
        if self.gradient_checkpointing is None:
            self.gradient_checkpointing = on_gpu
        self.activation_checkpointing = self.gradient_checkpointing

    def make_credit(self) -> Credit:
        """How the rewards of a step become advantages."""
        return Credit(
            self.credit, self.turn_discount, self.turn_reward_weight, self.scale_rewards, self.advantage_baseline
        )

    @property
    def given(self) -> dict[str, Any]:
        """The settings that were given and differ from their defaults."""
        return dict(self._given)

    def limits(self, *, validation: bool = False) -> EpisodeLimits:
        """The limits of a training episode, or of a validation episode."""
        max_turns = self.val_max_turns if validation and self.val_max_turns is not None else self.max_turns
        if max_turns is None:
            raise ConfigError(
                "max_turns is not set; say how many assistant turns an episode may take, such as max_turns=6"
            )
        return EpisodeLimits(
            max_turns=max_turns,
            max_model_length=self.max_model_length,
            max_completion_length=self.max_completion_length,
            env_timeout_s=self.env_timeout_s,
            policy_timeout_s=self.policy_timeout_s,
            failed_parse_reward=self.failed_parse_reward,
            parse_retries=self.parse_retries,
        )

    @classmethod
    def from_yaml(cls, path: str | Path, **overrides: Any) -> GRPOConfig:
        """Read settings from a YAML file; ``overrides`` win.

        Raises:
            ConfigError: The file is missing or no mapping, a key is unknown (the nearest is suggested), or a value
                is out of range.
        """
        path = Path(path)
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {str(path)!r}")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not valid YAML in UTF-8: {error}") from error
        if not isinstance(values, dict):
            raise ConfigError(f"{path} must hold a mapping of settings, got {type(values).__name__}")
        return cls(**parse_settings({**values, **overrides}, source=str(path)))

    def to_yaml(self, path: str | Path) -> None:
        """Write the settings that differ from the defaults, except ``resume_from_checkpoint``, which is of one start
        and not of the run; :meth:`from_yaml` reads them back.

        Raises:
            ConfigError: A setting holds an object that YAML cannot express.
        """
        kept = {name: value for name, value in self._given.items() if name != "resume_from_checkpoint"}
        try:
            text = yaml.safe_dump(kept, sort_keys=False)
        except yaml.representer.RepresenterError as error:
            raise ConfigError(f"a setting must be a plain value that config.yaml can hold: {error}") from error
        write_whole(Path(path), text)

    def replace(self, **changes: Any) -> GRPOConfig:
        """A new configuration with some settings changed and all checks repeated."""
        return type(self)(**{**self._given, **changes})


def parse_settings(values: dict[str, Any], *, source: str) -> dict[str, Any]:
    """Check names and convert texts such as ``"2e-5"`` (a string to YAML) to the type of their setting.

    Raises:
        ConfigError: A name is unknown or a text does not convert; the message names ``source``.
    """
    hints = typing.get_type_hints(GRPOConfig)
    names = [f.name for f in dataclasses.fields(GRPOConfig) if f.init]
    parsed = {}
    for name, value in values.items():
        if name not in names:
            raise ConfigError(f"{source}: unknown setting {name!r}.{did_you_mean(str(name), names)}")
        parsed[name] = _convert(name, value, hints[name], source)
    return parsed


def _convert(name: str, value: Any, hint: Any, source: str) -> Any:
    if not isinstance(value, str):
        return (
            float(value)
            if _accepts(hint, float)
            and isinstance(value, int)
            and not _accepts(hint, int)
            and not isinstance(value, bool)
            else value
        )
    if value.lower() in ("none", "null") and _accepts(hint, type(None)):
        return None
    if _accepts(hint, str) and not (_accepts(hint, dict) and value.lstrip().startswith("{")):
        return value
    try:
        if _accepts(hint, bool) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if _accepts(hint, int):
            return int(value)
        if _accepts(hint, float):
            return float(value)
        parsed = yaml.safe_load(value)
        if _accepts(hint, bool) and not isinstance(parsed, bool):
            raise ValueError
        return parsed
    except (ValueError, yaml.YAMLError):
        raise ConfigError(f"{source}: {name} takes {getattr(hint, '__name__', hint)}, got {value!r}") from None


def plain(value: Any) -> Any:
    """Enumerations and paths as the text that sets them."""
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, os.PathLike) else value


def _accepts(hint: Any, kind: type) -> bool:
    return hint is kind or kind in typing.get_args(hint)


def _default(f: dataclasses.Field[Any]) -> Any:
    return (
        f.default
        if f.default is not dataclasses.MISSING
        else (f.default_factory() if f.default_factory is not dataclasses.MISSING else dataclasses.MISSING)
    )
