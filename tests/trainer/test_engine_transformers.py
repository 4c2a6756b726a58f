import asyncio
import random

import pytest
import torch
from toys import build_llama, full_logps
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from llmgym_trainer.engines.base import SamplingParams
from llmgym_trainer.engines.transformers import TransformersEngine

VOCAB = 60
STOP = 3
OPEN = SamplingParams(12, frozenset({STOP}))


@pytest.fixture(scope="module")
def model():
    return build_llama(VOCAB, seed=1).eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(5, VOCAB) for _ in range(length)]


def sample_all(engine, requests):
    """Sample (prompt, params, key, seed) all at once; exceptions are returned."""

    async def run():
        calls = [engine.sample(ids, params, key, random.Random(seed)) for ids, params, key, seed in requests]
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


async def talk(engine, key, turns=4, seed=0, first=10, params=OPEN):
    """An episode: each prompt is everything so far and a few new tokens. Returns (prompt, sample) pairs."""
    chance, rng = random.Random(f"{key}{seed}"), random.Random(seed)
    ids, record = prompt(first, seed), []
    for _ in range(turns):
        sample = await engine.sample(ids, params, key, rng)
        record.append((ids, sample))
        ids = ids + sample.ids + [chance.randrange(5, VOCAB) for _ in range(chance.randint(1, 4))]
    engine.release(key)
    return record


def assert_exact(model, record, temperature=1.0, tolerance=1e-4):
    for ids, sample in record:
        expected = full_logps(model, ids + sample.ids, temperature)[len(ids) - 1 :]
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_full_forward_over_multi_turn_episodes(model, temperature):
    engine = TransformersEngine(model)
    params = SamplingParams(12, frozenset({STOP, 7}), temperature)

    async def run():
        return await asyncio.gather(
            *(talk(engine, f"e{i}", turns=1 + i % 5, seed=i // 2, first=1 + 3 * i, params=params) for i in range(12))
        )

    records = asyncio.run(run())
    assert any(sample.finish_reason == "stop" for record in records for _, sample in record)
    for record in records:
        assert_exact(model, record, temperature)


def test_kept_keys_and_values_save_reading_a_prompt_again(model):
    read = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    engine = TransformersEngine(model)
    params = SamplingParams(3, frozenset(range(VOCAB)))  # every token stops: one a turn

    async def run():
        rng = random.Random(0)
        ids = prompt(40)
        first = await engine.sample(ids, params, "a", rng)
        assert read == [39, 1]
        await engine.sample(ids + first.ids + [9, 9], params, "a", rng)

    asyncio.run(run())
    hook.remove()
    assert read[2:] == [3]  # the sampled token, which was never read, and the two new ones


def test_equal_prompts_are_read_once(model):
    rows = []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    sample_all(TransformersEngine(model), [(prompt(20), OPEN, f"e{i}", i) for i in range(6)])
    hook.remove()
    assert rows[:2] == [(1, 19), (6, 1)]


def test_a_result_does_not_depend_on_what_else_is_sampled(model):
    alone = sample_all(TransformersEngine(model), [(prompt(10), OPEN, "a", 5)])[0]
    others = [(prompt(3 * i + 1, i), SamplingParams(2 + i, frozenset({STOP})), f"o{i}", i) for i in range(9)]
    together = sample_all(TransformersEngine(model), [*others[:4], (prompt(10), OPEN, "a", 5), *others[4:]])[4]
    assert together.ids == alone.ids
    assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert together.finish_reason == alone.finish_reason


def test_the_same_rng_gives_the_same_sample_and_another_one_does_not(model):
    a, b, c = sample_all(
        TransformersEngine(model), [(prompt(8), OPEN, k, s) for k, s in (("a", 1), ("b", 1), ("c", 2))]
    )
    assert a.ids == b.ids
    assert a.ids != c.ids


def test_samples_follow_the_models_distribution(model):
    params = SamplingParams(1, frozenset())
    found = sample_all(TransformersEngine(model), [(prompt(8), params, f"e{i}", i) for i in range(2000)])
    with torch.no_grad():
        probabilities = torch.softmax(model(input_ids=torch.tensor([prompt(8)])).logits[0, -1], -1)
    counts = torch.bincount(torch.tensor([sample.ids[0] for sample in found]), minlength=VOCAB)
    # Each count is binomial; five standard deviations hold for 60 of them but once in 30,000 seeds, and seeds are
    # fixed.
    allowed = 5 * (2000 * probabilities * (1 - probabilities)).sqrt() + 1
    assert ((counts - 2000 * probabilities).abs() < allowed).all()


def test_every_stop_id_ends_a_completion_and_is_kept(model):
    stops = frozenset(range(0, VOCAB, 2))
    found = sample_all(
        TransformersEngine(model), [(prompt(8), SamplingParams(50, stops), f"e{i}", i) for i in range(8)]
    )
    assert {s.finish_reason for s in found} == {"stop"}
    assert all(s.ids[-1] in stops and not stops & set(s.ids[:-1]) for s in found)
    assert len({s.ids[-1] for s in found}) > 1


def test_the_limit_ends_a_completion(model):
    found = sample_all(
        TransformersEngine(model), [(prompt(8), SamplingParams(n, frozenset()), f"e{n}", n) for n in (1, 4, 9)]
    )
    assert [(len(s.ids), s.finish_reason) for s in found] == [(1, "length"), (4, "length"), (9, "length")]


def test_a_stop_as_the_last_allowed_token_is_a_stop(model):
    (found,) = sample_all(TransformersEngine(model), [(prompt(8), SamplingParams(1, frozenset(range(VOCAB))), "a", 0)])
    assert (len(found.ids), found.finish_reason) == (1, "stop")


def test_temperature_0_takes_the_most_likely_token_with_its_logprob_at_1(model):
    params = SamplingParams(6, frozenset(), 0.0)
    (found,) = sample_all(TransformersEngine(model), [(prompt(8), params, "a", 0)])
    ids = prompt(8)
    for token, logprob in zip(found.ids, found.logprobs, strict=True):
        with torch.no_grad():
            logp = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1], -1)
        assert token == logp.argmax()
        assert logprob == pytest.approx(logp.max().item(), abs=1e-4)
        ids.append(token)


def test_more_requests_than_a_batch_holds(model):
    requests = [(prompt(5 + i, i), OPEN, f"e{i}", i) for i in range(7)]
    small = sample_all(TransformersEngine(model, max_batch=3, max_prefill_tokens=12), requests)
    large = sample_all(TransformersEngine(model), requests)
    assert [s.ids for s in small] == [s.ids for s in large]


def test_a_weight_update_drops_what_was_kept():
    model = build_llama(VOCAB, seed=2).eval()
    engine = TransformersEngine(model)
    params = SamplingParams(5, frozenset(range(10, VOCAB)))

    async def run():
        rng, ids = random.Random(0), prompt(20)
        first = await engine.sample(ids, params, "a", rng)
        assert first.policy_version == 0
        ids = [*ids, *first.ids, 7]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.sync(4)
        return ids, await engine.sample(ids, params, "a", rng)

    record = asyncio.run(run())
    assert record[1].policy_version == 4
    assert_exact(model, [record])


def test_a_changed_history_is_read_anew(model):
    engine = TransformersEngine(model)

    async def run():
        rng, ids = random.Random(0), prompt(20)
        await engine.sample(ids, OPEN, "a", rng)
        edited = [*ids[:5], 50, *ids[6:], 9]
        shorter = ids[:8]
        return [
            (edited, await engine.sample(edited, OPEN, "a", rng)),
            (shorter, await engine.sample(shorter, OPEN, "a", rng)),
        ]

    assert_exact(model, asyncio.run(run()))


def test_release_forgets_an_episode(model):
    engine = TransformersEngine(model)
    params = SamplingParams(2, frozenset(range(VOCAB)))
    sample_all(engine, [(prompt(8), params, "a", 0), (prompt(9), params, "b", 0)])
    assert engine._kept.keys() == {"a", "b"}
    engine.release("a")
    assert engine._kept.keys() == {"b"}
    engine.release("never seen")
    engine.close()
    assert not engine._kept


@pytest.mark.parametrize("budget", [0, 40])
def test_a_bound_on_kept_tokens_changes_no_result(model, budget):
    async def run(engine):
        return await asyncio.gather(*(talk(engine, f"e{i}", seed=i) for i in range(4)))

    bounded, free = (asyncio.run(run(TransformersEngine(model, max_kept_tokens=b))) for b in (budget, None))
    assert [[s.ids for _, s in record] for record in bounded] == [[s.ids for _, s in record] for record in free]


# Aborts and errors.


class During(TransformersEngine):
    """Calls ``action`` on the event loop in front of the n-th forward pass, and waits for it."""

    def __init__(self, model, forward, action):
        super().__init__(model)
        self.forward, self.action, self.loop, self.count = forward, action, None, 0

    async def sample(self, *args):
        self.loop = asyncio.get_running_loop()
        return await super().sample(*args)

    def _forward(self, *args):
        self.count += 1
        if self.count == self.forward:

            async def act():
                self.action(self)

            asyncio.run_coroutine_threadsafe(act(), self.loop).result()
        return super()._forward(*args)


@pytest.mark.parametrize("forward", [1, 2, 3, 5])
def test_abort_cancels_one_episode_and_leaves_the_others(model, forward):
    engine = During(model, forward, lambda engine: engine.abort("e3"))
    params = SamplingParams(8, frozenset())
    found = sample_all(engine, [(prompt(6, i), params, f"e{i}", i) for i in range(8)])
    assert isinstance(found[3], asyncio.CancelledError)
    rest = [s for i, s in enumerate(found) if i != 3]
    expected = sample_all(TransformersEngine(model), [(prompt(6, i), params, f"e{i}", i) for i in range(8)])
    assert [s.ids for s in rest] == [s.ids for i, s in enumerate(expected) if i != 3]


def test_abort_of_a_waiting_request(model):
    engine = TransformersEngine(model)

    async def run():
        calls = [asyncio.ensure_future(engine.sample(prompt(5), OPEN, key, random.Random(0))) for key in "ab"]
        await asyncio.sleep(0)
        engine.abort("a")
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second = asyncio.run(run())
    assert isinstance(first, asyncio.CancelledError)
    assert second.ids


def test_a_cancelled_caller_leaves_the_others(model):
    engine = TransformersEngine(model)

    async def run():
        calls = [asyncio.ensure_future(engine.sample(prompt(5), OPEN, key, random.Random(0))) for key in "ab"]
        await asyncio.sleep(0)
        calls[0].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second = asyncio.run(run())
    assert isinstance(first, asyncio.CancelledError)
    assert second.ids


@pytest.mark.parametrize("forward", [1, 3])
def test_close_ends_what_is_under_way(model, forward):
    engine = During(model, forward, lambda engine: engine.close())
    engine._max_batch = 2
    params = SamplingParams(8, frozenset())

    async def run():
        calls = [engine.sample(prompt(6, i), params, f"e{i}", random.Random(i)) for i in range(5)]
        async with asyncio.timeout(20):
            return await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(found, asyncio.CancelledError) for found in asyncio.run(run()))


def test_an_error_of_the_model_reaches_everybody_who_waits(model):
    broken = build_llama(VOCAB)

    def explode(module, args):
        raise RuntimeError("out of memory")

    hook = broken.register_forward_pre_hook(explode)
    engine = TransformersEngine(broken, max_batch=2)
    found = sample_all(engine, [(prompt(5), OPEN, f"e{i}", i) for i in range(5)])
    assert [str(error) for error in found] == ["out of memory"] * 5
    hook.remove()
    assert sample_all(engine, [(prompt(5), OPEN, "later", 0)])[0].ids  # and the engine works on


def test_prompts_that_cannot_be_sampled(model):
    engine = TransformersEngine(model)
    empty, long = sample_all(engine, [([], OPEN, "a", 0), ([5] * 2040, OPEN, "b", 0)])
    assert "prompt_ids is empty" in str(empty)
    assert "2040 prompt tokens + max_new_tokens=12 exceed the model's 2048 positions" in str(long)
    assert isinstance(empty, ValueError) and isinstance(long, ValueError)


def test_the_model_is_left_in_its_mode_and_without_gradients():
    model = build_llama(VOCAB).train()
    modes = []
    model.register_forward_pre_hook(lambda module, args: modes.append((module.training, torch.is_grad_enabled())))
    sample_all(TransformersEngine(model), [(prompt(5), OPEN, "a", 0)])
    assert set(modes) == {(False, False)}
    assert model.training


def test_one_engine_serves_one_event_loop_after_another(model):
    engine = TransformersEngine(model)
    assert [len(sample_all(engine, [(prompt(5), OPEN, str(i), i)])) for i in range(2)] == [1, 1]


# Other attention patterns.

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,  # attention that attends to something
}


def sliding_models():
    torch.manual_seed(0)
    qwen = Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=6, max_window_layers=2)
    gemma = Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=6, sliding_window_pattern=2)
    mistral = MistralConfig(**SMALL, sliding_window=6)
    return {
        "qwen2": Qwen2ForCausalLM(qwen).eval(),
        "gemma3": Gemma3ForCausalLM(gemma).eval(),
        "mistral": MistralForCausalLM(mistral).eval(),
    }


@pytest.mark.parametrize("name", ["qwen2", "gemma3", "mistral"])
def test_models_with_sliding_windows(name):
    model = sliding_models()[name]
    engine = TransformersEngine(model)

    async def run():
        return await asyncio.gather(*(talk(engine, f"e{i}", seed=i, first=3 + 4 * i) for i in range(5)))

    for record in asyncio.run(run()):
        assert_exact(model, record)
