"""Episodes survive JSONL without loss and replay to the same episode."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import platform
import re
from pathlib import Path

import pytest

from llmgym import (
    Env,
    Episode,
    EpisodeLimits,
    PolicyTurn,
    ScriptedPolicy,
    StepResult,
    StopReason,
    Task,
    ToolEnv,
    Turn,
    read_episodes,
    replay,
    run_episode,
    tool,
    write_episodes,
)
from llmgym._util.versions import provenance
from llmgym.episode import TurnTokens, Usage
from llmgym.errors import RecordError
from llmgym.records import EpisodeWriter, compare_replay, episode_from_json, episode_to_json, iter_episodes

HOSTILE = [
    "",
    "line\nbreaks\r\n\x0b\x0c\x1c\x85\u2028\u2029",
    "".join(map(chr, range(32))) + "\x7f\x9f",
    '"quotes" \\ \\u0041 \\ud800',
    "\ud800 alone, \udfff alone, \udc80\ud8ff the wrong way round",
    "\ud83d\ude00 two surrogates that are not \U0001f600",
    "\ud83d\ud83d\ude00\ude00",
    "é 漢 \U0001f600 \u200d \ufeff\ufffe\U0010ffff",
]
FLOATS = [0.1 + 0.2, 1e-323, 1.7976931348623157e308, -0.0, 1 / 3, 2**53 + 1.0, 5e-324]


def full_episode():
    """An episode in which no field has its default."""
    message = {
        "role": "assistant",
        "content": HOSTILE[1],
        "reasoning_content": HOSTILE[4],
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}],
    }
    tokens = TurnTokens([1, 2], [3], FLOATS, extends=True, finish_reason="stop", policy_version=4)
    turn = Turn(
        message,
        [{"role": "tool", "content": HOSTILE[5], "tool_call_id": "c"}],
        0.1,
        "why",
        "raw",
        True,
        tokens,
        Usage(11, 3),
        1.5,
        2.5,
        {"c": "timeout"},
    )
    return Episode(
        task=Task(HOSTILE[3], {"answer": FLOATS}, {"texts": HOSTILE, "nested": [None, True, 2**70, {"a": {"b": []}}]}),
        stop_reason=StopReason.CONTEXT_OVERFLOW,
        reward=0.1 + 0.2,
        turns=[turn, Turn()],
        initial_messages=[{"role": "user", "content": text} for text in HOSTILE],
        tool_specs=[
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        ],
        metrics={"count": 1, "share": 1.0, "flag": True, "text": HOSTILE[4]},
        stop_detail="detail",
        env_id="Env-v0",
        episode_index=3,
        seed=2**63,
        close_error="OSError: x",
        limits=EpisodeLimits(3, 100, 50, 8, None, 2.5, -0.7, 2),
        provenance={"packages": {"trl": "1"}, "policy_version": None},
        reset_s=0.25,
        failed="policy",
        error_type="OSError",
    )


def test_the_full_episode_leaves_no_default():
    defaults = Episode(Task("x"), StopReason.ERROR)
    for field in dataclasses.fields(Episode):
        assert getattr(full_episode(), field.name) != getattr(defaults, field.name), field.name
    for cls, value in ((Turn, full_episode().turns[0]), (EpisodeLimits, full_episode().limits)):
        for field in dataclasses.fields(cls):
            assert getattr(value, field.name) != getattr(cls(), field.name), field.name


def test_every_field_survives(tmp_path):
    episodes = [full_episode(), Episode(Task("p"), StopReason.ERROR)]
    write_episodes(tmp_path / "e.jsonl", episodes)
    found = read_episodes(str(tmp_path / "e.jsonl"))
    assert found == episodes
    # Equality takes 1, 1.0 and True, and 0.0 and -0.0, for the same; their text does not.
    assert [repr(episode) for episode in found] == [repr(episode) for episode in episodes]


def test_numbers_that_are_not_finite_survive():
    episode = Episode(Task("p"), StopReason.ENV, metrics={"a": math.nan, "b": math.inf, "c": -math.inf})
    assert repr(episode_from_json(episode_to_json(episode)).metrics) == "{'a': nan, 'b': inf, 'c': -inf}"


def test_one_episode_is_one_line_for_every_reader():
    text = episode_to_json(full_episode())
    assert len(text.splitlines()) == 1
    ordinary = Episode(Task("p"), StopReason.ENV, stop_detail="".join(HOSTILE[:5] + HOSTILE[7:]))
    assert json.loads(episode_to_json(ordinary).encode("utf-8"))["stop_detail"] == ordinary.stop_detail
    assert "漢" in episode_to_json(ordinary)


def test_writing_appends_and_flushes_each_line(tmp_path):
    path = tmp_path / "deep" / "folder" / "e.jsonl"
    writer = EpisodeWriter(path)
    for number in range(3):
        writer.write(Episode(Task(str(number)), StopReason.ENV))
        assert len(read_episodes(path)) == number + 1
    writer.close()
    writer.close()
    write_episodes(path, [Episode(Task("3"), StopReason.ENV)])
    assert [episode.task.prompt for episode in iter_episodes(path)] == ["0", "1", "2", "3"]


def test_a_value_that_json_cannot_express_is_refused_before_anything_is_written(tmp_path):
    path = tmp_path / "e.jsonl"
    with EpisodeWriter(path) as writer:
        with pytest.raises(RecordError, match=r"task 'x' cannot be written as JSON: .*set"):
            writer.write(Episode(Task("p", id="x"), StopReason.ENV, provenance={"bad": {1}}))
        writer.write(Episode(Task("p"), StopReason.ENV))
    assert len(read_episodes(path)) == 1


@pytest.fixture
def cut_file(tmp_path):
    """Two whole lines, and a third that a crash cut short."""
    path = tmp_path / "e.jsonl"
    write_episodes(path, [Episode(Task(text), StopReason.ENV) for text in ("a", "b", "c")])
    path.write_bytes(path.read_bytes()[:-20])
    return path


def test_a_line_that_was_cut_short_is_reported(cut_file):
    with pytest.raises(RecordError, match=r"e\.jsonl:3: the last line was cut short.*skip_cut_line=True"):
        read_episodes(cut_file)
    assert [episode.task.prompt for episode in read_episodes(cut_file, skip_cut_line=True)] == ["a", "b"]


def test_writing_on_after_a_crash_removes_the_cut_line(cut_file, caplog):
    with caplog.at_level(logging.WARNING):
        write_episodes(cut_file, [Episode(Task("d"), StopReason.ENV)])
    assert "removed a last line that was cut short" in caplog.text
    assert [episode.task.prompt for episode in read_episodes(cut_file)] == ["a", "b", "d"]


def test_a_last_line_without_its_end_is_kept(tmp_path, caplog):
    path = tmp_path / "e.jsonl"
    path.write_text(episode_to_json(Episode(Task("a"), StopReason.ENV)))
    assert len(read_episodes(path)) == 1
    write_episodes(path, [Episode(Task("b"), StopReason.ENV)])
    assert [episode.task.prompt for episode in read_episodes(path)] == ["a", "b"]
    assert caplog.text == ""


def changed(path, value):
    """The JSON of a full episode in which the field at ``path`` is ``value``, or is gone when value is ``...``."""
    record = json.loads(episode_to_json(full_episode()))
    *parents, last = path
    target = record
    for key in parents:
        target = target[key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return json.dumps(record)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not json", "e.jsonl:2: not valid JSON"),
        ("[" * 100_000, "e.jsonl:2: not valid JSON"),
        ("[1]", "an episode is a JSON object, got [1]"),
        (changed(["format_version"], 2), "format_version is 2; this version of llmgym reads 1"),
        (changed(["format_version"], ...), "format_version is None"),
        (changed(["rewardd"], 1), "episode has the unknown field 'rewardd'. Did you mean 'reward'?"),
        (changed(["stop_reason"], ...), "episode lacks the field 'stop_reason'"),
        (changed(["turns"], None), "episode.turns must be a list, got None"),
        (changed(["turns", 1], 3), "episode.turns[1] must be a dict, got 3"),
        (changed(["metrics"], [1]), "episode.metrics must be a dict, got [1]"),
        (changed(["turns", 0, "tokens", "x"], 1), "episode.turns[0].tokens has the unknown field 'x'"),
        (
            changed(["turns", 0, "usage"], {"prompt_tokens": 1}),
            "episode.turns[0].usage lacks the field 'completion_tokens'",
        ),
        (changed(["limits", "max_turns"], 0), "max_turns must be a whole number of at least 1, got 0"),
        (changed(["stop_reason"], "bored"), "'bored' is not a valid StopReason"),
        (changed(["task", "prompt"], ...), "episode.task lacks the field 'prompt'"),
        (changed(["task"], None), "episode.task must be a dict, got None"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = tmp_path / "e.jsonl"
    path.write_text(episode_to_json(full_episode()).encode("utf-8", "backslashreplace").decode() + "\n" + line + "\n")
    with pytest.raises(RecordError, match=r"e\.jsonl:2: .*" + re.escape(message.removeprefix("e.jsonl:2: "))):
        read_episodes(path)


def test_a_line_that_is_no_utf8(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(RecordError, match=r"e\.jsonl:1: .*utf-8"):
        read_episodes(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(RecordError, match=r"there is no episode file .*missing\.jsonl"):
        read_episodes(tmp_path / "missing.jsonl")


def test_provenance_names_versions_without_importing():
    found = provenance(DiceEnv)
    assert found["python"] == platform.python_version()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", found["llmgym"])
    assert {"gymnasium", "numpy", "pydantic"} <= set(found["packages"])
    assert found["environment"] == f"{DiceEnv.__module__}:DiceEnv"
    assert re.fullmatch("[0-9a-f]{64}", found["environment_sha256"])
    assert "environment" not in provenance()
    assert json.loads(json.dumps(found)) == found


def test_provenance_of_a_class_without_a_file():
    namespace = {"ToolEnv": ToolEnv, "__name__": "__console__"}
    exec("class Typed(ToolEnv):\n    async def score(self, message): return 1.0", namespace)
    assert provenance(namespace["Typed"])["environment_sha256"] is None


def test_provenance_is_a_fresh_dictionary():
    provenance()["python"] = "changed"
    assert provenance()["python"] == platform.python_version()


# Replay


class DiceEnv(ToolEnv):
    """Rolls dice; the answer is the sum of all rolls."""

    async def setup(self):
        self.total = 0

    @tool
    def roll(self, sides: int) -> int:
        """Roll a die."""
        number = self.rng.randint(1, sides)
        self.total += number
        return number

    async def score(self, message):
        return float(message["content"] == str(self.total))


class FailingEnv(DiceEnv):
    async def setup(self):
        raise OSError("no dice")


class SlowEnv(DiceEnv):
    async def step(self, message):
        if message["content"] == "wait":
            await asyncio.Event().wait()
        if message["content"] == "break":
            raise ValueError("broken")
        return await super().step(message)


class CuttingEnv(Env):
    """Forgets its history each turn and truncates after the second."""

    async def reset(self, task):
        self.turn = 0
        return [{"role": "user", "content": task.prompt}]

    async def step(self, message):
        self.turn += 1
        return StepResult(False, self.turn == 2, self.messages, 0.5 * self.turn, {"turn": self.turn})

    @property
    def tool_specs(self):
        return []

    @property
    def messages(self):
        return [{"role": "user", "content": f"turn {self.turn}"}]


def calls(*arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "roll", "arguments": text}} for text in arguments],
    }


class RaisingPolicy(ScriptedPolicy):
    async def act(self, messages, tool_specs):
        turn = await super().act(messages, tool_specs)
        if turn == "":
            raise RuntimeError("engine died")
        return turn


class UnstartablePolicy(ScriptedPolicy):
    async def start(self, task):
        raise RuntimeError("no plan")


ROLLS = calls('{"sides": 1000000}', '{"sides": "six"}', '{"sides": 1000000}')
TOKENS = TurnTokens([1], [2], [-0.1], extends=False, finish_reason="length")
OVERFLOW, FAILURE = StopReason.CONTEXT_OVERFLOW, StopReason.PARSE_FAILURE

CASES = [
    (DiceEnv, ScriptedPolicy([ROLLS, ROLLS, "7"]), StopReason.TERMINATED),
    (CuttingEnv, ScriptedPolicy(["a", "b"]), StopReason.ENV),
    (DiceEnv, ScriptedPolicy([ROLLS] * 9), StopReason.MAX_TURNS),
    (DiceEnv, ScriptedPolicy([PolicyTurn(stop=OVERFLOW, detail="no room")]), OVERFLOW),
    (DiceEnv, ScriptedPolicy([ROLLS, PolicyTurn(stop=OVERFLOW, raw_text="I th", tokens=TOKENS)]), OVERFLOW),
    (DiceEnv, ScriptedPolicy([ROLLS, PolicyTurn(message="I th", stop=OVERFLOW, detail="cut")]), OVERFLOW),
    (DiceEnv, ScriptedPolicy([ROLLS, PolicyTurn(stop=FAILURE, tokens=TOKENS)]), FAILURE),
    (DiceEnv, ScriptedPolicy([ROLLS, PolicyTurn(stop=FAILURE, detail="why", raw_text="{{")]), FAILURE),
    (DiceEnv, ScriptedPolicy([calls("{")]), FAILURE),
    (DiceEnv, ScriptedPolicy(["<tool_call>"]), FAILURE),
    (DiceEnv, ScriptedPolicy([ROLLS, {"role": "assistant", "content": 5}]), FAILURE),
    (SlowEnv, ScriptedPolicy([ROLLS, "wait"]), StopReason.TIMEOUT),
    (SlowEnv, ScriptedPolicy([ROLLS, "break"]), StopReason.ERROR),
    (FailingEnv, ScriptedPolicy(["a"]), StopReason.ERROR),
    (DiceEnv, RaisingPolicy([ROLLS]), StopReason.ERROR),
    (DiceEnv, UnstartablePolicy([ROLLS]), StopReason.ERROR),
    (DiceEnv, ScriptedPolicy([PolicyTurn()]), StopReason.ERROR),
    (DiceEnv, ScriptedPolicy([PolicyTurn(raw_text="?")]), StopReason.ERROR),
]
RETRIED = EpisodeLimits(max_turns=5, parse_retries=2)
LIMITS = EpisodeLimits(max_turns=3, failed_parse_reward=-0.4, env_timeout_s=0.5)


def record(env_class, policy):
    return asyncio.run(run_episode(env_class(), Task("Roll."), policy, LIMITS, seed=9, episode_index=4))


def test_corrected_turns_replay():
    bad = PolicyTurn(stop=FAILURE, detail="why", raw_text="{{", tokens=TOKENS)
    script = ScriptedPolicy([bad, ROLLS, calls("{"), "7"])
    recorded = asyncio.run(run_episode(DiceEnv(), Task("Roll."), script, RETRIED, seed=9))
    assert recorded.stop_reason is StopReason.TERMINATED
    assert [turn.corrected for turn in recorded.turns] == [True, False, True, False]
    again = asyncio.run(replay(episode_from_json(episode_to_json(recorded)), lambda task: DiceEnv()))
    assert compare_replay(recorded, again) == []


@pytest.mark.parametrize(("env_class", "policy", "stop_reason"), CASES)
def test_replay_after_a_round_trip_through_a_file(env_class, policy, stop_reason):
    recorded = record(env_class, policy)
    assert recorded.stop_reason is stop_reason
    read = episode_from_json(episode_to_json(recorded))
    again = asyncio.run(replay(read, lambda task: env_class()))
    assert compare_replay(recorded, again) == []
    assert (again.stop_reason, again.reward, again.seed, again.episode_index) == (stop_reason, recorded.reward, 9, 4)
    assert again.limits == LIMITS
    assert again.messages == recorded.messages
    assert compare_replay(recorded, asyncio.run(replay(again, lambda task: env_class()))) == []
    assert read == episode_from_json(episode_to_json(recorded))  # a replay leaves the record as it was


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        ({"seed": 10}, ["turn 0 observation"]),
        ({"episode_index": 5}, ["turn 0 observation"]),
        ({"limits": EpisodeLimits(max_turns=1)}, ["number of turns", "stop_reason", "metrics"]),
    ],
)
def test_another_chance_or_limit_is_noticed(change, differences):
    recorded = record(DiceEnv, ScriptedPolicy([ROLLS, "7"]))
    again = asyncio.run(replay(dataclasses.replace(recorded, **change), lambda task: DiceEnv()))
    assert [text.partition(":")[0] for text in compare_replay(recorded, again)] == differences


def test_a_changed_environment_is_noticed():
    class Changed(DiceEnv):
        system_prompt = "New."

        @tool
        def roll(self, sides: int) -> int:
            """Roll a better die."""
            return 6

        async def score(self, message):
            return 0.5

        def metrics(self):
            return {"turns": 2.0}

    recorded = record(DiceEnv, ScriptedPolicy([ROLLS, "7"]))
    found = compare_replay(recorded, asyncio.run(replay(recorded, lambda task: Changed())))
    assert [text.partition(":")[0] for text in found] == [
        "initial_messages",
        "tool_specs",
        "turn 0 observation",
        "turn 1 reward",
        "reward",
        "metrics",
    ]
    assert "Roll a better die." in found[1]


def test_an_environment_error_that_does_not_come_back_is_noticed():
    recorded = record(FailingEnv, ScriptedPolicy(["a"]))
    found = compare_replay(recorded, asyncio.run(replay(recorded, lambda task: DiceEnv())))
    assert 'who failed: recorded "environment", replayed "policy"' in found


def test_records_of_the_first_version_open_and_replay():
    """``first_format.jsonl`` was written before ``failed``, ``error_type`` and ``tool_errors``."""
    cut, environment, policy = read_episodes(Path(__file__).with_name("first_format.jsonl"))
    assert (cut.task, cut.stop_reason, cut.reward) == (
        Task("Roll. \ud800 \u2028", {"a": [1, 2.5]}, {"level": 1}, id="one"),
        StopReason.MAX_TURNS,
        0.0,
    )
    assert cut.turns[0].tokens == TurnTokens([1, 2], [3, 4], [-0.25, -1e-3], False, "stop", 2)
    assert (cut.turns[0].usage, [turn.corrected for turn in cut.turns]) == (Usage(11, 3), [False, True, False])
    assert cut.limits == EpisodeLimits(max_turns=3, parse_retries=1, failed_parse_reward=-0.4)
    assert (cut.num_tool_calls, cut.num_tool_errors) == (3, 2)
    assert [turn.error_type(message) for turn in cut.turns for message in turn.observation] == [
        None, "tool_error", None, "tool_error",
    ]  # fmt: skip
    for episode in (cut, environment, policy):
        assert (episode.failed, episode.error_type) == (None, None)
        again = asyncio.run(replay(episode, lambda task: SumEnv()))
        assert compare_replay(episode, again) == []
        assert again.failed == {"one": None, "two": "environment", "three": "policy"}[episode.task.id]
        assert episode_from_json(episode_to_json(episode)) == episode


class SumEnv(DiceEnv):
    """The environment of ``first_format.jsonl``."""

    async def score(self, message):
        if message["content"] == "break":
            raise ValueError("broken")
        return float(message["content"] == str(self.total))


def test_times_tokens_and_provenance_are_not_compared():
    recorded = record(DiceEnv, ScriptedPolicy([PolicyTurn(message="7", tokens=TOKENS)]))
    again = record(DiceEnv, ScriptedPolicy(["7"]))
    again.reset_s, again.provenance = 99.0, {}
    assert compare_replay(recorded, again) == []


@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (1, True), ("1", 1), (0.0, -0.0)])
def test_values_that_python_takes_for_equal_are_told_apart(old, new):
    first, second = (Episode(Task("p"), StopReason.ENV, metrics={"m": value}) for value in (old, new))
    assert compare_replay(first, second) == [
        f'metrics: recorded {{"m": {json.dumps(old)}}}, replayed {{"m": {json.dumps(new)}}}'
    ]


def test_long_differences_are_shown_where_they_begin():
    first, second = (Episode(Task("p"), StopReason.ENV, metrics={"m": "x" * 500 + end}) for end in ("left", "right"))
    (text,) = compare_replay(first, second)
    assert "left" in text
    assert "right" in text
    assert len(text) < 300
