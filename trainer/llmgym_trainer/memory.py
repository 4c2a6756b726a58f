"""How much memory a run needs, estimated from the model's configuration before any weights load.

Parameters are counted on a model built without storage, so they are exact for every architecture, shared weights and
the adapter included. Activations are those of a decoder with a gated feed-forward layer and scaled dot-product
attention; for another architecture they are a rough guide. A step samples first and trains then, and what sampling
keeps is gone before training begins: the peak is the larger of the two, on top of what is always there.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil
import torch
from accelerate.utils.memory import should_reduce_batch_size
from peft import PeftConfig, get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedConfig

from llmgym.errors import ConfigError
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.engines.base import MAX_BATCH, MAX_PREFILL_TOKENS
from llmgym_trainer.errors import OutOfMemoryError

_ADAM = 12
"""Bytes a trained parameter costs besides itself: its gradient and Adam's two moments, all in fp32."""
_DRAW = 24
"""Bytes a logit costs while a token is drawn: fp32 logits and log-probabilities, two fp64 arrays of probabilities."""
_TILE_TOKENS, _TILE_VOCABULARY = 4096, 32_768
"""TRL's output layer never holds more logits than these in training (trl 1.16, ``kernels/chunked_logprob.py``)."""
_CPU_TILE = 20
"""Bytes a logit of such a tile costs besides itself where Triton's kernel does not run."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What one process needs, in bytes.

    Attributes:
        parameters: Parameters of the model, without an adapter.
        trained_parameters: Those that train.
        weights: All weights, a reference model's included.
        optimizer: Gradients and Adam's moments.
        training_fixed: The part of a training pass that does not grow with its tokens.
        training_token: Bytes of activations a token of a micro-batch.
        micro_batch_tokens: Tokens of the largest micro-batch.
        sampling_fixed: Logits of all rows, and activations while prompts are read.
        sampling_token: Bytes of keys and values a token of an episode.
        episodes: Episodes alive at once.
        batch_episodes: Those of them that are decoded together, whose keys and values are held twice.
        episode_tokens: Tokens of an episode at most.
    """

    parameters: int
    trained_parameters: int
    weights: int
    optimizer: int
    training_fixed: int
    training_token: int
    micro_batch_tokens: int
    sampling_fixed: int
    sampling_token: int
    episodes: int
    batch_episodes: int
    episode_tokens: int

    @property
    def training(self) -> int:
        """Activations, gradients on their way and logits of the largest micro-batch."""
        return self.training_fixed + self.training_token * self.micro_batch_tokens

    @property
    def sampling(self) -> int:
        """Logits, keys and values when every episode uses its whole length: an upper bound."""
        return self.sampling_fixed + self.sampling_token * self.episode_tokens * (self.episodes + self.batch_episodes)

    @property
    def always(self) -> int:
        """Weights and optimizer."""
        return self.weights + self.optimizer

    def __str__(self) -> str:
        return (
            f"up to {_gib(self.always + max(self.sampling, self.training))}: weights {_gib(self.weights)} "
            f"({self.parameters:,} parameters), gradients and optimizer {_gib(self.optimizer)} "
            f"({self.trained_parameters:,} train),\n"
            f"  and in turn sampling, up to {_gib(self.sampling)} ({self.episodes} episodes of at most "
            f"{self.episode_tokens} tokens), and training, {_gib(self.training)} "
            f"(a micro-batch of {self.micro_batch_tokens} tokens)"
        )


def estimate_memory(
    model_config: PreTrainedConfig,
    config: GRPOConfig,
    *,
    peft_config: PeftConfig | None = None,
    dtype: torch.dtype = torch.float32,
    val_tasks: int = 0,
    on_gpu: bool = False,
) -> MemoryEstimate:
    """Estimate what a run needs before anything of it is loaded.

    Args:
        model_config: Of the model to train.
        config: All settings.
        peft_config: The adapter to train; None when all weights train.
        dtype: Of the weights; an adapter is always fp32.
        val_tasks: Validation tasks; their episodes run at once, too.
        on_gpu: Whether TRL's Triton kernels run.
    """
    parameters, trained = _count_parameters(model_config, peft_config, config.trust_remote_code)
    text = model_config.get_text_config()
    hidden, layers, heads = text.hidden_size, text.num_hidden_layers, text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or hidden // heads
    queries, keys = heads * head_dim, (getattr(text, "num_key_value_heads", None) or heads) * head_dim
    inner = getattr(text, "intermediate_size", None) or 4 * hidden

    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    train_episodes = config.batch_size // world_size * config.episodes_per_task
    episodes = min(max(train_episodes, -(-val_tasks // world_size)), config.max_concurrent_episodes or 2**31)
    batch_episodes = min(episodes, MAX_BATCH)
    length = config.max_model_length
    tokens = min(max(config.micro_batch_tokens, length), train_episodes * length)

    activation, weight = (2 if config.bf16 else 4), dtype.itemsize
    # Kept for the backward pass: what enters the norms in fp32, and in the activations' own precision what enters
    # the projections, queries, keys, values and result of the attention, its mask, and four times the inner width.
    layer = activation * (4 * inner + 5 * queries + keys + 5 * hidden + length) + 4 * (2 * hidden + queries + keys)
    held = layers * hidden * weight + layer if config.gradient_checkpointing else layers * layer
    tile = min(tokens, _TILE_TOKENS) * min(text.vocab_size, _TILE_VOCABULARY)
    # Autocast holds a copy of each trained weight in bf16; the output layer's gradient is built up in fp32.
    trained_copy = 2 * trained if config.bf16 else 0
    head = 4 * hidden * text.vocab_size if peft_config is None else 0
    reading = min(MAX_PREFILL_TOKENS, episodes * length) * activation * (3 * inner + 3 * queries + 4 * hidden)
    return MemoryEstimate(
        parameters=parameters,
        trained_parameters=trained,
        weights=parameters * weight * (2 if config.beta and peft_config is None else 1)
        + (4 * trained if peft_config is not None else 0),
        optimizer=_ADAM * trained,
        training_fixed=tile * (activation if on_gpu else activation + _CPU_TILE) + trained_copy + head,
        training_token=held + layer + 12 * hidden,  # one more layer for the gradients on their way, and the last state
        micro_batch_tokens=tokens,
        sampling_fixed=batch_episodes * text.vocab_size * _DRAW + reading,
        sampling_token=2 * layers * keys * weight,
        episodes=episodes,
        batch_episodes=batch_episodes,
        episode_tokens=length,
    )


def check_memory(estimate: MemoryEstimate, available: int, config: GRPOConfig, *, where: str) -> str | None:
    """Refuse a run that cannot fit.

    What is always there and one full micro-batch must fit, and one episode of the longest length. That all episodes
    reach it at once is possible, and seldom: where only this does not fit, the answer is a warning.

    Args:
        estimate: What is needed.
        available: Bytes that are free.
        config: All settings.
        where: The device, in words.

    Returns:
        The warning, or None.

    Raises:
        ConfigError: It cannot fit; the message names the setting to change.
    """
    free = available - estimate.always
    has = f"but {where} has {_gib(available)} free"
    if free <= 0:
        remedy = (
            "take a smaller model"
            if estimate.trained_parameters < estimate.parameters
            else "train an adapter (--lora) or take a smaller model"
        )
        raise ConfigError(f"weights, gradients and optimizer need {_gib(estimate.always)}, {has}; {remedy}")
    if estimate.training > free:
        fit = max(0, free - estimate.training_fixed) // estimate.training_token
        remedies = [] if config.gradient_checkpointing else ["set gradient_checkpointing=True"]
        if fit >= estimate.episode_tokens:
            remedies.append(f"lower micro_batch_tokens={config.micro_batch_tokens} (about {_round(fit)} fit)")
        elif fit:
            remedies.append(
                f"lower micro_batch_tokens={config.micro_batch_tokens} and max_model_length={estimate.episode_tokens} "
                f"(about {_round(fit)} fit)"
            )
        else:
            remedies.append("take a smaller model")
        raise ConfigError(
            f"a training pass over {estimate.micro_batch_tokens} tokens needs "
            f"{_gib(estimate.always + estimate.training)} with weights and optimizer, {has}; {' or '.join(remedies)}"
        )
    each = 2 * estimate.sampling_token * estimate.episode_tokens
    fit = max(0, free - estimate.sampling_fixed) // each
    if not fit:
        raise ConfigError(
            f"sampling one episode of {estimate.episode_tokens} tokens needs "
            f"{_gib(estimate.always + estimate.sampling_fixed + each)} with weights and optimizer, {has}; lower "
            f"max_concurrent_episodes (now {estimate.episodes} at once) or max_model_length={estimate.episode_tokens}"
        )
    if estimate.sampling > free:
        return (
            f"if all {estimate.episodes} episodes reached max_model_length={estimate.episode_tokens}, sampling "
            f"would need {_gib(estimate.always + estimate.sampling)}, {has}; should memory run out while sampling, set "
            f"max_concurrent_episodes={fit} or lower max_model_length"
        )
    return None


@contextlib.contextmanager
def explain_out_of_memory(inputs: Mapping[str, torch.Tensor], micro_batch_tokens: int) -> Iterator[None]:
    """Turn torch's out-of-memory error into one that names the setting.

    Args:
        inputs: The micro-batch, with ``prompt_ids`` (B, P) and ``completion_ids`` (B, C).
        micro_batch_tokens: The setting.

    Raises:
        OutOfMemoryError: The section ran out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
            raise
        rows, width = len(inputs["prompt_ids"]), inputs["prompt_ids"].shape[1] + inputs["completion_ids"].shape[1]
        if rows > 1:
            remedy = f"lower micro_batch_tokens, such as to {max(micro_batch_tokens, rows * width) // 2}"
        else:
            remedy = "lower max_model_length, for no row is cut to micro_batch_tokens"
        raise OutOfMemoryError(
            f"out of memory in a forward and backward pass of {rows} rows of {width} tokens "
            f"(micro_batch_tokens={micro_batch_tokens}): {remedy}; or set gradient_checkpointing=True, or train an "
            f"adapter (--lora). The device said: {str(error).splitlines()[0]}"
        ) from error


def free_memory(config: GRPOConfig) -> tuple[int, str]:
    """Free bytes for this process, and the device they are on in words."""
    if torch.cuda.is_available() and not config.use_cpu:
        return int(torch.cuda.mem_get_info()[0]), torch.cuda.get_device_name()
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    share = f", divided by its {processes} processes," if processes > 1 else ""
    return int(psutil.virtual_memory().available) // processes, f"this machine{share}"


def _count_parameters(
    model_config: PreTrainedConfig, peft_config: PeftConfig | None, trust_remote_code: bool
) -> tuple[int, int]:
    """Parameters of the model, and those of it or of its adapter that train. Shared ones count once."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config, trust_remote_code=trust_remote_code)
        parameters = trained = sum(p.numel() for p in model.parameters())
        if peft_config is not None:
            adapted = get_peft_model(model, copy.deepcopy(peft_config))  # it writes into the configuration it is given
            trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    return parameters, trained


def _gib(size: int) -> str:
    if size < 2**30 // 10:
        return f"{size / 2**20:,.0f} MiB"
    return f"{size / 2**30:,.2f} GiB" if size < 10 * 2**30 else f"{size / 2**30:,.0f} GiB"


def _round(tokens: int) -> int:
    """Down to two leading digits, since the estimate is no better."""
    unit: int = 10 ** max(0, len(str(tokens)) - 2)
    return tokens // unit * unit
