import asyncio
import random
from collections import Counter

import pytest
from toys import IM_END, TASKS, LetterEnv, build_tokenizer

from llmgym import EpisodeLimits, StopReason
from llmgym_trainer import GRPOConfig
from llmgym_trainer.collection.collector import Collector, RolloutClock
from llmgym_trainer.engines.base import Sample
from llmgym_trainer.tokens.codec import Codec

LIMITS = EpisodeLimits(max_turns=4, max_model_length=200)


class OneWordEngine:
    """Answers with one letter drawn from the episode's own generator."""

    def __init__(self, tokenizer):
        self.letters = [tokenizer.convert_tokens_to_ids(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
        self.released = []
        self.now = self.most = 0

    async def sample(self, prompt_ids, params, key, rng: random.Random):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return Sample([rng.choice(self.letters), IM_END], [-3.0, -0.1], "stop", 0)

    def release(self, key):
        self.released.append(key)


@pytest.fixture
def engine():
    return OneWordEngine(build_tokenizer())


def collect(engine, env, tasks=TASKS[:2], count=3, **settings):
    collector = Collector(Codec(build_tokenizer()), engine, lambda task: env(), **{"seed": 7, **settings})
    ended = []
    groups = asyncio.run(
        collector.collect(tasks, count, LIMITS, temperature=1.0, phase="train0", step=5, on_episode=ended.append)
    )
    return groups, ended


def test_groups_come_in_the_order_of_their_tasks(engine):
    groups, ended = collect(engine, LetterEnv)
    assert [g.task for g in groups] == TASKS[:2]
    assert [[e.episode_index for e in g.episodes] for g in groups] == [[0, 1, 2]] * 2
    assert len(ended) == 6
    assert len(set(engine.released)) == 6
    assert all(e.provenance["phase"] == "train0" and e.provenance["step"] == 5 for g in groups for e in g.episodes)


def test_the_same_seed_samples_the_same_and_another_does_not(engine):
    def said(**settings):
        groups, _ = collect(engine, LetterEnv, **settings)
        return [e.turns[0].message["content"] for g in groups for e in g.episodes]

    assert said() == said()
    assert said() != said(seed=8)


def test_a_task_that_occurs_twice_is_two_different_groups(engine):
    groups, _ = collect(engine, LetterEnv, tasks=[TASKS[0], TASKS[0]], count=6)
    first, second = ([e.turns[0].message["content"] for e in g.episodes] for g in groups)
    assert first != second


def test_an_engine_that_never_answers_fails_the_episode_and_no_other(engine, monkeypatch):
    limits = GRPOConfig(max_turns=4, max_model_length=200, policy_timeout_s=2.0).limits()
    sample, asked = engine.sample, []

    async def hang_once(*args):
        asked.append(args[2])
        if len(asked) == 2:
            await asyncio.Event().wait()
        return await sample(*args)

    monkeypatch.setattr(engine, "sample", hang_once)
    collector = Collector(Codec(build_tokenizer()), engine, lambda task: LetterEnv(), seed=7)
    [group] = asyncio.run(collector.collect(TASKS[:1], 3, limits, temperature=1.0, phase="train0", step=5))
    assert [(e.stop_reason, e.stop_detail) for e in group.failed] == [
        (StopReason.ERROR, "policy.act exceeded policy_timeout_s=2.0")
    ]
    assert [e.stop_reason for e in group.episodes] == [StopReason.TERMINATED] * 3
    assert group.episodes[1].provenance["attempt"] == 1
    assert asked[1] in engine.released


def test_a_failed_episode_is_tried_again_on_a_fresh_environment(engine):
    made = []

    class Flaky(LetterEnv):
        def __init__(self):
            made.append(self)

        async def reset(self, task):
            self.was_reset = True
            if len(made) <= 3:
                raise OSError(f"attempt {len(made)}")
            return await super().reset(task)

    groups, ended = collect(engine, Flaky, tasks=TASKS[:1], count=3, max_concurrent_episodes=1)
    # Both attempts of the first episode fail, and the first of the second.
    (group,) = groups
    assert [(e.episode_index, e.provenance["attempt"]) for e in group.failed] == [(0, 0), (0, 1), (1, 0)]
    assert [(e.episode_index, e.provenance["attempt"]) for e in group.episodes] == [(1, 1), (2, 0)]
    assert len(made) == 5
    assert "OSError: attempt 1" in group.failed[0].stop_detail
    assert [e.stop_reason for e in ended] == [StopReason.ERROR, StopReason.TERMINATED, StopReason.TERMINATED]


@pytest.mark.parametrize("retries", [0, 2])
def test_the_number_of_retries(engine, retries):
    class Broken(LetterEnv):
        async def step(self, message):
            raise OSError("broken")

    groups, _ = collect(engine, Broken, tasks=TASKS[:1], count=2, episode_retries=retries)
    assert (len(groups[0].episodes), len(groups[0].failed)) == (0, 2 * (retries + 1))


def test_close_runs_for_every_environment(engine):
    counts = Counter()

    class Sometimes(LetterEnv):
        def __init__(self):
            counts["made"] += 1
            self.number = counts["made"]

        async def reset(self, task):
            if self.number % 3 == 0:
                raise OSError("broken")
            return await super().reset(task)

        async def step(self, message):
            if self.number % 3 == 1:
                raise ValueError("broken")
            return await super().step(message)

        async def close(self):
            counts["closed"] += 1

    collect(engine, Sometimes, count=8)
    assert counts["made"] == counts["closed"] > 16


def test_a_factory_that_raises_is_a_failed_episode(engine):
    def broken():
        raise RuntimeError("no free port")

    groups, _ = collect(engine, broken, tasks=TASKS[:1], count=2)
    assert [e.stop_detail for e in groups[0].failed] == ["env_factory raised RuntimeError: no free port"] * 4


def test_no_more_episodes_at_once_than_allowed(engine):
    collect(engine, LetterEnv, count=5, max_concurrent_episodes=2)
    assert engine.most == 2
    engine.most = 0
    collect(engine, LetterEnv, count=5)
    assert engine.most == 10


def test_a_cancelled_rollout_closes_its_environments(engine):
    closed, waiting = [], 0

    class Waiting(LetterEnv):
        async def step(self, message):
            nonlocal waiting
            waiting += 1
            await asyncio.Event().wait()

        async def close(self):
            closed.append(1)

    async def run():
        collector = Collector(Codec(build_tokenizer()), engine, lambda task: Waiting(), seed=0)
        task = asyncio.ensure_future(collector.collect(TASKS[:2], 2, LIMITS, temperature=1.0, phase="train0", step=0))
        while waiting < 4:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert len(closed) == 4


# The clock.


def test_the_clock_splits_the_time_in_two(monkeypatch):
    now = 0.0
    monkeypatch.setattr("llmgym_trainer.collection.collector.time.perf_counter", lambda: now)
    clock = RolloutClock()
    now = 100.0  # between two rollouts: counts for nothing
    clock.start()
    for at, by in ((101, +1), (103, +1), (106, -1), (110, -1), (115, 0)):
        now = at
        clock.change(by)
    assert (clock.sampling_s, clock.env_s) == (110 - 101, (101 - 100) + (115 - 110))


def test_a_factory_that_returns_no_environment_is_a_failed_episode(engine):
    groups, _ = collect(engine, lambda: None, tasks=TASKS[:1], count=2)
    said = "env_factory raised TypeError: it returned None, which is no llmgym.Env"
    assert [e.stop_detail for e in groups[0].failed] == [said] * 4
