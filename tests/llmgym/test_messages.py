"""Normalisation of messages, and the one malformed-call policy."""

from __future__ import annotations

import pytest

from llmgym.errors import MessageError
from llmgym.messages import copy_message, malformed_reason, normalize_message, normalize_messages


def call(name="lookup", arguments="{}", **extra):
    return {"function": {"name": name, "arguments": arguments}, **extra}


def assistant(*calls, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "assistant", "content": None}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
        ({"role": "assistant", "content": "x", "tool_calls": None}, {"role": "assistant", "content": "x"}),
        (
            {"role": "user", "content": ["a", {"type": "text", "text": "b"}, {"type": "text"}]},
            {"role": "user", "content": "ab"},
        ),
        (
            {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "lookup"},
            {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "lookup"},
        ),
        ({"role": "tool", "content": "7", "tool_call_id": None, "name": None}, {"role": "tool", "content": "7"}),
        (
            {"role": "assistant", "content": "x", "reasoning": "why", "refusal": None, "logprobs": []},
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": None},
            {"role": "assistant", "content": "x"},
        ),
    ],
)
def test_normalizes(given, expected):
    assert normalize_message(given) == expected


def test_normalizing_twice_changes_nothing():
    once = normalize_message(assistant(call(), call(id="a", arguments={"x": 1})), call_id_prefix="call_3_")
    assert normalize_message(once) == once


def test_a_string_becomes_a_message_of_the_wanted_role():
    assert normalize_message("hi", role="assistant") == {"role": "assistant", "content": "hi"}
    with pytest.raises(MessageError, match="expected a chat message"):
        normalize_message("hi")


def test_argument_objects_become_json_text_and_missing_ones_an_empty_object():
    message = normalize_message(
        assistant(call(arguments={"key": "a", "n": 1.5}), call(arguments=None), {"function": {"name": "f"}})
    )
    assert [item["function"]["arguments"] for item in message["tool_calls"]] == ['{"key": "a", "n": 1.5}', "{}", "{}"]


def test_calls_without_an_id_and_repeated_ids_get_their_own():
    message = normalize_message(
        assistant(call(id="a"), call(id="a"), call(), call(id=""), call(id=7)), call_id_prefix="p"
    )
    assert [item["id"] for item in message["tool_calls"]] == ["a", "p1", "p2", "p3", "p4"]


def test_a_filled_in_id_never_takes_a_given_one():
    message = normalize_message(assistant(call(id="call_1"), call(), call(), call(id="call_2")))
    assert [item["id"] for item in message["tool_calls"]] == ["call_1", "call_1_", "call_2_", "call_2"]


def test_tool_results_without_an_id_answer_the_first_open_call():
    history = normalize_messages(
        [
            {"role": "tool", "content": "answers nothing"},
            assistant(call(id="a"), call(id="b"), call(id="c")),
            {"role": "tool", "content": "for b", "tool_call_id": "b"},
            {"role": "tool", "content": "for a"},
            {"role": "tool", "content": "for c"},
            {"role": "tool", "content": "one too many"},
        ]
    )
    assert [message.get("tool_call_id") for message in history] == [None, None, "b", "a", "c", None]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"expected a chat message.*got int 3"),
        ({"content": "x"}, "unknown role NoneType None; allowed are system, user, assistant, tool"),
        ({"role": "bot", "content": "x"}, "unknown role 'bot'"),
        ({"role": "user", "content": 3}, "content must be a string, got int 3"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "text only.*'image_url'"),
        ({"role": "user", "content": [3]}, "text only.*'int'"),
        ({"role": "user", "content": "x", "tool_calls": [call()]}, "only an assistant message may carry tool_calls"),
        ({"role": "assistant", "tool_calls": "lookup"}, "tool_calls must be a list"),
        ({"role": "assistant", "tool_calls": ["lookup"]}, "a tool call looks like"),
        ({"role": "assistant", "tool_calls": [{"name": "lookup"}]}, "a tool call looks like"),
        ({"role": "assistant", "tool_calls": [call(arguments={"x": {1}})]}, "must be JSON text or a JSON object"),
    ],
)
def test_what_is_no_message_is_refused(given, message):
    with pytest.raises(MessageError, match=message):
        normalize_message(given)


def test_a_wrong_role_is_refused():
    with pytest.raises(MessageError, match="expected a message with role 'assistant', got one with role 'user'"):
        normalize_message({"role": "user", "content": "x"}, role="assistant")


@pytest.mark.parametrize("given", ["a string", {"role": "user"}, 3, None])
def test_a_history_must_be_a_list(given):
    with pytest.raises(MessageError, match="expected a list of chat messages"):
        normalize_messages(given)


def test_normalized_and_copied_messages_share_nothing_with_the_original():
    original = normalize_message(assistant(call(id="a")))
    for other in (normalize_message(original), copy_message(original)):
        other["tool_calls"][0]["function"]["name"] = "changed"
        other["tool_calls"].append(other["tool_calls"][0])
        assert original == assistant(call(id="a", type="function"))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (assistant(call(arguments='{"key": "a"}')), None),
        (assistant(content="an answer with <b>markup</b> and {braces"), None),
        (assistant(call(name="no_such_tool")), None),
        (assistant(call(arguments='{"key": ')), "the arguments of 'lookup' are not valid JSON"),
        (assistant(call(arguments="")), "not valid JSON"),
        (assistant(call(arguments="[" * 100_000)), "not valid JSON"),
        (assistant(call(arguments='["key"]')), "must be a JSON object"),
        (assistant(call(), call(arguments="null")), "must be a JSON object"),
        (assistant(call(name="")), "has no name"),
        (assistant(content='<tool_call>{"name": "lookup"'), "markup '<tool_call>'"),
        (assistant(call(), content="</tool_call>"), "markup '</tool_call>'"),
        (assistant(content="[TOOL_CALLS] []"), "markup"),
        (assistant(content="<|python_tag|>lookup()"), "markup"),
        (assistant(content="<function=lookup>"), "markup"),
        (assistant(content="\n<think>so far"), "unfinished reasoning"),
        (assistant(content="<think>all</think>"), None),
        (assistant(content="the tag <think> opens reasoning"), None),
    ],
)
def test_the_malformed_call_policy(message, reason):
    found = malformed_reason(normalize_message(message))
    if reason is None:
        assert found is None
    else:
        assert reason in found
