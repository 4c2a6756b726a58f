"""The settings of an evaluation, each written once, and what they stand for: tasks, policy source and record."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass
from pathlib import Path
from typing import Any

import gymnasium

from llmgym._util.settings import check, setting
from llmgym.env import Env
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError, TaskError
from llmgym.policies.sources import PolicySource, ScriptedSource, expert_source, model_source
from llmgym.policy import Policy
from llmgym.registry import env_factory, find
from llmgym.task import Task, check_unique_ids

EnvSource = str | type[Env] | type[gymnasium.Env[Any, Any]] | Callable[[Task], Env]
PolicyChoice = str | PolicySource | Callable[[], Policy]


@dataclass(frozen=True)
class EvalConfig:
    """The settings of one evaluation: the arguments of :func:`llmgym.run_and_report`, the options of ``llmgym eval``.

    Raises:
        ConfigError: A setting is wrong or contradicts another.
    """

    env: EnvSource = setting(
        MISSING,
        "A registered id, module:Id-v0, module:Class or my_env.py:MyEnv; in Python also an Env or gymnasium.Env class "
        "that needs no arguments, or a function from a task to an Env.",
    )
    _: KW_ONLY
    policy: PolicyChoice | None = setting(
        None,
        "Instead of a model 'expert', the scripted expert of the environment; in Python also a PolicySource (it is "
        "closed at the end), or a Policy class or function that makes a fresh policy for each episode.",
    )
    model: str | None = setting(
        None,
        "With base_url the endpoint's name of a model, whose key is in OPENAI_API_KEY; without it 'tiny', 'smollm2', a "
        "run folder, a checkpoint, a model directory or a hub name, loaded here by the trainer.",
    )
    base_url: str | None = setting(None, "Address of an OpenAI-compatible endpoint, such as http://127.0.0.1:8000/v1.")
    temperature: float = setting(1.0, "Sampling temperature.", least=0)
    chat_template: str | None = setting(None, "Name or file of a chat template for a local model.")
    chat_template_kwargs: Mapping[str, Any] | None = setting(
        None,
        'Variables of a local model\'s chat template, such as {"enable_thinking": false}; None takes those of the '
        "training run that a checkpoint belongs to.",
    )
    tasks: Sequence[Task] | None = setting(
        None, "The tasks, each with an id of its own; on the command line a JSONL file. None takes a split."
    )
    split: str = setting("val", "The environment's split that is evaluated: train, val or test.")
    task_options: Mapping[str, Any] = setting({}, "Passed to the environment's task generator, such as level=2.")
    limit: int | None = setting(None, "The first so many tasks only.", least=1)
    episodes_per_task: int = setting(
        4, "Episodes of each task: 1 is enough for a mean, the trainable share needs 2, better 8.", least=1
    )
    max_turns: int = setting(16, "Assistant turns of an episode.", least=1)
    max_model_length: int | None = setting(
        None, "Tokens of an episode, prompt and completions. None: as many as a local model has positions.", least=1
    )
    max_completion_length: int | None = setting(None, "Tokens of one assistant turn.", least=1)
    parse_retries: int = setting(
        0, "Malformed turns of an episode that are answered with a correction and another turn.", least=0
    )
    timeout_s: float | None = setting(120.0, "Seconds that the environment has in one episode.", above=0)
    concurrency: int = setting(8, "Episodes that run at the same time.", least=1)
    request_timeout_s: float = setting(600.0, "Seconds that an endpoint has for one answer.", above=0)
    seed: int = setting(42, "Determines the environment's randomness and, where the model honours it, the sampling.")
    success_reward: float = setting(1.0, "An episode with at least this reward is a success.")
    price_in: float | None = setting(None, "Price of a million prompt tokens, in any currency.", least=0)
    price_out: float | None = setting(None, "Price of a million completion tokens.", least=0)
    max_cost: float | None = setting(
        None,
        "Start no episode that, at the mean cost of those before, would take the total above this. The first one runs "
        "alone. Needs the prices.",
        above=0,
    )
    out: str | Path | None = setting(None, "Folder of the evaluation. None takes runs/eval-<time>.")
    resume: bool = setting(False, "Continue the evaluation in out, which must have the same settings.")
    progress: bool = setting(True, "Show a progress bar on a terminal or in a notebook.")

    def __post_init__(self) -> None:
        check(type(self), vars(self))
        if (self.price_in is None) != (self.price_out is None):
            raise ConfigError("a cost needs both prices, price_in and price_out (--price-in, --price-out)")
        if self.max_cost is not None and self.prices is None:
            raise ConfigError("max_cost needs the prices of tokens, price_in and price_out (--price-in, --price-out)")
        if self.max_cost is not None and self.policy == "expert":
            raise ConfigError("max_cost is for a model; the expert costs nothing")
        if (self.policy is None) == (self.model is None):
            raise ConfigError("give a policy (such as 'expert') or a model, and not both")
        if self.base_url is not None and self.model is None:
            raise ConfigError("base_url is the address of a model's endpoint; name the model too")
        for name in ("chat_template", "chat_template_kwargs"):
            if getattr(self, name) is not None and (self.model is None or self.base_url is not None):
                raise ConfigError(f"{name} is for a local model; an endpoint has a template of its own")
        if self.policy not in (None, "expert") and not (isinstance(self.policy, PolicySource) or callable(self.policy)):
            raise ConfigError(f"policy must be 'expert', a PolicySource or a Policy class, got {self.policy!r:.80}")

    @property
    def prices(self) -> tuple[float, float] | None:
        """Per million prompt and completion tokens."""
        return None if self.price_in is None or self.price_out is None else (self.price_in, self.price_out)

    @property
    def limits(self) -> EpisodeLimits:
        """What ends an episode from outside."""
        return EpisodeLimits(
            max_turns=self.max_turns,
            max_model_length=self.max_model_length,
            max_completion_length=self.max_completion_length,
            env_timeout_s=self.timeout_s,
            parse_retries=self.parse_retries,
        )

    def resolve_env(self) -> tuple[str, Callable[[Task], Env]]:
        """Name and factory of the environment.

        Raises:
            UnknownEnvironmentError: There is no such environment.
            ConfigError: ``env`` is one environment instead of a way to make them, or no environment at all.
        """
        env: Any = self.env
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

    def load_tasks(self) -> list[Task]:
        """The tasks to evaluate on. Raises :class:`TaskError` where there are none, or two with one id."""
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
                "a task is listed twice; to evaluate it more often, set episodes_per_task (--episodes-per-task)"
            )
        return tasks

    def make_source(self) -> PolicySource:
        """Where the policies come from; a local model is loaded.

        Raises:
            LLMGymError: There is no such expert or model, or what it needs is not installed.
        """
        if isinstance(self.policy, PolicySource):
            return self.policy
        if self.policy == "expert":
            if not isinstance(self.env, str):
                raise ConfigError("'expert' needs a registered environment, given by its id; give a Policy class")
            return expert_source(self.env)
        if callable(self.policy):
            return ScriptedSource(getattr(self.policy, "__qualname__", "policy"), self.policy)
        assert self.model is not None  # checked when this was made
        if self.base_url is not None:
            return model_source(
                self.model,
                base_url=self.base_url,
                temperature=self.temperature,
                request_timeout_s=self.request_timeout_s,
            )
        return model_source(
            self.model,
            temperature=self.temperature,
            chat_template=self.chat_template,
            chat_template_kwargs=self.chat_template_kwargs,
            env_id=self.env if isinstance(self.env, str) else "",
        )

    def record(self, env_id: str, tasks: Sequence[Task], source: PolicySource) -> dict[str, Any]:
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
