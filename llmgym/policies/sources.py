"""Where the policies of an evaluation come from: one source, and from it a fresh policy for each episode.

A source outlives the episodes: it holds the client or the loaded model. Scripted policies are here; sources of models
are imported when they are asked for, by the strings of :data:`MODEL_SOURCES`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from llmgym._util.versions import install_hint
from llmgym.episode import EpisodeLimits
from llmgym.errors import ConfigError, EndpointLostError
from llmgym.policy import Policy
from llmgym.registry import expert_policy
from llmgym.task import Task

MODEL_SOURCES = {
    "hosted": "llmgym.policies.hosted:HostedSource",
    "local": "llmgym_trainer.models.policy_source:LocalSource",
}
"""Subclasses of :class:`PolicySource` for models, by where the model runs."""


class PolicySource(ABC):
    """Makes the policies of many episodes, which may run at the same time on one event loop.

    Attributes:
        name: Shown to people, such as ``"expert"`` or the name of a model.
        lost: Set once no further request can succeed. Every policy of this source then raises it from ``act``, so
            that its episode ends as an ERROR which says nothing about the policy: the runner looks here
            after each, drops such an episode, starts no other, and may run it again later.
    """

    name: str
    lost: EndpointLostError | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """What the record of an episode should say about its policy. JSON values, never a key."""
        return {"policy": self.name}

    @abstractmethod
    def policy(self, task: Task, *, episode_index: int, seed: int, limits: EpisodeLimits) -> Policy:
        """A fresh policy for one episode.

        Args:
            task: The task of the episode.
            episode_index: Number of this episode among those of its task.
            seed: The run seed. Chance in sampling comes from it, the task's id and ``episode_index`` alone.
            limits: The limits of the episode; the lengths in them bound what is sampled.
        """

    async def close(self) -> None:
        """Free what the source holds. Called once, after the last episode."""


class ScriptedSource(PolicySource):
    """Policies that need no model.

    Args:
        name: Shown to people.
        make_policy: A :class:`Policy` subclass that needs no arguments, or a function that returns a fresh policy.
    """

    def __init__(self, name: str, make_policy: Callable[[], Policy]) -> None:
        self.name = name
        self._make_policy = make_policy

    def policy(self, task: Task, *, episode_index: int, seed: int, limits: EpisodeLimits) -> Policy:
        return self._make_policy()


def expert_source(env_id: str) -> ScriptedSource:
    """The scripted expert of an environment.

    Raises:
        UnknownEnvironmentError: No such environment, or it has no expert.
    """
    expert_policy(env_id)
    return ScriptedSource("expert", lambda: expert_policy(env_id))


def model_source(model: str, **settings: Any) -> PolicySource:
    """A model: with ``base_url`` behind an endpoint, otherwise loaded in this process.

    Args:
        model: Its name, see ``HostedSource`` and ``LocalSource``.
        settings: Their other arguments.

    Raises:
        ConfigError: The trainer, which loads models, is not installed; and what the two raise.
    """
    module, _, name = MODEL_SOURCES["hosted" if "base_url" in settings else "local"].partition(":")
    try:
        make: Callable[..., PolicySource] = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(
            f"a local model needs the trainer ({error}): {install_hint('train')}; for a model behind an endpoint give "
            "its base_url (--base-url)"
        ) from error
    return make(model, **settings)
