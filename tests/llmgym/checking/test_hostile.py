"""The hostile actions: how many there are, of which kinds, and that all can reach an environment."""

from __future__ import annotations

import json

from llmgym.checking.hostile import MEGABYTE, hostile_actions
from llmgym.messages import malformed_reason, normalize_message

SPEC = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a key up.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
ACTIONS = hostile_actions([SPEC])


def calls(message):
    return message.get("tool_calls") or []


def arguments():
    return [call["function"]["arguments"] for message in ACTIONS.values() for call in calls(message)]


def test_there_are_hundreds_of_actions_with_and_without_tools():
    assert len(ACTIONS) > 300
    assert len(hostile_actions([])) > 300


def test_the_same_seed_gives_the_same_actions():
    assert hostile_actions([SPEC], seed=1) == hostile_actions([SPEC], seed=1)
    assert hostile_actions([SPEC], seed=1) != hostile_actions([SPEC], seed=2)


def test_every_action_can_be_normalised():
    for message in ACTIONS.values():
        normalize_message(message, role="assistant")


def test_every_documented_kind_is_included():
    contents = [message.get("content") for message in ACTIONS.values()]
    texts = [text for text in [*contents, *arguments()] if isinstance(text, str)]
    assert any("content" not in message for message in ACTIONS.values())
    assert None in contents
    assert "" in contents
    assert any("<|im_start|>" in text for text in texts)
    assert any("\x00" in text for text in texts)
    assert "a\ud800b" in contents
    assert any(len(text) >= MEGABYTE for text in contents if isinstance(text, str))
    assert any(len(text) >= MEGABYTE for text in arguments() if isinstance(text, str))
    assert any(not isinstance(value, str) for value in arguments())
    names = {call["function"]["name"] for message in ACTIONS.values() for call in calls(message)}
    assert {"look_up", "LOOK_UP", "no_such_tool", "", "__class__"} <= names
    ids = [[call.get("id") for call in calls(message)] for message in ACTIONS.values()]
    assert [None] in ids
    assert ["same", "same"] in ids


def test_every_wrong_type_is_sent_for_a_parameter():
    kinds = set()
    for text in arguments():
        try:
            value = json.loads(text)["key"]
        except (TypeError, ValueError, KeyError, RecursionError):
            continue
        kinds.add(type(value))
    assert kinds == {type(None), bool, int, float, str, list, dict}


def test_many_actions_are_malformed_and_many_are_not():
    malformed = [malformed_reason(normalize_message(message)) is not None for message in ACTIONS.values()]
    assert sum(malformed) > 100
    assert len(malformed) - sum(malformed) > 100
