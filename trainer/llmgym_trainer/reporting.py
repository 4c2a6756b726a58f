"""What a run tells the outside: metric files, episode files, a line a step, a progress bar, Weights & Biases.

Knows names and numbers; no model and no tensor.
"""

from __future__ import annotations

import contextlib
import netrc
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tqdm.auto import tqdm

from llmgym.episode import Episode
from llmgym.errors import ConfigError
from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.runs import RunFolder, plot_run


class Reporter:
    """Writes a run's folder and shows its progress. On other processes than the first it only writes episodes.

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
        self._is_main = is_main
        self._num_steps = config.num_steps
        self._bar = tqdm(total=config.num_steps, unit="step", disable=not is_main, dynamic_ncols=True)
        self._wandb: Any = None
        if config.wandb_project is not None and is_main:
            import wandb

            self._wandb = wandb.init(
                project=config.wandb_project, name=config.run_name, dir=str(folder.path), config=config.given
            )

    def step(self, step: int, metrics: dict[str, Any]) -> None:
        """Record the metrics of one optimizer step and print its line."""
        if not self._is_main or ("reward" not in metrics and "step_time" not in metrics):
            return
        self._record(step, metrics)
        self._bar.update(step - self._bar.n)
        self._bar.write(step_line(step, self._num_steps, metrics))

    def validation(self, step: int, metrics: dict[str, Any]) -> None:
        """Record the metrics of one validation and print its line."""
        if not self._is_main:
            return
        self._record(step, metrics)
        self._bar.write(
            f"validation at step {step}: success {_number(metrics, 'val/success', '.3f')}, reward "
            f"{_number(metrics, 'val/reward', '.3f')}, ended by the task {_number(metrics, 'val/terminated_ratio', '.2f')}, "
            f"{_number(metrics, 'val/time', '.1f')} s"
        )
        plot_run(self.folder)

    def episodes(self, phase: str, step: int, rank: int, episodes: Sequence[Episode]) -> None:
        """Record the episodes of one rollout, one file a step and process."""
        suffix = f"-rank{rank}" if rank else ""
        self._folder.write_episodes(f"{phase}-{step:06d}{suffix}", episodes)

    @contextlib.contextmanager
    def rollout(self, count: int) -> Iterator[Callable[[Episode], None]]:
        """Show how many of ``count`` episodes have ended; yields the function to call with each."""
        ended = 0

        def on_episode(episode: Episode) -> None:
            nonlocal ended
            ended += 1
            self._bar.set_postfix_str(f"episode {ended}/{count}", refresh=ended % 8 == 0 or ended == count)

        yield on_episode
        self._bar.set_postfix_str("")

    def write(self, text: str) -> None:
        """Print a line without breaking the progress bar."""
        if self._is_main:
            self._bar.write(text)

    def close(self) -> None:
        """Finish the picture, the bar and the Weights & Biases run."""
        self._bar.close()
        if self._is_main:
            plot_run(self.folder)
        if self._wandb is not None:
            self._wandb.finish()

    def _record(self, step: int, metrics: dict[str, Any]) -> None:
        self._folder.write_metrics(step, metrics)
        if self._wandb is not None:
            self._wandb.log({**metrics, "step": step})


def step_line(step: int, num_steps: int, metrics: dict[str, Any]) -> str:
    """The one line printed for a step."""
    groups = f"{_number(metrics, 'groups/zero_spread', '.0f')} of {_number(metrics, 'groups/sampled', '.0f')}"
    return (
        f"step {step}/{num_steps}: reward {_number(metrics, 'reward', '.3f')}, success "
        f"{_number(metrics, 'success', '.2f')}, turns {_number(metrics, 'turns_per_episode', '.1f')}, tool errors "
        f"{_number(metrics, 'tools/errors_per_episode', '.2f')}, groups without spread {groups}, "
        f"{_number(metrics, 'step_time', '.1f')} s (sampling {_number(metrics, 'time/sampling', '.1f')}, environment "
        f"{_number(metrics, 'time/env', '.1f')}, training {_number(metrics, 'time/training', '.1f')})"
    )


def check_wandb(project: str | None) -> None:
    """Raise :class:`ConfigError` when Weights & Biases is asked for and there is neither a key nor offline mode."""
    if project is None or os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun"):
        return
    if os.environ.get("WANDB_API_KEY"):
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
