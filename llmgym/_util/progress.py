"""A progress bar on a terminal, a few plain lines in a file."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class ProgressBar:
    """Shows on stderr how much of a job is done: a bar on a terminal or in a notebook, elsewhere at most ten lines.

    ``print`` may be used meanwhile; its lines appear above the bar.

    Args:
        label: Name of the job, in front of the bar or line.
        total: Units of work in the job.
        shown: False shows nothing.
        lines: False prints nothing where no bar can be shown.
    """

    def __init__(self, label: str, total: int, *, shown: bool = True, lines: bool = True) -> None:
        console = Console(stderr=True)
        has_bar = shown and (sys.stderr.isatty() or console.is_jupyter)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not has_bar,
            redirect_stdout=sys.stdout.isatty(),  # output sent to a file must not appear on the terminal
        )
        self._task = self._bar.add_task(label, total=total, note="")
        self._label, self._total, self._done = label, total, 0
        self._prints_lines = shown and lines and not has_bar
        self._bar.start()

    def update(self, done: int, note: str = "") -> None:
        """Show that ``done`` units are finished in total, with ``note`` behind them."""
        self._bar.update(self._task, completed=done, note=note)
        if self._prints_lines and done * 10 // self._total > self._done * 10 // self._total:
            print(f"{self._label}: {done}/{self._total}{note and ', '}{note}", file=sys.stderr, flush=True)
        self._done = done

    def close(self) -> None:
        """Stop updating; a bar stays on the screen as it is."""
        self._bar.stop()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
