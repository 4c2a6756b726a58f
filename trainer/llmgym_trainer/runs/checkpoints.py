"""Checkpoint folders: written completely or not at all, and found again.

A checkpoint is written into ``checkpoint.partial/`` of its run, flushed to the disk, and renamed, which is atomic. A
folder called ``checkpoint-<step>`` is therefore complete, whatever killed the run.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from llmgym.errors import ConfigError, LLMGymError

PARTIAL = "checkpoint.partial"

STATE_FILE = "llmgym.json"
"""Part of each checkpoint: the hash of the chat template it was trained with."""


class CheckpointError(LLMGymError, RuntimeError):
    """A checkpoint could not be written or loaded."""


def checkpoint_name(step: int) -> str:
    """Name of the folder of a checkpoint."""
    return f"checkpoint-{step}"


def checkpoint_step(checkpoint: Path) -> int | None:
    """The step in the name of a checkpoint folder; None for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(match[1]) if match else None


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run in the order of their steps."""
    found = [(step, path) for path in run.iterdir() if (step := checkpoint_step(path)) is not None]
    return [path for _, path in sorted(found)]


def last_checkpoint(run: Path) -> Path:
    """The checkpoint of the highest step in a run folder.

    Raises:
        ConfigError: There is none.
    """
    found = checkpoints(run)
    if not found:
        raise ConfigError(
            f"the run folder {str(run)!r} holds no checkpoint: a run writes one every save_steps steps and one at its "
            "end. Give a run that has one, or start this one again under another run_name"
        )
    return found[-1]


def free_space(folder: Path) -> str:
    """How much space is left, for an error."""
    return f"{shutil.disk_usage(folder).free / 2**20:,.1f} MiB are free there"


def begin(run: Path) -> Path:
    """Make the empty folder in which a checkpoint is written before it gets its name."""
    discard_partial(run)
    (run / PARTIAL).mkdir(parents=True)
    return run / PARTIAL


def publish(run: Path, step: int) -> Path:
    """Flush the checkpoint in the partial folder to the disk and give it its name."""
    partial, target = run / PARTIAL / checkpoint_name(step), run / checkpoint_name(step)
    for path in [*partial.rglob("*"), partial]:
        flush(path)
    partial.rename(target)
    flush(run)
    discard_partial(run)
    return target


def discard_partial(run: Path) -> None:
    """Remove a checkpoint that was not completed."""
    shutil.rmtree(run / PARTIAL, ignore_errors=True)


def flush(path: Path) -> None:
    """Flush a file or folder to the disk."""
    if os.name != "posix" and path.is_dir():
        return  # only POSIX can open a folder
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
