"""Tries an environment before anything expensive happens. Knows environments and tasks, no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llmgym.env import Env
from llmgym.episode import EpisodeLimits, StopReason
from llmgym.errors import ConfigError
from llmgym.messages import Message, ToolSpec
from llmgym.policy import Policy, PolicyTurn
from llmgym.rollout import run_episode
from llmgym.task import Task
from llmgym_trainer.runs.interrupts import run_until_closed


class _Silent(Policy):
    """Ends the episode where its first turn would begin."""

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn:
        return PolicyTurn(stop=StopReason.MAX_TURNS)


def check_first_reset(
    env_factory: Callable[[Task], Env], tasks: Sequence[Task], limits: EpisodeLimits, *, seed: int
) -> None:
    """Build, reset and close the environment of the first task; where its reset fails, also that of the last task.

    A reset may fail now and then, which training bears with. One that fails at two tasks is taken for broken.

    Args:
        env_factory: Builds a fresh environment for one episode of a task.
        tasks: The tasks of one environment.
        limits: ``env_timeout_s`` bounds a reset.
        seed: The run seed.

    Raises:
        ConfigError: An environment cannot be built, or neither reset works.
    """
    failed: list[str] = []
    for task in (tasks[0], tasks[-1]):
        try:
            env = env_factory(task)
            if not isinstance(env, Env):
                raise TypeError(f"it returned {env!r:.80}, which is no llmgym.Env")
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"the environment of task {task.id!r} cannot be built: env_factory raised {type(error).__name__}: "
                f"{error}"
            ) from error
        episode = run_until_closed(
            run_episode(env, task, _Silent(), limits, seed=seed), blocked_after_s=limits.env_timeout_s
        )
        if episode.stop_reason is StopReason.MAX_TURNS:
            return
        failed.append(f"task {task.id!r} ({episode.stop_detail})")
    raise ConfigError(
        f"the environment {episode.env_id!r} cannot begin {'; nor '.join(failed)}. Mend it, and try it with llmgym "
        "check"
    )
