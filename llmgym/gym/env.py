"""Registered environments as Gymnasium environments: what ``gymnasium.make`` returns."""

from __future__ import annotations

import asyncio
import copy
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from llmgym import registry
from llmgym._util.aio import run_sync
from llmgym._util.seeding import derive_seed
from llmgym._util.text import describe_message
from llmgym.env import Env
from llmgym.episode import EpisodeLimits, StopReason
from llmgym.errors import ConfigError, MessageError, TaskError, did_you_mean
from llmgym.gym.spaces import MessageSpace
from llmgym.messages import Message, ToolSpec, copy_message, normalize_message, normalize_messages
from llmgym.rollout import CLOSE_TIMEOUT_S, check_step_result
from llmgym.task import Task

logger = logging.getLogger(__name__)


class MessageEnv(gymnasium.Env[list[Message], Any]):
    """What ``gymnasium.make`` returns for every environment that :func:`llmgym.register` knows.

    ## Description
    One episode is one task: ``reset`` draws it from the tasks of the split, or takes the one in
    ``options={"task": ...}`` (a :class:`Task`, or an index into the split). The environment behind is asynchronous;
    ``reset``, ``step`` and ``close`` run it on a background event loop and wait, so they also work in a notebook and
    in forked workers. ``reset_async``, ``step_async`` and ``close_async`` are the same three for callers that have
    an event loop.

    ## Observation
    ``MessageSpace()``: the whole conversation as a list of messages, a fresh copy each time.

    ## Action
    ``MessageSpace(roles=("assistant",), length=1)``: a list that holds one assistant message. A bare message and a
    string (its text) are accepted too. Anything else raises :class:`MessageError` and changes nothing. Unlike in
    :func:`llmgym.run_episode`, malformed tool calls do not end the episode: the environment answers them with a tool
    error.

    ## Rewards
    The episode's reward comes with the step in which the environment ends it; every other step gives 0. The return is
    thus the reward that ``run_episode`` records.

    ## Episode End
    1. Termination: the task's own logic ended it.
    2. Truncation: the environment's ``step`` said so, or ``max_turns`` assistant turns ran.

    ``info`` holds ``task`` (the :class:`Task`), ``tool_specs``, ``stop_reason`` (a :class:`StopReason`; None while the
    episode runs) and ``metrics`` (those of the environment, empty while the episode runs).

    ## Randomness
    ``reset(seed=...)`` seeds the draw of tasks. The environment's own ``rng`` is seeded from that seed, the task's id
    and the number of times that the task came up since, as ``run_episode(seed=..., episode_index=...)`` does.

    ## Arguments
    Args:
        env_id: A registered id, or anything else that :func:`llmgym.registry.find` resolves.
        split: ``"train"``, ``"val"`` or ``"test"``.
        tasks: Tasks to use instead of a split's.
        max_turns: Assistant turns after which the episode is truncated; None for no limit.
        render_mode: ``"ansi"``: ``render`` returns the conversation as text. ``"human"``: ``reset`` and ``step`` print
            it as it goes.
        task_options: Passed on to the environment's task function, such as ``level=2``.

    Raises:
        UnknownEnvironmentError: No such environment.
        TaskError: No such split, or ``tasks`` holds something else.
        ConfigError: An unknown render mode, or ``max_turns`` below 1.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "human"], "render_fps": 1}  # noqa: RUF012 - Gymnasium's shape

    def __init__(
        self,
        env_id: str,
        *,
        split: str = "train",
        tasks: Sequence[Task] | None = None,
        max_turns: int | None = None,
        render_mode: str | None = None,
        **task_options: Any,
    ) -> None:
        modes = self.metadata["render_modes"]
        if render_mode is not None and render_mode not in modes:
            raise ConfigError(
                f"unknown render_mode {render_mode!r}; allowed are {', '.join(modes)} and None."
                f"{did_you_mean(str(render_mode), modes)}"
            )
        if max_turns is not None:
            EpisodeLimits(max_turns=max_turns)  # raises when it is no limit
        self.env_id = env_id
        self.render_mode = render_mode
        self.observation_space = MessageSpace()
        self.action_space = MessageSpace(roles=("assistant",), length=1)
        self._entry = registry.find(env_id)
        self._max_turns = max_turns
        self.tasks = _tasks_of(self._entry, split, tasks, task_options)
        self._env: Env | None = None
        self._running = False
        self._starts: Counter[str] = Counter()
        self._history: list[Message] | None = None
        self._shown = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """Begin an episode; one that still runs is closed.

        Args:
            seed: Seeds everything that follows; None continues with the present generator.
            options: ``{"task": ...}`` with a :class:`Task` or an index into the split's tasks.

        Raises:
            TaskError: Another option, another kind of task, an index out of range, or no tasks to draw from.
        """
        result = run_sync(self.reset_async(seed=seed, options=options))
        if self.render_mode == "human":
            self.render()
        return result

    def step(self, action: Any) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """Consume one assistant message. See the class for its forms and for what comes back.

        Raises:
            MessageError: ``action`` is not an assistant message; the episode continues.
            ResetNeeded: No episode is running.
        """
        result = run_sync(self.step_async(action))
        if self.render_mode == "human":
            self.render()
        return result

    def close(self) -> None:
        """Close the running episode's environment. A new ``reset`` may follow."""
        if self._env is not None:
            run_sync(self.close_async())

    def render(self) -> str | None:
        """Return the conversation as text (ansi), print what is new of it (human), or do nothing.

        Control characters, which a model may have written, are escaped.

        Raises:
            ResetNeeded: There is no conversation yet.
        """
        if self.render_mode is None:
            return None
        if self._history is None:
            raise ResetNeeded("there is no conversation to render yet; call reset() first")
        if self.render_mode == "ansi":
            blocks = [f"[{title}]\n{text}" for title, text in map(describe_message, self._history)]
            return "\n\n".join(blocks + ([self._ending()] if self._stop_reason else [])) + "\n"
        self._print_new(self._history)
        return None

    async def reset_async(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[list[Message], dict[str, Any]]:
        """:meth:`reset` as a coroutine. Prints nothing."""
        super().reset(seed=seed)
        if seed is not None:
            self._starts.clear()
        task = self._choose_task(options or {})
        await self.close_async()
        env = self._entry.make_env(copy.deepcopy(task))
        env.rng = random.Random(derive_seed(self.np_random_seed, task.id, self._starts[task.id]))
        self._starts[task.id] += 1
        self._env = env
        self._history = normalize_messages(await env.reset(copy.deepcopy(task)))
        self._task = task
        self._tool_specs: list[ToolSpec] = copy.deepcopy(list(env.tool_specs))
        self._turns = 0
        self._reward = 0.0
        self._shown = 0
        self._stop_reason: StopReason | None = None
        self._metrics: dict[str, Any] = {}
        self._running = True
        return self._observe()

    async def step_async(self, action: Any) -> tuple[list[Message], float, bool, bool, dict[str, Any]]:
        """:meth:`step` as a coroutine. Prints nothing."""
        if self._env is None or self._history is None or not self._running:
            raise ResetNeeded("no episode is running (it has ended, or none has begun); call reset() before step()")
        message = read_action(action, self._turns)
        self._running = False  # and stays so when the environment raises
        result = await self._env.step(message)
        check_step_result(result)
        self._history = normalize_messages(result.messages, [*self._history, message])
        self._turns += 1
        terminated, truncated = bool(result.terminated), bool(result.truncated)
        if terminated or truncated:
            self._stop_reason = StopReason.TERMINATED if terminated else StopReason.ENV
            self._reward, self._metrics = float(result.reward), dict(result.metrics)
        elif self._max_turns is not None and self._turns >= self._max_turns:
            truncated = True
            self._stop_reason = StopReason.MAX_TURNS
        if self._stop_reason is None:
            self._running = True
        else:
            await self.close_async()
        observation, info = self._observe()
        return observation, self._reward, terminated, truncated, info

    async def close_async(self) -> None:
        """:meth:`close` as a coroutine. What the environment's own ``close`` raises is logged, no more."""
        env, self._env = self._env, None
        self._running = False
        if env is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await env.close()
        except Exception:
            logger.warning("closing an environment of %s failed", self.env_id, exc_info=True)

    def _choose_task(self, options: Mapping[str, Any]) -> Task:
        for name in options:
            if name != "task":
                raise TaskError(f"unknown reset option {name!r}; allowed is 'task'.{did_you_mean(str(name), ['task'])}")
        given = options.get("task")
        count = len(self.tasks)
        if isinstance(given, Task):
            return given
        if given is None:
            if count == 0:
                raise TaskError(
                    f"{self.env_id} was registered without tasks; pass options={{'task': Task(...)}} to reset, or "
                    "tasks=[...] to gymnasium.make"
                )
            return self.tasks[int(self.np_random.integers(count))]
        if isinstance(given, int | np.integer) and not isinstance(given, bool):
            if 0 <= given < count:
                return self.tasks[int(given)]
            raise TaskError(f"there is no task {given}; this environment has {count} tasks, counted from 0")
        raise TaskError(
            f"options['task'] takes a Task or an index below {count}, got {type(given).__name__} {given!r:.80}"
        )

    def _observe(self) -> tuple[list[Message], dict[str, Any]]:
        assert self._history is not None  # reset has run
        info = {
            "task": self._task,
            "tool_specs": copy.deepcopy(self._tool_specs),
            "stop_reason": self._stop_reason,
            "metrics": dict(self._metrics),
        }
        return [copy_message(message) for message in self._history], info

    def _print_new(self, history: list[Message]) -> None:
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        if self._shown > len(history):  # the environment shortened its history
            self._shown = 0
        console = Console()
        for message in history[self._shown :]:
            title, text = describe_message(message)
            console.print(
                Panel(Text(text), title=Text(title), title_align="left", border_style=_STYLES[message["role"]])
            )
        if self._stop_reason and self._shown < len(history):
            console.print(Text(self._ending(), style="bold"))
        self._shown = len(history)

    def _ending(self) -> str:
        return f"{self._stop_reason}, reward {self._reward:g}"


_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def _tasks_of(
    entry: registry.EnvEntry, split: str, tasks: Sequence[Task] | None, options: Mapping[str, Any]
) -> list[Task]:
    if tasks is None:
        return [] if entry.tasks is None and not options else _split_tasks(entry, split, options)
    if options:
        raise TaskError(
            f"tasks=[...] takes the place of a split, so {', '.join(options)} would have no effect; drop it"
        )
    for index, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise TaskError(f"tasks[{index}] must be a Task, got {type(task).__name__} {task!r:.80}")
    if not tasks:
        raise TaskError("tasks=[] holds no task; leave it out to use the split's")
    return list(tasks)


_loaded: dict[str, tuple[registry.EnvEntry, list[Task]]] = {}


def _split_tasks(entry: registry.EnvEntry, split: str, options: Mapping[str, Any]) -> list[Task]:
    """Load a split once a process; generating it for each of many environments would take longer than they do."""
    key = repr((entry.id, split, sorted(options.items())))
    if key not in _loaded or _loaded[key][0] is not entry:
        _loaded[key] = (entry, entry.load_tasks(split, **options))
    return _loaded[key][1]


def read_action(action: Any, turn: int = 0) -> Message:
    """Normalise the forms an action may have. Raises :class:`MessageError` for anything else."""
    message = action
    if isinstance(action, list | tuple):
        if len(action) != 1:
            raise MessageError(f"an action is a list with exactly one assistant message, got {len(action)} entries")
        message = action[0]
    try:
        return normalize_message(message, role="assistant", call_id_prefix=f"call_{turn}_")
    except MessageError as error:
        raise MessageError(
            f"an action is a list with one assistant message, a bare assistant message, or a string: {error}"
        ) from None
