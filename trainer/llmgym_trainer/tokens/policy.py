"""A policy that samples from an engine and keeps every token."""

from __future__ import annotations

import math
import random

from llmgym.episode import EpisodeLimits, StopReason, TurnTokens, Usage
from llmgym.errors import ConfigError, LLMGymError
from llmgym.messages import Message, ToolSpec, unreadable_message
from llmgym.policy import Policy, PolicyTurn
from llmgym_trainer.engines.base import Engine, Sample, SamplingParams
from llmgym_trainer.tokens.codec import Codec


class EngineContractError(LLMGymError):
    """A sampling engine returned something that cannot be trained on."""


class NonFiniteLogprobError(EngineContractError):
    """The engine gave a log-probability that is NaN or infinite, as a model does whose weights are not finite."""


class ModelPolicy(Policy):
    """Samples the turns of one episode. A fresh object serves one episode.

    Args:
        codec: Turns messages into ids and back.
        engine: Samples the ids.
        limits: ``max_model_length``, ``max_completion_length`` and ``reply_reserve_tokens`` bound each turn.
        key: Names the episode to the engine.
        rng: The episode's own random generator for sampling.
        temperature: Sampling temperature.

    Raises:
        ConfigError: ``limits`` do not bound the length of a turn.
    """

    def __init__(
        self,
        codec: Codec,
        engine: Engine,
        limits: EpisodeLimits,
        *,
        key: str,
        rng: random.Random,
        temperature: float = 1.0,
    ) -> None:
        if limits.max_model_length is None and limits.max_completion_length is None:
            raise ConfigError("a sampled turn needs an end: set max_model_length or max_completion_length")
        self._codec, self._engine, self._limits = codec, engine, limits
        self._key, self._rng, self._temperature = key, rng, temperature
        self._turns = 0
        self._held_ids: list[int] = []
        self._history: list[Message] = []
        self._tool_specs: list[ToolSpec] = []

    async def act(self, messages: list[Message], tool_specs: list[ToolSpec]) -> PolicyTurn:
        """Sample one turn.

        Raises:
            CodecError: The chat template refuses the messages.
            EngineContractError: The engine's sample does not add up.
        NonFiniteLogprobError: A log-probability is NaN or infinite.
        """
        too_long = self._too_long(messages)
        if too_long is not None:
            return PolicyTurn(stop=StopReason.CONTEXT_OVERFLOW, detail=too_long)
        added = self._extension(messages, tool_specs)
        context_ids = self._codec.render(messages, tool_specs) if added is None else added
        prompt_ids = context_ids if added is None else self._held_ids + context_ids
        room, limit = self._room(len(prompt_ids))
        if room < 1:
            return PolicyTurn(stop=StopReason.CONTEXT_OVERFLOW, detail=limit)

        params = SamplingParams(room, self._codec.stop_token_ids, self._temperature)
        sample = await self._engine.sample(prompt_ids, params, self._key, self._rng)
        _check_sample(sample, room)
        turn = self._codec.parse(sample.ids, sample.finish_reason, call_id_prefix=f"call_{self._turns}_")
        if turn.stop is StopReason.CONTEXT_OVERFLOW:
            turn.detail = f"the turn was cut after {len(sample.ids)} tokens by {limit}"
        turn.tokens = TurnTokens(
            context_ids=context_ids,
            completion_ids=sample.ids,
            logprobs=sample.logprobs,
            extends=added is not None,
            finish_reason=sample.finish_reason,
            policy_version=sample.policy_version,
        )
        turn.usage = Usage(len(prompt_ids), len(sample.ids))
        self._turns += 1
        self._held_ids = prompt_ids + sample.ids
        said = turn.message
        if turn.stop is StopReason.PARSE_FAILURE:
            said = unreadable_message(turn.raw_text or "")  # as it stands in the history if there is another turn
        self._history = [*messages, *([said] if said is not None else [])]
        self._tool_specs = tool_specs
        return turn

    async def close(self) -> None:
        """Release what the engine keeps for the episode."""
        self._engine.release(self._key)

    def _too_long(self, messages: list[Message]) -> str | None:
        """Why the environment's messages cannot fit, judged by their characters; None if they may.

        Tokenizing megabytes would take minutes. Space around a message does not count, because templates strip it.
        """
        budget = self._limits.max_model_length
        count = sum(len(message["content"].strip()) for message in messages if message["role"] != "assistant")
        if budget is None or count <= budget * self._codec.longest_token:
            return None
        return (
            f"the environment's messages have {count} characters, which do not fit into max_model_length={budget} "
            f"tokens of at most {self._codec.longest_token} characters"
        )

    def _extension(self, messages: list[Message], tool_specs: list[ToolSpec]) -> list[int] | None:
        """The ids that extend everything held, or None where a new row starts."""
        known = len(self._history)
        if not self._held_ids or messages[:known] != self._history or tool_specs != self._tool_specs:
            return None
        return self._codec.extend(self._history, messages[known:], tool_specs, self._held_ids)

    def _room(self, prompt_length: int) -> tuple[int, str]:
        """Tokens the next turn may have and the limit that says so; 0 and the reason if there are too few."""
        budget, cap = self._limits.max_model_length, self._limits.max_completion_length
        left = math.inf if budget is None else budget - prompt_length
        if left < self._limits.reply_reserve_tokens:
            return 0, (
                f"the prompt of {prompt_length} tokens leaves {left} of max_model_length={budget}, fewer than "
                f"reply_reserve_tokens={self._limits.reply_reserve_tokens}"
            )
        if cap is not None and cap < left:
            return cap, f"max_completion_length={cap}"
        return int(left), f"max_model_length={budget}"


def _check_sample(sample: Sample, room: int) -> None:
    """Raise :class:`EngineContractError` unless a sample can be trained on."""
    if not 1 <= len(sample.ids) <= room:
        raise EngineContractError(f"the engine sampled {len(sample.ids)} tokens where 1 to {room} were asked for")
    if len(sample.logprobs) != len(sample.ids):
        raise EngineContractError(f"the engine gave {len(sample.logprobs)} logprobs for {len(sample.ids)} tokens")
    for index, logprob in enumerate(sample.logprobs):
        if not math.isfinite(logprob):
            raise NonFiniteLogprobError(f"the logprob of sampled token {index} is {logprob}, not a finite number")
    if sample.finish_reason not in ("stop", "length"):
        raise EngineContractError(f"finish_reason must be 'stop' or 'length', got {sample.finish_reason!r}")
