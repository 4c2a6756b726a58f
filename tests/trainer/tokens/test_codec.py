import hashlib
import random
import re

import pytest
from families import (
    LOOKUP,
    LOOKUP_JSON,
    build_codec,
    build_tokenizer,
    call,
    chatml_tokenizer,
    ids_of,
    llama_tokenizer,
    result,
    trl_template,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from llmgym import StopReason
from llmgym.errors import ConfigError
from llmgym.messages import normalize_message
from llmgym_trainer.tokens.codec import Codec, CodecError, load_chat_template

USER = {"role": "user", "content": "What is amber?"}
CALL = {"role": "assistant", "content": "", "tool_calls": [call(0)]}
TWO_CALLS = {"role": "assistant", "content": "Both.", "tool_calls": [call(0), call(1, key="cobalt")]}
ANSWER = {"role": "assistant", "content": "The answer is 42."}
HERMES_AMBER = '<tool_call>\n{"name": "lookup", "arguments": {"key": "amber"}}\n</tool_call>'
COMPACT_AMBER = '<tool_call>{"name": "lookup", "arguments": {"key": "amber"}}</tool_call>'
COMPACT_COBALT = '<tool_call>{"name": "lookup", "arguments": {"key": "cobalt"}}</tool_call>'
LLAMA_AMBER = '{"name": "lookup", "parameters": {"key": "amber"}}'

PIECES = [
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": ',
        '"lookup", ',
        '"arguments": ',
        '"parameters": ',
    ),
    *(
        "{",
        "}",
        "{}",
        "}}",
        "[",
        '"',
        "\n",
        " ",
        "null",
        "NaN",
        "1e999",
        "\\ud800",
        "é",
        "42",
        LLAMA_AMBER,
        COMPACT_AMBER,
    ),
]


def held_and_rest(codec, history, new, completion):
    """The ids held after sampling ``completion`` for the last message of a history, and what extend adds."""
    held = codec.render(history[:-1], [LOOKUP]) + ids_of(codec, completion)
    return held, codec.extend(history, new, [LOOKUP], held)


# Rendering


def test_compact_prompt_is_short():
    codec = build_codec("compact")
    messages = [{"role": "system", "content": "Answer."}, USER]
    assert codec.decode(codec.render(messages, [LOOKUP])) == (
        "<|im_start|>system\nAnswer.\nlookup(key)<|im_end|>\n"
        "<|im_start|>user\nWhat is amber?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert codec.decode(codec.render([USER], [], add_generation_prompt=False)) == (
        "<|im_start|>user\nWhat is amber?<|im_end|>\n"
    )
    assert codec.decode(codec.render([USER, TWO_CALLS, result("7"), result("8", 1)], [LOOKUP])) == (
        "<|im_start|>system\nlookup(key)<|im_end|>\n<|im_start|>user\nWhat is amber?<|im_end|>\n"
        f"<|im_start|>assistant\nBoth.{COMPACT_AMBER}{COMPACT_COBALT}<|im_end|>\n"
        "<|im_start|>tool\n7<|im_end|>\n<|im_start|>tool\n8<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3"])
def test_tools_and_calls_are_rendered_as_the_template_does(name):
    codec = build_codec(name)
    text = codec.decode(codec.render([USER, CALL, result("7")], [LOOKUP]))
    assert f"<tools>\n{LOOKUP_JSON}\n</tools>" in text
    assert f"{HERMES_AMBER}<|im_end|>\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n" in text


def test_call_arguments_are_objects_in_the_template_also_when_they_are_nested():
    codec = build_codec("llama3_1")
    message = {"role": "assistant", "content": "", "tool_calls": [call(0)]}
    message["tool_calls"][0]["function"]["arguments"] = '{"key": {"deep": ["é", 1.5, null]}}'
    text = codec.decode(codec.render([USER, message, result("7")], [LOOKUP]))
    assert '{"name": "lookup", "parameters": {"key": {"deep": ["é", 1.5, null]}}}<|eot_id|>' in text


def test_the_prompt_begins_with_one_bos():
    codec = build_codec("llama3_1")
    ids = codec.render([USER], [LOOKUP])
    assert ids[0] == codec.tokenizer.bos_token_id
    assert ids.count(codec.tokenizer.bos_token_id) == 1


def test_a_refusal_of_the_template_is_a_clear_error():
    with pytest.raises(CodecError, match=r"refuses these messages \(user assistant\): .*single tool-calls at once"):
        build_codec("llama3_1").render([USER, TWO_CALLS], [LOOKUP])


# Extending


def test_separator_after_the_stop_token_is_context():
    codec = build_codec("compact")
    held, rest = held_and_rest(codec, [USER, CALL], [result("7")], COMPACT_AMBER + "<|im_end|>")
    assert codec.decode(rest) == "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
    assert held + rest == codec.render([USER, CALL, result("7")], [LOOKUP])


@pytest.mark.parametrize(
    ("name", "completion", "expected"),
    [
        (
            "qwen2_5",
            HERMES_AMBER + "<|im_end|>",
            "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n"
            "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "llama3_1",
            LLAMA_AMBER + "<|eot_id|>",
            '<|start_header_id|>ipython<|end_header_id|>\n\n"7"<|eot_id|>'
            "<|start_header_id|>user<|end_header_id|>\n\nAnd now?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
    ],
)
def test_user_message_after_a_tool_result(name, completion, expected):
    codec = build_codec(name)
    new = [result("7"), {"role": "user", "content": "And now?"}]
    held, rest = held_and_rest(codec, [USER, CALL], new, completion)
    assert codec.decode(rest) == expected
    assert held + rest == codec.render([USER, CALL, *new], [LOOKUP])


def test_parallel_results_are_one_user_block_in_qwen():
    codec = build_codec("qwen2_5")
    completion = f"Both.\n{HERMES_AMBER}\n{HERMES_AMBER.replace('amber', 'cobalt')}<|im_end|>"
    held, rest = held_and_rest(codec, [USER, TWO_CALLS], [result("7"), result("8", 1)], completion)
    assert codec.decode(rest) == (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n8\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert held + rest == codec.render([USER, TWO_CALLS, result("7"), result("8", 1)], [LOOKUP])


def test_qwen3_keeps_reasoning_after_a_tool_result_and_strips_it_after_a_user_message():
    codec = build_codec("qwen3")
    history = [USER, {**CALL, "reasoning_content": "hm"}]
    completion = f"<think>\nhm\n</think>\n\n{HERMES_AMBER}<|im_end|>"
    held, rest = held_and_rest(codec, history, [result("7")], completion)
    assert held + rest == codec.render([*history, result("7")], [LOOKUP])
    new = [result("7"), {"role": "user", "content": "And now?"}]
    assert held_and_rest(codec, history, new, completion)[1] is None
    assert "hm" not in codec.decode(codec.render([*history, *new], [LOOKUP]))


def test_qwen3_drops_its_empty_reasoning_block_from_history():
    history = [USER, CALL]
    completion = f"{HERMES_AMBER}<|im_end|>"
    assert held_and_rest(build_codec("qwen3", enable_thinking=False), history, [result("7")], completion)[1] is None
    held, rest = held_and_rest(build_codec("qwen3"), history, [result("7")], completion)  # sampled without a block
    assert held + rest == build_codec("qwen3").render([*history, result("7")], [LOOKUP])


def test_reasoning_the_template_never_shows_is_a_rewrite():
    codec = build_codec("qwen2_5")
    history = [USER, {**CALL, "reasoning_content": "hm"}]
    completion = f"<think>\nhm\n</think>\n\n{HERMES_AMBER}<|im_end|>"
    assert held_and_rest(codec, history, [result("7")], completion)[1] is None


@pytest.mark.parametrize(
    "completion",
    [
        '<tool_call>{"name":"lookup","arguments":{"key":"amber"}}</tool_call><|im_end|>',
        '\n\n<tool_call>\n{"arguments": {"key": "\\u0061mber"}, "name": "lookup"}\n</tool_call>\n<|im_end|>',
    ],
)
@pytest.mark.parametrize("name", ["qwen2_5", "hermes", "compact"])
def test_another_spelling_of_a_call_is_kept_as_sampled(name, completion):
    codec = build_codec(name)
    assert codec.parse(ids_of(codec, completion), "stop", call_id_prefix="call_0_").message == CALL
    held, rest = held_and_rest(codec, [USER, CALL], [result("7")], completion)
    canonical = codec.render([USER, CALL, result("7")], [LOOKUP])
    assert canonical[-len(rest) :] == rest
    assert held + rest != canonical


def test_sampled_tokens_need_not_be_those_of_the_tokenizer():
    codec = build_codec("compact")
    text = "The answer is 42."
    letters = [index for letter in text for index in ids_of(codec, letter)] + list(codec.end_of_turn_ids)
    assert letters != ids_of(codec, text + "<|im_end|>")
    held = codec.render([USER], [LOOKUP]) + letters
    rest = codec.extend([USER, ANSWER], [USER], [LOOKUP], held)
    assert codec.decode(held + rest) == codec.decode(codec.render([USER, ANSWER, USER], [LOOKUP]))


def test_a_turn_that_did_not_end_as_the_template_ends_it_is_not_extended():
    tokenizer = chatml_tokenizer()
    other = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    codec = Codec(tokenizer, chat_template=load_chat_template("compact"), extra_stop_ids=[other])
    assert codec.stop_token_ids == {other, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert codec.parse([*ids_of(codec, "42"), other], "stop", call_id_prefix="call_0_").message["content"] == "42"
    dot = ids_of(codec, ".")[0]  # a token that is not special may end a turn too, and then never occurs inside one
    stops_at_dots = Codec(tokenizer, chat_template=load_chat_template("compact"), extra_stop_ids=[dot])
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert stops_at_dots.parse([*ids_of(codec, "4"), dot, end], "stop").stop is StopReason.PARSE_FAILURE
    for ending in ("<|endoftext|>", "."):
        assert held_and_rest(codec, [USER, ANSWER], [USER], "The answer is 42" + ending)[1] is None
    assert codec.extend([USER, ANSWER], [USER], [LOOKUP], []) is None


def test_the_rest_has_no_extra_space_with_a_tokenizer_that_marks_the_start_of_a_text():
    vocab = {token: index for index, token in enumerate(["<unk>", "▁", "\n", *"abcdefghijklmnopqrstuvwxyzATWQ?._,42 "])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    inner.decoder = decoders.Metaspace(prepend_scheme="first")
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    codec = Codec(
        PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>"),
        chat_template=load_chat_template("compact"),
    )
    history, new = [USER, ANSWER], [{"role": "user", "content": "and now?"}]
    whole = codec.render([*history, *new], [])
    held = whole[: len(codec.render(history, [], add_generation_prompt=False)) - 1]  # without the last newline
    assert held[-1] in codec.end_of_turn_ids
    assert held + codec.extend(history, new, [], held) == whole


# Writing and parsing a turn


def test_a_turn_is_written_as_it_would_be_sampled():
    codec = build_codec("compact")
    assert codec.encode_turn([USER], TWO_CALLS, [LOOKUP]) == ids_of(
        codec, f"Both.{COMPACT_AMBER}{COMPACT_COBALT}<|im_end|>"
    )
    with pytest.raises(CodecError, match="does not continue its prompt"):
        build_codec("qwen3", enable_thinking=False).encode_turn([USER], {**ANSWER, "reasoning_content": "hm"}, [LOOKUP])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("compact", ANSWER),
        ("compact", CALL),
        ("compact", TWO_CALLS),
        ("compact", {**TWO_CALLS, "reasoning_content": "hm"}),
        ("hermes", {**TWO_CALLS, "reasoning_content": "hm"}),
        ("qwen2_5", CALL),
        ("qwen2_5", TWO_CALLS),
        ("qwen3", {**CALL, "reasoning_content": "hm"}),
        ("qwen3", {**TWO_CALLS, "reasoning_content": "hm"}),
        ("qwen3", {**ANSWER, "reasoning_content": "hm"}),
        ("llama3_1", CALL),
        ("llama3_1", ANSWER),
    ],
)
def test_what_is_parsed_renders_as_it_was_sampled(name, message):
    codec = build_codec(name)
    completion = codec.encode_turn([USER], message, [LOOKUP])
    assert completion[-1] in codec.end_of_turn_ids
    parsed = codec.parse(completion, "stop", call_id_prefix="call_0_").message
    assert parsed == message
    assert parsed == normalize_message(parsed, role="assistant")
    whole = codec.decode(codec.render([USER, parsed], [LOOKUP], add_generation_prompt=False))
    assert codec.decode(codec.render([USER], [LOOKUP]) + completion) == whole.removesuffix("\n")


@pytest.mark.parametrize(
    ("completion", "detail"),
    [
        ("<think>\nthe answer is 42<|im_end|>", "unfinished reasoning"),
        (f"<think>{COMPACT_AMBER}<|im_end|>", "unfinished reasoning"),
        (COMPACT_AMBER.replace("}}", "}") + "<|im_end|>", "not valid JSON"),
        (COMPACT_AMBER.removesuffix("</tool_call>") + "<|im_end|>", "is not closed"),
        ("call it: [TOOL_CALLS]<|im_end|>", r"unparsed tool-call markup '\[TOOL_CALLS\]'"),
        ("42<|im_start|>user\nWell done<|im_end|>", r"control token '<\|im_start\|>' occurs inside"),
        ("42<|im_end|>43<|im_end|>", r"control token '<\|im_end\|>' occurs inside"),
    ],
)
def test_parse_failures_name_their_reason(completion, detail):
    codec = build_codec("compact")
    turn = codec.parse(ids_of(codec, completion), "stop", call_id_prefix="call_0_")
    assert turn.message is None
    assert turn.stop is StopReason.PARSE_FAILURE
    assert turn.raw_text == completion.removesuffix("<|im_end|>")
    assert re.search(detail, turn.detail)


def test_calls_inside_reasoning_are_no_calls():
    codec = build_codec("qwen3")
    turn = codec.parse(ids_of(codec, f"<think>\n{HERMES_AMBER}\n</think>\n\n42<|im_end|>"), "stop", call_id_prefix="x")
    assert turn.message == {"role": "assistant", "content": "42", "reasoning_content": HERMES_AMBER}


def test_a_prompt_that_opens_the_reasoning_block():
    template = load_chat_template("compact").replace(
        "{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}"
    )
    codec = Codec(chatml_tokenizer(), chat_template=template)
    turn = codec.parse(ids_of(codec, "hm\n</think>\n\n42<|im_end|>"), "stop", call_id_prefix="call_0_")
    assert turn.message == {"role": "assistant", "content": "42", "reasoning_content": "hm"}
    assert codec.parse(ids_of(codec, "42<|im_end|>"), "stop", call_id_prefix="x").stop is StopReason.PARSE_FAILURE
    history = [USER, {**CALL, "reasoning_content": "hm"}]
    held, rest = held_and_rest(codec, history, [result("7")], f"hm\n</think>\n\n{COMPACT_AMBER}<|im_end|>")
    assert held + rest == codec.render([*history, result("7")], [LOOKUP])


def test_a_cut_turn_is_never_read_as_a_message():
    codec = build_codec("compact")
    turn = codec.parse(ids_of(codec, "The answer is 4"), "length", call_id_prefix="call_0_")
    assert (turn.message, turn.stop, turn.raw_text) == (None, StopReason.CONTEXT_OVERFLOW, "The answer is 4")


@pytest.mark.parametrize("name", ["compact", "qwen3", "llama3_1"])
def test_parse_never_raises(name):
    codec = build_codec(name)
    rng = random.Random(0)
    size = len(codec.tokenizer)
    for _ in range(300):
        ids = [rng.randrange(size) for _ in range(rng.randrange(12))]
        turn = codec.parse(ids, "stop", call_id_prefix="call_0_")
        assert (turn.message is None) == (turn.stop is StopReason.PARSE_FAILURE)
    pieces = [*PIECES, "<|python_tag|>"] if name == "llama3_1" else PIECES
    for _ in range(2000):
        turn = codec.parse(ids_of(codec, "".join(rng.choices(pieces, k=rng.randrange(1, 9)))), "stop")
        assert (turn.message is None) == (turn.stop is StopReason.PARSE_FAILURE)
        if turn.message is not None:
            codec.render([USER, turn.message, result("7")], [LOOKUP])
    for ids in ([size + 5], [-1], [2**40]):
        assert "the tokenizer has no token" in codec.parse(ids, "stop", call_id_prefix="call_0_").detail


# Start-up


@pytest.mark.parametrize(
    ("name", "kwargs", "call_format", "parallel", "rewrites"),
    [
        ("compact", {}, "hermes", True, 0),
        ("hermes", {}, "hermes", True, 0),
        ("qwen2_5", {}, "hermes", True, 3),
        ("qwen3", {}, "hermes", True, 2),
        ("qwen3", {"enable_thinking": False}, "hermes", True, 5),
        ("qwen3_training", {}, "hermes", True, 0),
        ("llama3_1", {}, "llama3", False, 3),
    ],
)
def test_probe_reports_the_template(name, kwargs, call_format, parallel, rewrites):
    report = build_codec(name, **kwargs).probe()
    assert (report.call_format, report.parallel_calls, len(report.rewrites)) == (call_format, parallel, rewrites)
    assert report.end_of_turn == (("<|eot_id|>",) if name == "llama3_1" else ("<|im_end|>",))
    if name == "qwen3" and not kwargs:
        assert report.rewrites == (
            "a user message, with reasoning",
            "a tool result and a user message, with reasoning",
        )


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (load_chat_template("compact").replace("if system or tools", "if system"), "ignores tools"),
        (load_chat_template("compact").replace("'<tool_call>{", "'call {"), "no format known here"),
        (trl_template("qwen3_5_nothink"), "no format known here"),
        (
            load_chat_template("compact").replace(
                "{{- message.content }}", "{{- message.content if message.role != 'tool' }}"
            ),
            "leaves out a tool result",
        ),
        (
            load_chat_template("compact").replace(
                "{%- for message in messages %}", "{%- for message in messages[-2:] %}"
            ),
            "leaves out",
        ),
    ],
)
def test_probe_refuses_templates_that_cannot_train(template, reason):
    with pytest.raises(ConfigError, match=rf"{reason}.*pass chat_template"):
        Codec(chatml_tokenizer(), chat_template=template).probe()


def test_a_template_the_tokenizer_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match=r"no special token of this tokenizer \(<\|begin_of_text\|>, "):
        Codec(llama_tokenizer(), chat_template=load_chat_template("compact"))
    with pytest.raises(ConfigError, match="no chat template"):
        Codec(build_tokenizer(["<|im_end|>"], [], eos="<|im_end|>"))


def test_template_hash_is_that_of_the_text():
    text = load_chat_template("compact")
    tokenizer = chatml_tokenizer()
    tokenizer.chat_template = text
    assert Codec(tokenizer).template_hash == hashlib.sha256(text.encode()).hexdigest()[:16]
    assert build_codec("hermes").template_hash != Codec(tokenizer).template_hash


def test_templates_load_by_name_or_path(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("{{ messages }}")
    assert load_chat_template(str(path)) == "{{ messages }}"
    with pytest.raises(
        ConfigError, match=r"'compakt' is neither a file nor one of compact, hermes\. Did you mean 'compact'"
    ):
        load_chat_template("compakt")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("compact", "keeps the whole history, so an episode is one training row"),
        ("qwen3", "where a user message arrives in mid-episode, so expect 1 to 6 rows"),
        ("qwen2_5", "after most turns, so expect 1 to 6 rows"),
    ],
)
def test_the_report_says_how_many_rows_to_expect(name, expected):
    assert expected in build_codec(name).probe().describe(6)


def test_template_arguments_that_are_never_read_are_refused():
    build_codec("qwen3", enable_thinking=False).probe()
    with pytest.raises(ConfigError, match="the chat template never reads 'enable_thinkin'"):
        build_codec("qwen3", enable_thinkin=False).probe()
