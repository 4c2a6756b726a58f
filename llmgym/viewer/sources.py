"""Finds the episodes, metrics and settings in a run folder, an evaluation folder or a JSONL file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgym.episode import Episode
from llmgym.errors import ConfigError
from llmgym.evaluation.folder import EPISODES_FILE, SETTINGS_FILE
from llmgym.evaluation.report import REPORT_FILE
from llmgym.records import iter_episodes

_EPISODE_FILE = re.compile(r"(train|val)-(\d+)(?:-rank(\d+))?\.jsonl")


@dataclass(frozen=True)
class Source:
    """What is shown.

    Attributes:
        path: The folder or file.
        kind: ``"training"``, ``"evaluation"`` or ``"episodes"``.
        files: Files of episodes, in the order of their steps.
        metrics: The lines of ``metrics.jsonl`` of a training run.
        report: ``report.json`` of an evaluation; None before it is written.
        settings: The settings it ran with, as text.
        checkpoint: The last checkpoint of a training run.
    """

    path: Path
    kind: str
    files: list[Path]
    metrics: list[dict[str, Any]] = field(default_factory=list)
    report: dict[str, Any] | None = None
    settings: str = ""
    checkpoint: Path | None = None

    @property
    def name(self) -> str:
        """The title of the page."""
        return self.path.resolve().name

    def episodes(self) -> Iterator[tuple[int, Episode]]:
        """All episodes with their numbers, in a fixed order, without a last line that is still being written."""
        number = 0
        for file in self.files:
            for episode in iter_episodes(file, skip_cut_line=True):
                yield number, episode
                number += 1


def find_source(path: str | Path) -> Source:
    """Find what to show of a run folder, an evaluation folder or a JSONL file of episodes.

    Raises:
        ConfigError: The path does not exist or holds no episodes.
    """
    path = Path(path)
    if path.is_file():
        return Source(path, "episodes", [path])
    if (path / EPISODES_FILE).is_file():
        report = path / REPORT_FILE
        return Source(
            path,
            "evaluation",
            [path / EPISODES_FILE],
            report=json.loads(report.read_text(encoding="utf-8")) if report.is_file() else None,
            settings=_text(path / SETTINGS_FILE),
        )
    found = [(match, file) for file in path.glob("episodes/*.jsonl") if (match := _EPISODE_FILE.fullmatch(file.name))]
    if found:
        found.sort(key=lambda pair: (int(pair[0][2]), pair[0][1] != "val", int(pair[0][3] or 0)))
        return Source(
            path,
            "training",
            [file for _, file in found],
            metrics=_metrics(path / "metrics.jsonl"),
            settings=_text(path / "config.yaml"),
            checkpoint=_last_checkpoint(path),
        )
    what = "holds no episodes" if path.is_dir() else "does not exist"
    raise ConfigError(
        f"{str(path)!r} {what}; give the folder of a training run (runs/NAME), that of an evaluation, or a JSONL file"
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _metrics(path: Path) -> list[dict[str, Any]]:
    whole, _, _ = _text(path).rpartition("\n")  # a running training may be in the middle of a line
    return [json.loads(line) for line in whole.split("\n") if line]


def _last_checkpoint(run: Path) -> Path | None:
    found = [(int(match[1]), path) for path in run.iterdir() if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))]
    return max(found)[1] if found else None
