"""The state of a run, and how a run resumes from a checkpoint.

Weights, optimizer, learning rate and the state of the global generators stand in files of transformers' own. Sampling
and environments draw from generators that follow from the seed, step, task and episode, so they need no state. The rest
is :class:`RunState`.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch

from llmgym._util.settings import plain
from llmgym.errors import ConfigError
from llmgym.task import Task
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.runs.checkpoints import STATE_FILE, checkpoint_step, checkpoints, discard_partial, last_checkpoint
from llmgym_trainer.runs.folder import read_metrics

RUN_STATE_FILE = "run_state.json"
ABANDONED = "abandoned"

FIXED = ("model", "model_init_kwargs", "chat_template", "chat_template_kwargs", "seed", "shuffle_dataset", "optim")
"""Settings that cannot change when a run is resumed: with others it would be another run."""


@dataclass
class RunState:
    """What a run has done so far. The trainer holds one; a failed step restores a copy, a checkpoint is its fields.

    Attributes:
        tasks_hash: Identifies the training tasks and their order.
        mixture: :attr:`llmgym_trainer.data.task_stream.Mixture.shares`, empty with one environment.
        batch_size: Tasks of a step.
        processes: Processes that train.
        cursor: Position in the task stream of the next task.
        seen_tokens: Tokens of all training episodes so far.
        trained_steps: Steps that trained anything.
        steps_without_variance: Steps in a row, up to this one, in which no group had reward variance.
        non_finite_steps: Steps in a row, up to this one, whose gradients were not finite.
        validated_at: The step of the last validation.
        unlogged: Metrics that are not in ``metrics.jsonl`` yet, by name: one value a step. TRL's own dictionary.
        step: Whole optimizer steps done. This and what follows is set when a checkpoint is written.
        logged_step: The step of the last line of metrics.
        unlogged_loss: The sum of the losses of the steps since.
        metrics_bytes: Length of ``metrics.jsonl``.
    """

    tasks_hash: str
    mixture: dict[str, list[float | None]]
    batch_size: int
    processes: int
    cursor: int = 0
    seen_tokens: int = 0
    trained_steps: int = 0
    steps_without_variance: int = 0
    non_finite_steps: int = 0
    validated_at: int | None = None
    unlogged: dict[str, list[float]] = field(default_factory=dict)
    step: int = 0
    logged_step: int = 0
    unlogged_loss: float = 0.0
    metrics_bytes: int = 0

    def __post_init__(self) -> None:
        self.unlogged = defaultdict(list, self.unlogged)

    @classmethod
    def start(
        cls, tasks: Sequence[Task], mixture: dict[str, list[float | None]], batch_size: int, processes: int
    ) -> RunState:
        """The state of a run before its first step."""
        text = json.dumps([task.to_json() for task in tasks], sort_keys=True)
        return cls(hashlib.sha256(text.encode()).hexdigest()[:16], mixture, batch_size, processes)

    def add(self, metric: str, value: float) -> None:
        """Add a step's value of a metric."""
        self.unlogged[metric].append(value)

    def restore(self, other: RunState) -> None:
        """Take over the values of another state in place, for the trainer, its sampler and TRL share this object."""
        unlogged = self.unlogged
        vars(self).update(vars(other), unlogged=unlogged)
        unlogged.clear()
        unlogged.update(other.unlogged)

    def save(self, checkpoint: Path) -> None:
        """Write it beside the weights."""
        (checkpoint / RUN_STATE_FILE).write_text(json.dumps(vars(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, checkpoint: Path) -> RunState:
        """Read it from a checkpoint.

        Raises:
            ConfigError: It is missing, broken, or of another version.
        """
        try:
            return cls(**json.loads((checkpoint / RUN_STATE_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{str(checkpoint)!r} cannot be resumed: its {RUN_STATE_FILE} is missing, broken or of another version "
                f"of llmgym ({error}). {suggest_earlier(checkpoint)}, or start a new run with --model {checkpoint}"
            ) from error

    def check_same_run(self, now: RunState) -> None:
        """Check that ``now``, the :meth:`start` of what shall resume, belongs to the run of this state.

        Raises:
            ConfigError: Tasks, processes, or the shares or steps of a mixture differ.
        """
        if now.tasks_hash != self.tasks_hash:
            raise ConfigError(
                "the training tasks are not those of the run (a prompt, target, metadata or id differs, or one is "
                "missing or added), or are in another order; a run can only be resumed with its own tasks"
            )
        for name in (*self.mixture, *now.mixture):
            before, after = self.mixture.get(name), now.mixture.get(name)
            if before != after:
                raise ConfigError(
                    f"environment {name!r} has [weight, from_step, until_step] {after}, but {before} in the run; these "
                    "cannot change when a run is resumed, for they determine which tasks it has had"
                )
        if self.mixture and now.batch_size != self.batch_size:
            raise ConfigError(
                f"batch_size={now.batch_size} cannot change when a run of several environments is resumed: steps are "
                f"counted as batch_size tasks, so its stages would shift; it began with batch_size={self.batch_size}"
            )
        if now.processes != self.processes:
            raise ConfigError(
                f"the run trained on {self.processes} processes, so it cannot be resumed on {now.processes}"
            )


@dataclass(frozen=True)
class RandomState:
    """The global generators of Python, NumPy and torch (CPU and CUDA) at one moment; dropout draws from them."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cuda: list[torch.Tensor]

    @classmethod
    def now(cls) -> RandomState:
        """Read the state."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        return cls(random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda)

    def restore(self) -> None:
        """Set the generators back."""
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint to resume.

    A checkpoint gets its name when it is complete, so only the presence of the files is checked that transformers
    would silently do without.

    Args:
        path: A run folder, for its last checkpoint, or one of its checkpoints.

    Raises:
        ConfigError: There is no such folder, no checkpoint in it, or a file of the checkpoint is missing.
    """
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"there is no run folder {str(path)!r} to resume")
    checkpoint = path if checkpoint_step(path) is not None else last_checkpoint(path)
    processes = RunState.load(checkpoint).processes
    rng_files = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    for name in (STATE_FILE, "optimizer.pt", "scheduler.pt", *rng_files):
        if not (checkpoint / name).is_file():
            raise ConfigError(
                f"{str(checkpoint)!r} cannot be resumed: it has no {name}. {suggest_earlier(checkpoint)}, or start a "
                f"new run from its weights with --model {checkpoint}"
            )
    return checkpoint


def suggest_earlier(checkpoint: Path) -> str:
    """What to do when a checkpoint cannot be resumed."""
    step = checkpoint_step(checkpoint) or 0
    earlier = [path for path in checkpoints(checkpoint.parent) if (checkpoint_step(path) or 0) < step]
    return f"Resume an earlier one: llmgym train --resume {earlier[-1]}" if earlier else "There is no earlier one"


def check_settings(config: GRPOConfig, checkpoint: Path, *, adapter: bool, validates: bool) -> None:
    """Check that a checkpoint can be resumed with these settings.

    Args:
        config: The settings of the resumed run.
        checkpoint: The checkpoint.
        adapter: Whether an adapter trains.
        validates: Whether there are validation tasks: a run that lacks only its last validation can be resumed.

    Raises:
        ConfigError: A setting of :data:`FIXED` differs from the run's, an adapter trains and did not before or the
            other way round, or the run has done all its steps.
    """
    saved = GRPOConfig.from_yaml(checkpoint.parent / "config.yaml")
    for name in FIXED:
        before, now = plain(getattr(saved, name)), plain(getattr(config, name))
        if before != now:
            raise ConfigError(f"{name}={now!r} cannot change when a run is resumed; it began with {name}={before!r}")
    if adapter != (checkpoint / "adapter_config.json").is_file():
        raise ConfigError(
            f"{str(checkpoint)!r} {'holds all weights, not an adapter' if adapter else 'holds an adapter'}; resume it "
            f"{'without' if adapter else 'with'} peft_config (--lora)"
        )
    step = RunState.load(checkpoint).step
    lacks_validation = validates and step == config.num_steps and not _was_validated(checkpoint.parent, step)
    if step >= config.num_steps and not lacks_validation:
        raise ConfigError(f"the run has done all its {step} steps; give a num_steps above that to go on")


def _was_validated(run: Path, step: int) -> bool:
    """Whether the metrics hold a validation of this step, of which the last comes after the last checkpoint."""
    return any(line["step"] == step and any(key.startswith("val/") for key in line) for line in read_metrics(run))


def set_aside(run: Path, state: RunState) -> Path | None:
    """Move what a run recorded after a checkpoint to ``abandoned/<number>/``: these steps run again.

    That is the later lines of ``metrics.jsonl``, the episodes of later steps, and later checkpoints. An incomplete
    checkpoint is removed.

    Returns:
        The folder with what was moved; None when there was nothing to move.
    """
    discard_partial(run)
    parent = run / ABANDONED
    number = 1 + max((int(path.name) for path in parent.glob("*") if path.name.isdecimal()), default=0)
    target = parent / str(number)

    moving = [path for path in checkpoints(run) if (checkpoint_step(path) or 0) > state.step]
    moving += [path for path in sorted((run / "episodes").glob("*.jsonl")) if _is_later(path, state)]
    for path in moving:
        to = target / path.relative_to(run)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)

    metrics = run / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size > state.metrics_bytes:
        target.mkdir(parents=True, exist_ok=True)
        with metrics.open("rb+") as file:  # copied before it is cut: a crash in between loses nothing
            file.seek(state.metrics_bytes)
            with (target / "metrics.jsonl").open("wb") as tail:
                shutil.copyfileobj(file, tail)
            file.truncate(state.metrics_bytes)
    return target if target.is_dir() else None


def _is_later(path: Path, state: RunState) -> bool:
    """Whether the episodes of ``<phase>-<step>….jsonl`` ran after the checkpoint."""
    match = re.match(r"([a-z]+)-(\d+)", path.name)
    if match is None:
        return False
    step = int(match[2])
    return step > state.step or (step == state.step and not (match[1] == "val" and state.validated_at == step))
