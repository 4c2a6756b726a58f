"""The folder of an evaluation: settings, episodes, report. Knows files; runs nothing."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from llmgym.episode_summary import EpisodeSummary, summarize
from llmgym.errors import ConfigError
from llmgym.records import iter_episodes
from llmgym.report import REPORT_FILE, Report

logger = logging.getLogger(__name__)

EPISODES_FILE = "episodes.jsonl"
SETTINGS_FILE = "settings.json"
MARKDOWN_FILE = "report.md"


class EvaluationFolder:
    """``episodes.jsonl``, one line an episode that is done; ``settings.json``; ``report.json``; ``report.md``.

    The episodes are the truth: what is done is what stands there, under task id and episode index. All other files are
    written whole.

    Args:
        path: The folder; None takes ``runs/eval-<time>``. It is made by :meth:`begin`.
        resume: Go on with the evaluation that the folder holds.

    Raises:
        ConfigError: The folder holds something and ``resume`` is off, or holds no evaluation to resume.
    """

    def __init__(self, path: str | Path | None, *, resume: bool) -> None:
        if path is None:
            if resume:
                raise ConfigError("resume needs the folder of the evaluation to go on with (--out DIR)")
            path = _new_name()
        self.path = Path(path)
        self.episodes = self.path / EPISODES_FILE
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{str(self.path)!r} is a file; an evaluation is kept in a folder")
        begun = self.episodes.is_file() and self.episodes.stat().st_size > 0
        if resume:
            if not (self.path / SETTINGS_FILE).is_file():
                raise ConfigError(f"{str(self.path)!r} holds no evaluation to resume; start one without --resume")
        elif begun:
            raise ConfigError(
                f"{str(self.path)!r} holds an evaluation already: continue it with --resume, or give another --out"
            )
        elif self.path.is_dir():
            own = {SETTINGS_FILE, SETTINGS_FILE + ".tmp", EPISODES_FILE}
            others = sorted({entry.name for entry in self.path.iterdir()} - own)
            if others:
                raise ConfigError(
                    f"{str(self.path)!r} is not empty (it holds {others[0]!r}); give a new folder as --out"
                )
        self._resume = resume

    def begin(self, settings: dict[str, Any]) -> None:
        """Write the settings; when resuming, hold them against those that are there.

        Raises:
            ConfigError: The evaluation there ran with other settings.
        """
        file = self.path / SETTINGS_FILE
        if self._resume:
            try:
                before = json.loads(file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ConfigError(f"{str(file)!r} cannot be read ({error}); start anew in another folder") from error
            different = [
                f"{name} was {before.get(name)!r:.120} and is now {settings.get(name)!r:.120}"
                for name in sorted({*before, *settings})
                if before.get(name) != settings.get(name)
            ]
            if different:
                raise ConfigError(
                    f"the evaluation in {str(self.path)!r} ran with other settings: {'; '.join(different)}. Resume it "
                    "with the same, or start another in a new folder"
                )
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(file, json.dumps(settings, indent=1, ensure_ascii=True) + "\n")

    def done(self) -> dict[tuple[str, int], EpisodeSummary]:
        """What stands in the record, by task id and episode index. Of two with the same, the first counts."""
        found: dict[tuple[str, int], EpisodeSummary] = {}
        if not self.episodes.is_file():
            return found
        for episode in iter_episodes(self.episodes, skip_cut_line=True):
            key = (episode.task.id, episode.episode_index)
            if key in found:
                logger.warning("%s holds episode %d of task %r twice; the first counts", self.episodes, key[1], key[0])
            else:
                found[key] = summarize(episode)
        return found

    def write_report(self, report: Report) -> None:
        """Write ``report.json`` and ``report.md``."""
        write_whole(self.path / REPORT_FILE, report.to_json())
        write_whole(self.path / MARKDOWN_FILE, report.to_markdown())


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all. What UTF-8 cannot express becomes a question mark."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(text.encode("utf-8", "replace"))
    os.replace(temporary, path)


def _new_name() -> Path:
    now = time.strftime("eval-%Y%m%d-%H%M%S")
    names = [now, *(f"{now}-{number}" for number in range(2, 100))]
    return next(Path("runs", name) for name in names if not Path("runs", name).exists())
