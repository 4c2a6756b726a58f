"""Policies, which act in an episode: the protocol, and one that plays a script."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgym.episode import StopReason, TurnTokens, Usage
from llmgym.messages import Message, ToolSpec
from llmgym.task import Task


@dataclass
class PolicyTurn:
    """The outcome of one :meth:`Policy.act`: a message, or a named reason for having none.

    Attributes:
        message: The assistant message.
        stop: CONTEXT_OVERFLOW or PARSE_FAILURE when the turn ends the episode; then ``message`` may be None.
        detail: One sentence on ``stop``.
        raw_text: The text behind a turn without a message.
        tokens: The sampled tokens, when there are any.
        usage: The tokens that the turn cost, when known.
    """

    message: Message | None = None
    stop: StopReason | None = None
    detail: str = ""
    raw_text: str | None = None
    tokens: TurnTokens | None = None
    usage: Usage | None = None


class Policy(ABC):
    """Acts through one episode. One object serves one episode at a time."""

    async def start(self, task: Task) -> None:
        """Called once before the first turn. A scripted expert finds its solution here."""

    @abstractmethod
    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn | Message | str:
        """Answer the history with an assistant message (a string is its text), or with a :class:`PolicyTurn`."""

    async def close(self) -> None:
        """Called once after the episode, however it ended."""


class ScriptedPolicy(Policy):
    """Plays given assistant messages in order and answers with an empty message after the last."""

    def __init__(self, script: Iterable[PolicyTurn | Message | str]) -> None:
        self._script: Sequence[PolicyTurn | Message | str] = list(script)
        self._next = 0

    async def start(self, task: Task) -> None:
        self._next = 0

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn | Message | str:
        self._next += 1
        return self._script[self._next - 1] if self._next <= len(self._script) else ""
