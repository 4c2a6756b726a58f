"""Finds and loads a model: a built-in one, a hub name, a directory, or a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import CONFIG_NAME

from llmgym.errors import ConfigError
from llmgym.evaluation.folder import EPISODES_FILE, SETTINGS_FILE
from llmgym_trainer.models.builtin import PRESETS, built_in_model
from llmgym_trainer.runs.checkpoints import STATE_FILE, last_checkpoint
from llmgym_trainer.tokens.codec import Codec, load_chat_template

ADAPTER_FILE = "adapter_config.json"
"""Part of a checkpoint that holds only an adapter."""


def resolve_model(name: str, seed: int, env_id: str = "") -> str:
    """Turn what a user may write for a model into a directory or hub name.

    Args:
        name: ``"tiny"`` or ``"smollm2"`` (see :func:`~llmgym_trainer.models.builtin.built_in_model`), a run folder (its
            last checkpoint), a directory, or a hub name.
        seed: Seed of a built-in model.
        env_id: The environment that a built-in model learns from.

    Raises:
        ConfigError: There is no such folder, or no model in it.
    """
    if name in PRESETS:
        return str(built_in_model(name, seed, env_id))
    path = Path(name)
    if (path / "metrics.jsonl").is_file() or (path / "config.yaml").is_file():
        return str(last_checkpoint(path))
    if not path.exists() and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise ConfigError(f"there is no model directory {name!r}")
    if path.is_dir() and not any((path / file).is_file() for file in (CONFIG_NAME, ADAPTER_FILE)):
        is_evaluation = (path / EPISODES_FILE).is_file() or (path / SETTINGS_FILE).is_file()
        what = "is the folder of an evaluation, with episodes and no model" if is_evaluation else "holds no model"
        raise ConfigError(
            f"{name!r} {what}: there is neither {CONFIG_NAME} nor {ADAPTER_FILE} in it. Give the folder of a training "
            "run, one of its checkpoints, a model directory, a hub name, 'tiny' or 'smollm2'"
        )
    return name


def load_model_config(path: str, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Load a model's configuration, without weights; for an adapter checkpoint, that of its base model.

    Raises:
        ConfigError: Nothing is there.
    """
    try:
        if (Path(path) / ADAPTER_FILE).is_file():
            from peft import PeftConfig

            path = PeftConfig.from_pretrained(path).base_model_name_or_path
        return AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        raise _cannot_load(path, error) from error


def load_model(
    path: str, *, dtype: torch.dtype, chat_template: str | None = None, **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; an adapter checkpoint is merged into its base model.

    Args:
        path: Directory or hub name.
        dtype: Data type of the weights.
        chat_template: Name or file of a template that replaces the tokenizer's own; None keeps that.
        kwargs: Passed to ``AutoModelForCausalLM.from_pretrained``.

    Raises:
        ConfigError: Nothing is there, or the checkpoint was trained with another chat template than it has now.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        if (Path(path) / ADAPTER_FILE).is_file():
            from peft import AutoPeftModelForCausalLM

            model = AutoPeftModelForCausalLM.from_pretrained(path, dtype=dtype, **kwargs).merge_and_unload()
            model.requires_grad_(True)  # peft froze the base model
        else:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, **kwargs)
    except (OSError, ValueError) as error:  # transformers raises either for a folder without a model
        raise _cannot_load(path, error) from error
    if chat_template is not None:
        tokenizer.chat_template = load_chat_template(chat_template)
    state = Path(path) / STATE_FILE
    if state.is_file():
        trained, now = json.loads(state.read_text())["template_hash"], Codec(tokenizer).template_hash
        if trained != now:
            raise ConfigError(
                f"{path} was trained with chat template {trained} but its tokenizer now has {now}; restore the template"
            )
    return model, tokenizer


def make_codec(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None = None
) -> Codec:
    """The codec of a loaded model; the end-of-text ids of its generation config end a turn too.

    Args:
        model: The model.
        tokenizer: Its tokenizer, with the chat template.
        template_kwargs: Further variables of the template.

    Raises:
        ConfigError: There is no chat template, or none that ends assistant messages with a special token.
    """
    stop_ids: Any = model.generation_config.eos_token_id
    extra = [stop_ids] if isinstance(stop_ids, int) else stop_ids or []
    return Codec(tokenizer, template_kwargs=dict(template_kwargs or {}), extra_stop_ids=extra)


def _cannot_load(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"cannot load model {path!r}: {error}\nGive a model directory, a hub name that can be reached from here, or "
        "'tiny'"
    )
