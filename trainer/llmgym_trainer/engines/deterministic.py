"""Fixes which completions are sampled together, whatever the speed of the environments."""

from __future__ import annotations

import asyncio
import random

from llmgym_trainer.engines.base import Engine, EngineWrapper, Sample, SamplingParams


class BatchGate(EngineWrapper):
    """An engine that holds every request back until each live episode waits for one; then all go, ordered by key.

    How the logits of a batch round depends on who shares it, so a run repeats exactly only with batches that follow
    from the episodes alone. The price: the slowest environment holds everybody up.

    Args:
        engine: Does the sampling.
        concurrent: Episodes alive at once; None for all of a rollout.
    """

    def __init__(self, engine: Engine, concurrent: int | None) -> None:
        super().__init__(engine)
        self._concurrent = concurrent
        self._left = 0
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def begin(self, episodes: int) -> None:
        """Begin a rollout of so many episodes."""
        self._left = episodes
        self._waiting.clear()

    def end_episode(self) -> None:
        """Count an episode that has ended; one that waited for its place, if any, follows."""
        self._left -= 1
        self._open_when_all_wait()

    async def sample(self, prompt_ids: list[int], params: SamplingParams, key: str, rng: random.Random) -> Sample:
        """See :meth:`llmgym_trainer.engines.base.Engine.sample`."""
        opened = self._waiting[key] = asyncio.get_running_loop().create_future()
        self._open_when_all_wait()
        try:
            await opened
        finally:
            self._waiting.pop(key, None)
        return await self._engine.sample(prompt_ids, params, key, rng)

    def abort(self, key: str) -> None:
        """See :meth:`llmgym_trainer.engines.base.Engine.abort`."""
        if key in self._waiting:
            self._waiting[key].cancel()
        super().abort(key)

    def _open_when_all_wait(self) -> None:
        # The place of an ended episode goes to the next one, so this many are alive while any is left to play.
        alive = self._left if self._concurrent is None else min(self._left, self._concurrent)
        if self._waiting and len(self._waiting) == alive:
            asyncio.get_running_loop().call_soon(self._open)  # later: the last one to come must wait as the others do

    def _open(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for key in sorted(waiting):
            if not waiting[key].done():
                waiting[key].set_result(None)
