"""MessageEnv: gymnasium.make on a registered environment, its checks, wrappers, forks and notebooks."""

import asyncio
import copy
import multiprocessing
import os
import subprocess
import sys
import warnings

import gymnasium
import pytest
from adding_env import ENV_ID, AddingEnv, call, generate_tasks
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from suite import SHIPPED

import llmgym
from llmgym import ScriptedPolicy, StopReason, Task
from llmgym.errors import ConfigError, MessageError, TaskError
from llmgym.gym.env import MessageEnv
from llmgym.gym.spaces import MessageSpace

TASK = Task("What is 20 + 3?", "23")


@pytest.fixture
def env():
    made = gymnasium.make(ENV_ID)
    yield made
    made.close()


def answer(text):
    return [{"role": "assistant", "content": text}]


@pytest.mark.parametrize("env_id", [ENV_ID, *SHIPPED])
def test_check_env_without_a_warning(env_id, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(env_id).unwrapped)


@pytest.mark.parametrize(
    "program",
    [
        "import gymnasium, llmgym; env = gymnasium.make('ToolUseGame-v0')",
        "import gymnasium; env = gymnasium.make('llmgym:ToolUseGame-v0')",
    ],
)
def test_make_in_a_fresh_interpreter(program):
    program += "; print(type(env.unwrapped).__name__, env.reset(seed=0)[0][-1]['role'])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.stdout == "MessageEnv user\n", result.stderr


def test_a_whole_episode(env):
    assert isinstance(env.unwrapped, MessageEnv)
    assert env.observation_space == MessageSpace()
    assert env.action_space == MessageSpace(roles=("assistant",), length=1)

    history, info = env.reset(seed=3, options={"task": TASK})
    assert [message["role"] for message in history] == ["system", "user"]
    assert history[1]["content"] == "What is 20 + 3?"
    assert info["task"] == TASK
    assert [spec["function"]["name"] for spec in info["tool_specs"]] == ["add", "process", "quit"]
    assert info["stop_reason"] is None
    assert info["metrics"] == {}

    action = call("add", '{"a": 20, "b": 3}')
    history, reward, terminated, truncated, info = env.step(action)
    assert history in env.observation_space
    assert history[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 20, "b": 3}'}
    assert history[3] == {"role": "tool", "content": "23", "tool_call_id": "c", "name": "add"}
    assert (reward, terminated, truncated, info["stop_reason"]) == (0.0, False, False, None)

    history, reward, terminated, truncated, info = env.step(answer("23"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["stop_reason"] is StopReason.TERMINATED
    assert info["metrics"] == {"turns": 2, "tool_calls": 1, "tool_errors": 0, "calls_add": 1}
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(answer("23"))


@pytest.mark.parametrize(
    "action", ["23", {"role": "assistant", "content": "23"}, {"content": "23"}, (answer("23")[0],)]
)
def test_bare_messages_and_strings_are_actions(env, action):
    env.reset(options={"task": TASK})
    history, reward, terminated, _, _ = env.step(action)
    assert history[-1] == {"role": "assistant", "content": "23"}
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize(
    ("action", "given"),
    [
        (7, "int 7"),
        (None, "NoneType None"),
        ([], "got 0 entries"),
        (answer("1") * 2, "got 2 entries"),
        ([{"role": "user", "content": "23"}], "'user'"),
        ([["23"]], r"list \['23'\]"),
        ({"role": "assistant", "content": 23}, "int 23"),
    ],
)
def test_an_action_that_is_no_message_says_what_was_given_and_changes_nothing(env, action, given):
    before, _ = env.reset(options={"task": TASK})
    with pytest.raises(MessageError, match=rf"an action is a list with .*{given}"):
        env.step(action)
    history, reward, *_ = env.step("23")
    assert history[:-1] == before
    assert reward == 1.0


def test_malformed_calls_are_answered_and_end_nothing(env):
    env.reset(options={"task": TASK})
    for action in (call("add", '{"a": 20,'), call("add", "[1]"), call("nothing"), call("add", '{"a": "x", "b": 1}')):
        history, reward, terminated, truncated, _ = env.step(action)
        assert history[-1]["content"].startswith("tool_error:")
        assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step("23")[4]["metrics"]["tool_errors"] == 4


def test_the_environment_truncates(env):
    env.reset(options={"task": TASK})
    _, reward, terminated, truncated, info = env.step("give up")
    assert (reward, terminated, truncated) == (0.25, False, True)
    assert info["stop_reason"] is StopReason.ENV
    assert info["metrics"] == {"gave_up": True}


def test_max_turns_truncates_and_an_ending_in_the_last_turn_is_no_truncation():
    env = gymnasium.make(ENV_ID, max_turns=2)
    env.reset(options={"task": TASK})
    assert env.step(call("process"))[3] is False
    _, reward, terminated, truncated, info = env.step(call("process"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["stop_reason"] is StopReason.MAX_TURNS
    assert info["metrics"] == {}
    env.reset(options={"task": TASK})
    env.step(call("process"))
    assert env.step("23")[1:4] == (1.0, True, False)


def test_reset_with_a_seed_is_reproducible(env):
    def episodes(seed):
        first, info = env.reset(seed=seed)
        observations, tasks = [first], [info["task"]]
        for _ in range(5):
            observation, info = env.reset()
            observations.append(observation)
            tasks.append(info["task"])
        return observations, tasks

    observations, tasks = episodes(11)
    assert episodes(11) == (observations, tasks)
    assert episodes(12)[0] != observations
    assert len({task.id for task in tasks}) > 1
    assert all(task in generate_tasks("train") for task in tasks)


def test_rng_is_seeded_as_run_episode_seeds_it(env):
    def draw_of(index):
        policy = ScriptedPolicy(["23"])
        episode = asyncio.run(llmgym.run_episode(AddingEnv(), TASK, policy, seed=5, episode_index=index))
        return episode.initial_messages

    other = generate_tasks("train")[0]
    assert env.reset(seed=5, options={"task": TASK})[0] == draw_of(0)
    assert env.reset(options={"task": other})[0] != draw_of(1)
    assert env.reset(options={"task": TASK})[0] == draw_of(1)
    assert env.reset(seed=5, options={"task": TASK})[0] == draw_of(0)
    assert draw_of(0) != draw_of(1)


def test_the_task_option_takes_a_task_or_an_index(env):
    assert env.reset(options={"task": 4})[1]["task"] == generate_tasks("train")[4]
    assert env.reset(options={"task": TASK})[1]["task"] == TASK


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"task": 10}, "no task 10; this environment has 10 tasks"),
        ({"task": -1}, "no task -1"),
        ({"task": "What?"}, "a Task or an index below 10, got str 'What\\?'"),
        ({"task": True}, "got bool True"),
        ({"tasks": 1}, "unknown reset option 'tasks'.*Did you mean 'task'"),
    ],
)
def test_bad_tasks(env, options, text):
    with pytest.raises(TaskError, match=text):
        env.reset(options=options)


def test_splits_and_task_options():
    for split, count in (("train", 10), ("val", 3), ("test", 3)):
        assert gymnasium.make(ENV_ID, split=split).unwrapped.tasks == generate_tasks(split)
        assert len(generate_tasks(split)) == count
    level_2 = gymnasium.make(ENV_ID, split="val", level=2)
    assert level_2.reset()[1]["task"].metadata == {"level": 2}
    assert gymnasium.make(ENV_ID, tasks=[TASK]).reset()[1]["task"] == TASK


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"split": "trian"}, TaskError, "Did you mean 'train'"),
        ({"tasks": []}, TaskError, "holds no task"),
        ({"tasks": ["What?"]}, TaskError, "tasks\\[0\\] must be a Task, got str"),
        ({"tasks": [TASK], "level": 2}, TaskError, "level would have no effect"),
        ({"max_turns": 0}, ConfigError, "max_turns"),
    ],
)
def test_bad_arguments(arguments, error, text):
    with pytest.raises(error, match=text):
        gymnasium.make(ENV_ID, **arguments)


def test_an_environment_without_tasks_needs_one_given():
    llmgym.register("AddingWithoutTasks-v0", env=AddingEnv)
    env = gymnasium.make("AddingWithoutTasks-v0")
    with pytest.raises(TaskError, match="options="):
        env.reset()
    assert env.reset(options={"task": TASK})[1]["task"] == TASK


def test_a_new_registration_under_the_same_id_brings_its_own_tasks():
    for prompt in ("first?", "second?"):
        llmgym.register("Replaced-v0", env=AddingEnv, tasks=[Task(prompt)])
        assert gymnasium.make("Replaced-v0").reset()[1]["task"].prompt == prompt


def test_what_is_returned_belongs_to_the_caller(env):
    history, info = env.reset(options={"task": TASK})
    specs = copy.deepcopy(info["tool_specs"])
    history[0]["content"] = "changed"
    info["tool_specs"][0]["function"]["name"] = "changed"
    after, *_, info = env.step(call("add", '{"a": 1, "b": 2}'))
    assert after[0]["content"].startswith("draw ")
    assert info["tool_specs"] == specs


def test_every_episode_is_closed_once(env):
    def prompts(start):
        return AddingEnv.closed[start:]

    start = len(AddingEnv.closed)
    tasks = [Task(f"{letter}?", "1") for letter in "abcd"]
    env.reset(options={"task": tasks[0]})
    env.step("1")  # the end closes
    assert prompts(start) == ["a?"]
    env.reset(options={"task": tasks[1]})
    env.reset(options={"task": tasks[2]})  # the next reset closes
    assert prompts(start) == ["a?", "b?"]
    env.close()
    env.close()
    assert prompts(start) == ["a?", "b?", "c?"]
    env.reset(options={"task": tasks[3]})  # an environment can be used again
    assert prompts(start) == ["a?", "b?", "c?"]


def test_a_raising_close_is_logged_and_changes_nothing(caplog):
    class Leaking(AddingEnv):
        async def close(self):
            raise OSError("still open")

    llmgym.register("Leaking-v0", env=Leaking, tasks=[TASK])
    env = gymnasium.make("Leaking-v0")
    env.reset()
    assert env.step("23")[1:3] == (1.0, True)
    assert "still open" in caplog.text


def test_an_environment_that_raises_ends_its_episode(env):
    env.reset(options={"task": TASK})
    with pytest.raises(OSError, match="on fire"):
        env.step("break")
    with pytest.raises(ResetNeeded):
        env.step("23")
    env.reset(options={"task": TASK})
    with pytest.raises(SystemExit):
        env.step(call("quit"))
    env.reset(options={"task": TASK})
    assert env.step("23")[1] == 1.0


def test_step_and_render_before_reset():
    env = MessageEnv(ENV_ID, render_mode="ansi")
    with pytest.raises(ResetNeeded):
        env.step("23")
    with pytest.raises(ResetNeeded):
        env.render()


def test_wrappers():
    env = RecordEpisodeStatistics(TimeLimit(gymnasium.make(ENV_ID), 3))
    env.reset(options={"task": TASK})
    env.step(call("process"))
    *_, info = env.step("23")
    assert (info["episode"]["r"], info["episode"]["l"]) == (1.0, 2)
    env.reset()
    results = [env.step(call("process")) for _ in range(3)]
    assert [result[2:4] for result in results] == [(False, False), (False, False), (False, True)]
    assert results[-1][4]["episode"]["l"] == 3


def test_ansi_rendering():
    env = gymnasium.make(ENV_ID, render_mode="ansi")
    env.reset(seed=0, options={"task": TASK})
    env.step(call("add", '{"a": 20, "b": 3}'))
    env.step("\x1b[31m23 [bold]")
    text = env.render()
    assert text.split("\n\n", 1)[1] == (
        "[user]\nWhat is 20 + 3?\n\n"
        '[assistant]\nadd({"a": 20, "b": 3})\n\n'
        "[tool add]\n23\n\n"
        "[assistant]\n\\x1b[31m23 [bold]\n\n"
        "terminated, reward 0\n"
    )


def test_human_rendering_prints_each_message_once(capsys):
    env = gymnasium.make(ENV_ID, render_mode="human")
    env.reset(options={"task": TASK})
    env.step(call("add", '{"a": 20, "b": 3}'))
    assert env.render() is None
    env.step("it is \x1b[31m[bold]23")
    printed = capsys.readouterr().out
    for text in ("What is 20 + 3?", 'add({"a": 20, "b": 3})', "it is \\x1b[31m[bold]23", "terminated, reward 0"):
        assert printed.count(text) == 1
    assert "\x1b[31m" not in printed


def test_an_unknown_render_mode():
    with pytest.raises(ConfigError, match=r"'ansy'; allowed are ansi, human and None\. Did you mean 'ansi'"):
        MessageEnv(ENV_ID, render_mode="ansy")


def test_in_a_notebook_the_callers_loop_is_running():
    async def cell():
        env = gymnasium.make(ENV_ID)
        env.reset(options={"task": TASK})
        assert env.step(call("add", '{"a": 20, "b": 3}'))[0][-1]["content"] == "23"
        return env.step("23")

    assert asyncio.run(cell())[1] == 1.0


def test_the_coroutines_run_on_the_callers_loop():
    async def play():
        env = MessageEnv(ENV_ID)
        await env.reset_async(options={"task": TASK})
        result = await env.step_async("23")
        await env.close_async()
        return result

    assert asyncio.run(play())[1] == 1.0


def _play_in_worker(queue):
    env = gymnasium.make(ENV_ID)
    env.reset(options={"task": TASK})
    history, *_ = env.step(call("process"))
    queue.put((os.getpid(), history[-1]["content"], env.step("23")[1]))


def test_in_a_worker_forked_after_the_loop_has_started(env):
    env.reset(options={"task": TASK})
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    worker = context.Process(target=_play_in_worker, args=(queue,), daemon=True)
    worker.start()
    pid, content, reward = queue.get(timeout=60)
    worker.join(60)
    assert worker.exitcode == 0
    assert pid == worker.pid != os.getpid()
    assert content == str(pid)
    assert reward == 1.0
    assert env.step("23")[1] == 1.0
