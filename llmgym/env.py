"""The environment contract: the four members that an author writes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from llmgym.messages import Message, ToolSpec
from llmgym.task import Task


@dataclass
class StepResult:
    """What :meth:`Env.step` returns.

    Attributes:
        terminated: The task's own logic ended the episode, for example on a final answer.
        truncated: Something outside the task's logic ended it.
        messages: The whole history after this step, as copies that the receiver may change.
        reward: The episode's reward, read from the step that ends the episode.
        metrics: Diagnostics of the episode (numbers, strings or booleans), read from the same step.
        tool_errors: The :attr:`~llmgym.ToolResult.error_type` of each failed call of this step, by call id. The model
            never sees it. :class:`~llmgym.ToolEnv` fills it in.
    """

    terminated: bool
    truncated: bool
    messages: list[Message]
    reward: float = 0.0
    metrics: dict[str, Any] = field(default_factory=dict)
    tool_errors: dict[str, str] = field(default_factory=dict)


class Env(ABC):
    """One conversation with tools. A fresh object serves one episode.

    The environment owns the history, the tools and the rule for the end of an episode; the loop that runs it owns
    sampling and limits. A subclass's ``__init__`` need not call this one.

    Attributes:
        rng: The episode's own random generator. The loop sets it before :meth:`reset`, seeded from run seed, task id
            and episode index. An environment must take all its randomness from it.
    """

    rng: random.Random

    @abstractmethod
    async def reset(self, task: Task) -> list[Message]:
        """Begin the episode of ``task`` and return the opening messages."""

    @abstractmethod
    async def step(self, message: Message) -> StepResult:
        """Consume one assistant message, run its tool calls, and return what follows."""

    @property
    @abstractmethod
    def tool_specs(self) -> list[ToolSpec]:
        """The tools offered to the model, the same through the whole episode."""

    @property
    @abstractmethod
    def messages(self) -> list[Message]:
        """A copy of the history."""

    async def close(self) -> None:
        """Free what :meth:`reset` opened. Runs once after every episode, however it ended."""
