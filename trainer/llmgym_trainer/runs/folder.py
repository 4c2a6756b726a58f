"""The folder of a run: configuration, metrics, episodes, picture."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgym._util.files import locked_folder, write_whole
from llmgym.episode import Episode
from llmgym.errors import ConfigError, LLMGymError
from llmgym.records import write_episodes
from llmgym_trainer.runs.checkpoints import flush, free_space


class RunFolderError(LLMGymError, OSError):
    """A run cannot write to its folder."""


@dataclass(frozen=True)
class RunFolder:
    """``<runs_dir>/<run_name>/`` of one run. Make one with :meth:`create`.

    Attributes:
        path: The folder.
    """

    path: Path

    @classmethod
    def create(cls, runs_dir: str | Path, run_name: str | None) -> RunFolder:
        """Make the folder of a new run.

        Args:
            runs_dir: Folder that holds the run folders.
            run_name: Name of the run; None takes the time, and a number where that is taken.

        Raises:
            ConfigError: There is already a run of that name, or the name is not a plain folder name.
        """
        root = Path(runs_dir)
        if run_name is not None:
            if Path(run_name).name != run_name or run_name in ("", ".", ".."):
                raise ConfigError(f"run_name={run_name!r} must be a plain folder name")
            names = [run_name]
        else:
            now = time.strftime("%Y%m%d-%H%M%S")
            names = [now, *(f"{now}-{number}" for number in range(2, 100))]
        for name in names:
            try:
                (root / name / "episodes").mkdir(parents=True)
                return cls(root / name)
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(
                    f"cannot make the run folder {str(root / name)!r}: {error.strerror}; choose another runs_dir"
                ) from error
        raise ConfigError(
            f"there is already a run {str(root / names[0])!r}, and no run writes into the folder of another; choose "
            "another run_name, or leave it out"
        )

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Hold the folder against other processes while the run trains; a killed run leaves no lock behind.

        Raises:
            ConfigError: Another process trains in it, or it cannot be written.
        """
        return locked_folder(
            self.path, "a training run", instead="stop it (Ctrl-C saves the last complete step), or start a new run"
        )

    def discard(self) -> None:
        """Remove the folder of a run that could not start, so that its name is free again."""
        shutil.rmtree(self.path)

    def note(self, **facts: Any) -> None:
        """Save facts about the run, JSON values, in ``run.json``.

        Raises:
            RunFolderError: It could not be written; its previous content is kept.
        """
        with self.writing():
            write_whole(self.path / "run.json", json.dumps({**self.notes(), **facts}, indent=1))

    def notes(self) -> dict[str, Any]:
        """The facts that :meth:`note` was given.

        Raises:
            ConfigError: ``run.json`` is broken.
        """
        path = self.path / "run.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            if not isinstance(found, dict):
                raise ValueError("it does not hold a JSON object")
        except ValueError as error:
            raise ConfigError(
                f"{str(path)!r} is broken ({error}); remove it, and resume the run from a script of your own, with "
                f"GRPOConfig.from_yaml({str(self.path / 'config.yaml')!r}, resume_from_checkpoint={str(self.path)!r})"
            ) from error
        return found

    def command(self) -> list[str]:
        """The arguments of ``llmgym train`` that started this run.

        Raises:
            ConfigError: Another program started it.
        """
        arguments: list[str] | None = self.notes().get("command")
        if arguments is None:
            raise ConfigError(
                f"{str(self.path)!r} was not started by `llmgym train`; resume it from its own script, with "
                f"GRPOConfig.from_yaml({str(self.path / 'config.yaml')!r}, resume_from_checkpoint={str(self.path)!r})"
            )
        return arguments

    def write_metrics(self, step: int, metrics: dict[str, Any]) -> None:
        """Append one line to ``metrics.jsonl``. NaN and infinite values become null.

        Raises:
            RunFolderError: The line could not be written.
        """
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in metrics.items()}
        with self.writing(), (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **finite}) + "\n")
            file.flush()
            os.fsync(file.fileno())  # a checkpoint, which is flushed too, relies on it

    def write_episodes(self, name: str, episodes: Iterable[Episode]) -> None:
        """Append episodes to ``episodes/<name>.jsonl``.

        Raises:
            RunFolderError: They could not all be written.
        """
        with self.writing():
            path = self.path / "episodes" / f"{name}.jsonl"
            write_episodes(path, episodes)
            flush(path)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an :class:`OSError` raised in this section into a :class:`RunFolderError` that says what to do."""
        try:
            yield
        except OSError as error:
            raise RunFolderError(
                f"cannot write the records of this run in {self.path}: {error}. No step trains without its records, so "
                f"training stops; {free_space(self.path)}. Free some space, then resume from the last checkpoint, if "
                f"there is one: llmgym train --resume {self.path}"
            ) from error


def read_metrics(run: str | Path) -> list[dict[str, Any]]:
    """All lines of a run's ``metrics.jsonl``, in order, without an incomplete last one. Empty without such a file.

    Raises:
        ConfigError: A line is broken.
    """
    path = Path(run) / "metrics.jsonl"
    if not path.is_file():
        return []
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ConfigError(
                f"{path}:{number}: {line[:60]!r} is not a line of metrics ({error}); remove it"
            ) from error
    return lines


def plot_run(run: str | Path) -> Path:
    """Plot training reward and validation success of a run into its ``reward.png`` and return the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = read_metrics(run)
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for key, label, style in (
        ("reward", "training reward", {"color": "tab:blue", "alpha": 0.6}),
        ("val/success", "validation success", {"color": "tab:orange", "marker": "o"}),
    ):
        points = [(line["step"], line[key]) for line in lines if line.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("mean over episodes")
    axes.set_ylim(min(-0.12, axes.get_ylim()[0]), max(1.02, axes.get_ylim()[1]))
    axes.grid(alpha=0.3)
    axes.set_title(Path(run).name)
    if axes.lines:
        axes.legend(loc="lower right")
    path = Path(run) / "reward.png"
    figure.savefig(path, dpi=120)
    return path
