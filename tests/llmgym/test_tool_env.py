"""The common environment: dispatch in call order, errors the model can read, and the end of an episode."""

from __future__ import annotations

import asyncio
import threading

import pytest

from llmgym import Task, Tool, ToolEnv, ToolResult, tool
from llmgym.errors import EnvContractError, ToolError


def call(name, arguments="{}", id=None):
    return {"id": id, "function": {"name": name, "arguments": arguments}}


def calls(*items):
    return {"role": "assistant", "content": "", "tool_calls": list(items)}


class GameEnv(ToolEnv):
    system_prompt = "Use the tools."
    tool_timeout_s = 5.0
    max_result_chars = 30

    async def setup(self):
        self.log = []
        self.release = threading.Event()
        self.cleaned = False

    @tool
    async def slow(self, text: str) -> str:
        """Answer after a while."""
        for _ in range(5):
            await asyncio.sleep(0)
        self.log.append(text)
        return text

    @tool
    def quick(self, text: str) -> str:
        """Answer at once."""
        self.log.append(text)
        return text

    @tool
    def fail(self, kind: str) -> str:
        """Raise."""
        raise {"own": ToolError("the fact is gone"), "bug": ValueError("bad value"), "time": TimeoutError("mine")}[kind]

    @tool
    async def hang(self) -> str:
        """Never answer."""
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned = True

    @tool
    def hang_thread(self) -> str:
        """Never answer, on a thread."""
        self.release.wait()
        return "late"

    @tool
    def finish(self) -> ToolResult:
        """End the episode."""
        return ToolResult("finished", should_stop=True)

    async def score(self, message):
        return 1.0 if message["content"] == self.task.target or message.get("tool_calls") else 0.0


def play(*messages, env=None, task=None):
    """Reset, step through the messages, and return the environment and the last result."""

    async def main():
        environment = env or GameEnv()
        await environment.reset(task or Task("Go.", target="4"))
        result = None
        for message in messages:
            result = await environment.step(message)
        return environment, result

    return asyncio.run(main())


def results(step):
    return [message["content"] for message in step.messages if message["role"] == "tool"]


def test_the_opening_messages():
    env, _ = play()
    assert env.messages == [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "Go."},
    ]

    class NoSystem(GameEnv):
        system_prompt = None

    assert play(env=NoSystem())[0].messages == [{"role": "user", "content": "Go."}]


def test_tools_are_the_decorated_methods_in_their_order_also_inherited():
    class More(GameEnv):
        @tool
        def extra(self) -> str:
            return "x"

        @tool
        def quick(self, text: str, times: int = 1) -> str:
            """Answer at once, often."""
            return text * times

    env, step = play(calls(call("quick", '{"text": "ab", "times": 2}'), call("extra")), env=More())
    names = [spec["function"]["name"] for spec in env.tool_specs]
    assert names == ["slow", "quick", "fail", "hang", "hang_thread", "finish", "extra"]
    assert results(step) == ["abab", "x"]


@pytest.mark.parametrize(("answer", "reward"), [("4", 1.0), ("5", 0.0)])
def test_a_message_without_calls_is_the_answer(answer, reward):
    env, step = play(calls(call("quick", '{"text": "x"}')), {"role": "assistant", "content": answer})
    assert (step.terminated, step.truncated, step.reward) == (True, False, reward)
    assert step.metrics == {"turns": 2, "tool_calls": 1, "tool_errors": 0, "calls_quick": 1}
    assert step.messages == env.messages


def test_no_reward_and_no_metrics_before_the_end():
    _, step = play(calls(call("quick", '{"text": "x"}')))
    assert (step.terminated, step.reward, step.metrics) == (False, 0.0, {})


def test_episodes_take_turns_between_calls_that_never_wait():
    done = []

    class Writes(GameEnv):
        @tool
        async def write(self, text: str) -> str:
            """Note it at once."""
            done.append(text)
            return text

    async def main():
        envs = {"a": Writes(), "b": Writes()}
        for env in envs.values():
            await env.reset(Task("Go."))
        messages = {name: calls(*[call("write", f'{{"text": "{name}"}}')] * 3) for name in envs}
        await asyncio.gather(*(env.step(messages[name]) for name, env in envs.items()))

    asyncio.run(main())
    assert done == ["a", "b"] * 3


def test_parallel_calls_run_and_are_answered_in_their_order_with_their_ids():
    env, step = play(
        calls(
            call("slow", '{"text": "a"}', id="c7"),
            call("quick", '{"text": "b"}', id="c3"),
            call("quick", '{"text": "c"}', id="c5"),
            call("quick", '{"text": "b"}'),
        )
    )
    assert env.log == ["a", "b", "c", "b"]
    assert step.messages[-4:] == [
        {"role": "tool", "content": "a", "tool_call_id": "c7", "name": "slow"},
        {"role": "tool", "content": "b", "tool_call_id": "c3", "name": "quick"},
        {"role": "tool", "content": "c", "tool_call_id": "c5", "name": "quick"},
        {"role": "tool", "content": "b", "tool_call_id": "call_0_3", "name": "quick"},
    ]


def test_ids_that_are_filled_in_differ_between_turns():
    _, step = play(calls(call("quick", '{"text": "a"}')), calls(call("quick", '{"text": "b"}')))
    assert [message["tool_call_id"] for message in step.messages if message["role"] == "tool"] == [
        "call_0_0",
        "call_1_0",
    ]


@pytest.mark.parametrize(
    ("given", "answer", "error_type"),
    [
        (call("quik", '{"text": "a"}'), "there is no tool 'quik'; the tools are slow, quick, fail,", "unknown_tool"),
        (call("quick", "{}"), "quick: missing argument 'text'", "invalid_arguments"),
        (call("quick", '{"text": "a", "b": 1}'), "quick: unknown argument 'b' (allowed: text)", "invalid_arguments"),
        (call("quick", "{"), "the arguments are not valid JSON", "invalid_arguments"),
        (call("quick", "[]"), "the arguments must be a JSON object, got a list", "invalid_arguments"),
        (call("fail", '{"kind": "own"}'), "the fact is gone", "tool_error"),
        (call("fail", '{"kind": "bug"}'), "ValueError: bad value", "ValueError"),
        (call("fail", '{"kind": "time"}'), "TimeoutError: mine", "TimeoutError"),
        (call("fail", '{"kind": "none"}'), "KeyError: 'none'", "KeyError"),
    ],
)
def test_errors_are_the_model_s_to_read_and_the_episode_goes_on(given, answer, error_type):
    class Env(GameEnv):
        max_result_chars = 1000

    _, step = play(calls(given, call("quick", '{"text": "next"}')), env=Env())
    assert results(step)[0].startswith(f"tool_error: {answer}")
    assert results(step)[1] == "next"
    assert step.tool_errors == {"call_0_0": error_type}
    assert set(step.messages[-2]) == {"role", "content", "tool_call_id", "name"}  # the model sees no error type
    assert not step.terminated


def test_an_unknown_tool_gets_a_suggestion_and_a_huge_name_is_cut():
    class Env(GameEnv):
        max_result_chars = 1000

    _, step = play(calls(call("quik"), call("q" * 100_000)), env=Env())
    assert results(step)[0].endswith("Did you mean 'quick'?")
    assert len(results(step)[1]) < 300


def test_tool_errors_are_counted():
    _, step = play(
        calls(call("fail", '{"kind": "own"}'), call("nothing"), call("quick", '{"text": "a"}')),
        {"role": "assistant", "content": "4"},
    )
    assert step.metrics == {"turns": 2, "tool_calls": 3, "tool_errors": 2, "calls_fail": 1, "calls_quick": 1}


class ImpatientEnv(GameEnv):
    tool_timeout_s = 0.5
    max_result_chars = 1000


def test_a_hung_async_tool_is_cut_and_cleans_up():
    env, step = play(calls(call("hang"), call("quick", '{"text": "next"}')), env=ImpatientEnv())
    assert results(step) == ["tool_error: hang took longer than 0.5 s and was stopped", "next"]
    assert step.tool_errors == {"call_0_0": "timeout"}
    assert env.cleaned


def test_a_hung_synchronous_tool_is_cut():
    env, step = play(calls(call("hang_thread"), call("quick", '{"text": "next"}')), env=ImpatientEnv())
    env.release.set()
    assert results(step) == ["tool_error: hang_thread took longer than 0.5 s and was stopped", "next"]


def test_a_hung_tool_does_not_stop_other_episodes():
    async def main():
        stuck, other = GameEnv(), GameEnv()
        await stuck.reset(Task("a"))
        await other.reset(Task("b"))
        hung = asyncio.create_task(stuck.step(calls(call("hang_thread"))))
        step = await other.step(calls(call("quick", '{"text": "x"}')))
        assert not hung.done()
        stuck.release.set()
        return results(step), results(await hung)

    assert asyncio.run(main()) == (["x"], ["late"])


def test_a_long_result_is_cut_with_a_note():
    _, step = play(calls(call("quick", '{"text": "' + "y" * 100 + '"}')))
    assert results(step) == ["y" * 30 + "\n[cut: 30 of 100 characters shown]"]


def test_a_long_error_is_cut_too():
    _, step = play(calls(call("quick", '{"' + "z" * 1000 + '": 1}')))
    assert len(results(step)[0]) < 100


def test_should_stop_ends_the_episode_after_the_call():
    env, step = play(calls(call("quick", '{"text": "a"}'), call("finish"), call("quick", '{"text": "b"}')))
    assert (step.terminated, step.reward) == (True, 1.0)
    assert env.log == ["a"]
    assert results(step)[:2] == ["a", "finished"]
    assert results(step)[2].startswith("tool_error: not run, an earl")
    assert step.metrics == {"turns": 1, "tool_calls": 2, "tool_errors": 0, "calls_quick": 1, "calls_finish": 1}


def test_a_step_after_the_end_is_an_error():
    with pytest.raises(RuntimeError, match="the episode has ended; call reset"):
        play({"role": "assistant", "content": "4"}, {"role": "assistant", "content": "4"})


def test_a_reset_begins_anew():
    async def main():
        env = GameEnv()
        await env.reset(Task("first"))
        await env.step({"role": "assistant", "content": "4"})
        await env.reset(Task("second", target="5"))
        return await env.step({"role": "assistant", "content": "5"})

    step = asyncio.run(main())
    assert (step.reward, step.metrics["turns"]) == (1.0, 1)
    assert step.messages[1]["content"] == "second"


def test_the_history_handed_out_is_a_copy():
    async def main():
        env = GameEnv()
        opening = await env.reset(Task("Go."))
        opening.clear()
        message = calls(call("quick", '{"text": "a"}', id="c"))
        step = await env.step(message)
        message["tool_calls"].clear()
        step.messages[2]["tool_calls"][0]["function"]["arguments"] = "changed"
        env.messages.pop()
        return env.messages

    history = asyncio.run(main())
    assert [message["role"] for message in history] == ["system", "user", "assistant", "tool"]
    assert history[2]["tool_calls"][0]["function"]["arguments"] == '{"text": "a"}'


class HandWritten:
    """A tool after the protocol, without the decorator."""

    name = "echo"
    description = "Say it again."

    def __init__(self, answer):
        self.parameters_schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        self.answer = answer

    async def execute(self, arguments):
        return self.answer(arguments)


class HandWrittenEnv(GameEnv):
    answer = staticmethod(ToolResult)

    def tools(self) -> list[Tool]:
        return [HandWritten(self.answer)]


def test_tools_of_the_protocol():
    env, step = play(calls(call("echo", '{"text": "a"}')), env=HandWrittenEnv())
    assert env.tool_specs[0]["function"]["parameters"] == {"type": "object", "properties": {"text": {"type": "string"}}}
    assert results(step) == ['{"text": "a"}']


@pytest.mark.parametrize("answer", [lambda text: text, lambda text: ToolResult(None), lambda text: None])
def test_a_tool_that_returns_something_else_is_the_author_s_error(answer):
    class Env(HandWrittenEnv):
        pass

    Env.answer = staticmethod(answer)
    with pytest.raises(EnvContractError, match="tool 'echo' must return a ToolResult with text"):
        play(calls(call("echo")), env=Env())


def test_cancellation_passes_through_a_running_tool():
    async def main():
        env = GameEnv()
        await env.reset(Task("Go."))
        step = asyncio.create_task(env.step(calls(call("hang"))))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        return env

    asyncio.run(main())


class TalkEnv(ToolEnv):
    async def respond(self, message):
        self.heard = message
        return [{"role": "user", "content": "And then?"}] if message["content"] != "Bye." else []

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"

    async def score(self, message):
        return float(message["content"] == "Bye.")


def test_a_message_that_is_answered_does_not_end_the_episode():
    async def run():
        env = TalkEnv()
        await env.reset(Task("Hello."))
        first = await env.step({"role": "assistant", "content": "Well."})
        env.heard["content"] = "changed"  # a copy
        second = await env.step(calls(call("look")))
        third = await env.step({"role": "assistant", "content": "Bye."})
        return [first, second, third]

    results = asyncio.run(run())
    assert [(result.terminated, result.reward) for result in results] == [(False, 0.0), (False, 0.0), (True, 1.0)]
    assert [(message["role"], message["content"]) for message in results[-1].messages] == [
        ("user", "Hello."),
        ("assistant", "Well."),
        ("user", "And then?"),
        ("assistant", ""),
        ("tool", "seen"),
        ("assistant", "Bye."),
    ]
    assert results[-1].metrics["turns"] == 3
