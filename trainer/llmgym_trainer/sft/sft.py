"""Supervised fine-tuning (SFT) on episodes: their training rows, the training loop, and the model folder.

The policy of a rollout produces the tokens and GRPO's row builder the rows, so the model learns exactly the tokens that
a rollout would hold.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from peft import PeftConfig, get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llmgym._util.aio import run_sync
from llmgym._util.files import whole_folder
from llmgym._util.progress import ProgressBar
from llmgym._util.seeding import derive_seed
from llmgym.episode import Episode, EpisodeLimits
from llmgym.errors import ConfigError
from llmgym_trainer.algorithm.rows import Row, build_rows
from llmgym_trainer.engines.base import Sample, SamplingParams
from llmgym_trainer.errors import NonFiniteError, weights_are_finite
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy

_NO_LIMITS = EpisodeLimits(max_model_length=1_000_000)


@dataclass(frozen=True)
class SFTResult:
    """What :func:`run_sft` did.

    Attributes:
        path: Folder of the model, to be given as ``model``.
        episodes: Number of episodes learned from.
        rows: Number of training rows they gave.
        too_long: Rows left out because they are longer than ``max_length``.
        losses: Loss of each step, in nats per token.
    """

    path: Path
    episodes: int
    rows: int
    too_long: int
    losses: list[float]


def run_sft(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    codec: Codec,
    episodes: Sequence[Episode],
    out: str | Path,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int = 42,
    max_length: int | None = None,
    use_sampled_tokens: bool = False,
    peft_config: PeftConfig | None = None,
) -> SFTResult:
    """Train a model to repeat what the policy of each episode said, and save it. Malformed turns are not learned.

    Args:
        model: Changed in place.
        tokenizer: Saved beside the model.
        codec: Codec of the model.
        episodes: What to learn from.
        out: Folder to write; it must not exist. It is written whole or not at all.
        steps: Optimizer steps.
        batch_size: Rows per step.
        learning_rate: The highest one.
        seed: Seed of the order of the rows and of an adapter's initial weights.
        max_length: Rows with more tokens are left out; none is cut.
        use_sampled_tokens: Learn the tokens recorded in the episodes, which this model sampled. Otherwise the messages
            are encoded as a rollout would.
        peft_config: Trains an adapter, which is merged at the end.

    Raises:
        ConfigError: ``out`` exists, a number is out of range, or no row is left.
        CodecError: The chat template cannot express an episode.
        NonFiniteError: The loss became NaN or infinite; nothing is written.
    """
    out = Path(out)
    check_output(out)
    for name, value in (("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    to_rows = _sampled_rows if use_sampled_tokens else encode_episode
    rows = [row for episode in episodes for row in to_rows(episode, codec)]
    fitting = [row for row in rows if max_length is None or len(row.ids) <= max_length]
    if not fitting:
        raise ConfigError(f"there is no training row of at most {max_length} tokens in {len(episodes)} episodes")
    trained, losses = fine_tune(
        model, fitting, steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed,
        peft_config=peft_config,
    )  # fmt: skip
    with whole_folder(out) as folder:
        trained.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "sft.json").write_text(
            json.dumps({"episodes": len(episodes), "rows": len(fitting), "steps": steps, "losses": losses})
        )
    return SFTResult(out, len(episodes), len(fitting), len(rows) - len(fitting), losses)


def check_output(out: Path) -> None:
    """Raise :class:`ConfigError` if ``out`` exists already."""
    if out.exists():
        raise ConfigError(f"{str(out)!r} exists; give another --out, or remove it")


def fine_tune(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    seed: int,
    peft_config: PeftConfig | None = None,
    **settings: Any,
) -> tuple[PreTrainedModel, list[float]]:
    """Train a model, or an adapter that is merged into it at the end, on a GPU where there is one.

    Args:
        model: Changed in place.
        rows: Training rows.
        seed: Seed of the order of the rows and of the adapter's initial weights.
        peft_config: The adapter; None trains all weights.
        settings: See :func:`train_on_rows`.

    Returns:
        The model and the loss of each step.
    """
    trained: Any = model
    if peft_config is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trained = get_peft_model(model, peft_config)
    losses = train_on_rows(trained.to("cuda" if torch.cuda.is_available() else "cpu"), rows, seed=seed, **settings)
    return (trained.merge_and_unload() if peft_config is not None else trained), losses


def train_on_rows(
    model: PreTrainedModel,
    rows: Sequence[Row],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    label: str = "SFT",
) -> list[float]:
    """Train a model on rows with the cross-entropy of their trained tokens, and show progress.

    AdamW without weight decay; the learning rate rises over the first twentieth of the steps and then falls linearly to
    a twentieth. Rows of similar length share a batch; each row is used once before any is used again.

    Args:
        model: Trains its parameters that require gradients.
        rows: See :func:`encode_episode`.
        steps: Optimizer steps.
        batch_size: Rows per step.
        learning_rate: The highest one.
        seed: Determines the order of the rows.
        label: Label of the progress bar.

    Returns:
        The loss of each step, in nats per token.

    Raises:
        NonFiniteError: A loss, or the weights at the end, are NaN or infinite.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    rise = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, max(0.05, 1 - step / steps))
    )
    batches = _batches(rows, batch_size, random.Random(derive_seed("warm-up", seed)))
    losses: list[float] = []
    model.train()
    with ProgressBar(label, steps) as bar:
        start = time.perf_counter()
        for step in range(1, steps + 1):
            loss = _loss(model, next(batches))
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise _diverged(f"the loss of step {step} of {steps} is {losses[-1]}", learning_rate)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            bar.update(step, f"loss {losses[-1]:.3f}, {step / (time.perf_counter() - start):.1f} steps/s")
    if not weights_are_finite(model):
        raise _diverged(f"the weights after {steps} steps are NaN or infinite", learning_rate)
    model.eval()
    return losses


def encode_episode(episode: Episode, codec: Codec) -> list[Row]:
    """Turn an episode into training rows, as if the model had sampled its assistant messages.

    The policy of a rollout holds and extends the tokens; only its engine is replaced, by one that returns the tokens of
    the recorded message.

    Args:
        episode: An episode with a message in each turn; ``turn.tokens`` is not read.
        codec: Codec of the model to train.

    Returns:
        Rows whose mask is 1 on the assistant messages, end-of-turn token included, and 0 on malformed turns that were
        corrected. Their logprobs are 0.

    Raises:
        ConfigError: A turn has no message.
        CodecError: The chat template cannot express the episode.
    """

    async def encode() -> Episode:
        engine, history, turns = _FixedTokensEngine(), list(episode.initial_messages), []
        policy = ModelPolicy(codec, engine, _NO_LIMITS, key="", rng=random.Random(0))
        for turn in episode.turns:
            if turn.message is None:
                raise ConfigError(f"an episode of task {episode.task.id} has a turn without a message")
            engine.ids = codec.encode_turn(history, turn.message, episode.tool_specs)
            acted = await policy.act(history, episode.tool_specs)
            turns.append(replace(turn, tokens=acted.tokens))
            said = acted.message or turn.message  # the policy must find its own message in the history
            history = turn.observation if turn.history_edited else [*history, said, *turn.observation]
        return replace(episode, turns=turns)

    return _sampled_rows(run_sync(encode()), codec)


def _sampled_rows(episode: Episode, codec: Codec) -> list[Row]:
    """The rows of an episode that holds the tokens to learn."""
    return build_rows(episode, left_out=[number for number, turn in enumerate(episode.turns) if turn.corrected])


class _FixedTokensEngine:
    """An engine that returns ``ids``, whatever the prompt."""

    ids: list[int]

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        return Sample(list(self.ids), [0.0] * len(self.ids), "stop", 0)

    def release(self, key: str) -> None: ...

    def abort(self, key: str) -> None: ...

    def sync(self, version: int) -> None: ...

    def close(self) -> None: ...


def _diverged(what: str, learning_rate: float) -> NonFiniteError:
    return NonFiniteError(f"{what}: learning_rate={learning_rate} is most likely too high; nothing was saved")


def _loss(model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
    """Mean cross-entropy of the trained tokens, shape (). The output layer runs on these alone: it is the widest."""
    length = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [0] * (length - len(row.ids)) for row in rows], device=model.device)
    mask = torch.tensor([row.mask + [0] * (length - len(row.mask)) for row in rows], device=model.device)[:, 1:].bool()
    # Padding follows the row, and causal attention never looks ahead.
    hidden = model.get_decoder()(input_ids=ids, use_cache=False)[0][:, :-1]
    return F.cross_entropy(model.get_output_embeddings()(hidden[mask]).float(), ids[:, 1:][mask])


def _batches(rows: Sequence[Row], batch_size: int, rng: random.Random) -> Iterator[list[Row]]:
    """Endless batches, pass after pass: rows are shuffled, sorted by length within stretches, and cut."""
    while True:
        order = rng.sample(range(len(rows)), len(rows))
        stretch = 16 * batch_size
        for start in range(0, len(order), stretch):
            near = sorted(order[start : start + stretch], key=lambda index: len(rows[index].ids))
            batches = [near[first : first + batch_size] for first in range(0, len(near), batch_size)]
            rng.shuffle(batches)
            yield from ([rows[index] for index in batch] for batch in batches)
