"""The one episode loop: every stop reason, close in every case, reproducible chance, faithful records."""

from __future__ import annotations

import asyncio
import collections
import math
import random
import sys
import time

import numpy as np
import pytest

from llmgym import (
    Env,
    EpisodeLimits,
    Policy,
    PolicyTurn,
    ScriptedPolicy,
    StepResult,
    StopReason,
    Task,
    ToolEnv,
    messages,
    rollout,
    run_episode,
    tool,
    tool_env,
)
from llmgym._util.seeding import derive_seed
from llmgym.episode import TurnTokens, Usage
from llmgym.errors import ConfigError

TOKENS = TurnTokens([1, 2], [3], [-0.5], extends=False, finish_reason="length")


class EchoEnv(Env):
    """Repeats what it is told until it hears "stop". Its hooks let a test put anything in its place."""

    def __init__(self, on_reset=None, on_step=None, on_close=None):
        self.on_reset, self.on_step, self.on_close = on_reset, on_step, on_close
        self.history = []
        self.closed = 0

    async def reset(self, task):
        self.task = task
        self.history = [{"role": "user", "content": task.prompt}]
        if self.on_reset is not None:
            return await self.on_reset(self)
        return self.messages

    async def step(self, message):
        self.history.append(message)
        if self.on_step is not None:
            return await self.on_step(self, message)
        if message["content"] == "stop":
            return StepResult(True, False, self.messages, 0.75, {"said": len(self.history)})
        self.history.append({"role": "user", "content": f"you said {message['content']}"})
        return StepResult(False, False, self.messages, 0.25)

    @property
    def tool_specs(self):
        return []

    @property
    def messages(self):
        return list(self.history)

    async def close(self):
        self.closed += 1
        if self.on_close is not None:
            await self.on_close()


class RecordingPolicy(ScriptedPolicy):
    """A scripted policy that also notes when it was closed."""

    closed = 0

    async def close(self):
        self.closed += 1


class FunctionPolicy(RecordingPolicy):
    """Answers with what a coroutine function of the history returns."""

    def __init__(self, function):
        self.function = function

    async def start(self, task):
        self.task = task

    async def act(self, messages, tool_specs):
        return await self.function(messages)


def play(env, policy, limits=None, **options):
    """Run one episode and check what must hold for every one."""
    if not isinstance(policy, Policy):
        policy = RecordingPolicy(policy)
    episode = asyncio.run(run_episode(env, Task("begin"), policy, limits, **options))
    assert (env.closed, policy.closed) == (1, 1)
    return episode


async def hang(*_):
    await asyncio.Event().wait()


def raising(error):
    async def function(*_):
        raise error

    return function


def returning(value):
    async def function(*_):
        return value

    return function


def call(name="lookup", arguments="{}", id="c"):
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id, "function": {"name": name, "arguments": arguments}}],
    }


# Every stop reason


def test_terminated():
    episode = play(
        EchoEnv(), ["a", "stop"], seed=7, episode_index=3, env_id="Echo-v0", provenance={"policy_version": 5}
    )
    assert (episode.stop_reason, episode.truncated, episode.stop_detail) == (StopReason.TERMINATED, False, "")
    assert (episode.reward, episode.metrics) == (0.75, {"said": 4})
    assert episode.initial_messages == [{"role": "user", "content": "begin"}]
    assert [(turn.message["content"], turn.reward, turn.failure) for turn in episode.turns] == [
        ("a", 0.25, None),
        ("stop", 0.75, None),
    ]
    assert [turn.observation for turn in episode.turns] == [[{"role": "user", "content": "you said a"}], []]
    assert [message["content"] for message in episode.messages] == ["begin", "a", "you said a", "stop"]
    assert (episode.task, episode.seed, episode.episode_index, episode.env_id) == (Task("begin"), 7, 3, "Echo-v0")
    assert episode.provenance["policy_version"] == 5
    assert episode.provenance["environment"].endswith(":EchoEnv")
    assert episode.close_error is None


def test_env():
    env = EchoEnv(on_step=lambda env, _: returning(StepResult(False, True, env.messages, -0.5, {"why": "quota"}))())
    episode = play(env, ["a"])
    assert (episode.stop_reason, episode.truncated) == (StopReason.ENV, True)
    assert (episode.reward, episode.metrics) == (-0.5, {"why": "quota"})


def test_terminated_wins_over_truncated():
    env = EchoEnv(on_step=lambda env, _: returning(StepResult(True, True, env.messages, 1.0))())
    assert play(env, ["a"]).stop_reason is StopReason.TERMINATED


def test_max_turns():
    episode = play(EchoEnv(), ["a", "b", "stop"], EpisodeLimits(max_turns=2))
    assert (episode.stop_reason, episode.stop_detail) == (StopReason.MAX_TURNS, "2 assistant turns ran")
    assert (episode.reward, episode.metrics, len(episode.turns)) == (0.0, {}, 2)
    assert episode.turns[1].observation == [{"role": "user", "content": "you said b"}]


def test_an_end_on_the_last_turn_is_no_truncation():
    episode = play(EchoEnv(), ["a", "stop"], EpisodeLimits(max_turns=2))
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 0.75)


def test_context_overflow_before_anything_was_sampled():
    episode = play(EchoEnv(), ["a", PolicyTurn(stop=StopReason.CONTEXT_OVERFLOW, detail="3 of 64 tokens are left")])
    assert (episode.stop_reason, episode.stop_detail) == (StopReason.CONTEXT_OVERFLOW, "3 of 64 tokens are left")
    assert (episode.reward, len(episode.turns), episode.turns[0].failure) == (0.0, 1, None)


def test_context_overflow_in_a_turn_that_was_cut_keeps_its_tokens():
    cut = PolicyTurn(
        stop=StopReason.CONTEXT_OVERFLOW,
        detail="cut by max_completion_length",
        raw_text="I thi",
        tokens=TOKENS,
        usage=Usage(2, 1),
    )
    episode = play(EchoEnv(), [cut])
    assert (episode.stop_reason, episode.reward) == (StopReason.CONTEXT_OVERFLOW, 0.0)
    (turn,) = episode.turns
    assert (turn.message, turn.raw_text, turn.tokens, turn.usage) == (None, "I thi", TOKENS, Usage(2, 1))
    assert turn.failure == "cut by max_completion_length"
    assert episode.num_sampled_tokens == 1


@pytest.mark.parametrize(
    ("turn", "detail", "recorded"),
    [
        (call(arguments='{"a": '), "not valid JSON", True),
        (call(arguments="[1]"), "must be a JSON object", True),
        (call(name=""), "has no name", True),
        ("<tool_call>{}</tool_call>", "unparsed tool-call markup", True),
        (PolicyTurn(stop=StopReason.PARSE_FAILURE, detail="no call", raw_text="{{", tokens=TOKENS), "no call", True),
        (PolicyTurn(message="text", stop=StopReason.PARSE_FAILURE), "", True),
        ({"role": "user", "content": "x"}, "expected a message with role 'assistant'", False),
        ({"role": "assistant", "content": 3}, "content must be a string", False),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {1: {2}}}}]}, "JSON", False),
        (17, "expected a message with role 'assistant'", False),
    ],
)
def test_parse_failure(turn, detail, recorded):
    env = EchoEnv()
    episode = play(env, [turn], EpisodeLimits(failed_parse_reward=-0.3))
    assert (episode.stop_reason, episode.reward) == (StopReason.PARSE_FAILURE, -0.3)
    assert detail in episode.stop_detail
    assert len(env.history) == 1  # the environment never saw it
    assert [turn.failure for turn in episode.turns] == ([episode.stop_detail or "parse_failure"] if recorded else [])


def test_an_unknown_tool_and_a_schema_violation_are_no_parse_failure():
    class Game(ToolEnv):
        closed = 0

        @tool
        def lookup(self, key: str) -> str:
            return key

        async def score(self, message):
            return 1.0

        async def close(self):
            self.closed += 1

    episode = play(Game(), [call("look_up"), call("lookup", '{"kee": 1}'), call("lookup", '{"key": "a"}'), "done"])
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 1.0)
    assert (episode.num_tool_calls, episode.num_tool_errors) == (3, 2)


SHORT = EpisodeLimits(env_timeout_s=0.5)


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        (EchoEnv(on_reset=hang), "reset exceeded env_timeout_s=0.5"),
        (EchoEnv(on_step=hang), "step exceeded env_timeout_s=0.5"),
    ],
)
def test_timeout(env, detail):
    episode = play(env, ["a"], SHORT)
    assert (episode.stop_reason, episode.reward) == (StopReason.TIMEOUT, 0.0)
    assert detail in episode.stop_detail


def test_the_time_of_all_calls_is_added_up_and_the_policy_s_is_not(monkeypatch):
    class Clock:
        now = 0.0

        @classmethod
        def perf_counter(cls):
            return cls.now

    monkeypatch.setattr(rollout, "time", Clock)

    def spend(seconds, value):
        async def function(*_):
            Clock.now += seconds
            return value

        return function

    env = EchoEnv(on_reset=spend(20, [{"role": "user"}]), on_step=spend(30, StepResult(False, False, [])))
    episode = play(env, FunctionPolicy(spend(1000, "a")), EpisodeLimits(env_timeout_s=100))
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.TIMEOUT, 3)  # 20 + 30 + 30 < 100 < 20 + 3 * 30
    assert (episode.reset_s, episode.turns[0].env_s, episode.turns[1].policy_s) == (20, 30, 1000)
    assert episode.env_s == 80  # the call that was cut has no time of its own


def test_a_step_that_blocks_the_event_loop_past_the_budget_is_a_timeout_too():
    async def block(env, message):
        time.sleep(0.6)
        return StepResult(True, False, env.messages, 1.0)

    episode = play(EchoEnv(on_step=block), ["a"], SHORT)
    assert (episode.stop_reason, episode.reward) == (StopReason.TIMEOUT, 0.0)


@pytest.mark.parametrize(
    ("env", "detail"),
    [
        (EchoEnv(on_reset=raising(ValueError("no disk"))), "reset raised ValueError: no disk"),
        (EchoEnv(on_step=raising(ValueError("no disk"))), "step raised ValueError: no disk"),
        (EchoEnv(on_reset=raising(TimeoutError("mine"))), "reset raised TimeoutError: mine"),
        (EchoEnv(on_step=raising(TimeoutError("mine"))), "step raised TimeoutError: mine"),
        (EchoEnv(on_step=raising(asyncio.CancelledError("mine"))), "step raised CancelledError: mine"),
        (EchoEnv(on_reset=raising(SystemExit(3))), "reset raised SystemExit: 3"),
        (EchoEnv(on_step=raising(SystemExit(3))), "step raised SystemExit: 3"),
        (EchoEnv(on_step=raising(BaseExceptionGroup("two", [SystemExit(3)]))), "step raised BaseExceptionGroup: two"),
        (EchoEnv(on_reset=returning("text")), "after reset: MessageError: expected a list of chat messages"),
        (EchoEnv(on_reset=returning([{"role": "bot"}])), "after reset: MessageError: unknown role"),
        (EchoEnv(on_step=returning(None)), "after step: EnvContractError: step must return a StepResult, got NoneType"),
        (EchoEnv(on_step=returning(([], 1.0, True))), "step must return a StepResult, got tuple"),
        (EchoEnv(on_step=returning(StepResult(True, False, "text"))), "expected a list of chat messages"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], math.nan))), "must be a finite number, got nan"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], math.inf))), "must be a finite number, got inf"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], None))), "must be a finite number, got None"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], "1"))), "must be a finite number, got '1'"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], 1.0, {"a": [1]}))), r"metrics holds 'a': [1]"),
        (EchoEnv(on_step=returning(StepResult(True, False, [], 1.0, None))), "after step: "),
        (EchoEnv(on_step=returning(StepResult(True, False, [], 1.0, {}, {"call_0": 3}))), "got 'call_0': 3"),
    ],
)
def test_error_of_the_environment(env, detail):
    episode = play(env, ["a"])
    assert (episode.stop_reason, episode.reward, episode.metrics) == (StopReason.ERROR, 0.0, {})
    assert episode.failed == "environment"
    assert f"{episode.error_type}: " in episode.stop_detail
    assert detail in episode.stop_detail


def test_error_of_broken_tool_specs():
    class Broken(EchoEnv):
        @property
        def tool_specs(self):
            raise KeyError("specs")

    assert play(Broken(), ["a"]).stop_detail == "after reset: KeyError: 'specs'"


@pytest.mark.parametrize(
    ("act", "detail", "error_type"),
    [
        (raising(RuntimeError("engine died")), "policy.act raised RuntimeError: engine died", "RuntimeError"),
        (raising(asyncio.CancelledError()), "policy.act raised CancelledError: ", "CancelledError"),
        (raising(TimeoutError("mine")), "policy.act raised TimeoutError: mine", "TimeoutError"),
        (hang, "policy.act exceeded policy_timeout_s=0.05", "timeout"),
        (returning(PolicyTurn()), "policy.act returned neither a message nor a stop reason", None),
        (returning(None), "policy.act returned neither a message nor a stop reason", None),
        (returning(PolicyTurn(stop=StopReason.ERROR, detail="the player left")), "the player left", None),
    ],
)
def test_error_of_the_policy(act, detail, error_type):
    episode = play(EchoEnv(), FunctionPolicy(act), EpisodeLimits(policy_timeout_s=0.05))
    assert (episode.stop_reason, episode.reward, episode.stop_detail) == (StopReason.ERROR, 0.0, detail)
    assert (episode.failed, episode.error_type) == ("policy", error_type)


def test_only_an_error_has_somebody_who_failed():
    for limits in (EpisodeLimits(), EpisodeLimits(max_turns=1), SHORT):
        episode = play(EchoEnv(on_step=hang if limits is SHORT else None), ["a", "stop"], limits)
        assert (episode.failed, episode.error_type) == (None, None)


def test_the_errors_of_tools_stand_in_the_record_and_the_policy_does_not_see_them():
    class Env(EchoEnv):
        async def step(self, message):
            call = {"role": "tool", "content": "no such fact", "tool_call_id": "a"}
            marked = {"role": "tool", "content": "tool_error: gone", "tool_call_id": "b"}
            good = {"role": "tool", "content": "48", "tool_call_id": "c"}
            self.history += [message, call, marked, good]
            return StepResult(len(self.history) > 8, False, self.messages, tool_errors={"a": "timeout"})

    policy = FunctionPolicy(returning("next"))
    episode = play(Env(), policy)
    for turn in episode.turns:
        assert turn.tool_errors == {"a": "timeout"}
        assert [turn.error_type(message) for message in turn.observation] == ["timeout", "tool_error", None]
        assert turn.error_type({"role": "user", "content": "tool_error: no tool said this"}) is None
        assert [set(message) for message in turn.observation] == [{"role", "content", "tool_call_id"}] * 3
    assert episode.num_tool_errors == 4


def test_error_in_the_start_of_the_policy():
    class Unstartable(RecordingPolicy):
        async def start(self, task):
            raise RuntimeError("no plan")

    episode = play(EchoEnv(), Unstartable([]))
    assert (episode.stop_reason, episode.stop_detail) == (StopReason.ERROR, "policy.start raised RuntimeError: no plan")


# Close


def test_a_raising_close_changes_nothing_else():
    episode = play(EchoEnv(on_close=raising(OSError("leaked"))), ["stop"])
    assert (episode.stop_reason, episode.reward) == (StopReason.TERMINATED, 0.75)
    assert episode.close_error == "environment.close: OSError: leaked"


def test_a_close_that_exits_changes_nothing_else():
    episode = play(EchoEnv(on_close=raising(SystemExit(3))), ["stop"])
    assert (episode.stop_reason, episode.close_error) == (StopReason.TERMINATED, "environment.close: SystemExit: 3")


@pytest.mark.parametrize(
    "env", [EchoEnv(on_step=raising(KeyboardInterrupt)), EchoEnv(on_close=raising(KeyboardInterrupt))]
)
def test_ctrl_c_in_an_environment_is_no_error_of_its_episode(env):
    with pytest.raises(KeyboardInterrupt):
        play(env, ["stop"])


def test_a_hanging_close_is_cut(monkeypatch):
    monkeypatch.setattr(rollout, "CLOSE_TIMEOUT_S", 0.05)
    episode = play(EchoEnv(on_close=hang), ["stop"])
    assert (episode.reward, episode.close_error) == (0.75, "environment.close: TimeoutError: ")


def test_both_failing_closes_are_recorded():
    class Unclosable(RecordingPolicy):
        async def close(self):
            self.closed += 1
            raise ValueError("policy")

    episode = play(EchoEnv(on_close=raising(OSError("env"))), Unclosable(["stop"]))
    assert episode.close_error == "environment.close: OSError: env; policy.close: ValueError: policy"


@pytest.mark.parametrize("where", ["reset", "step", "act"])
def test_cancellation_passes_through_and_still_closes(where):
    async def main():
        reached = asyncio.Event()

        async def wait(*_):
            reached.set()
            await hang()

        env = EchoEnv(on_reset=wait if where == "reset" else None, on_step=wait if where == "step" else None)
        policy = FunctionPolicy(wait if where == "act" else returning("a"))
        running = asyncio.create_task(run_episode(env, Task("begin"), policy))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return env.closed, policy.closed

    assert asyncio.run(main()) == (1, 1)


def test_a_deadline_from_outside_is_a_cancellation():
    async def main():
        env = EchoEnv(on_step=hang)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await run_episode(env, Task("begin"), ScriptedPolicy(["a"]))
        return env.closed

    assert asyncio.run(main()) == 1


# Chance


class DiceEnv(EchoEnv):
    async def reset(self, task):
        self.history = [{"role": "user", "content": str(self.rng.random())}]
        return self.messages


def roll(task="begin", **options):
    return asyncio.run(run_episode(DiceEnv(), Task(task), ScriptedPolicy(["stop"]), **options)).initial_messages


def test_chance_depends_on_seed_task_and_index_only():
    assert roll(seed=1, episode_index=2) == roll(seed=1, episode_index=2)
    rolls = [
        roll(),
        roll(seed=1),
        roll(episode_index=1),
        roll(task="other"),
        roll(seed=11),
        roll(seed=1, episode_index=1),
    ]
    assert len({roll[0]["content"] for roll in rolls}) == 6


def test_the_global_generator_is_left_alone():
    random.seed(5)
    expected = random.random()
    random.seed(5)
    roll()
    assert random.random() == expected


def test_seeds_are_the_same_in_every_process():
    assert derive_seed(0, "task", 1) == 0x82577B650AD6A147
    assert derive_seed(1, "1") != derive_seed("11")
    assert derive_seed(0, "\ud800", 1) != derive_seed(0, "\ud801", 1)


# What is recorded and handed out


def test_nobody_can_reach_the_record_through_what_they_were_given():
    class Vandal(EchoEnv):
        async def reset(self, task):
            task.metadata["spoilt"] = True
            return await super().reset(task)

        async def step(self, message):
            self.kept = message
            result = await super().step(message)
            message["content"] = "spoilt"
            return result

    async def spoil(messages):
        messages[0]["content"] = "spoilt"
        messages.clear()
        return {"role": "assistant", "content": "stop"}

    env, task = Vandal(), Task("begin", metadata={"a": 1})

    async def main():
        return await run_episode(env, task, FunctionPolicy(spoil))

    episode = asyncio.run(main())
    env.kept["content"] = "spoilt again"
    env.history.clear()
    assert task.metadata == episode.task.metadata == {"a": 1}
    assert episode.initial_messages == [{"role": "user", "content": "begin"}]
    assert episode.turns[0].message["content"] == "stop"


def test_each_turn_sees_the_whole_history_so_far():
    seen = []

    async def note(messages):
        seen.append([message["content"] for message in messages])
        return "a" if len(seen) < 3 else "stop"

    play(EchoEnv(), FunctionPolicy(note))
    assert seen == [["begin"], ["begin", "a", "you said a"], ["begin", "a", "you said a", "a", "you said a"]]


def test_history_that_the_environment_edits_is_marked_and_used():
    async def forget(env, message):
        env.history = [{"role": "user", "content": f"summary {len(env.history)}"}]
        return StepResult(message["content"] == "stop", False, env.messages)

    seen = []

    async def note(messages):
        seen.append([message["content"] for message in messages])
        return "a" if len(seen) < 2 else "stop"

    episode = play(EchoEnv(on_step=forget), FunctionPolicy(note))
    assert [turn.history_edited for turn in episode.turns] == [True, True]
    assert seen == [["begin"], ["summary 2"]]
    assert episode.messages == [{"role": "user", "content": "summary 2"}]
    assert [turn.message["content"] for turn in episode.turns] == ["a", "stop"]


def test_messages_in_another_spelling_are_no_edit():
    async def spell(env, message):
        env.history[-1] = {**message, "tool_calls": message.get("tool_calls"), "refusal": None}
        env.history.append({"role": "tool", "content": None})
        return StepResult(False, False, env.messages)

    episode = play(EchoEnv(on_step=spell), [call(id="c1")] * 2, EpisodeLimits(max_turns=2))
    assert [turn.history_edited for turn in episode.turns] == [False, False]
    assert episode.turns[1].observation == [{"role": "tool", "content": "", "tool_call_id": "c1"}]


def test_filled_in_call_ids_name_the_turn():
    async def go_on(env, message):
        return StepResult(False, False, env.messages)

    episode = play(EchoEnv(on_step=go_on), [call(id=None)] * 2, EpisodeLimits(max_turns=2))
    assert [turn.message["tool_calls"][0]["id"] for turn in episode.turns] == ["call_0_0", "call_1_0"]


def test_numpy_rewards_are_numbers():
    env = EchoEnv(on_step=lambda env, _: returning(StepResult(True, False, env.messages, np.float32(0.5)))())
    episode = play(env, ["a"])
    assert (episode.reward, type(episode.reward)) == (0.5, float)


def test_episodes_run_side_by_side_without_mixing():
    async def main():
        episodes = [run_episode(EchoEnv(), Task(str(n)), ScriptedPolicy([str(n), "stop"])) for n in range(50)]
        return await asyncio.gather(*episodes)

    for number, episode in enumerate(asyncio.run(main())):
        assert [message["content"] for message in episode.messages][:2] == [str(number)] * 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_turns", 0),
        ("max_turns", None),
        ("max_turns", True),
        ("max_turns", 2.0),
        ("max_model_length", 0),
        ("max_completion_length", -1),
        ("reply_reserve_tokens", 0),
        ("env_timeout_s", 0),
        ("policy_timeout_s", math.nan),
    ],
)
def test_impossible_limits_are_refused(field, value):
    with pytest.raises(ConfigError, match=f"{field} must be .*got {value!r}"):
        EpisodeLimits(**{field: value})


# Corrective retries


def correction(detail):
    return {"role": "user", "content": rollout.CORRECTION.format(detail)}


def test_a_malformed_turn_gets_a_correction_and_another_turn():
    seen, answers = (
        [],
        iter(["a", PolicyTurn(stop=StopReason.PARSE_FAILURE, detail="no call", raw_text="{{"), "b", "stop"]),
    )

    async def act(messages):
        seen.append(messages)
        return next(answers)

    env = EchoEnv()
    episode = play(env, FunctionPolicy(act), EpisodeLimits(parse_retries=1))
    assert (episode.stop_reason, episode.reward, len(episode.turns)) == (StopReason.TERMINATED, 0.75, 4)
    told = [{"role": "assistant", "content": "{{"}, correction("no call")]
    turn = episode.turns[1]
    assert ([turn.message, *turn.observation], turn.failure, turn.raw_text) == (told, "no call", "{{")
    assert [turn.corrected for turn in episode.turns] == [False, True, False, False]
    # The environment never saw the two messages; the policy did, in all later turns.
    assert [message["content"] for message in env.history] == ["begin", "a", "you said a", "b", "you said b", "stop"]
    assert seen[2] == [*seen[1], *told]
    assert seen[3] == [*seen[2], *({"role": r, "content": c} for r, c in (("assistant", "b"), ("user", "you said b")))]
    assert episode.messages == [*seen[3], {"role": "assistant", "content": "stop"}]


def test_retries_are_counted_over_the_episode():
    bad = PolicyTurn(stop=StopReason.PARSE_FAILURE, detail="no call", raw_text="{{")
    episode = play(EchoEnv(), [bad, "a", bad, "b", bad, "stop"], EpisodeLimits(parse_retries=2))
    assert (episode.stop_reason, episode.reward, len(episode.turns)) == (StopReason.PARSE_FAILURE, -0.1, 5)
    assert [turn.corrected for turn in episode.turns] == [True, False, True, False, False]


def test_there_is_no_retry_without_a_turn_for_it():
    episode = play(EchoEnv(), ["a", call(arguments="{"), "stop"], EpisodeLimits(parse_retries=3, max_turns=2))
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.PARSE_FAILURE, 2)
    assert not episode.turns[1].corrected


def test_what_is_corrected_stands_in_the_history_as_text():
    # A server may refuse a history with calls that are no JSON, or with calls that have no result.
    bad = {**call("lookup", '{"a": '), "content": "hm"}
    episode = play(EchoEnv(), [bad, {"role": "assistant", "content": 3}, "stop"], EpisodeLimits(parse_retries=2))
    assert episode.stop_reason is StopReason.TERMINATED
    first, second = (turn.message for turn in episode.turns[:2])
    assert first == {"role": "assistant", "content": 'hm\n{"name": "lookup", "arguments": "{\\"a\\": "}'}
    assert second == {"role": "assistant", "content": ""}


def test_an_edited_history_has_no_corrections():
    async def forget(env, message):
        env.history = [{"role": "user", "content": "afresh"}]
        return StepResult(message["content"] == "stop", False, env.messages)

    seen, answers = [], iter(["<tool_call>", "a", "stop"])

    async def act(messages):
        seen.append(messages)
        return next(answers)

    play(EchoEnv(on_step=forget), FunctionPolicy(act), EpisodeLimits(parse_retries=1))
    assert seen[2] == [{"role": "user", "content": "afresh"}]


@pytest.mark.parametrize("value", [-1, 1.0, True])
def test_retries_are_a_whole_number(value):
    with pytest.raises(ConfigError, match="parse_retries must be a whole number of at least 0"):
        EpisodeLimits(parse_retries=value)


class CountingEnv(ToolEnv):
    """Looks up one number a turn, and ends at the first message without a call."""

    @tool
    def lookup(self) -> int:
        """Get the number."""
        return 48

    async def score(self, message):
        return 1.0


@pytest.mark.parametrize("turns", [8, 32, 128])
def test_only_new_messages_are_normalised_and_copied(monkeypatch, turns):
    calls = collections.Counter()

    def counted(name):
        function = getattr(messages, name)

        def wrapper(*args, **options):
            calls[name] += 1
            return function(*args, **options)

        for module in (messages, rollout, tool_env):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, wrapper)

    counted("normalize_message")
    counted("copy_message")
    script = [call() for _ in range(turns - 1)] + ["48"]
    episode = asyncio.run(run_episode(CountingEnv(), Task("begin"), ScriptedPolicy(script), EpisodeLimits(turns)))
    assert (episode.stop_reason, len(episode.turns), len(episode.messages)) == (StopReason.TERMINATED, turns, 2 * turns)
    # Each turn: the policy's message by the loop and by the environment. All but the last: the tool's result by the
    # loop. And the opening message by the loop.
    assert calls["normalize_message"] == 2 * turns + (turns - 1) + 1
    # Each of the 2 * turns messages by the environment for the loop, and all but the last by the loop for the policy.
    # Each turn: the policy's message by the loop for the environment. Once: the opening, and the last message for
    # ``respond``.
    assert calls["copy_message"] == 2 * turns + (2 * turns - 1) + turns + 2


def test_a_message_that_the_environment_changes_in_place_is_noticed_at_any_depth():
    class Tampering(CountingEnv):
        async def step(self, message):
            result = await super().step(message)
            if self._turns == 3:
                self._messages[1]["tool_calls"][0]["function"]["arguments"] = '{"key": "other"}'
                result.messages = self.messages
            return result

    seen = []

    async def act(history):
        seen.append(history)
        return call() if len(seen) < 5 else "48"

    episode = asyncio.run(run_episode(Tampering(), Task("begin"), FunctionPolicy(act)))
    assert [turn.history_edited for turn in episode.turns] == [False, False, True, False, False]
    assert [history[1]["tool_calls"][0]["function"]["arguments"] for history in seen[1:]] == ["{}"] * 2 + [
        '{"key": "other"}'
    ] * 2


def test_a_policy_that_changes_what_it_is_shown_is_shown_the_history_again():
    seen = []

    async def act(history):
        seen.append(history[0]["content"])
        history[0]["content"] += " and think"
        history.append("junk")
        return call() if len(seen) < 3 else "48"

    episode = asyncio.run(run_episode(CountingEnv(), Task("begin"), FunctionPolicy(act)))
    assert seen == ["begin"] * 3
    assert episode.messages[0]["content"] == "begin"


def test_an_environment_can_be_made_by_a_function_of_the_task():
    made = []

    def make(task):
        made.append(EchoEnv())
        return made[-1]

    episode = asyncio.run(run_episode(make, Task("begin"), ScriptedPolicy(["stop"])))
    assert (episode.stop_reason, episode.reward, [env.closed for env in made]) == (StopReason.TERMINATED, 0.75, [1])
    assert episode.env_id == episode.provenance["environment"] == f"{__name__}:EchoEnv"


@pytest.mark.parametrize(
    ("make", "detail"),
    [
        (lambda task: 1 / 0, "env_factory raised ZeroDivisionError: division by zero"),
        (lambda task: sys.exit(3), "env_factory raised SystemExit: 3"),
        (lambda task: None, "env_factory raised TypeError: it returned None, which is no llmgym.Env"),
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_of_the_episode(make, detail):
    policy = RecordingPolicy(["stop"])
    episode = asyncio.run(run_episode(make, Task("begin"), policy, env_id="Broken-v0"))
    assert (episode.stop_reason, episode.stop_detail, episode.failed) == (StopReason.ERROR, detail, "environment")
    assert (episode.env_id, "environment" in episode.provenance, policy.closed) == ("Broken-v0", False, 1)
