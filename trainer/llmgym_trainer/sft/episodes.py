"""Episodes to fine-tune on: recorded ones, or the best of several samples of the model itself.

The third source, a scripted expert, is :func:`llmgym_trainer.models.builtin.scripted.scripted_episodes`. Keeping the
best samples is rejection sampling as in RAFT (arXiv 2304.06767).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import PreTrainedModel

from llmgym._util.aio import run_sync
from llmgym.cli.export import ExportCounts, best_of_tasks, choose_episodes
from llmgym.env import Env
from llmgym.episode import Episode, EpisodeLimits
from llmgym.errors import ConfigError
from llmgym.task import Task
from llmgym_trainer.collection.collector import Collector
from llmgym_trainer.engines import make_engine
from llmgym_trainer.tokens.codec import Codec


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
    engine = make_engine(model)
    collector = Collector(codec, engine, env_factory, seed=seed)
    try:
        groups = run_sync(
            collector.collect(
                tasks, samples_per_task, limits, temperature=temperature, phase="sft", step=0, on_episode=on_episode
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
            f"(the best: {best}); take a stronger model, lower min_reward, or learn from an expert or from records "
            "first"
        )
    return best_of_tasks(good, ExportCounts())
