"""The record of an episode: turns, why it stopped, what it earned."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from llmgym._util.settings import check, setting
from llmgym.messages import Message, ToolSpec
from llmgym.task import Task

TOOL_ERROR_PREFIX = "tool_error:"


class StopReason(StrEnum):
    """Why an episode stopped. Set by the loop, never inferred from the last token."""

    TERMINATED = "terminated"
    """The task ended it."""
    CONTEXT_OVERFLOW = "context_overflow"
    """A length budget is spent: no room for a reply is left, or a turn was cut by its limit."""
    MAX_TURNS = "max_turns"
    """``max_turns`` assistant turns ran."""
    ENV = "env"
    """``step`` returned ``truncated=True``."""
    PARSE_FAILURE = "parse_failure"
    """The policy gave no valid message or tool call; the reward is ``failed_parse_reward``."""
    TIMEOUT = "timeout"
    """``reset`` and ``step`` together used up ``env_timeout_s``."""
    ERROR = "error"
    """``reset``, ``step`` or the policy raised. The episode is no evidence about the policy."""


@dataclass(frozen=True)
class EpisodeLimits:
    """What ends an episode from outside. Lengths are in tokens, times in seconds; None means no limit.

    Raises:
        ConfigError: A value is of the wrong type or out of bounds.
    """

    max_turns: int = setting(16, "Assistant turns in one episode.", least=1)
    max_model_length: int | None = setting(None, "Prompt and completion tokens of the whole episode together.", least=1)
    max_completion_length: int | None = setting(
        None, "Tokens of one assistant turn; a turn gets the smaller of this and what is left.", least=1
    )
    reply_reserve_tokens: int = setting(
        16, "An episode with less room than this for its next reply stops instead.", least=1
    )
    env_timeout_s: float | None = setting(
        120.0, "Time inside ``reset`` and ``step`` of one episode, summed.", above=0, most=math.inf
    )
    policy_timeout_s: float | None = setting(
        None, "Time of one ``act`` call; past it the episode is an ERROR.", above=0, most=math.inf
    )
    failed_parse_reward: float = setting(-0.1, "The reward of an episode that ends with PARSE_FAILURE.")
    parse_retries: int = setting(
        0,
        "Malformed turns of an episode that are answered with a correction and another turn; the next one ends it with "
        "PARSE_FAILURE.",
        least=0,
    )

    def __post_init__(self) -> None:
        check(type(self), vars(self))


@dataclass
class TurnTokens:
    """The tokens of one assistant turn, kept as they were sampled.

    Attributes:
        context_ids: Tokens in front of the completion that are new: with ``extends`` those after everything
            held from earlier turns, else the whole prompt.
        completion_ids: Sampled ids, the stop token included when one was sampled.
        logprobs: The sampler's log-probability of each completion id, from the logits it decoded with.
        extends: The prompt begins with all tokens of the turns before. False starts a new training row.
        finish_reason: ``"stop"`` or ``"length"``, as the sampling engine says.
        policy_version: Number of weight updates the sampling weights had seen.
    """

    context_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    extends: bool
    finish_reason: str
    policy_version: int = 0


@dataclass(frozen=True)
class Usage:
    """The tokens one assistant turn cost.

    Attributes:
        prompt_tokens: Tokens of the whole prompt, those of earlier turns included.
        completion_tokens: Sampled tokens, those of reasoning included.
    """

    prompt_tokens: int
    completion_tokens: int

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt_tokens + other.prompt_tokens, self.completion_tokens + other.completion_tokens)

    def cost(self, price_in: float, price_out: float) -> float:
        """The cost of the tokens, at prices per million."""
        return (self.prompt_tokens * price_in + self.completion_tokens * price_out) / 1e6


@dataclass
class Turn:
    """One assistant turn and what the environment answered.

    Attributes:
        message: The normalised assistant message; None when the sampled text is not a message. The message of a
            malformed turn that got a retry is its text.
        observation: The messages the environment added; with ``history_edited`` the whole new history. After a
            malformed turn that got a retry, the correction.
        reward: ``StepResult.reward`` of this step.
        failure: Why the turn is a parse failure or was cut; None for a good turn.
        raw_text: The text of a turn that gave no message.
        history_edited: The environment changed earlier messages instead of only adding to them.
        tokens: Sampled tokens, when the policy has them.
        usage: The tokens that the turn cost, when the policy reports them.
        policy_s: Seconds in ``act``.
        env_s: Seconds in ``step``.
        tool_errors: ``StepResult.tool_errors`` of this step: the error type of each failed call, by call id.
    """

    message: Message | None = None
    observation: list[Message] = field(default_factory=list)
    reward: float = 0.0
    failure: str | None = None
    raw_text: str | None = None
    history_edited: bool = False
    tokens: TurnTokens | None = None
    usage: Usage | None = None
    policy_s: float = 0.0
    env_s: float = 0.0
    tool_errors: dict[str, str] = field(default_factory=dict)

    def error_type(self, message: Message) -> str | None:
        """The error type of the tool message ``message`` of this turn; None when it reports no error.

        A tool message that begins with ``tool_error:`` but has no entry in :attr:`tool_errors`, as from an environment
        that fills in none or in an old record, is a ``"tool_error"``.
        """
        if message["role"] != "tool":
            return None
        marked = message.get("content", "").startswith(TOOL_ERROR_PREFIX)
        return self.tool_errors.get(message.get("tool_call_id", ""), "tool_error" if marked else None)

    @property
    def corrected(self) -> bool:
        """Whether the turn was malformed and got a retry (``parse_retries``)."""
        return self.failure is not None and bool(self.observation)


@dataclass
class Episode:
    """Everything that happened in one episode.

    Attributes:
        task: The task.
        stop_reason: Why it stopped.
        reward: The episode's reward, before any shaping by a trainer.
        turns: The assistant turns in order.
        initial_messages: What ``reset`` returned.
        tool_specs: The tools offered.
        metrics: ``StepResult.metrics`` of the step that ended the episode, else empty.
        stop_detail: One sentence on the stop, such as the exception or which budget was spent.
        env_id: The registered id or import path of the environment.
        episode_index: Number of this episode among those of its task.
        seed: The run seed; with task id and index it determines ``env.rng``.
        close_error: The exception of a raising ``close``, which changes nothing else.
        limits: The limits it ran under.
        provenance: Where the episode comes from: versions, template hash and so on.
        reset_s: Seconds in ``reset``.
        failed: Who failed in an ERROR; None for every other stop reason, and in records older than this field.
        error_type: Class name of the exception behind an ERROR, or ``"timeout"``; None where there was none.
    """

    task: Task
    stop_reason: StopReason
    reward: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    initial_messages: list[Message] = field(default_factory=list)
    tool_specs: list[ToolSpec] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    stop_detail: str = ""
    env_id: str = ""
    episode_index: int = 0
    seed: int = 0
    close_error: str | None = None
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    provenance: dict[str, Any] = field(default_factory=dict)
    reset_s: float = 0.0
    failed: Literal["environment", "policy"] | None = None
    error_type: str | None = None

    @property
    def messages(self) -> list[Message]:
        """The whole conversation as the environment last gave it."""
        history = list(self.initial_messages)
        for turn in self.turns:
            if turn.history_edited:
                history = list(turn.observation)
            else:
                history += [turn.message] if turn.message is not None else []
                history += turn.observation
        return history

    @property
    def truncated(self) -> bool:
        """Whether something other than the task ended the episode."""
        return self.stop_reason is not StopReason.TERMINATED

    @property
    def num_tool_calls(self) -> int:
        """Tool calls the policy made."""
        return sum(len(turn.message.get("tool_calls", [])) for turn in self.turns if turn.message is not None)

    @property
    def num_tool_errors(self) -> int:
        """Tool results that report an error to the model; see :meth:`Turn.error_type`."""
        return sum(
            turn.error_type(message) is not None
            for turn in self.turns
            if not turn.history_edited
            for message in turn.observation
        )

    @property
    def num_sampled_tokens(self) -> int:
        """Tokens the policy sampled; 0 when it reports none."""
        return sum(turn.usage.completion_tokens for turn in self.turns if turn.usage is not None)

    @property
    def env_s(self) -> float:
        """Seconds inside the environment."""
        return self.reset_s + sum(turn.env_s for turn in self.turns)
