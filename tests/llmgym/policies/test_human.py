"""A person's turn, scripted: forms, answers, leaving."""

from __future__ import annotations

import asyncio
import json
import signal

import pytest

from llmgym import (
    Env,
    StepResult,
    StopReason,
    Task,
    ToolEnv,
    run_episode,
    tool,
)
from llmgym.policies.human import HumanPolicy, read_value, terminal_input


class ShopEnv(ToolEnv):
    """A shop with one tool, whose parameters are of several kinds."""

    system_prompt = "Sell."

    @tool
    def order(self, item: str, count: int = 1, tags: list[str] | None = None) -> str:
        """Order something.

        Args:
            item: What to order.
        """
        return f"{count} {item} {tags}"

    @tool
    def orders(self) -> str:
        """List the orders."""
        return "none\x1b[2J"

    async def score(self, message):
        return float(message["content"] == "done")


def play(lines, env=None, task=None):
    """Play an episode with these lines; return it and everything that was shown or asked."""
    left, shown = list(lines), []

    def ask(prompt):
        shown.append(prompt)
        if not left:
            raise EOFError
        return left.pop(0)

    policy = HumanPolicy(ask, shown.append)
    return asyncio.run(run_episode(env or ShopEnv(), task or Task("Go."), policy)), shown


def calls(episode):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for turn in episode.turns
        for call in turn.message.get("tool_calls", [])
    ]


def test_a_tool_is_called_by_form_and_a_text_answers():
    episode, shown = play(["/order", "tea", "3", '["hot"]', "done"])
    assert calls(episode) == [("order", {"item": "tea", "count": 3, "tags": ["hot"]})]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert "[system] Sell." in shown
    assert "[user] Go." in shown
    assert '  item: {"description": "What to order.", "type": "string"}' in shown
    assert '  count (optional): {"default": 1, "type": "integer"}' in shown
    assert shown.count("[tool order] 3 tea ['hot']") == 1
    assert shown.count("[user] Go.") == 1


def test_what_is_optional_can_be_skipped():
    episode, _ = play(["/order", "44", "", "", "done"])
    assert calls(episode) == [("order", {"item": "44"})]


def test_what_does_not_fit_is_answered_by_the_environment():
    episode, shown = play(["/order", "tea", "many", "", "done"])
    assert calls(episode) == [("order", {"item": "tea", "count": "many"})]
    assert any(text.startswith("[tool order] tool_error: order: argument 'count'") for text in shown)
    assert episode.reward == 1.0


def test_tools_are_found_by_the_start_of_their_name_and_listed():
    episode, shown = play(["/", "/ord", "/fly", "/orders", "/o", "done"])
    assert calls(episode) == [("orders", {})]
    assert "'ord' may be several tools." in shown
    assert "There is no tool 'fly'." in shown
    assert shown.count("  /order (item, count, tags)  Order something.") == 4
    assert shown.count("  /orders ()  List the orders.") == 4


def test_a_form_can_be_left():
    episode, _ = play(["/order", "tea", "/back", "done"])
    assert calls(episode) == []
    assert episode.reward == 1.0


def test_an_answer_may_begin_with_a_slash_and_be_empty():
    assert play(["//etc"])[0].turns[0].message["content"] == "/etc"
    assert play([""])[0].turns[0].message["content"] == ""


@pytest.mark.parametrize(
    ("lines", "detail"),
    [
        (["/quit"], "the player left"),
        ([], "the player left: the input has ended"),
        (["/order", "tea"], "the player left: the input has ended"),
    ],
)
def test_leaving_ends_the_episode_as_one_that_says_nothing(lines, detail):
    episode, _ = play(lines)
    assert (episode.stop_reason, episode.stop_detail) == (StopReason.ERROR, detail)
    assert episode.turns == []


def test_control_characters_of_an_environment_do_not_reach_the_terminal():
    _, shown = play(["/orders", "done"])
    assert "[tool orders] none\\x1b[2J" in shown
    assert not any("\x1b" in text for text in shown)


class ForgetfulEnv(Env):
    """Keeps only the last thing said."""

    tool_specs = ()
    messages = ()

    async def reset(self, task):
        return [{"role": "user", "content": "one"}]

    async def step(self, message):
        return StepResult(message["content"] == "end", False, [{"role": "user", "content": "only this"}])


def test_a_rewritten_history_is_shown_anew():
    _, shown = play(["hello", "end"], ForgetfulEnv())
    place = shown.index("--- the environment rewrote the history; it now reads ---")
    assert shown[place + 1] == "[user] only this"
    assert "This environment has no tools." in play(["/", "end"], ForgetfulEnv())[1]


@pytest.mark.parametrize(
    ("line", "schema", "value"),
    [
        ("44", {"type": "string"}, "44"),
        ("", {"type": "string"}, ""),
        ('a "b" \\n', {"type": "string"}, 'a "b" \\n'),
        ('"two\\nlines"', {"type": "string"}, "two\nlines"),
        ("44", {"type": "integer"}, 44),
        ("2.0", {"type": "number"}, 2.0),
        ("44", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 44),
        ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ('"44"', {"anyOf": [{"type": "string"}, {"type": "null"}]}, "44"),
        ("true", {"type": "boolean"}, True),
        ("m", {"$ref": "#/$defs/Size"}, "m"),
        ('{"a": 1}', {"type": "object", "properties": {"a": {"type": "integer"}}}, {"a": 1}),
        ("anything", {}, "anything"),
    ],
)
def test_a_line_becomes_the_value_its_schema_asks_for(line, schema, value):
    read = read_value(line, schema)
    assert read == value
    assert type(read) is type(value)


def test_ctrl_c_ends_the_input_and_leaves_the_handler_as_it_was(monkeypatch):
    before = signal.getsignal(signal.SIGINT)

    def interrupted(prompt):
        signal.raise_signal(signal.SIGINT)
        return "never"

    monkeypatch.setattr("builtins.input", interrupted)
    with pytest.raises(EOFError):
        terminal_input("> ")
    assert signal.getsignal(signal.SIGINT) is before
