import asyncio
import random
from collections import defaultdict

import pytest
from toys import TASKS, LetterEnv, build_tokenizer

from llmgym import EpisodeLimits
from llmgym_trainer.collection.collector import Collector
from llmgym_trainer.engines.base import Sample
from llmgym_trainer.tokens.codec import Codec

LIMITS = EpisodeLimits(max_turns=5, max_model_length=400)


class Recorder:
    """An engine that notes which requests arrive at one moment."""

    def __init__(self):
        self.batches = []
        self._arriving = []

    async def sample(self, prompt_ids, params, key, rng):
        if not self._arriving:
            asyncio.get_running_loop().call_soon(self._note)
        self._arriving.append(key)
        await asyncio.sleep(0.005)
        return Sample([100, 1], [-1.0, -1.0], "stop", 0)

    def _note(self):
        self.batches.append(self._arriving)
        self._arriving = []

    def release(self, key):
        pass


def batches(turns_of, *, concurrent, seed, retries=0):
    """The episodes of each batch, by index, when episode i of a task has ``turns_of[i]`` turns and naps at random."""
    chance = random.Random(seed)
    made = defaultdict(int)

    class Napping(LetterEnv):
        async def reset(self, task):
            self.turns = turns_of[made[task.id]]
            made[task.id] += 1
            await asyncio.sleep(chance.random() * 0.01)
            if self.turns == 0:
                raise OSError("broken")
            return await super().reset(task)

        async def step(self, message):
            await asyncio.sleep(chance.random() * 0.01)
            return await super().step(message)

        async def close(self):
            await asyncio.sleep(chance.random() * 0.01)

    engine = Recorder()
    collector = Collector(
        Codec(build_tokenizer()),
        engine,
        lambda task: Napping(),
        seed=0,
        max_concurrent_episodes=concurrent,
        episode_retries=retries,
        deterministic=True,
    )
    count = len(turns_of) - retries
    groups = asyncio.run(collector.collect(TASKS[:1], count, LIMITS, temperature=1.0, phase="p", step=0))
    assert len(groups[0].episodes) + len(groups[0].failed) == len(turns_of)
    return [[int(key.split("/")[-2]) for key in batch] for batch in engine.batches]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("turns_of", "concurrent", "expected"),
    [
        ([1, 2, 3], None, [[0, 1, 2], [1, 2], [2]]),
        ([1, 2, 3], 2, [[0, 1], [1, 2], [2], [2]]),
        ([2, 1, 1], 1, [[0], [0], [1], [2]]),
    ],
)
def test_batches_follow_from_the_episodes_alone(turns_of, concurrent, expected, seed):
    assert batches(turns_of, concurrent=concurrent, seed=seed) == expected


def test_an_episode_that_fails_and_its_retry_hold_nobody_back_for_ever():
    # The first environment fails; its episode has one turn at the second try.
    assert batches([0, 1, 2], concurrent=1, seed=1, retries=1) == [[0], [1], [1]]
    assert batches([0, 2], concurrent=None, seed=1) == [[1], [1]]
