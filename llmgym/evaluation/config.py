"""The settings of an evaluation, checked before anything costs. How its episodes run is in ``evaluation_run``."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium

from llmgym._util.aio import run_sync
from llmgym._util.versions import install_hint
from llmgym.env import Env
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError, TaskError
from llmgym.evaluation.folder import EvaluationFolder
from llmgym.evaluation.report import Report
from llmgym.evaluation.runner import EvaluationRun
from llmgym.policies.sources import PolicySource, ScriptedSource, expert_source
from llmgym.policy import Policy
from llmgym.registry import env_factory, find
from llmgym.task import Task, check_unique_ids

EnvSource = str | type[Env] | type[gymnasium.Env[Any, Any]] | Callable[[Task], Env]
PolicyChoice = str | PolicySource | Callable[[], Policy]


def run_and_report(
    env: EnvSource,
    *,
    tasks: Sequence[Task] | None = None,
    model: str | None = None,
    base_url: str | None = None,
    policy: PolicyChoice | None = None,
    episodes_per_task: int = 4,
    concurrency: int = 8,
    split: str = "val",
    task_options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    max_turns: int = 16,
    max_model_length: int | None = None,
    max_completion_length: int | None = None,
    timeout_s: float | None = 120.0,
    parse_retries: int = 0,
    temperature: float = 1.0,
    chat_template: str | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    seed: int = 42,
    success_reward: float = 1.0,
    price_in: float | None = None,
    price_out: float | None = None,
    max_cost: float | None = None,
    request_timeout_s: float = 600.0,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Report:
    """Let a policy act in every task a number of times, and say how it did. Works in notebooks too.

    Each episode is run as in training: :func:`llmgym.run_episode`, with its stop reasons and its policy on malformed
    calls. It is recorded as it ends.

    Args:
        env: What :func:`llmgym.registry.find` resolves, an :class:`Env` or ``gymnasium.Env`` subclass that needs no
            arguments, or a function ``task -> Env``.
        tasks: The tasks, each with an id of its own; None takes a split of the environment.
        model: With ``base_url`` the name by which an OpenAI-compatible endpoint knows a model, whose key is in the
            environment variable ``OPENAI_API_KEY``. Without: ``"tiny"``, ``"smollm2"``, a run folder, a checkpoint, a
            model directory or a hub name, which needs the trainer.
        base_url: Address of the endpoint, such as ``http://127.0.0.1:8000/v1``.
        policy: Instead of a model: ``"expert"``, a source (it is closed at the end), or a :class:`Policy` subclass or
            function without arguments, which gives a fresh policy for each episode.
        episodes_per_task: Episodes of each task.
        concurrency: Episodes under way at once.
        split: The split, when no tasks are given.
        task_options: Passed to the environment's task function, such as ``{"level": 2}``.
        limit: The first so many tasks only.
        max_turns: Assistant turns of an episode.
        max_model_length: Tokens of an episode, prompt and completions; None leaves it to the model.
        max_completion_length: Tokens of one turn.
        timeout_s: Seconds that the environment has in one episode; None for no limit.
        parse_retries: Malformed turns of an episode that get a correction and another turn.
        temperature: Sampling temperature.
        chat_template: Name or file of a chat template for a local model, instead of its own.
        chat_template_kwargs: Variables of a local model's chat template, such as ``{"enable_thinking": False}``; None
            takes those of the training run that a checkpoint lies in.
        seed: Fixes the environment's chance and, where the model honours it, that of sampling.
        success_reward: An episode with at least this reward is a success.
        price_in: Price of a million prompt tokens.
        price_out: Price of a million completion tokens.
        max_cost: No episode begins that, at the mean cost of those before, would take the whole above this. The first
            one runs alone.
        request_timeout_s: Seconds that an endpoint has for one answer.
        out: Folder of the evaluation; None takes ``runs/eval-<time>``.
        resume: Go on with the evaluation in ``out``, which must have had the same settings.
        progress: Show a progress bar on a terminal or in a notebook.

    Returns:
        The report, also when the evaluation ended early; then ``stopped`` says why.

    Raises:
        UnknownEnvironmentError: No such environment, or it has no expert.
        TaskError: No such split, no tasks, or two with one id.
        ConfigError: A setting is wrong or does not go with another, or ``out`` holds something else. Like the
            errors above it comes before the first request.
        EndpointLostError: The endpoint was lost before the first episode ended, so that there is nothing to report.
    """
    evaluation = Evaluation(
        env=env,
        tasks=tasks,
        model=model,
        base_url=base_url,
        policy=policy,
        episodes_per_task=episodes_per_task,
        concurrency=concurrency,
        split=split,
        task_options=task_options or {},
        limit=limit,
        limits=EpisodeLimits(
            max_turns=max_turns,
            max_model_length=max_model_length,
            max_completion_length=max_completion_length,
            env_timeout_s=timeout_s,
            parse_retries=parse_retries,
        ),
        temperature=temperature,
        chat_template=chat_template,
        chat_template_kwargs=chat_template_kwargs,
        seed=seed,
        success_reward=success_reward,
        price_in=price_in,
        price_out=price_out,
        max_cost=max_cost,
        request_timeout_s=request_timeout_s,
        out=out,
        resume=resume,
        progress=progress,
    )
    return run_sync(evaluation.prepare().to_the_end())


@dataclass(frozen=True)
class Evaluation:
    """The settings of one evaluation, checked when it is made. See :func:`run_and_report` for each.

    Raises:
        ConfigError: A setting is wrong or does not go with another.
    """

    env: EnvSource
    tasks: Sequence[Task] | None = None
    model: str | None = None
    base_url: str | None = None
    policy: PolicyChoice | None = None
    episodes_per_task: int = 4
    concurrency: int = 8
    split: str = "val"
    task_options: Mapping[str, Any] = field(default_factory=dict)
    limit: int | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    temperature: float = 1.0
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    seed: int = 42
    success_reward: float = 1.0
    price_in: float | None = None
    price_out: float | None = None
    max_cost: float | None = None
    request_timeout_s: float = 600.0
    out: str | Path | None = None
    resume: bool = False
    progress: bool = True

    def __post_init__(self) -> None:
        for name in ("episodes_per_task", "concurrency", "limit"):
            value = getattr(self, name)
            if (value is not None or name != "limit") and not (_is_whole(value) and value >= 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("temperature", "price_in", "price_out", "max_cost"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value >= 0):
                raise ConfigError(f"{name} must be a number of at least 0, got {value!r}")
        if self.max_cost == 0:
            raise ConfigError("max_cost=0 must be above 0; leave it out for no limit")
        if not (_is_number(self.request_timeout_s) and self.request_timeout_s > 0):
            raise ConfigError(f"request_timeout_s must be a number above 0, got {self.request_timeout_s!r}")
        if not _is_number(self.success_reward):
            raise ConfigError(f"success_reward must be a number, got {self.success_reward!r}")
        if not _is_whole(self.seed):
            raise ConfigError(f"seed must be a whole number, got {self.seed!r}")
        if (self.price_in is None) != (self.price_out is None):
            raise ConfigError("a cost needs both prices, that of prompt and that of completion tokens")
        if self.max_cost is not None and self.prices is None:
            raise ConfigError(
                "max_cost needs the prices of a million tokens, price_in and price_out (--price-in, --price-out)"
            )
        if self.max_cost is not None and self.policy == "expert":
            raise ConfigError("max_cost is for a model; the expert costs nothing")
        if (self.policy is None) == (self.model is None):
            raise ConfigError("give a policy (such as 'expert') or a model, and not both")
        if self.base_url is not None and self.model is None:
            raise ConfigError("base_url is the address of a model's endpoint; name the model too")
        for name in ("chat_template", "chat_template_kwargs"):
            if getattr(self, name) is not None and (self.model is None or self.base_url is not None):
                raise ConfigError(f"{name} is for a local model; an endpoint has a template of its own")
        if isinstance(self.policy, str) and self.policy != "expert":
            raise ConfigError(f"policy must be 'expert', a PolicySource or a Policy class, got {self.policy!r}")

    @property
    def prices(self) -> tuple[float, float] | None:
        """Per million prompt and completion tokens."""
        return None if self.price_in is None or self.price_out is None else (self.price_in, self.price_out)

    def prepare(self) -> EvaluationRun:
        """Check everything else and load the model. What it returns runs in an event loop; this need not.

        Raises:
            LLMGymError: What :func:`run_and_report` raises before its first request.
        """
        env_id, make_env = _resolve(self.env)
        tasks = self._load_tasks()
        folder = EvaluationFolder(self.out, resume=self.resume)
        source = self._make_source()
        settings = self._settings(env_id, tasks, source)
        return EvaluationRun(self, env_id, make_env, tasks, folder, source, settings)

    def _load_tasks(self) -> list[Task]:
        if self.tasks is not None:
            if self.task_options:
                raise TaskError("task options are for the environment's own tasks, and tasks are given here")
            tasks = list(self.tasks)
        else:
            if not isinstance(self.env, str):
                raise TaskError("an environment given as a class has no tasks of its own; give tasks=[...]")
            tasks = find(self.env).load_tasks(self.split, **self.task_options)
        tasks = tasks[: self.limit]
        if not tasks:
            raise TaskError("there are no tasks to evaluate on")
        check_unique_ids(tasks)
        if len({task.id for task in tasks}) < len(tasks):
            raise TaskError(
                "a task stands twice in the list; evaluate it more often with episodes_per_task (--episodes-per-task)"
            )
        return tasks

    def _make_source(self) -> PolicySource:
        if isinstance(self.policy, PolicySource):
            return self.policy
        if self.policy == "expert":
            if not isinstance(self.env, str):
                raise ConfigError("'expert' needs a registered environment, given by its id; give a Policy class")
            return expert_source(self.env)
        if self.policy is not None:
            if not callable(self.policy):
                raise ConfigError(f"policy must be 'expert', a PolicySource or a Policy class, got {self.policy!r:.80}")
            return ScriptedSource(getattr(self.policy, "__qualname__", "policy"), self.policy)
        assert self.model is not None  # checked when this was made
        if self.base_url is not None:
            from llmgym.policies.hosted import HostedSource

            return HostedSource(
                self.model,
                self.base_url,
                temperature=self.temperature,
                request_timeout_s=self.request_timeout_s,
            )
        try:
            from llmgym_trainer.models.policy_source import LocalSource
        except ImportError as error:
            raise ConfigError(
                f"a local model needs the trainer ({error}): {install_hint('train')}; "
                "for a model behind an endpoint give its base_url (--base-url)"
            ) from error
        return LocalSource(
            self.model,
            temperature=self.temperature,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            env_id=self.env if isinstance(self.env, str) else "",
        )

    def _settings(self, env_id: str, tasks: Sequence[Task], source: PolicySource) -> dict[str, Any]:
        """All that decides what an episode is, as JSON values; a resumed evaluation must have the same."""
        lines = "\n".join(json.dumps(task.to_json(), sort_keys=True) for task in tasks)
        settings = {
            "env": env_id,
            "split": self.split if self.tasks is None else None,
            "task_options": dict(self.task_options),
            "tasks": len(tasks),
            "tasks_sha256": hashlib.sha256(lines.encode()).hexdigest(),
            "policy": source.provenance,
            "episodes_per_task": self.episodes_per_task,
            "seed": self.seed,
            "limits": dataclasses.asdict(self.limits),
        }
        found: dict[str, Any] = json.loads(json.dumps(settings, default=str))
        return found


def _resolve(env: Any) -> tuple[str, Callable[[Task], Env]]:
    """Name and factory of an environment."""
    if isinstance(env, str):
        return env, find(env).make_env
    if isinstance(env, Env | gymnasium.Env):
        raise ConfigError(
            f"every episode needs a fresh environment, and this is one object ({type(env).__qualname__}): give its "
            "class, or a function of the task that makes one"
        )
    if not callable(env) or (inspect.isclass(env) and not issubclass(env, Env | gymnasium.Env)):
        raise ConfigError(
            f"env must be an id, an Env or gymnasium.Env class or a function of the task, got {env!r:.80}"
        )
    return f"{env.__module__}:{getattr(env, '__qualname__', type(env).__qualname__)}", env_factory(env)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
