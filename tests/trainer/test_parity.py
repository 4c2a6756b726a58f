"""The same ten completions as token ids, from a local model and through servers: what differs is known and named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from families import build_codec
from parity import COMPLETIONS, END, LIMITS, STOPS, LookupEnv, build_model, outcome, play_all, play_ids
from servers import FaultServer, Reply, call, completion, transformers_serve

from llmgym import Episode, StopReason, Task, run_and_report
from llmgym.evaluation.report import ToolCount
from llmgym.policies.hosted import HostedSource, Retries
from llmgym_trainer.models.policy_source import LocalSource

GOOD = call("lookup", '{"key": "amber"}')
QUICK = Retries(first_wait_s=0.001)


@pytest.fixture(scope="module")
def by_ids() -> dict[str, Episode]:
    codec = build_codec("compact")
    return {name: play_ids(codec, name) for name in COMPLETIONS}


@pytest.fixture(scope="module")
def said_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("said")
    build_model(path)
    return path


def differing(by_ids: dict[str, Episode], others: dict[str, Episode]) -> dict[str, str]:
    """The completions whose outcome differs, and how they stop instead."""
    assert list(others) == list(by_ids)
    return {name: str(others[name].stop_reason) for name in by_ids if outcome(others[name]) != outcome(by_ids[name])}


def test_as_token_ids(by_ids):
    stops = {name: episode.stop_reason for name, episode in by_ids.items()}
    assert stops == {name: STOPS.get(name, "terminated") for name in COMPLETIONS}
    failed = {name: episode.reward for name, episode in by_ids.items() if episode.reward != 1.0}
    assert failed == {
        "truncated": 0.0,
        "bad JSON": -0.1,
        "empty": 0.0,
        "unfinished reasoning": -0.1,
        "a list as arguments": -0.1,
    }
    for name, episode in by_ids.items():
        if name in STOPS:
            assert episode.messages == [{"role": "user", "content": name}]
    results = {
        name: [message["content"] for message in episode.messages if message["role"] == "tool"]
        for name, episode in by_ids.items()
    }
    assert results["good"] == results["text and call"] == ["7"]
    assert results["two calls"] == ["7", "9"]
    assert results["unknown tool"][0].startswith("tool_error: there is no tool 'search'")
    assert results["wrong argument type"][0].startswith("tool_error: ")


def test_a_local_model(by_ids, said_model):
    assert differing(by_ids, play_all(LocalSource(str(said_model), temperature=0.0))) == {}


# What OpenAI's API and the servers that pass a call's text on unread answer.
FAITHFUL: dict[str, Reply] = {
    "good": completion(None, tool_calls=[GOOD], finish_reason="tool_calls"),
    "truncated": completion(None, tool_calls=[call("lookup", '{"key": "amberam')], finish_reason="length"),
    "bad JSON": completion(None, tool_calls=[call("lookup", '{"key": amber}')], finish_reason="tool_calls"),
    "unknown tool": completion(None, tool_calls=[call("search", '{"key": "amber"}')], finish_reason="tool_calls"),
    "two calls": completion(None, tool_calls=[GOOD, call("lookup", '{"key": "cobalt"}', "call_b")]),
    "empty": completion(None),
    "text and call": completion("I look it up.", tool_calls=[GOOD], finish_reason="tool_calls"),
    "unfinished reasoning": completion(None, reasoning_content="I should look up amber first."),
    "a list as arguments": completion(None, tool_calls=[call("lookup", '["amber"]')], finish_reason="tool_calls"),
    "wrong argument type": completion(None, tool_calls=[call("lookup", '{"key": 7}')], finish_reason="tool_calls"),
}

# A server that parses nothing: everything is text.
UNPARSED: dict[str, Reply] = {
    name: completion(text.removesuffix(END), finish_reason="stop" if text.endswith(END) else "length")
    for name, text in COMPLETIONS.items()
}


def ask(replies: dict[str, Reply]) -> dict[str, Episode]:
    """The episodes with a server that gives one reply to the first request of a prompt, then ``7``."""

    def reply(body: dict[str, Any]) -> Reply:
        messages = body["messages"]
        return replies[messages[0]["content"]] if len(messages) == 1 else completion("7")

    with FaultServer(reply) as server:
        return play_all(HostedSource("m", server.url, temperature=0.0, retries=QUICK))


def test_a_faithful_server_hides_unfinished_reasoning(by_ids):
    episodes = ask(FAITHFUL)
    assert differing(by_ids, episodes) == {"unfinished reasoning": "terminated"}
    assert episodes["unfinished reasoning"].messages[1:] == [
        {"role": "assistant", "content": "", "reasoning_content": "I should look up amber first."}
    ]
    assert episodes["truncated"].turns[0].raw_text is not None


def test_a_server_without_a_parser_turns_every_call_into_a_parse_failure(by_ids):
    episodes = ask(UNPARSED)
    called = [name for name in COMPLETIONS if name not in STOPS and name != "empty"]
    assert differing(by_ids, episodes) == dict.fromkeys(called, "parse_failure")
    assert episodes["good"].stop_detail == "the text holds unparsed tool-call markup '<tool_call>'"


@pytest.fixture(scope="module")
def served(said_model: Path) -> Iterator[str]:
    with transformers_serve(said_model) as url:
        yield url


@pytest.mark.slow
def test_transformers_serve_hides_what_it_cannot_parse(by_ids, said_model, served):
    episodes = play_all(HostedSource(str(said_model), served, temperature=0.0, retries=QUICK))
    assert differing(by_ids, episodes) == {
        "truncated": "error",
        "bad JSON": "error",
        "unfinished reasoning": "terminated",
    }
    for name in ("truncated", "bad JSON"):
        assert "HTTP 500" in episodes[name].stop_detail
    assert episodes["good"].reward == 1.0
    assert [turn.usage for turn in episodes["good"].turns] == [turn.usage for turn in by_ids["good"].turns]
    assert episodes["good"].stop_reason is StopReason.TERMINATED


@pytest.mark.slow
def test_an_evaluation_against_transformers_serve(said_model, served, tmp_path, monkeypatch):
    """The whole runner: what the server hides shows in the report as it does in the episodes above."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    report = run_and_report(
        LookupEnv,
        tasks=[Task(name, id=name) for name in COMPLETIONS if name != "bad JSON"],
        model=str(said_model),
        base_url=served,
        episodes_per_task=1,
        concurrency=2,
        temperature=0.0,
        max_completion_length=LIMITS.max_completion_length,
        out=tmp_path / "run",
    )
    assert (report.episodes, report.stopped) == (9, None)
    assert report.stop_reasons == {StopReason.TERMINATED: 7, StopReason.PARSE_FAILURE: 1, StopReason.ERROR: 1}
    rewards = {row.id: row.rewards for row in report.tasks}
    solved = ["good", "unknown tool", "two calls", "text and call", "wrong argument type"]
    assert rewards == {
        **{name: [1.0] for name in solved},
        "truncated": [None],
        "empty": [0.0],
        "unfinished reasoning": [0.0],
        "a list as arguments": [-0.1],
    }
    assert report.tools == {"lookup": ToolCount(calls=5, errors=1), "(no such tool)": ToolCount(calls=1, errors=1)}
    assert report.turns_without_usage == 0
    assert report.prompt_tokens > report.completion_tokens > 0
