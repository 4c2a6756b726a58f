import asyncio
import random

import pytest
from families import LOOKUP, ScriptedEngine, ScriptedEnv, build_codec, ids_of, result

from llmgym import EpisodeLimits, StepResult, StopReason, Task, run_episode
from llmgym.errors import ConfigError
from llmgym_trainer.algorithm.rows import build_rows
from llmgym_trainer.tokens.policy import EngineContractError, ModelPolicy, NonFiniteLogprobError

USER = {"role": "user", "content": "What is amber?"}
AMBER = '<tool_call>{"name": "lookup", "arguments": {"key": "amber"}}</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def codec():
    return build_codec("compact")


def play(codec, engine, env=None, **limits):
    limits = EpisodeLimits(**{"max_model_length": 10_000, **limits})
    policy = ModelPolicy(codec, engine, limits, key="e", rng=random.Random(0), temperature=0.5)
    env = env or ScriptedEnv([USER], [[result("7")]])
    return asyncio.run(run_episode(env, Task("What is amber?"), policy, limits))


def test_each_turn_prompts_with_everything_held(codec):
    engine = ScriptedEngine([ids_of(codec, AMBER), ids_of(codec, "7<|im_end|>")])
    episode = play(codec, engine)
    assert episode.messages == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_0_0", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "amber"}'}}
            ],
        },
        result("7"),
        {"role": "assistant", "content": "7"},
    ]
    first, second = (turn.tokens for turn in episode.turns)
    assert engine.prompts[0] == first.context_ids == codec.render([USER], [LOOKUP])
    assert engine.prompts[1] == engine.prompts[0] + ids_of(codec, AMBER) + second.context_ids
    assert (first.extends, second.extends) == (False, True)
    assert (first.policy_version, second.policy_version) == (1, 2)
    assert (episode.stop_reason, second.finish_reason, engine.released) == (StopReason.TERMINATED, "stop", ["e"])
    assert [(params.temperature, params.stop_token_ids) for params in engine.params] == [
        (0.5, codec.stop_token_ids)
    ] * 2


def test_call_ids_count_turns(codec):
    two = AMBER.removesuffix("<|im_end|>") + AMBER
    engine = ScriptedEngine([ids_of(codec, text) for text in (AMBER, two, "7<|im_end|>")])
    episode = play(codec, engine, ScriptedEnv([USER], [[result("7")], [result("7", turn=1)]]))
    assert [call["id"] for turn in episode.turns[:2] for call in turn.message["tool_calls"]] == [
        "call_0_0",
        "call_1_0",
        "call_1_1",
    ]
    assert [turn.tokens.extends for turn in episode.turns] == [False, True, True]


def test_a_turn_gets_the_smaller_of_cap_and_what_is_left(codec):
    prompt = len(codec.render([USER], [LOOKUP]))
    answer = [ids_of(codec, "7<|im_end|>")]
    for limits, expected in (
        ({"max_model_length": prompt + 50}, 50),
        ({"max_model_length": prompt + 50, "max_completion_length": 20}, 20),
        ({"max_model_length": prompt + 50, "max_completion_length": 80}, 50),
        ({"max_model_length": None, "max_completion_length": 80}, 80),
    ):
        engine = ScriptedEngine(answer)
        assert play(codec, engine, ScriptedEnv([USER], []), **limits).stop_reason is StopReason.TERMINATED
        assert engine.params[0].max_new_tokens == expected


@pytest.mark.parametrize(
    ("limits", "cut"),
    [({"max_model_length": 10}, "max_model_length"), ({"max_completion_length": 5}, "max_completion_length")],
)
def test_a_cut_turn_is_an_overflow_that_names_its_limit(codec, limits, cut):
    prompt = len(codec.render([USER], [LOOKUP]))
    limits = {name: value + prompt * (name == "max_model_length") for name, value in limits.items()}
    ids = ids_of(codec, "7 " * 40)
    episode = play(codec, ScriptedEngine([ids]), reply_reserve_tokens=1, **limits)
    size = 10 if cut == "max_model_length" else 5
    assert episode.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert episode.stop_detail == f"the turn was cut after {size} tokens by {cut}={limits[cut]}"
    (turn,) = episode.turns
    assert (turn.message, turn.tokens.completion_ids, turn.tokens.finish_reason) == (None, ids[:size], "length")
    assert turn.raw_text == codec.decode(ids[:size])
    assert episode.reward == 0


def test_no_room_for_a_reply_stops_without_tokens(codec):
    prompt = len(codec.render([USER], [LOOKUP]))
    engine = ScriptedEngine([ids_of(codec, AMBER)])
    second = (
        prompt
        + len(ids_of(codec, AMBER))
        + len(ids_of(codec, "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"))
    )
    episode = play(codec, engine, max_model_length=second + 15, reply_reserve_tokens=16)
    assert episode.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert episode.stop_detail == (
        f"the prompt of {second} tokens leaves 15 of max_model_length={second + 15}, fewer than reply_reserve_tokens=16"
    )
    assert len(episode.turns) == len(engine.prompts) == 1
    engine = ScriptedEngine([ids_of(codec, AMBER), ids_of(codec, "7<|im_end|>")])
    assert play(codec, engine, max_model_length=second + 16).stop_reason is StopReason.TERMINATED


def test_parse_failure_keeps_its_tokens(codec):
    ids = ids_of(codec, "<tool_call>{<|im_end|>")
    episode = play(codec, ScriptedEngine([ids]))
    assert (episode.stop_reason, episode.reward) == (StopReason.PARSE_FAILURE, -0.1)
    assert (episode.turns[0].raw_text, episode.turns[0].tokens.completion_ids) == ("<tool_call>{", ids)


def test_a_corrected_turn_stays_in_its_row(codec):
    bad = ids_of(codec, "<tool_call>{<|im_end|>")
    engine = ScriptedEngine([bad, ids_of(codec, AMBER), ids_of(codec, "7<|im_end|>")])
    episode = play(codec, engine, parse_retries=1)
    assert episode.stop_reason is StopReason.TERMINATED
    assert [turn.tokens.extends for turn in episode.turns] == [False, True, True]
    said = episode.turns[0].observation[0]["content"]
    between = ids_of(codec, f"\n<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n")
    assert engine.prompts[1] == engine.prompts[0] + bad + between
    (row,) = build_rows(episode, left_out=[0])
    assert [i for i, bit in zip(row.ids, row.mask, strict=True) if bit] == ids_of(codec, AMBER) + ids_of(
        codec, "7<|im_end|>"
    )
    assert row.ids[: row.prompt_length] == engine.prompts[0]
    assert row.num_trained == sum(logprob < 0 for logprob in row.logprobs)
    assert sorted(set(row.turns)) == [-1, 1, 2]
    (whole,) = build_rows(episode)
    assert whole.ids == row.ids
    assert whole.num_trained == row.num_trained + len(bad)


def test_an_edited_history_starts_a_new_row(codec):
    class Forgetful(ScriptedEnv):
        async def step(self, message):
            await super().step(message)
            done = message["content"] == "8"
            self._messages = [{"role": "user", "content": "Start over."}]
            return StepResult(done, False, self.messages, reward=1.0)

    engine = ScriptedEngine([ids_of(codec, "7<|im_end|>"), ids_of(codec, "8<|im_end|>")])
    episode = play(codec, engine, Forgetful([USER], []))
    assert [turn.history_edited for turn in episode.turns] == [True, True]
    assert [turn.tokens.extends for turn in episode.turns] == [False, False]
    assert engine.prompts[1] == codec.render([{"role": "user", "content": "Start over."}], [LOOKUP])


def test_changed_tools_start_a_new_row(codec):
    policy = ModelPolicy(
        codec,
        ScriptedEngine([ids_of(codec, "7<|im_end|>"), ids_of(codec, "8<|im_end|>")]),
        EpisodeLimits(max_model_length=1000),
        key="e",
        rng=random.Random(0),
    )

    async def two_turns():
        first = await policy.act([USER], [LOOKUP])
        return await policy.act([USER, first.message, USER], [])

    turn = asyncio.run(two_turns())
    assert turn.tokens.extends is False
    assert turn.tokens.context_ids == codec.render([USER, {"role": "assistant", "content": "7"}, USER], [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs": [-0.1]}, "gave 1 logprobs for 2 tokens"),
        ({"logprobs": [-0.1, float("nan")]}, "logprob of sampled token 1 is nan"),
        ({"ids": [], "logprobs": []}, "sampled 0 tokens where 1 to 40 were asked for"),
        ({"ids": [5] * 41, "logprobs": [-0.1] * 41}, "sampled 41 tokens where 1 to 40"),
        ({"finish_reason": "abort"}, "finish_reason must be 'stop' or 'length', got 'abort'"),
    ],
)
def test_an_engine_that_breaks_its_contract_makes_the_episode_an_error(codec, change, reason):
    class Broken(ScriptedEngine):
        async def sample(self, *args):
            sample = await super().sample(*args)
            for name, value in change.items():
                setattr(sample, name, value)
            return sample

    engine = Broken([ids_of(codec, "7<|im_end|>")])
    episode = play(codec, engine, max_completion_length=40)
    assert episode.stop_reason is StopReason.ERROR
    assert reason in episode.stop_detail
    assert episode.failed == "policy"
    kind = NonFiniteLogprobError if "is nan" in reason else EngineContractError
    assert episode.error_type == kind.__name__
    assert engine.released == ["e"]


def test_a_turn_needs_a_bound():
    with pytest.raises(ConfigError, match="set max_model_length or max_completion_length"):
        ModelPolicy(build_codec("compact"), ScriptedEngine([]), EpisodeLimits(), key="e", rng=random.Random(0))


def test_a_flood_ends_the_episode_before_it_is_put_into_tokens(codec, monkeypatch):
    longest = max(len(token) for token in codec.tokenizer.get_vocab())
    said = len(USER["content"])
    encode, encoded = codec._encode, []
    monkeypatch.setattr(codec, "_encode", lambda text: encoded.append(len(text)) or encode(text))
    for over, detail in ((0, "the prompt of "), (1, f"have {200 * longest + 1} characters, which do not fit into")):
        encoded.clear()
        flood = result("x" * (200 * longest - said + over) + " " * 1000)
        engine = ScriptedEngine([ids_of(codec, AMBER)])
        episode = play(codec, engine, ScriptedEnv([USER], [[flood]]), max_model_length=200)
        assert (episode.stop_reason, len(engine.prompts)) == (StopReason.CONTEXT_OVERFLOW, 1)
        assert detail in episode.stop_detail
        assert (max(encoded) < 150 * longest) == bool(over)
