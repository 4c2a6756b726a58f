"""Every training setting, checked before a model loads: ours, and those of ``trl.GRPOConfig``."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import trl
import yaml

from llmgym._util.files import write_whole
from llmgym._util.settings import check, differing, parse, setting
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError, did_you_mean
from llmgym.task import Task
from llmgym_trainer.algorithm.advantages import BASELINES, CREDITS, Credit, OverlongPenalty
from llmgym_trainer.algorithm.loss import CORRECTIONS, LOSS_TYPES, OTHER_LOSS_TYPES
from llmgym_trainer.metrics import VALIDATION_METRICS

DERIVED = {
    "num_generations": "episodes_per_task",
    "num_generations_eval": "val_tasks (one episode each)",
    "generation_batch_size": "batch_size",
    "steps_per_generation": "batch_size",
    "gradient_accumulation_steps": "micro_batch_tokens",
    "per_device_train_batch_size": "batch_size (tasks per step) and micro_batch_tokens (memory)",
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

_OTHER_DISTRIBUTION = "the log-probabilities would be those of another distribution than the one trained"

REFUSED = {
    "use_vllm": (False, "only the embedded transformers engine samples so far"),
    "use_transformers_continuous_batching": (False, "the embedded engine already batches continuously in its own way"),
    "num_iterations": (1, "each batch of episodes is trained on once"),
    "importance_sampling_level": ("token", "each batch is trained on once, where both levels have one gradient"),
    "top_p": (1.0, _OTHER_DISTRIBUTION),
    "top_k": (0, _OTHER_DISTRIBUTION),
    "min_p": (None, _OTHER_DISTRIBUTION),
    "repetition_penalty": (1.0, _OTHER_DISTRIBUTION),
    "generation_kwargs": (None, "the sampling engine has no further settings"),
    "cache_implementation": (None, "the sampling engine brings its own cache"),
    "reward_weights": (None, "the environment weighs the parts of a reward: ToolEnv.reward_weights"),
    "log_completions": (False, "every episode is written to runs/<run_name>/episodes/ already"),
    "sync_ref_model": (False, "the reference model stays the initial one"),
    "save_strategy": ("steps", "a run always ends with a checkpoint; save_steps adds earlier ones"),
    "save_only_model": (False, "such a checkpoint cannot be resumed; save_total_limit bounds how many are kept"),
    "use_adaptive_entropy": (False, "its controller would act once per micro-batch instead of once per step"),
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

_NOT_NEGATIVE = ("learning_rate", "weight_decay", "beta", "warmup_steps", "max_grad_norm")

# A derived setting has no default, so that any value a user gives is noticed.
_TRLConfig: Any = dataclasses.make_dataclass(
    "_TRLConfig", [(name, Any, None) for name in DERIVED], bases=(trl.GRPOConfig,)
)


@dataclass
class GRPOConfig(_TRLConfig):  # type: ignore[misc]  # trl has no type information
    """Settings of :func:`llmgym_trainer.train_multi_turn`: ours below, and those of ``trl.GRPOConfig``.

    Raises:
        ConfigError: A value is out of range, a setting contradicts another, or a setting of TRL follows from ours
            (:data:`DERIVED`) or cannot work here (:data:`REFUSED`). The message says what to set instead.
    """

    model: str = setting("tiny", "Hub name or directory of the model; 'tiny' and 'smollm2' are built in.")
    chat_template: str | None = setting(
        None, "Template file, 'compact' or 'hermes', for a model whose own template has no tool support."
    )
    chat_template_kwargs: dict[str, Any] | None = setting(
        None, 'Variables of the chat template, such as {"enable_thinking": false}.'
    )
    batch_size: int = setting(8, "Tasks per optimizer step, over all processes.", least=1)
    episodes_per_task: int = setting(
        8, "Episodes of each task in a step: the group whose rewards an advantage compares.", least=1
    )
    num_steps: int = setting(100, "Optimizer steps.", least=1)
    max_turns: int | None = setting(None, "Assistant turns per episode. Required by train_multi_turn.", least=1)
    val_max_turns: int | None = setting(None, "The same in validation. None takes max_turns.", least=1)
    max_model_length: int = setting(2048, "Tokens of a whole episode, prompt and all turns.", least=1)
    max_completion_length: int | None = setting(
        None, "Tokens of one assistant turn. None: what is left of the episode.", least=1
    )
    failed_parse_reward: float = setting(-0.1, "Reward of an episode whose output is no valid message or tool call.")
    parse_retries: int = setting(
        0, "Malformed turns of an episode that get a correction and another turn instead of ending it.", least=0
    )
    train_corrected_turns: bool = setting(
        True, "Malformed turns that were corrected train with their episode; False leaves their tokens out of the loss."
    )
    env_timeout_s: float | None = setting(
        120.0, "Seconds an episode may spend inside the environment. None: no limit.", above=0
    )
    policy_timeout_s: float | None = setting(
        None, "Seconds one turn may take to sample, waiting included; then the episode fails. None: no limit.", above=0
    )
    overlong_penalty: float | None = setting(
        None, "Cost of using up the length or turn budget (a positive number). None: nothing.", above=0
    )
    overlong_buffer_tokens: int = setting(
        0, "Terminated episodes in the last part of max_model_length pay a linear share.", least=0
    )
    overlong_masking: bool = setting(False, "Truncated episodes train nothing; their rewards stay in the baseline.")
    advantage_baseline: str = setting(
        "mean",
        "What a reward is compared with: 'mean' of its group, or 'leave_one_out', the mean of the others.",
        choices=BASELINES,
    )
    scale_rewards: str = setting(
        "group",
        "Advantages are divided by the standard deviation of the rewards of their 'group' or of the whole 'batch', or "
        "by 'none'; True is 'group' and False 'none'.",
        choices=("group", "batch", "none", True, False),
    )
    loss_type: str = setting("dapo", "The loss and what divides it.", choices=tuple(LOSS_TYPES))
    credit: str = setting(
        "episode",
        "What a turn's advantage comes from: the 'episode' reward; its discounted 'return' of turn rewards; or "
        "'mt_grpo', turn rewards beside the outcome. An environment gives turn rewards as StepResult.reward.",
        choices=CREDITS,
    )
    turn_discount: float = setting(1.0, "Discount from turn to turn of credit='return'.", least=0, most=1)
    turn_reward_weight: float = setting(1.0, "Weight of the turn rewards in credit='mt_grpo'.")
    temperature: float = setting(1.0, "Sampling temperature; GRPO compares samples that differ.", above=0)
    sampling_correction: str | None = setting(
        None,
        "Importance weights for samplers whose probabilities differ a little: 'token', 'sequence' (one "
        "length-normalised ratio per row), or 'off'. None: 'token' in bf16 and fp16, else 'off'.",
        choices=CORRECTIONS,
    )
    sampling_correction_cap: float = setting(
        2.0, "Largest importance weight; larger ratios are cut to it.", least=1, most=math.inf
    )
    max_steps_without_variance: int | None = setting(
        20, "The run ends after this many steps in a row without a group that could train anything. None: never.",
        least=1,
    )  # fmt: skip
    max_sampling_attempts: int = setting(
        1, "Rounds of sampling; groups without reward variance are replaced by fresh tasks.", least=1
    )
    validation_interval: int = setting(
        10, "Steps between validations; there is one at step 0 and one at the end too.", least=1
    )
    sequential_validation: bool = setting(False, "Run validation episodes one at a time.")
    val_temperature: float | None = setting(
        None, "Sampling temperature of validation; 0 takes the most likely token. None takes temperature.", least=0
    )
    success_reward: float = setting(1.0, "An episode with at least this reward counts as a success in the metrics.")
    max_concurrent_episodes: int | None = setting(
        None, "Episodes running at once in one process. None: all of a step.", least=1
    )
    max_steps_off_policy: int | None = setting(None, "Not available yet.")
    groups_in_flight: int | None = setting(None, "Not available yet.")
    micro_batch_tokens: int = setting(
        16_384, "Tokens (with padding) in one forward and backward pass. Lower it when memory runs out.", least=1
    )
    episode_retries: int = setting(1, "Times a failed episode is tried again on a fresh environment.", least=0)
    max_error_share: float = setting(
        0.5, "The run stops when more than this share of the episodes of a step or a validation fails.", least=0, most=1
    )
    deterministic: bool = setting(
        False,
        "Sample in batches that do not depend on the speed of the environments, so that a run repeats and resumes "
        "exactly on the same machine. A slow tool then delays all episodes. On a GPU set full_determinism too.",
    )
    seed: int = setting(
        42, "Seed of tasks, environments, sampling and initial adapter weights.", least=0, most=2**32 - 1
    )
    resume_from_checkpoint: str | None = setting(
        None, "Resume a run: its folder, for its last checkpoint, or one of its checkpoints."
    )
    wandb_project: str | None = setting(None, "Log to this Weights & Biases project.")
    run_name: str | None = setting(None, "Name of the run and of its folder. None takes the time.")
    runs_dir: str = setting("runs", "Folder that holds the run folders.")

    metric_for_best_model: str | None = setting(
        None,
        "A metric of the validation, such as val/success: the checkpoint where it is best is one of the "
        "save_total_limit kept (highest, unless greater_is_better=False).",
    )
    logging_steps: float = setting(1, "Steps between two lines of metrics.", above=0)
    save_steps: float = setting(50, "Steps between checkpoints; there is one at the end too.", above=0)
    save_total_limit: int | None = setting(2, "Checkpoints kept.")
    gradient_checkpointing: bool | None = setting(None, "Recompute activations to save memory. None: on a GPU only.")
    bf16: bool | None = setting(None, "Mixed precision. None: on a GPU that supports it.")
    disable_dropout: bool = setting(True, "Sampling has no dropout, so training has none either.")

    def __post_init__(self) -> None:
        self._given = differing(self)
        self._check()
        self.__dict__.update(self._derived())
        try:
            super().__post_init__()
        except ValueError as error:
            raise ConfigError(f"transformers and TRL refuse these settings: {error}") from error

    def _check(self) -> None:
        for name, value in self._given.items():
            if name in DERIVED:
                raise ConfigError(f"{name}={value!r} is derived here; set {DERIVED[name]} instead")
            if name in REFUSED and value != REFUSED[name][0]:
                allowed, why = REFUSED[name]
                raise ConfigError(f"{name}={value!r} is not supported ({why}); leave it at {allowed!r}")
            if name == "loss_type" and value in OTHER_LOSS_TYPES:
                raise ConfigError(
                    f"loss_type={value!r} is not supported ({OTHER_LOSS_TYPES[value]}); allowed are "
                    f"{', '.join(LOSS_TYPES)}"
                )
        check(type(self), self._given)
        for broken, message in self._rules():
            if broken:
                raise ConfigError(message)

    def _rules(self) -> list[tuple[bool, str]]:
        """What must hold between the settings: whether a rule is broken, and the error then."""
        reserve, best = EpisodeLimits().reply_reserve_tokens, self.metric_for_best_model
        world_size = _world_size()
        negative = [name for name in _NOT_NEGATIVE if getattr(self, name) < 0]
        sharded = [
            name
            for name in ("fsdp", "deepspeed")
            if os.environ.get(f"ACCELERATE_USE_{name.upper()}", "false").lower() in ("true", "1")
        ]
        return [
            (bool(negative), "; ".join(f"{name}={getattr(self, name)} must be 0 or more" for name in negative)),
            (
                self.episodes_per_task == 1,
                "episodes_per_task=1 never trains: an advantage compares the episodes of one task, so it takes 2 "
                "or more",
            ),
            (
                self.loss_type == "cispo" and (self.epsilon_high is None or self.epsilon_high < 1),
                f"loss_type='cispo' weighs each token by its ratio cut at epsilon_high={self.epsilon_high} (None: "
                f"epsilon={self.epsilon}). The ratio is 1 here, so a cut below 1 only makes all gradients smaller; set "
                "epsilon_high to 1 or more, such as 5.0 (arXiv 2510.13786)",
            ),
            (
                self.max_model_length <= reserve,
                f"max_model_length={self.max_model_length} leaves no room for a prompt: {reserve} tokens are kept for "
                "a reply",
            ),
            (
                self.max_completion_length is not None and self.max_completion_length >= self.max_model_length,
                f"max_completion_length={self.max_completion_length} leaves no room for a prompt within "
                f"max_model_length={self.max_model_length}; raise the second or lower the first",
            ),
            (
                self.overlong_buffer_tokens >= self.max_model_length,
                f"overlong_buffer_tokens={self.overlong_buffer_tokens} must be under "
                f"max_model_length={self.max_model_length}",
            ),
            (
                self.overlong_buffer_tokens > 0 and self.overlong_penalty is None,
                "overlong_buffer_tokens needs overlong_penalty, the full cost that its ramp leads to",
            ),
            *(
                (
                    getattr(self, name) != 1.0 and self.credit != credit,
                    f"{name} belongs to credit={credit!r}, but credit={self.credit!r}",
                )
                for name, credit in (("turn_discount", "return"), ("turn_reward_weight", "mt_grpo"))
            ),
            (
                best is not None
                and best not in VALIDATION_METRICS
                and not best.startswith(("val/env/", "val/by_env/")),
                f"metric_for_best_model={best!r} is no metric of a validation, which has "
                f"{', '.join(VALIDATION_METRICS)}, and those of the environments (val/env/…, val/by_env/…)."
                f"{did_you_mean(str(best), VALIDATION_METRICS)}",
            ),
            (
                best is not None and self.save_total_limit == 1,
                "save_total_limit=1 has no room for the best checkpoint beside the last one; use 2 or more",
            ),
            (
                bool(sharded),
                f"accelerate is configured for {' and '.join(sharded)}, which is not supported "
                f"({'; '.join(REFUSED[name][1] for name in sharded)}); launch with --multi_gpu, and train an adapter "
                "(--lora) where a GPU cannot hold all weights and their optimizer",
            ),
            (
                self.batch_size % world_size > 0,
                f"batch_size={self.batch_size} tasks do not divide over {world_size} processes (a task's group stays "
                f"on one); use a multiple of {world_size}",
            ),
        ]

    def _derived(self) -> dict[str, Any]:
        """The settings of TRL that follow from ours, and ours that are None for "it depends"."""
        on_gpu = torch.cuda.is_available() and not self.use_cpu
        bf16 = on_gpu and not self.fp16 and torch.cuda.is_bf16_supported() if self.bf16 is None else self.bf16
        checkpointing = on_gpu if self.gradient_checkpointing is None else self.gradient_checkpointing
        episodes = self.batch_size // _world_size() * self.episodes_per_task
        return {
            "num_generations": self.episodes_per_task,
            "per_device_train_batch_size": episodes,
            "per_device_eval_batch_size": episodes,
            "gradient_accumulation_steps": 1,
            "max_steps": self.num_steps,
            "num_train_epochs": 1.0,
            "do_eval": False,
            "eval_on_start": False,
            "eval_strategy": "no",
            "eval_delay": 0,
            "mask_truncated_completions": False,
            "report_to": [],
            "output_dir": str(Path(self.runs_dir) / (self.run_name or "unnamed")),
            "bf16": bf16,
            "sampling_correction": self.sampling_correction or ("token" if bf16 or self.fp16 else "off"),
            "gradient_checkpointing": checkpointing,
            "activation_checkpointing": checkpointing,
        }

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

    def make_credit(self) -> Credit:
        """How the rewards of a step become advantages."""
        overlong = None
        if self.overlong_penalty is not None:
            overlong = OverlongPenalty(self.overlong_penalty, self.overlong_buffer_tokens, self.max_model_length)
        return Credit(
            self.credit,
            self.turn_discount,
            self.turn_reward_weight,
            self.scale_rewards,
            self.advantage_baseline,
            overlong,
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
        return cls(**parse(cls, {**values, **overrides}, source=str(path)))

    def to_yaml(self, path: str | Path) -> None:
        """Write the settings that differ from the defaults, for :meth:`from_yaml`.

        ``resume_from_checkpoint`` is left out: it belongs to one start of a run, not to the run.

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


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
