"""The protocol between episodes and whatever samples tokens for them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

MAX_BATCH = 256
"""Completions that an engine in this process decodes together; more requests wait for the next round."""
MAX_PREFILL_TOKENS = 32_768
"""Prompt tokens (padding included) that it reads in one forward pass."""


@dataclass(frozen=True)
class SamplingParams:
    """How one completion is sampled.

    Attributes:
        max_new_tokens: Tokens the completion may have; reaching it gives ``finish_reason="length"``.
        stop_token_ids: Ids that end the completion; the one sampled is kept as its last id.
        temperature: Divides the logits before sampling and before the log-probabilities are taken; 0 takes
            the most likely token (its log-probability is then that of temperature 1).
    """

    max_new_tokens: int
    stop_token_ids: frozenset[int]
    temperature: float = 1.0


@dataclass
class Sample:
    """One sampled completion.

    Attributes:
        ids: Sampled token ids, the stop token included when one was sampled.
        logprobs: Log-probability of each id at the sampling temperature, from the logits it was drawn from.
        finish_reason: ``"stop"`` or ``"length"``.
        policy_version: The version given to the last :meth:`Engine.sync`.
    """

    ids: list[int]
    logprobs: list[float]
    finish_reason: str
    policy_version: int


class Engine(Protocol):
    """Samples completions for many episodes at once. No method blocks the event loop."""

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        """Sample one completion of ``prompt_ids``.

        Args:
            prompt_ids: The whole prompt. An engine may keep state of the earlier turns of ``key``.
            params: Limits, stop ids and temperature.
            key: Names the episode.
            rng: The episode's own source of chance, so that a result does not depend on what else is sampled.

        Raises:
            ValueError: ``prompt_ids`` is empty or does not fit the model.
        """
        ...

    def release(self, key: str) -> None:
        """Forget an episode. Called once at its end."""
        ...

    def abort(self, key: str) -> None:
        """Cancel what is being sampled for an episode; its ``sample`` raises :class:`asyncio.CancelledError`."""
        ...

    def sync(self, version: int) -> None:
        """Sample with the current weights from now on; whatever was computed with older ones is dropped."""
        ...

    def close(self) -> None:
        """Free all resources."""
        ...


class EngineWrapper:
    """An engine that changes how another one samples; everything else goes straight to that."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def release(self, key: str) -> None:
        """See :meth:`Engine.release`."""
        self._engine.release(key)

    def abort(self, key: str) -> None:
        """See :meth:`Engine.abort`."""
        self._engine.abort(key)

    def sync(self, version: int) -> None:
        """See :meth:`Engine.sync`."""
        self._engine.sync(version)

    def close(self) -> None:
        """See :meth:`Engine.close`."""
        self._engine.close()
