"""MessageSpace as a gymnasium.Space, alone and batched by vector environments."""

import json
import pickle

import pytest
from gymnasium.spaces import Tuple
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from llmgym.errors import ConfigError, MessageError
from llmgym.gym.spaces import MessageSpace

USER = {"role": "user", "content": "What is 1 + 1?"}
ASSISTANT = {"role": "assistant", "content": "2"}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}


def action_space(seed=None):
    return MessageSpace(roles=("assistant",), length=1, seed=seed)


@pytest.mark.parametrize("member", [[], [USER], [USER, ASSISTANT], [USER, CALLING, {"role": "tool", "content": "2"}]])
def test_conversations_are_members(member):
    assert member in MessageSpace()


@pytest.mark.parametrize(
    "other",
    ["2", USER, (USER,), [USER, "2"], [{"role": "robot", "content": ""}], [{"role": "user", "content": 2}], None],
)
def test_anything_else_is_no_member(other):
    assert other not in MessageSpace()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([ASSISTANT], True),
        ([CALLING], True),
        ([USER], False),
        ([], False),
        ([ASSISTANT] * 2, False),
        (ASSISTANT, False),
    ],
)
def test_actions_hold_one_assistant_message(value, expected):
    assert (value in action_space()) is expected


def test_samples_are_members_and_depend_on_the_seed_alone():
    for make in (MessageSpace, action_space):
        space = make(seed=7)
        samples = [space.sample() for _ in range(50)]
        assert all(sample in space for sample in samples)
        again = make()
        again.seed(7)
        assert [again.sample() for _ in range(50)] == samples
        assert [make(seed=8).sample() for _ in range(50)] != samples
    assert all(message["role"] == "assistant" and message["content"] for sample in samples for message in sample)


def test_samples_of_any_length_vary_in_length_and_role():
    space = MessageSpace(seed=0)
    samples = [space.sample() for _ in range(200)]
    assert {len(sample) for sample in samples} == {1, 2, 3, 4}
    assert {message["role"] for sample in samples for message in sample} == {"system", "user", "assistant", "tool"}


def test_equality():
    assert MessageSpace() == MessageSpace(seed=3)
    assert action_space() == action_space()
    assert MessageSpace() != action_space()
    assert MessageSpace(length=1) != MessageSpace(length=2)
    assert MessageSpace() != Tuple([])


def test_json_and_back():
    space = MessageSpace()
    samples = [[USER, {**CALLING, "content": ""}], [ASSISTANT]]
    text = json.dumps(space.to_jsonable(samples))
    assert space.from_jsonable(json.loads(text)) == samples
    space.to_jsonable(samples)[0][0]["content"] = "changed"
    assert samples[0][0] == USER
    with pytest.raises(MessageError):
        space.from_jsonable([[3]])


def test_pickle_keeps_the_space_and_its_generator():
    space = action_space(seed=5)
    space.sample()
    copied = pickle.loads(pickle.dumps(space))
    assert copied == space
    assert copied.sample() == space.sample()


def test_what_vector_environments_need():
    space = action_space(seed=1)
    batched = batch_space(space, 3)
    actions = batched.sample()
    assert actions in batched
    assert len(actions) == 3
    assert list(iterate(batched, actions)) == list(actions)
    items = [[USER], [USER, ASSISTANT]]
    assert concatenate(MessageSpace(), items, create_empty_array(MessageSpace(), 2)) == tuple(items)


@pytest.mark.parametrize(
    "arguments", [{"roles": ("robot",)}, {"roles": ()}, {"length": 0}, {"length": True}, {"length": 1.5}]
)
def test_bad_arguments(arguments):
    with pytest.raises(ConfigError):
        MessageSpace(**arguments)


def test_masks_are_refused():
    with pytest.raises(ConfigError, match="mask"):
        MessageSpace().sample(mask=[1])
