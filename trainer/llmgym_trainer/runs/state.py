"""Going on with a run after it ended: what a checkpoint says of the run, and what is taken back. Knows no model.

Weights, optimizer, learning rate and the state of the global generators stand in files of transformers' own. Sampling
and environments draw from generators that follow from the seed, step, task and episode, so they need no state.
``progress.json`` holds the rest: :class:`Progress`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import typing
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from llmgym.errors import ConfigError
from llmgym.task import Task
from llmgym_trainer.config import GRPOConfig, plain
from llmgym_trainer.runs.checkpoints import STATE_FILE, checkpoint_step, checkpoints, discard_partial, last_checkpoint
from llmgym_trainer.runs.folder import read_metrics

PROGRESS_FILE = "progress.json"
ABANDONED = "abandoned"

FIXED = ("model", "model_init_kwargs", "chat_template", "chat_template_kwargs", "seed", "shuffle_dataset", "optim")
"""Settings that a resumed run keeps: with others it would be another run."""


@dataclass(frozen=True)
class Progress:
    """How far a run had come when a checkpoint was written.

    Attributes:
        step: Whole optimizer steps done.
        cursor: Tasks given out by the :class:`~llmgym_trainer.data.task_stream.TaskStream`.
        seen_tokens: Tokens of all training episodes so far.
        validated: Whether the validation of this step was done already.
        metrics_bytes: Length of ``metrics.jsonl``.
        processes: Processes that train.
        batch_size: Tasks of a step.
        tasks_hash: :func:`hash_tasks` of the training tasks.
        mixture: :attr:`llmgym_trainer.data.task_stream.Mixture.shares` where there are several environments, else empty.
        trained_steps: Steps that trained anything.
        steps_without_spread: Steps in a row, up to this one, in which no group could train anything.
        non_finite_steps: Steps in a row, up to this one, whose gradients were not finite.
        logged_step: The step of the last line of metrics.
        unlogged: The metrics of the steps since, by name.
        unlogged_loss: The sum of the losses of the steps since.
    """

    step: int
    cursor: int
    seen_tokens: int
    validated: bool
    metrics_bytes: int
    processes: int
    batch_size: int
    tasks_hash: str
    mixture: dict[str, list[float | None]]
    trained_steps: int
    steps_without_spread: int
    non_finite_steps: int
    logged_step: int
    unlogged: dict[str, list[float]]
    unlogged_loss: float

    def write(self, checkpoint: Path) -> None:
        """Write it beside the weights."""
        (checkpoint / PROGRESS_FILE).write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def read(cls, checkpoint: Path) -> Progress:
        """Read it from a checkpoint.

        Raises:
            ConfigError: There is none, or it is that of another version.
        """
        read = _read_json(checkpoint, PROGRESS_FILE)
        hints = typing.get_type_hints(cls)
        for name in (*hints, *read):
            kind = typing.get_origin(hints.get(name)) or hints.get(name)
            value: Any = read.get(name)
            if kind is None or type(value) is not kind or (kind is int and value < 0):
                raise ConfigError(
                    f"{str(checkpoint)!r} cannot be resumed: its {PROGRESS_FILE} has {name}={value!r}, so it is broken, or "
                    f"of another version of llmgym. {instead_of(checkpoint)}, or start a new run with --model {checkpoint}"
                )
        return cls(**read)

    def check(
        self, tasks: Sequence[Task], processes: int, mixture: dict[str, list[float | None]], batch_size: int
    ) -> None:
        """Raise :class:`ConfigError` unless tasks, processes, and shares and steps of a mixture are those of the run."""
        if hash_tasks(tasks) != self.tasks_hash:
            raise ConfigError(
                f"the {len(tasks)} training tasks are not those of the run (a prompt, target, metadata or id differs), or "
                "stand in another order; a run can only be resumed with its own tasks"
            )
        for name in (*self.mixture, *mixture):
            before, now = self.mixture.get(name), mixture.get(name)
            if before != now:
                raise ConfigError(
                    f"environment {name!r} has [weight, from_step, until_step] {now}, but {before} in the run; these cannot "
                    "change when a run is resumed, for they say which tasks it has had"
                )
        if mixture and batch_size != self.batch_size:
            raise ConfigError(
                f"batch_size={batch_size} cannot change when a run of several environments is resumed: steps are counted as "
                f"batch_size tasks, so its stages would shift; it began with batch_size={self.batch_size}"
            )
        if processes != self.processes:
            raise ConfigError(f"the run trained on {self.processes} processes, so it cannot be resumed on {processes}")


def hash_tasks(tasks: Sequence[Task]) -> str:
    """A hash of all that the tasks hold, in their order."""
    text = json.dumps([task.to_json() for task in tasks], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def find_checkpoint(path: str | Path) -> Path:
    """The checkpoint to go on from.

    Args:
        path: A run folder, for its last checkpoint, or one of its checkpoints.

    Raises:
        ConfigError: There is no such folder, or no checkpoint in it, or a file of the checkpoint is missing or broken.
    """
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"there is no run folder {str(path)!r} to resume")
    checkpoint = path if checkpoint_step(path) is not None else last_checkpoint(path)
    _check_files(checkpoint, Progress.read(checkpoint))
    return checkpoint


def _check_files(checkpoint: Path, progress: Progress) -> None:
    """Raise :class:`ConfigError` unless all files that a run goes on from are there and look whole.

    What is read is the beginning of the weights and the end of the archives of torch, so this costs nothing.
    """
    for name in ("trainer_state.json", STATE_FILE):
        _read_json(checkpoint, name)
    adapter = (checkpoint / "adapter_config.json").is_file()
    weights = ["adapter_model.safetensors" if adapter else "model.safetensors"]
    if (checkpoint / "model.safetensors.index.json").is_file():
        weights = sorted(set(_read_json(checkpoint, "model.safetensors.index.json").get("weight_map", {}).values()))
    for name in weights:
        _check_exists(checkpoint, name)
        try:
            with safe_open(checkpoint / name, "numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise _broken(checkpoint, name, error) from error
    ranks = range(progress.processes)
    chance = ["rng_state.pth"] if progress.processes == 1 else [f"rng_state_{rank}.pth" for rank in ranks]
    for name in ("optimizer.pt", "scheduler.pt", *chance):
        _check_exists(checkpoint, name, new_run=True)
        if not zipfile.is_zipfile(checkpoint / name):
            raise _broken(checkpoint, name, "it is cut short or no file of torch")


def _check_exists(checkpoint: Path, name: str, *, new_run: bool = False) -> None:
    """Raise :class:`ConfigError` where a file of a checkpoint is missing. ``new_run``: whether one can begin without."""
    if not (checkpoint / name).is_file():
        also = f", or start a new run from its weights with --model {checkpoint}" if new_run else ""
        raise ConfigError(f"{str(checkpoint)!r} cannot be resumed: it has no {name}. {instead_of(checkpoint)}{also}")


def _read_json(checkpoint: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a checkpoint. Raises :class:`ConfigError` where there is none."""
    _check_exists(checkpoint, name)
    try:
        value = json.loads((checkpoint / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(checkpoint, name, error) from error
    if not isinstance(value, dict):
        raise _broken(checkpoint, name, "it holds no JSON object")
    return value


def _broken(checkpoint: Path, name: str, why: object) -> ConfigError:
    return ConfigError(f"{str(checkpoint)!r} cannot be resumed: its {name} is broken ({why}). {instead_of(checkpoint)}")


def instead_of(checkpoint: Path) -> str:
    """What to do where a checkpoint cannot be resumed."""
    step = checkpoint_step(checkpoint) or 0
    earlier = [path for path in checkpoints(checkpoint.parent) if (checkpoint_step(path) or 0) < step]
    return f"Go on from an earlier one: llmgym train --resume {earlier[-1]}" if earlier else "There is no earlier one"


def check_settings(config: GRPOConfig, checkpoint: Path, *, adapter: bool, validates: bool) -> None:
    """Check that a checkpoint can be resumed with these settings.

    Args:
        config: The settings to go on with.
        checkpoint: The checkpoint.
        adapter: Whether an adapter trains.
        validates: Whether there are validation tasks: a run that lacks nothing but its last validation can be resumed.

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
    step = Progress.read(checkpoint).step
    lacks_validation = validates and step == config.num_steps and not _was_validated(checkpoint.parent, step)
    if step >= config.num_steps and not lacks_validation:
        raise ConfigError(f"the run has done all its {step} steps; give a num_steps above that to go on")


def _was_validated(run: Path, step: int) -> bool:
    """Whether the metrics hold a validation of this step, of which the last comes after the last checkpoint."""
    return any(line["step"] == step and any(key.startswith("val/") for key in line) for line in read_metrics(run))


def mend_metrics(run: Path, progress: Progress) -> str | None:
    """Cut a last line that is not whole, where ``metrics.jsonl`` is shorter than it was at a checkpoint.

    Returns:
        What is lost, in words; None when nothing is.
    """
    metrics = run / "metrics.jsonl"
    content = metrics.read_bytes() if metrics.is_file() else b""
    if len(content) >= progress.metrics_bytes:
        return None
    whole = content[: content.rfind(b"\n") + 1]
    metrics.write_bytes(whole)
    return (
        f"{metrics} has {len(content)} bytes, but had {progress.metrics_bytes} when the checkpoint of step {progress.step} was "
        f"written: {len(whole.splitlines())} lines are left of it, the others are lost, and the run goes on without them"
    )


def set_aside(run: Path, progress: Progress) -> Path | None:
    """Move what a run recorded after a checkpoint to ``abandoned/<number>/``: it will happen again, perhaps otherwise.

    That is the later lines of ``metrics.jsonl``, the episodes of later steps, and later checkpoints. A checkpoint that
    did not become whole is removed.

    Returns:
        The folder with what was moved; None when there was nothing to move.
    """
    discard_partial(run)
    parent = run / ABANDONED
    number = 1 + max((int(path.name) for path in parent.glob("*") if path.name.isdecimal()), default=0)
    target = parent / str(number)

    moving = [path for path in checkpoints(run) if (checkpoint_step(path) or 0) > progress.step]
    moving += [path for path in sorted((run / "episodes").glob("*.jsonl")) if _is_later(path, progress)]
    for path in moving:
        to = target / path.relative_to(run)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)

    metrics = run / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size > progress.metrics_bytes:
        target.mkdir(parents=True, exist_ok=True)
        with metrics.open("rb+") as file:  # copied before it is cut: a crash in between loses nothing
            file.seek(progress.metrics_bytes)
            with (target / "metrics.jsonl").open("wb") as tail:
                shutil.copyfileobj(file, tail)
            file.truncate(progress.metrics_bytes)
    return target if target.is_dir() else None


def _is_later(path: Path, progress: Progress) -> bool:
    """Whether the episodes of ``<phase>-<step>….jsonl`` ran after the checkpoint."""
    match = re.match(r"([a-z]+)-(\d+)", path.name)
    if match is None:
        return False
    step = int(match[2])
    return step > progress.step or (step == progress.step and not (match[1] == "val" and progress.validated))
