"""The folder of an evaluation: its settings, episodes and report."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmgym._util.files import LOCK_FILE, locked_folder, write_whole
from llmgym.errors import ConfigError
from llmgym.evaluation.report import REPORT_FILE, Report
from llmgym.evaluation.summary import EpisodeSummary, summarize
from llmgym.records import iter_episodes

logger = logging.getLogger(__name__)

EPISODES_FILE = "episodes.jsonl"
SETTINGS_FILE = "settings.json"
MARKDOWN_FILE = "report.md"


class EvaluationFolder:
    """The files of one evaluation, which one process at a time may write.

    - ``episodes.jsonl``, one line per finished episode. An episode is done if it is in this file, under its task
      id and episode index.
    - ``settings.json``, ``report.json`` and ``report.md``, each replaced atomically.
    - ``.lock``, held while the evaluation runs. The lock ends with its process, so a kill leaves none behind.

    Args:
        path: The folder; None takes ``runs/eval-<time>``. It is made by :meth:`claim`.
        resume: Continue the evaluation in the folder.

    Raises:
        ConfigError: The folder holds something and ``resume`` is off, or holds no evaluation to resume; or another
            process is writing into it.
    """

    def __init__(self, path: str | Path | None, *, resume: bool) -> None:
        if path is None:
            if resume:
                raise ConfigError("resume needs the folder of the evaluation to continue (--out DIR)")
            path = _new_name()
        self.path = Path(path)
        self.episodes = self.path / EPISODES_FILE
        self._resume = resume
        if (self.path / LOCK_FILE).exists():
            with self._locked():  # asked here too, before a model is loaded
                pass
        self._check()

    @contextlib.contextmanager
    def claim(self, settings: dict[str, Any]) -> Iterator[None]:
        """Lock the folder against other processes; write the settings, or compare them with the recorded ones.

        Raises:
            ConfigError: Another process has it or has filled it meanwhile, it cannot be written, or the evaluation
                there ran with other settings.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make the folder {str(self.path)!r} ({error}); give another --out") from error
        with self._locked():
            self._check()
            if self._resume:
                self._compare(settings)
            else:
                write_whole(self.path / SETTINGS_FILE, json.dumps(settings, indent=1, ensure_ascii=True) + "\n")
            yield

    def done(self) -> dict[tuple[str, int], EpisodeSummary]:
        """The recorded episodes, by task id and episode index. Of two with the same key, the first counts."""
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

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return locked_folder(self.path, "an evaluation", instead="give another --out")

    def _check(self) -> None:
        """Raise :class:`ConfigError` where no evaluation can start, or continue."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{str(self.path)!r} is a file; an evaluation is kept in a folder")
        begun = self.episodes.is_file() and self.episodes.stat().st_size > 0
        if self._resume:
            if not (self.path / SETTINGS_FILE).is_file():
                raise ConfigError(f"{str(self.path)!r} holds no evaluation to resume; start one without --resume")
        elif begun:
            raise ConfigError(
                f"{str(self.path)!r} holds an evaluation already: continue it with --resume, or give another --out"
            )
        elif self.path.is_dir():
            own = {SETTINGS_FILE, SETTINGS_FILE + ".tmp", EPISODES_FILE, LOCK_FILE}
            others = sorted({entry.name for entry in self.path.iterdir()} - own)
            if others:
                raise ConfigError(
                    f"{str(self.path)!r} is not empty (it holds {others[0]!r}); give a new folder as --out"
                )

    def _compare(self, settings: dict[str, Any]) -> None:
        file = self.path / SETTINGS_FILE
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            names = sorted({*before, *settings})
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{str(file)!r} cannot be read ({error}); start again in another folder") from error
        different = [
            f"{name} was {before.get(name)!r:.120} and is now {settings.get(name)!r:.120}"
            for name in names
            if before.get(name) != settings.get(name)
        ]
        if different:
            raise ConfigError(
                f"the evaluation in {str(self.path)!r} ran with other settings: {'; '.join(different)}. Resume it "
                "with the same, or start another in a new folder"
            )


def _new_name() -> Path:
    now = time.strftime("eval-%Y%m%d-%H%M%S")
    names = [now, *(f"{now}-{number}" for number in range(2, 100))]
    return next(Path("runs", name) for name in names if not Path("runs", name).exists())
