"""Every kind of answer of an endpoint becomes the turn, the failure or the loss that the module promises."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

import pytest
from adding_env import AddingEnv
from servers import DROP, FaultServer, Reply, call, completion, error, free_port

from llmgym import EpisodeLimits, StopReason, Task, run_episode
from llmgym.episode import Usage
from llmgym.errors import ConfigError, EndpointLostError
from llmgym.policies import hosted
from llmgym.policies.hosted import HostedSource, RequestError, Retries
from llmgym.records import episode_from_json, episode_to_json

TASK = Task("What is 1 + 1?", "2")
QUICK = Retries(attempts=4, first_wait_s=0.001, total_s=30.0)
KEY = "sk-a-very-secret-key"


@pytest.fixture(autouse=True)
def _no_key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def play(server, *, source=None, task=TASK, seed=1, episode_index=2, **limits):
    """Run one episode; return it and the source."""

    async def run():
        made = source or HostedSource("test-model", server.url, retries=QUICK)
        bounds = EpisodeLimits(**limits)
        policy = made.policy(task, episode_index=episode_index, seed=seed, limits=bounds)
        try:
            return await run_episode(AddingEnv(), task, policy, bounds, seed=seed, provenance=made.provenance), made
        finally:
            await made.close()

    return asyncio.run(run())


def play_many(server, count):
    """Episodes one after another from one source; their stop details and the source."""

    async def run():
        source = HostedSource("test-model", server.url, retries=QUICK)
        limits, details = EpisodeLimits(), []
        for index in range(count):
            policy = source.policy(TASK, episode_index=index, seed=0, limits=limits)
            details.append((await run_episode(AddingEnv(), TASK, policy, limits)).stop_detail)
        await source.close()
        return details, source

    return asyncio.run(run())


def play_together(server, tasks):
    """One episode a task at the same time; the source and the episodes."""

    async def run():
        source, limits = HostedSource("test-model", server.url, retries=QUICK), EpisodeLimits()
        policies = [source.policy(task, episode_index=0, seed=0, limits=limits) for task in tasks]
        runs = (run_episode(AddingEnv(), task, policy, limits) for task, policy in zip(tasks, policies, strict=True))
        episodes = await asyncio.gather(*runs)
        await source.close()
        return source, episodes

    return asyncio.run(run())


def first_turn(reply, **limits):
    with FaultServer(reply, completion("2")) as server:
        episode, source = play(server, **limits)
    return episode, source


def test_an_episode_with_a_tool():
    first = completion(tool_calls=[call("add", '{"a": 1, "b": 1}')], finish_reason="tool_calls", usage=(40, 12))
    with FaultServer(first, completion("2", reasoning_content="1 + 1", usage=(60, 1))) as server:
        episode, _ = play(server)
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 1.0)
    assert episode.messages[2:] == [
        {"role": "assistant", "content": "", "tool_calls": [call("add", '{"a": 1, "b": 1}')]},
        {"role": "tool", "content": "2", "tool_call_id": "call_a", "name": "add"},
        {"role": "assistant", "content": "2", "reasoning_content": "1 + 1"},
    ]
    assert [turn.usage for turn in episode.turns] == [Usage(40, 12), Usage(60, 1)]
    assert episode.num_sampled_tokens == 13

    asked, again = server.bodies
    assert set(asked) == {"model", "messages", "tools", "temperature", "seed"}
    assert (asked["model"], asked["temperature"]) == ("test-model", 1.0)
    assert asked["messages"] == episode.messages[:2]
    assert asked["tools"] == episode.tool_specs
    assert again["messages"] == episode.messages[:4]
    assert 0 <= asked["seed"] < 2**31 and asked["seed"] != again["seed"]


def test_the_seed_names_the_episode_and_the_turn():
    def seeds(**changes):
        with FaultServer(completion("2")) as server:
            play(server, **changes)
        return server.bodies[0]["seed"]

    assert seeds() == seeds()
    assert len({seeds(), seeds(seed=3), seeds(episode_index=3), seeds(task=Task("What is 2 + 1?", "2"))}) == 4


def test_limits_bound_what_is_asked_for():
    with FaultServer(completion("2")) as server:
        play(server, max_completion_length=50)
        play(server, max_model_length=40)
        play(server, max_model_length=40, max_completion_length=50)
    assert [body["max_tokens"] for body in server.bodies] == [50, 40, 40]


def test_the_budget_of_the_episode_is_held_against_what_the_endpoint_counted():
    first = completion(tool_calls=[call("add", '{"a": 1, "b": 1}')], usage=(60, 12))
    with FaultServer(first, completion("2", usage=(85, 5))) as server:
        episode, _ = play(server, max_model_length=100)
        assert (episode.stop_reason, server.bodies[1]["max_tokens"]) == (StopReason.TERMINATED, 28)

    with FaultServer(first) as server:
        episode, _ = play(server, max_model_length=87)
        assert (episode.stop_reason, len(server.bodies), len(episode.turns)) == (StopReason.CONTEXT_OVERFLOW, 1, 1)
        assert episode.stop_detail == (
            "the 72 tokens so far leave 15 of max_model_length=87, fewer than reply_reserve_tokens=16"
        )

    with FaultServer(first, completion("two", usage=(98, 4))) as server:
        episode, _ = play(server, max_model_length=100)
        assert (episode.stop_reason, episode.turns[1].raw_text) == (StopReason.CONTEXT_OVERFLOW, "two")
        assert episode.stop_detail == "the episode has 102 tokens, more than max_model_length=100"


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({}, "the turn was cut by the limit of the endpoint"),
        ({"max_completion_length": 3}, "the turn was cut by max_completion_length=3"),
        ({"max_model_length": 20}, "the turn was cut by max_model_length=20"),
    ],
)
def test_a_cut_turn_keeps_its_text(limits, detail):
    episode, _ = first_turn(completion("I thi", finish_reason="length", reasoning_content="hm"), **limits)
    assert (episode.stop_reason, episode.stop_detail) == (StopReason.CONTEXT_OVERFLOW, detail)
    (turn,) = episode.turns
    assert (turn.message, turn.raw_text, turn.usage) == (None, "hm\nI thi", Usage(7, 3))


CALLS = [call("add", '{"a": 1')]


@pytest.mark.parametrize(
    ("reply", "detail", "raw_text"),
    [
        (completion(tool_calls=CALLS), "the arguments of 'add' are not valid JSON", json.dumps(CALLS)),
        (completion(tool_calls=[call("add", "[1, 2]")]), "the arguments of 'add' must be a JSON object", None),
        (completion(tool_calls=[call("add", [1, 2])]), "the arguments of 'add' must be a JSON object", None),
        (completion(tool_calls=[call("", "{}")]), "a tool call has no name", None),
        (completion(tool_calls=[{"id": "x"}]), "a tool call looks like", '[{"id": "x"}]'),
        (completion(tool_calls="add(1, 1)"), "tool_calls must be a list", "add(1, 1)"),
        (completion("<tool_call>{"), "the text holds unparsed tool-call markup '<tool_call>'", "<tool_call>{"),
        (completion("<think>1 + 1 is"), "unfinished reasoning: </think> is missing", "<think>1 + 1 is"),
        (completion({"text": "2"}), "content must be a string", '{"text": "2"}'),
        (completion("Well", finish_reason="content_filter"), "the endpoint's content filter withheld", "Well"),
        (Reply(body={"choices": [{"finish_reason": "content_filter"}]}), "the endpoint's content filter withheld", ""),
    ],
)
def test_malformed_and_withheld_replies_are_parse_failures(reply, detail, raw_text):
    episode, source = first_turn(reply, failed_parse_reward=-0.5)
    assert (episode.stop_reason, episode.reward, source.lost) == (StopReason.PARSE_FAILURE, -0.5, None)
    assert episode.stop_detail.startswith(detail)
    (turn,) = episode.turns
    assert turn.message is None
    assert turn.raw_text is not None
    if raw_text is not None:
        assert turn.raw_text == raw_text


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (completion(None), {"content": ""}),
        (completion("", tool_calls=[]), {"content": ""}),
        (completion(None, refusal="I will not."), {"content": "I will not."}),
        (completion([{"type": "text", "text": "2"}]), {"content": "2"}),
        (completion("2", reasoning="1 + 1"), {"content": "2", "reasoning_content": "1 + 1"}),
        (completion("\n<think>\n1 + 1\n</think>\n\n2"), {"content": "2", "reasoning_content": "1 + 1"}),
        (completion("2", role="model", name="bot", audio={}), {"content": "2"}),
        (completion("2", usage=None), {"content": "2"}),
        (Reply(body={"choices": [{"message": {"content": "2"}}], "usage": {"prompt_tokens": "7"}}), {"content": "2"}),
    ],
)
def test_what_counts_as_a_message(reply, message):
    episode, _ = first_turn(reply)
    assert episode.stop_reason is StopReason.TERMINATED
    assert episode.messages[2:] == [{"role": "assistant", **message}]


def test_calls_without_ids_or_with_the_same_id_get_their_own():
    arguments = '{"a": 1, "b": 1}'
    calls = [call("add", arguments, id) for id in (None, "x", "x", "")]
    with FaultServer(completion("", tool_calls=calls), completion("", tool_calls=calls), completion("2")) as server:
        episode, _ = play(server)
    assert [call["id"] for turn in episode.turns[:2] for call in turn.message["tool_calls"]] == [
        "call_0_0",
        "x",
        "call_0_2",
        "call_0_3",
        "call_1_0",
        "x",
        "call_1_2",
        "call_1_3",
    ]
    assert [message["tool_call_id"] for message in server.bodies[1]["messages"][3:]] == [
        "call_0_0",
        "x",
        "call_0_2",
        "call_0_3",
    ]


def test_half_a_surrogate_pair_is_sent_as_a_question_mark():
    with FaultServer(completion("2")) as server:
        episode, _ = play(server, task=Task("say \ud800 é"))
    assert episode.stop_reason is StopReason.TERMINATED
    assert server.bodies[0]["messages"][1]["content"] == "say ? é"


CONTEXT_ERRORS = [
    error(400, "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."),
    error(400, "Your input is full.", "context_length_exceeded"),
    error(400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),
    error(400, "'max_tokens' or 'max_completion_tokens' is too large: 9. This model's maximum context length is 8."),
    error(400, "the request exceeds the available context size. try increasing the context size"),
    error(400, "The input (5000 tokens) is longer than the model's context length (4096 tokens)."),
    error(400, "prompt is too long: 210000 tokens > 200000 maximum"),
    error(400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),
    error(413, "Please reduce the length of the messages or completion."),
    Reply(422, {"detail": "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}),
    error(500, "the request exceeds the available context size"),
]


@pytest.mark.parametrize("reply", CONTEXT_ERRORS)
def test_a_full_context_is_an_overflow(reply):
    with FaultServer(completion("", tool_calls=[call("add", '{"a": 1, "b": 1}')]), reply) as server:
        episode, source = play(server)
    assert (episode.stop_reason, source.lost) == (StopReason.CONTEXT_OVERFLOW, None)
    assert f"127.0.0.1 (test-model) answered HTTP {reply.status}: " in episode.stop_detail
    assert (len(server.bodies), len(episode.turns)) == (2, 1)


def test_a_filtered_prompt_is_a_parse_failure():
    episode, source = first_turn(error(400, "The response was filtered", "content_filter"))
    assert (episode.stop_reason, source.lost) == (StopReason.PARSE_FAILURE, None)


def test_a_refused_request_is_the_error_of_its_episode_alone():
    with FaultServer(error(400, "messages[1] is odd"), completion("2")) as server:
        episode, source = play(server)
        assert (episode.stop_reason, source.lost, len(server.bodies)) == (StopReason.ERROR, None, 1)
    assert episode.stop_detail == (
        "policy.act raised RequestError: 127.0.0.1 (test-model) answered HTTP 400: messages[1] is odd an_error"
    )


@pytest.mark.parametrize(
    "reply",
    [
        error(401, "no such key"),
        error(402, "Insufficient Balance"),
        error(403, "not allowed here"),
        error(404, "The model `test-model` does not exist.", "model_not_found"),
        error(429, "You exceeded your current quota.", "insufficient_quota"),
        error(400, "llama does not support tools"),
        error(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        error(404, "No endpoints found that support tool use."),
    ],
)
def test_an_endpoint_that_refuses_everything_is_lost_at_once(reply):
    with FaultServer(reply) as server:
        episode, source = play(server)
        assert len(server.bodies) == 1
    assert episode.stop_reason is StopReason.ERROR
    assert episode.stop_detail == f"policy.act raised EndpointLostError: {source.lost}"
    assert reply.body["error"]["message"] in str(source.lost)


PAGE = b"<!doctype html><title> A search engine </title>on the context length of tools"
HTML = {"Content-Type": "text/html; charset=utf-8"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(200, PAGE, HTML), "answered with a web page: A search engine (asked {url}/chat/completions: does"),
        (Reply(404, PAGE, HTML), "answered HTTP 404: A search engine (asked {url}/chat/completions: does"),
        (error(405, "POST?"), "answered HTTP 405: POST? an_error (asked {url}/chat/completions: does"),
    ],
)
def test_a_wrong_address_is_lost_at_once_and_named(reply, said):
    with FaultServer(reply) as server:
        _, source = play(server)
        assert len(server.bodies) == 1
        assert said.format(url=server.url) in str(source.lost)
    assert "often in /v1" in str(source.lost)


def test_a_web_page_of_a_gateway_passes():
    first = completion("", tool_calls=[call("add", '{"a": 1, "b": 1}')])
    with FaultServer(Reply(502, PAGE, HTML), first, Reply(200, PAGE, HTML), completion("2")) as server:
        episode, _ = play(server)
        assert (episode.reward, len(server.bodies)) == (1.0, 4)


def test_a_complaint_about_a_tool_message_is_no_lack_of_tools():
    first = completion("", tool_calls=[call("add", '{"a": 1, "b": 1}')])
    with FaultServer(first, error(400, "a message with role 'tool' must follow tool_calls")) as server:
        episode, source = play(server)
    assert (episode.stop_reason, source.lost) == (StopReason.ERROR, None)


def test_failures_that_pass_are_asked_again():
    passing = [
        Reply(500, b"[" * 100_000),
        error(429, "slow down", Retry_After="0.001"),
        DROP,
        error(503, "busy"),
        Reply(body=b"<html>a gateway</html>"),
        Reply(body={"error": {"message": "upstream failed"}}),
        Reply(body={"choices": []}),
        error(408, "late"),
        Reply(body=b"[" * 100_000),
    ]
    with FaultServer(*passing, completion("2")) as server:
        source = HostedSource("test-model", server.url, retries=Retries(attempts=10, first_wait_s=0.001))
        episode, _ = play(server, source=source)
        assert (episode.stop_reason, episode.reward, len(server.bodies)) == (StopReason.TERMINATED, 1.0, 10)
    assert server.bodies == server.bodies[:1] * 10
    assert len(episode.turns) == 1


def record_waits(monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(hosted.asyncio, "sleep", sleep)
    return waits


def test_waits_double_up_to_a_minute_and_honour_retry_after(monkeypatch):
    waits = record_waits(monkeypatch)
    date = "Wed, 21 Oct 2099 07:28:00 GMT"  # a date is not read: the wait is our own
    with FaultServer(
        *[error(503, "")] * 6, error(503, "", Retry_After="71"), error(429, "", Retry_After=date)
    ) as server:
        retries = Retries(attempts=9, first_wait_s=4.0, total_s=2000.0)
        _, source = play(server, source=HostedSource("test-model", server.url, retries=retries))
    full = [4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert len(waits) == 8
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, full, strict=False))
    assert waits[6] == 71.0
    assert 45.0 <= waits[7] <= 60.0
    assert "(attempt 9 of 9" in str(source.lost)


def test_a_wait_beyond_the_total_time_is_not_begun(monkeypatch):
    waits = record_waits(monkeypatch)
    with FaultServer(error(429, "come back tomorrow", Retry_After="86400")) as server:
        episode, source = play(server)
        assert (len(server.bodies), waits) == (1, [])
    assert episode.stop_reason is StopReason.ERROR
    assert "HTTP 429: come back tomorrow" in str(source.lost)
    assert "which asks to wait 86400 s" in str(source.lost)


def test_a_lost_endpoint_is_not_asked_again():
    with FaultServer(error(503, "the engine is dead")) as server:
        details, source = play_many(server, 2)
        assert len(server.bodies) == QUICK.attempts
    assert isinstance(source.lost, EndpointLostError)
    assert str(source.lost).startswith(
        "127.0.0.1 (test-model) answered HTTP 503: the engine is dead an_error (attempt 4 of 4"
    )
    assert details == [f"policy.act raised EndpointLostError: {source.lost}"] * 2


def test_an_endpoint_that_answers_others_is_not_lost():
    answered = threading.Event()

    def reply(body):
        if body["messages"][1]["content"] == "poison":
            assert answered.wait(10)
            return error(503, "the template failed")
        answered.set()
        return completion("2")

    with FaultServer(reply) as server:
        source, episodes = play_together(server, [Task("poison"), TASK])
    assert source.lost is None
    assert [episode.stop_reason for episode in episodes] == [StopReason.ERROR, StopReason.TERMINATED]
    assert episodes[0].stop_detail.startswith(f"policy.act raised {RequestError.__name__}: ")


def test_nothing_listens_there():
    source = HostedSource("test-model", f"http://127.0.0.1:{free_port()}/v1", retries=Retries(first_wait_s=0.001))
    episode, _ = play(None, source=source)
    assert episode.stop_reason is StopReason.ERROR
    assert str(source.lost).startswith("127.0.0.1 (test-model): no connection (")
    assert "(attempt 3 of 3" in str(source.lost)


def test_an_answer_that_takes_too_long():
    release = threading.Event()

    def hang(body):
        release.wait(20)
        return completion("2")

    with FaultServer(hang) as server:
        source = HostedSource("m", server.url, request_timeout_s=0.5, retries=Retries(2, 0.001))
        episode, _ = play(server, source=source)
        while len(server.bodies) < 2:  # the server may read a request after the client has given it up
            time.sleep(0.01)
        release.set()
    assert (episode.stop_reason, source.lost) == (StopReason.ERROR, None)
    assert ": no answer in 0.5 s (attempt 2 of 2" in episode.stop_detail


def test_the_third_request_in_a_row_that_ends_with_500_loses_the_endpoint():
    with FaultServer(error(500, "cannot parse")) as server:
        details, source = play_many(server, 4)
        assert len(server.bodies) == 9
    kinds = [detail.split(": ")[0] for detail in details]
    assert kinds == ["policy.act raised RequestError"] * 2 + ["policy.act raised EndpointLostError"] * 2
    assert "HTTP 500: cannot parse an_error (attempt 3 of 3" in str(source.lost)

    with FaultServer(*[error(500, "")] * 6, completion("2"), *[error(500, "")] * 6, completion("2")) as server:
        details, source = play_many(server, 6)
    assert source.lost is None
    assert [bool(detail) for detail in details] == [True, True, False, True, True, False]


def test_a_server_that_wants_other_fields_gets_them():
    def picky(body):
        if "max_tokens" in body:
            return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        if "seed" in body:
            return Reply(422, {"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]})
        return (
            completion("", tool_calls=[call("add", '{"a": 1, "b": 1}')])
            if len(body["messages"]) == 2
            else completion("2")
        )

    with FaultServer(picky) as server:
        episode, source = play(server, max_completion_length=9)
    assert (episode.stop_reason, source.lost) == (StopReason.TERMINATED, None)
    assert [sorted(set(body) - {"model", "messages", "tools", "temperature"}) for body in server.bodies] == [
        ["max_tokens", "seed"],
        ["max_completion_tokens", "seed"],
        ["max_completion_tokens"],
        ["max_completion_tokens"],
    ]


def test_requests_under_way_survive_the_loss_of_a_field():
    both = threading.Barrier(2)

    def picky(body):
        if "seed" not in body:
            return completion("2")
        both.wait(10)
        return error(400, "Unrecognized request argument supplied: seed")

    with FaultServer(picky) as server:
        source, episodes = play_together(server, [TASK, Task("What is 1 + 1, please?", "2")])
    assert (source.lost, [episode.reward for episode in episodes]) == (None, [1.0, 1.0])


def test_the_name_of_a_model_is_no_complaint():
    with FaultServer(error(400, "odd")) as server:
        source = HostedSource("groq-tool-use-long-context-window", server.url)
        episode, _ = play(server, source=source)
    assert (episode.stop_reason, source.lost) == (StopReason.ERROR, None)


def test_the_key_goes_to_the_endpoint_and_into_no_record(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with FaultServer(error(401, f"Incorrect API key provided: {KEY}")) as server:
        episode, source = play(server)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert "Incorrect API key provided: [key]" in episode.stop_detail
    assert KEY not in episode_to_json(episode) + repr(source) + repr(source.lost)


def test_a_local_server_needs_no_key():
    with FaultServer(completion("2")) as server:
        episode, _ = play(server)
    assert episode.reward == 1.0


def test_provenance_holds_no_secret_of_the_address():
    source = HostedSource("m", "http://user:password@127.0.0.1:8000/v1?token=secret", temperature=None)
    assert source.provenance == {
        "policy": "hosted",
        "model": "m",
        "base_url": "http://127.0.0.1:8000/v1",
        "temperature": None,
    }


@pytest.mark.parametrize(
    ("model", "url", "temperature", "message"),
    [
        ("m", None, 1.0, r"api\.openai\.com needs a key: set the environment variable OPENAI_API_KEY"),
        ("m", "https://example.com/v1", 1.0, r"example\.com needs a key"),
        ("m", "http://8.8.8.8/v1", 1.0, r"8\.8\.8\.8 needs a key"),
        ("", "http://localhost:1/v1", 1.0, "no model name is given"),
        ("m", "", 1.0, r"must look like .*, got ''"),
        ("m", "http://127.0.0.1:99999/v1", 1.0, r"must look like .*, got 'http://127\.0\.0\.1:99999/v1'"),
        ("m", "http://[::1/v1", 1.0, r"must look like"),
        ("m", "localhost:8000", 1.0, r"must look like http://127\.0\.0\.1:8000/v1, got 'localhost:8000'"),
        ("m", "http://localhost:1/v1", -1.0, "temperature must be a number of at least 0, got -1.0"),
        ("m", "http://localhost:1/v1", float("nan"), "temperature must be .* got nan"),
    ],
)
def test_mistakes_are_named_before_anything_is_asked(model, url, temperature, message):
    with pytest.raises(ConfigError, match=message):
        HostedSource(model, url, temperature=temperature)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "10.0.0.7", "0.0.0.0", "gpu-node", "box.local"])
def test_hosts_that_need_no_key(host):
    assert HostedSource("m", f"http://{host}:8000/v1").lost is None


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ConfigError, match=r'pip install -e "\.\[eval\]"'):
        HostedSource("m", "http://localhost:1/v1")


def test_the_record_reads_back():
    episode, _ = first_turn(completion("2"))
    assert episode_from_json(episode_to_json(episode)) == episode
    assert episode.provenance["model"] == "test-model"
