"""What a run reports: metrics, episodes, a line per step, a progress bar, Weights & Biases."""

from __future__ import annotations

import contextlib
import netrc
import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llmgym._util.progress import ProgressBar
from llmgym._util.text import message_text, printable
from llmgym.episode import Episode
from llmgym.errors import ConfigError
from llmgym.evaluation.statistics import has_reward_variance
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.runs.folder import RunFolder, plot_run
from llmgym_trainer.runs.state import RunState, set_aside

MAX_CONVERSATIONS = 16
"""Most conversations that one rollout adds to the table in Weights & Biases."""

_COLUMNS = ("step", "phase", "task", "episode", "reward", "advantage", "stop_reason", "turns", "conversation")


class Reporter:
    """Writes a run's folder and shows its progress. Processes other than the first only write episodes.

    Attributes:
        folder: The run's folder.

    Args:
        config: The settings, whose ``run_name`` is that of ``folder``.
        folder: The run's folder.
        is_main: Whether this is the first process.
    """

    def __init__(self, config: GRPOConfig, folder: RunFolder, *, is_main: bool) -> None:
        self.folder = folder.path
        self._folder = folder
        self._config = config
        self._is_main = is_main
        self._steps = 0
        self._bar = ProgressBar("training", config.num_steps, shown=is_main, lines=False)
        self._wandb: Any = None
        self._has_new_rows = False  # the table of conversations has rows that are not logged yet
        if config.wandb_project is not None and is_main:
            import wandb

            wandb_id = folder.notes().get("wandb_id") or uuid.uuid4().hex
            folder.note(wandb_id=wandb_id)
            self._wandb = wandb.init(
                project=config.wandb_project,
                name=config.run_name,
                dir=str(folder.path),
                config=config.given,
                id=wandb_id,  # a resumed run continues there too
                resume="allow",
            )
            # Each log call then carries the new rows alone, and Weights & Biases shows them below the earlier ones.
            self._conversations = wandb.Table(columns=[*_COLUMNS], log_mode="INCREMENTAL")

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Record the metrics of one optimizer step and print its line."""
        if not self._is_main or ("reward" not in metrics and "step_time" not in metrics):
            return
        self._record(step, metrics)
        self._show(step)
        self.write(step_line(step, self._config.num_steps, metrics))

    def validation(self, step: int, metrics: dict[str, Any]) -> None:
        """Record the metrics of one validation and print its line."""
        if not self._is_main:
            return
        self._record(step, metrics)
        self.write(
            f"validation at step {step}: success {_number(metrics, 'val/success', '.3f')}, reward "
            f"{_number(metrics, 'val/reward', '.3f')}, ended by the task "
            f"{_number(metrics, 'val/terminated_ratio', '.2f')}, {_number(metrics, 'val/time', '.1f')} s"
        )
        self._plot()

    def episodes(self, phase: str, step: int, rank: int, episodes: Sequence[Episode]) -> None:
        """Record the episodes of one rollout, one file per step and process."""
        suffix = f"-rank{rank}" if rank else ""
        self._folder.write_episodes(f"{phase}-{step:06d}{suffix}", episodes)
        if self._wandb is not None:
            for episode in select_episodes_to_log(episodes):
                self._conversations.add_data(*conversation_row(phase, step, episode))
                self._has_new_rows = True

    @contextlib.contextmanager
    def rollout(self, count: int) -> Iterator[Callable[[Episode], None]]:
        """Show how many of ``count`` episodes have ended; yields the function to call with each."""
        ended = 0

        def on_episode(episode: Episode) -> None:
            nonlocal ended
            ended += 1
            self._show(note=f"episode {ended}/{count}")

        yield on_episode
        self._show()

    @property
    def metrics_bytes(self) -> int:
        """Length of ``metrics.jsonl``."""
        path = self.folder / "metrics.jsonl"
        return path.stat().st_size if path.is_file() else 0

    def resume(self, state: RunState) -> None:
        """Continue after a checkpoint that has loaded: save the settings, and set aside what was recorded after it.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        if not self._is_main:
            return
        with self._folder.writing():
            self._config.to_yaml(self.folder / "config.yaml")
            aside = set_aside(self.folder, state)
        if aside is not None:
            self.write(f"what was recorded after step {state.step} is in {aside}")
        self._show(state.step)

    def write(self, text: str) -> None:
        """Print a line."""
        if self._is_main:
            print(text, flush=True)

    def close(self) -> None:
        """Finish the picture, the bar and the Weights & Biases run."""
        self._bar.close()
        if self._is_main:
            self._plot()
        if self._wandb is not None:
            if self._has_new_rows:  # those of a step that failed
                self._wandb.log({"conversations": self._conversations})
            self._wandb.finish()

    def _show(self, step: int | None = None, note: str = "") -> None:
        """Move the bar to a step; None stays at the last one."""
        self._steps = self._steps if step is None else step
        self._bar.update(self._steps, note)

    def _plot(self) -> None:
        with contextlib.suppress(OSError, ConfigError):  # a picture must neither stop training nor hide why it stopped
            plot_run(self.folder)

    def _record(self, step: int, metrics: dict[str, Any]) -> None:
        self._folder.write_metrics(step, metrics)
        if self._wandb is not None:
            table = {"conversations": self._conversations} if self._has_new_rows else {}
            self._wandb.log({**metrics, **table, "step": step})
            self._has_new_rows = False


def step_line(step: int, num_steps: int, metrics: dict[str, Any]) -> str:
    """The one line printed for a step."""
    return (
        f"step {step}/{num_steps}: reward {_number(metrics, 'reward', '.3f')}, success "
        f"{_number(metrics, 'success', '.2f')}, turns {_number(metrics, 'turns_per_episode', '.1f')}, tool errors "
        f"{_number(metrics, 'tools/errors_per_episode', '.2f')}, zero-variance groups "
        f"{_number(metrics, 'frac_reward_zero_std', '.0%')}, "
        f"{_number(metrics, 'step_time', '.1f')} s (sampling {_number(metrics, 'time/sampling', '.1f')}, environment "
        f"{_number(metrics, 'time/env', '.1f')}, training {_number(metrics, 'time/training', '.1f')})"
    )


def select_episodes_to_log(episodes: Sequence[Episode], limit: int = MAX_CONVERSATIONS) -> list[Episode]:
    """At most ``limit`` episodes, group by group; groups whose rewards differ come first, otherwise in order."""
    groups: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[episode.task.id].append(episode)
    ordered = sorted(groups.values(), key=lambda group: not has_reward_variance([episode.reward for episode in group]))
    return [episode for group in ordered for episode in group][:limit]


def conversation_row(phase: str, step: int, episode: Episode) -> list[Any]:
    """An episode as a row of the table in Weights & Biases."""
    return [
        step + (phase == "train"),  # as in the metrics, which count a training step when it is done
        phase,
        printable(episode.task.id),
        episode.episode_index,
        episode.reward,
        episode.provenance.get("advantage"),
        str(episode.stop_reason),
        len(episode.turns),
        printable(conversation_text(episode)),
    ]


def conversation_text(episode: Episode) -> str:
    """The whole conversation as text, one paragraph per message."""
    parts = [message_text(message) for message in episode.initial_messages]
    for turn in episode.turns:
        parts.append(f"[as sampled] {turn.raw_text}" if turn.message is None else message_text(turn.message))
        if turn.failure is not None:
            parts.append(f"({turn.failure})")
        if turn.history_edited:
            parts.append("(the environment rewrote the history, which now reads)")
        parts += [message_text(message) for message in turn.observation]
    if episode.stop_detail:
        parts.append(f"({episode.stop_detail})")
    return "\n\n".join(parts)


def check_wandb(project: str | None) -> None:
    """Raise :class:`ConfigError` when Weights & Biases is asked for and there is neither a key nor offline mode."""
    needs_no_login = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if project is None or needs_no_login or os.environ.get("WANDB_API_KEY"):
        return
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("://")[-1].split("/")[0].split(":")[0]
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        if netrc.netrc(os.environ.get("NETRC")).authenticators(host):
            return
    raise ConfigError(
        f"wandb_project={project!r} needs a Weights & Biases login, and none was found: run `wandb login` (or set "
        "WANDB_API_KEY), or set WANDB_MODE=offline to log to a local folder"
    )


def _number(metrics: dict[str, Any], name: str, spec: str) -> str:
    value = metrics.get(name)
    return "-" if value is None else format(value, spec)
