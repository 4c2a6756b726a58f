"""Supervised start of a model on an environment: from episodes to a model folder. Knows where episodes come from.

Three sources: a scripted expert (:func:`llmgym_trainer.models.builtin.scripted.scripted_episodes`), recorded episodes
(:func:`recorded_episodes`), or the best of several samples of the model itself (:func:`best_samples`; rejection
sampling as in RAFT, arXiv 2304.06767). Whatever the source, rows come from the row builder of training, so that the
model learns exactly the tokens that a rollout would sample.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftConfig, get_peft_model
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from llmgym._util.aio import run_sync
from llmgym.cli.export import ExportCounts, best_of_tasks, choose_episodes
from llmgym.env import Env
from llmgym.episode import Episode, EpisodeLimits
from llmgym.errors import ConfigError
from llmgym.task import Task
from llmgym_trainer.algorithm.rows import Row, build_rows
from llmgym_trainer.collection.collector import Collector
from llmgym_trainer.engines.transformers import TransformersEngine
from llmgym_trainer.models.builtin.scripted import encode_scripted, warm_up
from llmgym_trainer.tokens.codec import Codec


@dataclass(frozen=True)
class WarmStart:
    """What :func:`warm_start` did.

    Attributes:
        path: Folder of the model, to be given as ``model``.
        episodes: Episodes learnt from.
        rows: Their training rows.
        too_long: Rows left out because they are longer than ``max_length``.
        losses: The loss of each step, in nats a token.
    """

    path: Path
    episodes: int
    rows: int
    too_long: int
    losses: list[float]


def recorded_episodes(
    run: str | Path, *, min_reward: float | None = None, best_per_task: bool = False, limit: int | None = None
) -> list[Episode]:
    """Episodes of an evaluation, of a training run, or of a JSONL file that their environment ended.

    Args:
        run: See :func:`llmgym.cli.export.export_rows`.
        min_reward: Leave out episodes with a smaller reward.
        best_per_task: One episode of each task, the best.
        limit: So many at most.

    Raises:
        ConfigError: There are none, or none is left.
        RecordError: A line is no episode.
    """
    counts = ExportCounts()
    episodes = list(choose_episodes(run, counts, min_reward=min_reward, best_per_task=best_per_task))[:limit]
    if not episodes:
        raise ConfigError(
            f"no episode of {str(run)!r} is left to learn from: of {counts.episodes}, {counts.unfinished} were not "
            f"ended by their environment and {counts.low} have a reward below {min_reward}"
        )
    return episodes


def best_samples(
    model: PreTrainedModel,
    codec: Codec,
    env_factory: Callable[[Task], Env],
    tasks: Sequence[Task],
    limits: EpisodeLimits,
    *,
    samples_per_task: int,
    min_reward: float,
    temperature: float = 1.0,
    seed: int = 42,
    on_episode: Callable[[Episode], None] = lambda episode: None,
) -> list[Episode]:
    """Sample every task several times and keep the best episode of each, where it is good enough.

    Args:
        model: What samples.
        codec: Of the model.
        env_factory: Builds a fresh environment for one episode of a task.
        tasks: The tasks.
        limits: What ends an episode from outside; one so ended is not kept.
        samples_per_task: Episodes of each task.
        min_reward: The smallest reward to keep.
        temperature: Sampling temperature.
        seed: Of sampling and environments.
        on_episode: Called as each episode ends.

    Raises:
        ConfigError: No episode is good enough.
    """
    engine = TransformersEngine(model)
    collector = Collector(codec, engine, env_factory, seed=seed)
    try:
        groups = run_sync(
            collector.collect(
                tasks, samples_per_task, limits, temperature=temperature, phase="warmup", step=0, on_episode=on_episode
            )
        )
    finally:
        engine.close()
    every = [episode for group in groups for episode in group.episodes]
    good = [episode for episode in every if not episode.truncated and episode.reward >= min_reward]
    if not good:
        best = max((episode.reward for episode in every), default=None)
        raise ConfigError(
            f"none of {samples_per_task * len(tasks)} sampled episodes ended with a reward of at least {min_reward} "
            f"(the best: {best}); take a stronger model, lower min_reward, or learn from an expert or from records first"
        )
    return best_of_tasks(good, ExportCounts())


def warm_start(
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
    sampled_here: bool = False,
    peft_config: PeftConfig | None = None,
) -> WarmStart:
    """Train a model to say what the policy of each episode said, and save it. Malformed turns are not learnt.

    Args:
        model: Changed in place, and wrapped with ``peft_config``.
        tokenizer: Saved beside it.
        codec: Of the model.
        episodes: What to learn from.
        out: Folder to write; it must not exist. It is written whole or not at all.
        steps: Optimizer steps.
        batch_size: Rows a step.
        learning_rate: The highest one.
        seed: Of the order of the rows, and of an adapter's first weights.
        max_length: Rows with more tokens are left out; none is cut.
        sampled_here: The episodes hold tokens that this model sampled; they are learnt as they are. Otherwise the
            messages are put into tokens as a rollout would.
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
    rows = [row for episode in episodes for row in _rows(episode, codec, sampled_here)]
    fitting = [row for row in rows if max_length is None or len(row.ids) <= max_length]
    if not fitting:
        raise ConfigError(f"there is no training row of at most {max_length} tokens in {len(episodes)} episodes")
    trained: torch.nn.Module = model
    if peft_config is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            trained = get_peft_model(model, peft_config)
    trained.to("cuda" if torch.cuda.is_available() else "cpu")
    losses = warm_up(
        trained, fitting, steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed, label="Warm-up"
    )
    whole = trained.merge_and_unload() if peft_config is not None else trained
    temporary = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        whole.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / "warmup.json").write_text(
            json.dumps({"episodes": len(episodes), "rows": len(fitting), "steps": steps, "losses": losses})
        )
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return WarmStart(out, len(episodes), len(fitting), len(rows) - len(fitting), losses)


def check_output(out: Path) -> None:
    """Raise :class:`ConfigError` when there is something at ``out`` already."""
    if out.exists():
        raise ConfigError(f"{str(out)!r} exists; give another --out, or remove it")


def _rows(episode: Episode, codec: Codec, sampled_here: bool) -> list[Row]:
    if not sampled_here:
        return encode_scripted(episode, codec)
    return build_rows(episode, left_out=[number for number, turn in enumerate(episode.turns) if turn.corrected])
