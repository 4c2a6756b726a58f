"""gymnasium.make_vec in its three forms, to the end of episodes and into the next ones."""

import asyncio
import warnings

import gymnasium
import numpy as np
import pytest
from adding_env import ENV_ID, AddingEnv, call
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import llmgym
from llmgym import StopReason, Task
from llmgym.errors import ConfigError, MessageError
from llmgym.gym.vector import MessageVectorEnv

TASKS = [Task(f"What is {number} + 1?", str(number + 1)) for number in range(4)]
FORMS = [
    ({"vectorization_mode": "vector_entry_point"}, MessageVectorEnv),
    ({"vectorization_mode": "sync"}, SyncVectorEnv),
    ({"vectorization_mode": "async", "vector_kwargs": {"shared_memory": False}}, AsyncVectorEnv),
    ({}, MessageVectorEnv),
]


@pytest.mark.parametrize(("arguments", "kind"), FORMS)
def test_to_the_end_and_into_the_next_episode(arguments, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12 on
        envs = gymnasium.make_vec(ENV_ID, num_envs=3, tasks=TASKS, **arguments)
        assert type(envs) is kind
        assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        observations, infos = envs.reset(seed=1)
        assert isinstance(observations, tuple) and observations in envs.observation_space
        targets = [task.target for task in infos["task"]]
        assert [len(specs) for specs in infos["tool_specs"]] == [3, 3, 3]

        actions = ("wrong", call("add", '{"a": 1, "b": 1}'), targets[2])
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert observations in envs.observation_space
        assert rewards.tolist() == [0.0, 0.0, 1.0]
        assert terminated.tolist() == [True, False, True]
        assert not truncated.any()
        assert list(infos["stop_reason"]) == [StopReason.TERMINATED, None, StopReason.TERMINATED]
        assert infos["metrics"]["turns"].tolist() == [1, 0, 1]
        assert infos["metrics"]["_turns"].tolist() == [True, False, True]
        assert observations[1][-1]["content"] == "2"

        observations, rewards, terminated, truncated, infos = envs.step(("ignored", targets[1], "ignored"))
        assert rewards.tolist() == [0.0, 1.0, 0.0]
        assert terminated.tolist() == [False, True, False]
        assert [len(history) for history in observations] == [2, 5, 2]
        assert list(infos["stop_reason"]) == [None, StopReason.TERMINATED, None]
        targets[0], targets[2] = infos["task"][0].target, infos["task"][2].target

        _, rewards, terminated, _, _ = envs.step((targets[0], "ignored", "give up"))
        assert rewards.tolist() == [1.0, 0.0, 0.25]
        assert terminated.tolist() == [True, False, False]
        envs.close()


def test_the_three_forms_agree():
    def play(arguments):
        envs = gymnasium.make_vec(ENV_ID, num_envs=2, **arguments)
        envs.action_space.seed(4)
        observations, infos = envs.reset(seed=9)
        record = [(observations, [task.id for task in infos["task"]])]
        for step in range(6):
            actions = envs.action_space.sample() if step % 2 else (call("process", "[]"),) * 2
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            record.append((observations, rewards.tolist(), terminated.tolist(), truncated.tolist()))
        envs.close()
        return record

    first, *others = [play(arguments) for arguments, _ in FORMS[:3]]
    assert others == [first, first]


def test_seeds_of_a_vector_environment_are_those_of_single_ones():
    envs = gymnasium.make_vec(ENV_ID, num_envs=3)
    single = gymnasium.make(ENV_ID)
    assert list(envs.reset(seed=20)[0]) == [single.reset(seed=seed)[0] for seed in (20, 21, 22)]
    assert list(envs.reset(seed=[7, 5, 7])[0]) == [single.reset(seed=seed)[0] for seed in (7, 5, 7)]
    with pytest.raises(ConfigError, match="3 environments, got 2"):
        envs.reset(seed=[1, 2])


def test_episodes_run_concurrently_on_one_loop():
    class Meeting(AddingEnv):
        """Each step waits until all three have come."""

        barrier = asyncio.Barrier(3)

        async def step(self, message):
            async with asyncio.timeout(30):
                await self.barrier.wait()
            return await super().step(message)

    llmgym.register("Meeting-v0", env=Meeting, tasks=TASKS)
    envs = gymnasium.make_vec("Meeting-v0", num_envs=3)
    _, infos = envs.reset()
    assert envs.step([task.target for task in infos["task"]])[1].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        ("23", "one action for each of the 2 environments, got a str"),
        ({"role": "assistant", "content": ""}, "got a dict"),
        (["1"], "got a list of 1"),
        (["1", 7], "an action is a list with .* got int 7"),
    ],
)
def test_bad_actions_step_nothing(actions, text):
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, tasks=TASKS)
    _, infos = envs.reset()
    with pytest.raises(MessageError, match=text):
        envs.step(actions)
    assert envs.step([task.target for task in infos["task"]])[1].tolist() == [1.0, 1.0]


def test_an_error_says_in_which_environment_and_lets_the_others_finish():
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, tasks=TASKS)
    envs.reset()
    closed = len(AddingEnv.closed)
    with pytest.raises(OSError, match="on fire") as caught:
        envs.step(["break", "wrong"])
    assert caught.value.__notes__ == ["in environment 0 of 2"]
    assert len(AddingEnv.closed) == closed + 1  # the second ended its episode


def test_max_turns_options_and_close():
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, split="val", level=2, max_turns=1)
    _, infos = envs.reset(options={"task": 2})
    assert [task.metadata["level"] for task in infos["task"]] == [2, 2]
    assert infos["task"][0] == infos["task"][1]
    _, _, terminated, truncated, infos = envs.step([call("process")] * 2)
    assert truncated.tolist() == [True, True] and not terminated.any()
    assert list(infos["stop_reason"]) == [StopReason.MAX_TURNS] * 2
    envs.step([None, None])
    closed = len(AddingEnv.closed)
    envs.close()
    assert len(AddingEnv.closed) == closed + 2


def test_statistics_wrapper():
    envs = RecordEpisodeStatistics(gymnasium.make_vec(ENV_ID, num_envs=2, tasks=TASKS))
    _, infos = envs.reset()
    targets = [task.target for task in infos["task"]]
    envs.step([call("process"), targets[1]])
    *_, infos = envs.step([targets[0], "ignored"])
    assert infos["episode"]["r"][0] == 1.0
    assert infos["episode"]["l"][0] == 2
    assert np.isclose(list(envs.return_queue), [1.0, 1.0]).all()


def test_rendering(capsys):
    envs = gymnasium.make_vec(ENV_ID, num_envs=2, render_mode="ansi")
    envs.reset(options={"task": 1})
    assert [text.count("What is 1 + 1?") for text in envs.render()] == [1, 1]
    humans = gymnasium.make_vec(ENV_ID, num_envs=2, render_mode="human")
    humans.reset(options={"task": 1})
    assert capsys.readouterr().out.count("What is 1 + 1?") == 2


def test_no_environment_at_all():
    with pytest.raises(ConfigError, match="num_envs"):
        MessageVectorEnv(ENV_ID, num_envs=0)


def test_the_game_in_all_forms_with_its_expert():
    async def act(policy, task, messages, specs, fresh):
        if fresh:
            await policy.start(task)
        return await policy.act(messages, specs)

    for arguments, _ in FORMS[:3]:
        envs = gymnasium.make_vec("ToolUseGame-v0", num_envs=4, split="val", **arguments)
        observations, infos = envs.reset(seed=0)
        tasks = list(infos["task"])
        policies = [llmgym.expert_policy("ToolUseGame-v0") for _ in tasks]
        ended, total, turn = np.zeros(4, dtype=bool), np.zeros(4), 0
        while not ended.all():
            actions = [
                "ignored" if ended[index] else asyncio.run(act(policy, task, messages, specs, turn == 0))
                for index, (policy, task, messages, specs) in enumerate(
                    zip(policies, tasks, observations, infos["tool_specs"], strict=True)
                )
            ]
            observations, rewards, terminated, truncated, infos = envs.step(actions)
            total += np.where(ended, 0.0, rewards)
            ended |= terminated | truncated
            turn += 1
        assert total.tolist() == [1.0] * 4
        envs.close()
