import asyncio
import random

import pytest
from families import (
    LOOKUP,
    LOOKUP_JSON,
    ScriptedEngine,
    ScriptedEnv,
    build_codec,
    ids_of,
    result,
    segments,
)

from llmgym import Episode, EpisodeLimits, StopReason, Task, Turn, run_episode
from llmgym.episode import TurnTokens
from llmgym_trainer.algorithm.rows import RowError, build_rows
from llmgym_trainer.tokens.policy import ModelPolicy

USER = {"role": "user", "content": "What is amber?"}
AND_NOW = {"role": "user", "content": "And now?"}
AMBER = '<tool_call>\n{"name": "lookup", "arguments": {"key": "amber"}}\n</tool_call>'
COBALT = AMBER.replace("amber", "cobalt")
HM = "<think>\nhm\n</think>\n\n"

QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n" + LOOKUP_JSON + "\n</tools>"
    "\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
    "</tool_call><|im_end|>\n"
)
QWEN_2_5 = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.\n\n"
    + QWEN_TOOLS
    + "<|im_start|>user\nWhat is amber?<|im_end|>\n<|im_start|>assistant\n"
)
QWEN_3 = "<|im_start|>system\n" + QWEN_TOOLS + "<|im_start|>user\nWhat is amber?<|im_end|>\n<|im_start|>assistant\n"
COMPACT = (
    "<|im_start|>system\nlookup(key)<|im_end|>\n<|im_start|>user\nWhat is amber?<|im_end|>\n<|im_start|>assistant\n"
)
LLAMA_3_1 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n"
    "Given the following functions, please respond with a JSON for a function call with its proper arguments that best "
    "answers the given prompt.\n\nRespond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.\n\n'
    """{
    "type": "function",
    "function": {
        "name": "lookup",
        "description": "Look up a fact.",
        "parameters": {
            "type": "object",
            "properties": {
                "key": {
                    "type": "string"
                }
            }
        }
    }
}"""
    "\n\nWhat is amber?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
)


def play(codec, completions, observations, **limits):
    """Play an episode with given completion texts; return it with its rows."""
    engine = ScriptedEngine([ids_of(codec, text) for text in completions])
    limits = EpisodeLimits(**{"max_model_length": 10_000, **limits})
    policy = ModelPolicy(codec, engine, limits, key="e", rng=random.Random(0))
    episode = asyncio.run(run_episode(ScriptedEnv([USER], observations), Task("What is amber?"), policy, limits))
    rows = build_rows(episode, 3)
    sampled = [index for turn in episode.turns for index in turn.tokens.completion_ids]
    assert [index for row in rows for index, mask in zip(row.ids, row.mask, strict=True) if mask] == sampled
    assert sum(row.num_trained for row in rows) == episode.num_sampled_tokens == engine.count
    # The scripted engine's n-th token has the log-probability -n / 100, so each stands where its token does.
    trained = [value for row in rows for value, mask in zip(row.logprobs, row.mask, strict=True) if mask]
    assert trained == [-(number + 1) / 100 for number in range(engine.count)]
    assert all(value == 0 for row in rows for value, mask in zip(row.logprobs, row.mask, strict=True) if not mask)
    assert all(row.mask.index(1) == row.prompt_length and row.episode == 3 for row in rows)
    return episode, rows


def whole_text(codec, episode):
    """The conversation as the template writes it, without the newline behind the last turn."""
    return codec.decode(codec.render(episode.messages, [LOOKUP], add_generation_prompt=False)).removesuffix("\n")


def test_qwen2_5_parallel_results_and_a_user_turn_are_one_row():
    codec = build_codec("qwen2_5")
    episode, rows = play(
        codec,
        [f"Both.\n{AMBER}\n{COBALT}<|im_end|>", f"{AMBER}<|im_end|>", "42<|im_end|>"],
        [[result("7"), result("8", 1)], [result("9", turn=1), AND_NOW]],
    )
    assert episode.stop_reason is StopReason.TERMINATED
    assert [segments(codec, row) for row in rows] == [
        [
            (0, QWEN_2_5),
            (1, f"Both.\n{AMBER}\n{COBALT}<|im_end|>"),
            (
                0,
                "\n<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|im_end|>\n"
                "<|im_start|>assistant\n",
            ),
            (1, f"{AMBER}<|im_end|>"),
            (
                0,
                "\n<|im_start|>user\n<tool_response>\n9\n</tool_response><|im_end|>\n"
                "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
            ),
            (1, "42<|im_end|>"),
        ]
    ]
    assert codec.decode(rows[0].ids) == whole_text(codec, episode)
    assert rows[0].policy_version == 1


def test_compact_is_one_row_that_is_the_template_token_for_token():
    codec = build_codec("compact")
    call, both = AMBER.replace("\n", ""), (AMBER + COBALT).replace("\n", "")
    episode, rows = play(
        codec,
        [f"{both}<|im_end|>", f"{call}<|im_end|>", "42<|im_end|>"],
        [[result("7"), result("8", 1)], [result("9", turn=1), AND_NOW]],
    )
    assert [segments(codec, row) for row in rows] == [
        [
            (0, COMPACT),
            (1, f"{both}<|im_end|>"),
            (0, "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>tool\n8<|im_end|>\n<|im_start|>assistant\n"),
            (1, f"{call}<|im_end|>"),
            (0, "\n<|im_start|>tool\n9<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"),
            (1, "42<|im_end|>"),
        ]
    ]
    assert rows[0].ids == ids_of(codec, whole_text(codec, episode))


def test_qwen3_keeps_reasoning_in_one_row_while_tools_answer():
    codec = build_codec("qwen3")
    _, rows = play(codec, [f"{HM}{AMBER}<|im_end|>", f"{HM}42<|im_end|>"], [[result("7")]])
    assert [segments(codec, row) for row in rows] == [
        [
            (0, QWEN_3),
            (1, f"{HM}{AMBER}<|im_end|>"),
            (0, "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
            (1, f"{HM}42<|im_end|>"),
        ]
    ]


def test_qwen3_strips_reasoning_at_a_user_turn_and_a_new_row_starts_there():
    codec = build_codec("qwen3")
    _, rows = play(
        codec,
        [f"{HM}{AMBER}<|im_end|>", f"{HM}{COBALT}<|im_end|>", f"{HM}42<|im_end|>"],
        [[result("7")], [result("8", turn=1), AND_NOW]],
    )
    answer = "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n"
    assert [segments(codec, row) for row in rows] == [
        [
            (0, QWEN_3),
            (1, f"{HM}{AMBER}<|im_end|>"),
            (0, f"\n{answer.format(7)}<|im_start|>assistant\n"),
            (1, f"{HM}{COBALT}<|im_end|>"),
        ],
        [
            (
                0,
                f"{QWEN_3}{AMBER}<|im_end|>\n{answer.format(7)}<|im_start|>assistant\n{COBALT}<|im_end|>\n"
                f"{answer.format(8)}<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
            ),
            (1, f"{HM}42<|im_end|>"),
        ],
    ]
    assert [row.policy_version for row in rows] == [1, 3]


def test_qwen3_keeps_reasoning_in_one_row_with_a_template_that_does():
    codec = build_codec("qwen3_training")
    _, rows = play(codec, [f"{HM}{AMBER}<|im_end|>", f"{HM}42<|im_end|>"], [[result("7"), AND_NOW]])
    assert [mask for mask, _ in segments(codec, rows[0])] == [0, 1, 0, 1]
    assert len(rows) == 1


def test_qwen3_without_thinking_starts_a_row_a_turn():
    codec = build_codec("qwen3", enable_thinking=False)
    _, rows = play(codec, [f"{AMBER}<|im_end|>", "42<|im_end|>"], [[result("7")]])
    assert [segments(codec, row) for row in rows] == [
        [(0, f"{QWEN_3}<think>\n\n</think>\n\n"), (1, f"{AMBER}<|im_end|>")],
        [
            (
                0,
                f"{QWEN_3}{AMBER}<|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
                "<|im_start|>assistant\n<think>\n\n</think>\n\n",
            ),
            (1, "42<|im_end|>"),
        ],
    ]


def test_llama3_1_tool_result_and_user_turn_are_one_row():
    codec = build_codec("llama3_1")
    call = '{"name": "lookup", "parameters": {"key": "amber"}}<|eot_id|>'
    episode, rows = play(codec, [call, "42<|eot_id|>"], [[result("7"), AND_NOW]])
    assert [segments(codec, row) for row in rows] == [
        [
            (0, LLAMA_3_1),
            (1, call),
            (
                0,
                '<|start_header_id|>ipython<|end_header_id|>\n\n"7"<|eot_id|>'
                "<|start_header_id|>user<|end_header_id|>\n\nAnd now?<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (1, "42<|eot_id|>"),
        ]
    ]
    assert rows[0].ids == ids_of(codec, whole_text(codec, episode))


@pytest.mark.parametrize("name", ["compact", "qwen2_5", "qwen3", "llama3_1"])
def test_a_cut_turn_is_last_and_trains_without_a_stop_token(name):
    codec = build_codec(name)
    call = (
        '{"name": "lookup", "parameters": {"key": "amber"}}<|eot_id|>' if name == "llama3_1" else f"{AMBER}<|im_end|>"
    )
    cut = "42 " * 100
    episode, rows = play(codec, [call, cut], [[result("7")]], max_completion_length=60)
    assert episode.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert episode.stop_detail == "the turn was cut after 60 tokens by max_completion_length=60"
    assert [mask for mask, _ in segments(codec, rows[0])] == [0, 1, 0, 1]
    assert rows[0].ids[-60:] == ids_of(codec, cut)[:60]
    assert rows[0].mask[-61:] == [0] + [1] * 60
    assert len(rows) == 1


def test_a_parse_failure_trains_and_an_episode_without_turns_gives_no_row():
    codec = build_codec("compact")
    episode, rows = play(codec, ["<tool_call>{<|im_end|>"], [])
    assert episode.stop_reason is StopReason.PARSE_FAILURE
    assert segments(codec, rows[0])[1] == (1, "<tool_call>{<|im_end|>")
    episode, rows = play(codec, [], [], max_model_length=20)
    assert (episode.stop_reason, rows) == (StopReason.CONTEXT_OVERFLOW, [])


def tokens(**changes):
    fields = {"context_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -1.0], "extends": False}
    return TurnTokens(**{**fields, "finish_reason": "stop", "policy_version": 5, **changes})


def rows_of(*turns):
    return build_rows(Episode(Task("q", id="t"), StopReason.TERMINATED, turns=[Turn(tokens=turn) for turn in turns]))


def test_rows_by_hand():
    first, second = rows_of(
        tokens(),
        tokens(context_ids=[], completion_ids=[5], logprobs=[-2.0], extends=True, policy_version=4),
        tokens(context_ids=[6], completion_ids=[7], logprobs=[-3.0]),
        tokens(context_ids=[8, 9], completion_ids=[3], logprobs=[0.0], extends=True, policy_version=6),
    )
    assert first.ids == [1, 2, 3, 4, 5]
    assert first.mask == [0, 0, 1, 1, 1]
    assert first.logprobs == [0.0, 0.0, -0.5, -1.0, -2.0]
    assert (first.prompt_length, first.policy_version, first.num_trained) == (2, 4, 3)
    assert second.ids == [6, 7, 8, 9, 3]
    assert second.mask == [0, 1, 0, 0, 1]
    assert (second.prompt_length, second.policy_version, second.num_trained) == (1, 5, 2)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([tokens(), None], r"turn 1 of episode 0 \(task t\) has no tokens"),
        ([tokens(completion_ids=[], logprobs=[])], "has no sampled token"),
        ([tokens(logprobs=[-0.5])], "2 sampled ids but 1 logprobs"),
        ([tokens(logprobs=[-0.5, float("nan")])], "not finite"),
        ([tokens(logprobs=[-0.5, float("-inf")])], "not finite"),
        ([tokens(extends=True)], "there is none"),
        ([tokens(context_ids=[])], "without a prompt"),
    ],
)
def test_what_cannot_be_trained_is_a_loud_error(turns, reason):
    with pytest.raises(RowError, match=reason):
        rows_of(*turns)
