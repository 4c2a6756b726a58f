import asyncio

import pytest

from llmgym import EpisodeLimits, ScriptedPolicy, StopReason, Task, ToolEnv, run_episode, weighted_reward
from llmgym.errors import ConfigError


def test_parts_are_weighed_and_logged_without_their_weight():
    assert weighted_reward({"correct": 1.0, "short": 0.4}, {"short": 0.5}) == (
        pytest.approx(1.2),
        {"reward/correct": 1.0, "reward/short": 0.4},
    )
    assert weighted_reward({"correct": True, "rude": 1}, {"rude": -0.25}) == (
        0.75,
        {"reward/correct": 1, "reward/rude": 1},
    )
    assert weighted_reward({}) == (0.0, {})


def test_a_weight_without_a_part():
    with pytest.raises(
        ConfigError, match=r"component 'corect', but the components are correct\. Did you mean 'correct'"
    ):
        weighted_reward({"correct": 1.0}, {"corect": 2.0})


class Parts(ToolEnv):
    reward_weights = {"short": 0.5}  # noqa: RUF012

    async def score(self, message):
        return {"correct": float(message["content"] == "4"), "short": 1 / len(message["content"])}


def play(env, answer):
    return asyncio.run(run_episode(env, Task("2 + 2?"), ScriptedPolicy([answer]), EpisodeLimits(max_turns=2)))


def test_parts_in_an_episode():
    episode = play(Parts(), "4 ok")
    assert episode.reward == 0.5 * 0.25
    assert episode.metrics == {
        "turns": 1, "tool_calls": 0, "tool_errors": 0, "reward/correct": 0.0, "reward/short": 0.25,
    }  # fmt: skip
    assert play(Parts(), "4").reward == 1.5


def test_a_wrong_weight_is_an_error_of_the_episode():
    env = Parts()
    env.reward_weights = {"shrt": 1.0}
    episode = play(env, "4")
    assert episode.stop_reason is StopReason.ERROR
    assert "Did you mean 'short'?" in episode.stop_detail
