"""from_gym: a third-party Gymnasium environment over message lists, written without our base classes, as an Env."""

import asyncio
import threading
import time

import gymnasium
import numpy as np
import pytest
from adding_env import ENV_ID as ADDING

import llmgym
from llmgym import Env, EpisodeLimits, ScriptedPolicy, StopReason, Task, from_gym, registry, run_episode
from llmgym.errors import ConfigError

SPEC = {
    "type": "function",
    "function": {"name": "left", "description": "Tries left.", "parameters": {"type": "object", "properties": {}}},
}
TASK = Task("Guess.", metadata={"secret": 3})


class GuessingGame(gymnasium.Env):
    """Higher or lower: each guess costs 0.25, the right one earns 2, the fourth wrong one truncates."""

    observation_space = gymnasium.spaces.Sequence(gymnasium.spaces.Text(100))
    action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Text(100))
    only_new = False
    made: list = []  # noqa: RUF012 - every instance, shared on purpose

    def __init__(self):
        self.closed = 0
        self.threads = {threading.current_thread()}
        self.made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.threads.add(threading.current_thread())
        drawn = int(self.np_random.integers(1000))
        self.secret = options["task"].metadata.get("secret", drawn)
        self.guesses = 0
        self.history = [{"role": "user", "content": f"{options['task'].prompt} ({drawn})"}]
        return list(self.history), {"tool_specs": [SPEC]}

    def step(self, action):
        self.threads.add(threading.current_thread())
        [message] = action
        self.guesses += 1
        if message["content"] == "hang":
            self.release.wait(60)
        if message["content"] == "exit":
            raise SystemExit("bye")
        guess = int(message["content"])
        right = guess == self.secret
        new = [] if right else [{"role": "user", "content": "higher" if guess < self.secret else "lower"}]
        self.history += [message, *new]
        info = {"metrics": {"guesses": np.int64(self.guesses)}}
        truncated = self.guesses == 4 and not right
        reward = np.float32(-0.25 + 2 * right)
        return new if self.only_new else list(self.history), reward, right, truncated, info

    def close(self):
        self.threads.add(threading.current_thread())
        self.closed += 1


class GuessingGameInParts(GuessingGame):
    """The same; an observation is what is new."""

    only_new = True


def play(env, script, task=TASK, **arguments):
    return asyncio.run(run_episode(env, task, ScriptedPolicy(script), **arguments))


@pytest.mark.parametrize(
    "make", [lambda: from_gym(GuessingGame), lambda: from_gym(GuessingGameInParts, observation="new")]
)
def test_dense_rewards_are_added_up(make):
    episode = play(make(), ["1", "5", "3"])
    assert episode.stop_reason is StopReason.TERMINATED
    assert episode.reward == 1.25  # -0.25 - 0.25 + 1.75
    assert [turn.reward for turn in episode.turns] == [-0.25, -0.5, 1.25]
    assert episode.metrics == {"guesses": 3}
    assert episode.tool_specs == [SPEC]
    assert [message["content"] for message in episode.messages][1:] == ["1", "higher", "5", "lower", "3"]
    assert not any(turn.history_edited for turn in episode.turns)


def test_dense_rewards_are_added_up_when_the_environment_truncates():
    episode = play(from_gym(GuessingGame), ["9", "9", "9", "9"])
    assert episode.stop_reason is StopReason.ENV
    assert episode.reward == -1.0


def test_an_episode_that_the_loop_stops_has_reward_0():
    episode = play(from_gym(GuessingGame), ["9", "9"], limits=EpisodeLimits(max_turns=2))
    assert (episode.stop_reason, episode.reward) == (StopReason.MAX_TURNS, 0.0)


def test_a_second_episode_starts_from_zero():
    gym_env = GuessingGame()
    assert play(from_gym(gym_env), ["1", "3"]).reward == 1.5
    assert play(from_gym(gym_env), ["3"]).reward == 1.75
    assert gym_env.closed == 0  # whoever made it closes it


def test_what_from_gym_makes_it_closes():
    env = from_gym(GuessingGame)
    count = len(GuessingGame.made)
    play(env, ["3"])
    assert [made.closed for made in GuessingGame.made[count:]] == [1]


def test_all_calls_run_on_one_daemon_thread_which_ends():
    count = len(GuessingGame.made)
    play(from_gym(GuessingGame), ["1", "3"])
    [thread] = GuessingGame.made[count].threads
    assert thread.daemon and thread is not threading.current_thread()
    thread.join(10)
    assert not thread.is_alive()


def test_other_episodes_go_on_while_one_hangs_and_closing_does_not_wait_for_it():
    GuessingGame.release = threading.Event()
    count = len(GuessingGame.made)

    async def both():
        return await asyncio.gather(
            run_episode(from_gym(GuessingGame), TASK, ScriptedPolicy(["hang"]), EpisodeLimits(env_timeout_s=1.0)),
            run_episode(from_gym(GuessingGame), TASK, ScriptedPolicy(["1", "3"])),
        )

    hanging, other = asyncio.run(both())
    assert hanging.stop_reason is StopReason.TIMEOUT
    assert hanging.close_error is None
    assert other.reward == 1.5
    stuck = next(made for made in GuessingGame.made[count:] if made.closed == 0)
    GuessingGame.release.set()
    for _ in range(1000):
        if stuck.closed:
            break
        time.sleep(0.01)
    assert stuck.closed == 1  # as soon as the call came back


def test_seeds_come_from_the_task_or_from_rng():
    def opening(task, **arguments):
        return play(from_gym(GuessingGame), ["0"], task, **arguments).messages[0]["content"]

    seeded = Task("Guess.", metadata={"seed": 17})
    expected = GuessingGame().reset(seed=17, options={"task": seeded})[0][0]["content"]
    assert {opening(seeded, episode_index=index) for index in range(3)} == {expected}
    free = [opening(TASK, seed=1, episode_index=index) for index in range(3)]
    assert len(set(free)) == 3
    assert free == [opening(TASK, seed=1, episode_index=index) for index in range(3)]


@pytest.mark.parametrize(("script", "text"), [(["x"], "ValueError: invalid literal"), (["exit"], "SystemExit: bye")])
def test_what_the_environment_raises_is_an_error_of_the_episode(script, text):
    count = len(GuessingGame.made)
    episode = play(from_gym(GuessingGame), script)
    assert episode.stop_reason is StopReason.ERROR
    assert text in episode.stop_detail
    assert GuessingGame.made[count].closed == 1


def test_observations_that_are_no_messages():
    episode = play(from_gym("CartPole-v1"), ["0"])
    assert episode.stop_reason is StopReason.ERROR
    assert "MessageError" in episode.stop_detail


def test_our_own_face_goes_back_and_forth():
    task = llmgym.tasks(ADDING)[2]
    episode = play(from_gym(ADDING), [{"role": "assistant", "content": task.target}], task)
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert [spec["function"]["name"] for spec in episode.tool_specs] == ["add", "process", "quit"]
    assert episode.metrics["turns"] == 1


@pytest.mark.parametrize("target", [7, None, [GuessingGame]])
def test_bad_targets(target):
    with pytest.raises(ConfigError, match=r"from_gym takes a gymnasium\.Env"):
        from_gym(target)


def test_bad_observation():
    with pytest.raises(ConfigError, match="'history' or 'new', got 'all'"):
        from_gym(GuessingGame, observation="all")


def test_every_command_takes_a_gymnasium_class_from_a_file(tmp_path):
    path = tmp_path / "my_gym_env.py"
    path.write_text(
        "import gymnasium\n"
        "class Echo(gymnasium.Env):\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        self.history = [{'role': 'user', 'content': options['task'].prompt}]\n"
        "        return self.history, {}\n"
        "    def step(self, action):\n"
        "        self.history = self.history + action\n"
        "        return self.history, 0.5, True, False, {}\n"
    )
    env = registry.find(f"{path}:Echo").make_env(TASK)
    assert isinstance(env, Env)
    assert play(env, ["hello"]).reward == 0.5


def test_ids_registered_with_gymnasium_alone_are_found():
    gymnasium.register("Guessing-v0", entry_point=GuessingGame, disable_env_checker=True)
    try:
        env = registry.find("Guessing-v0").make_env(TASK)
        assert play(env, ["2", "3"]).reward == 1.5
    finally:
        gymnasium.registry.pop("Guessing-v0")


def test_a_gymnasium_class_registers_like_ours():
    llmgym.register("Guessing-v1", env=GuessingGame, tasks=[TASK])
    env = gymnasium.make("Guessing-v1")
    env.reset()
    assert [env.step(guess)[1:3] for guess in ("1", "5", "3")] == [(0.0, False), (0.0, False), (1.25, True)]
