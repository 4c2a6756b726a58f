import pytest
from toys import LetterEnv, TalkEnv, make_trainer, member, scripted

from llmgym import Episode, StopReason, Task, Turn
from llmgym_trainer.algorithm.advantages import STD_EPSILON, Credit, EpisodeRewards, discounted_returns


def rewards(*turns: float, outcome: float | None = None) -> EpisodeRewards:
    return EpisodeRewards(turns[-1] if outcome is None else outcome, turns)


@pytest.mark.parametrize(
    ("reason", "turns", "outcome", "expected"),
    [
        (StopReason.TERMINATED, (0.1, 0.2, 1.0), 0.7, (0.1, 0.2, 0.7)),  # 1.0 is the reward before shaping
        (StopReason.ENV, (0.1, 1.0), 1.0, (0.1, 1.0)),
        (StopReason.MAX_TURNS, (0.1, 0.2), -0.5, (0.1, 0.2 - 0.5)),  # the last step has a reward of its own
        (StopReason.PARSE_FAILURE, (0.1, 0.0), -0.1, (0.1, -0.1)),
        (StopReason.CONTEXT_OVERFLOW, (), 0.0, ()),
    ],
)
def test_what_an_episode_earned(reason, turns, outcome, expected):
    episode = Episode(Task("x"), reason, outcome, [Turn(reward=reward) for reward in turns])
    found = EpisodeRewards.of(episode, outcome)
    assert found.outcome == outcome
    assert found.turns == pytest.approx(expected)


def test_discounted_returns():
    # From behind: 8, 4 + 8 / 2 = 8, 2 + 8 / 2 = 6.
    assert discounted_returns([2, 4, 8], 0.5) == [6, 8, 8]
    assert discounted_returns([2, 4, 8], 1.0) == [14, 12, 8]
    assert discounted_returns([2, 4, 8], 0.0) == [2, 4, 8]
    assert discounted_returns([], 0.5) == []


def test_by_default_all_turns_have_the_advantage_of_the_episode():
    group = [rewards(0.5, 0.5, 1.0), rewards(0.0, outcome=0.0)]
    assert Credit(scale="none").advantages([group]) == [[[0.5, 0.5, 0.5], [-0.5]]]


def test_returns_are_compared_turn_by_turn():
    # Returns at discount 0.5: (1 + 0.5 * 2, 2) = (2, 2) and (0 + 0.5 * 1, 1) = (0.5, 1).
    # Means 1.25 and 1.5.
    credit = Credit("return", discount=0.5, scale="none")
    group = [rewards(1, 2), rewards(0, 1)]
    assert credit.advantages([group]) == [[[0.75, 0.5], [-0.75, -0.5]]]


def test_an_episode_that_ended_earlier_enters_with_its_last_return():
    # Returns (3, 2) and (1,). At turn 0: 3 and 1, mean 2. At turn 1: 2 and again 1, mean 1.5.
    group = [rewards(1, 2), rewards(1)]
    assert Credit("return", scale="none").advantages([group]) == [[[1, 0.5], [-1]]]


def test_without_rewards_on_the_way_returns_are_the_episode():
    group = [rewards(0, 0, 1), rewards(0), rewards(0, 0.5), rewards(outcome=0.25)]
    assert Credit("return").advantages([group]) == [[pytest.approx(a) for a in b] for b in Credit().advantages([group])]


def test_mt_grpo_adds_the_advantage_of_the_turn_to_every_turn_but_the_last():
    # Outcomes 1, 0: advantages 0.5, -0.5. First turns 0.2 and 0.6: advantages -0.2 and 0.2, at weight 2 -0.4 and 0.4.
    credit = Credit("mt_grpo", turn_weight=2.0, scale="none")
    group = [rewards(0.2, 1.0), rewards(0.6, 0.0)]
    assert credit.advantages([group]) == [[pytest.approx([0.1, 0.5]), pytest.approx([-0.1, -0.5])]]


def test_mt_grpo_compares_a_turn_with_those_that_are_not_last_either():
    # Turn 1 is the last one of the second episode and no turn of the third: nothing to compare the first one's with.
    credit = Credit("mt_grpo", scale="none")
    group = [rewards(0.5, 9.0, 1.0), rewards(0.1, 0.0), rewards(0.5)]
    outcome = [1 - 0.5, 0 - 0.5, 0.5 - 0.5]
    assert credit.advantages([group]) == [
        [
            pytest.approx([outcome[0] + 0.2, outcome[0], outcome[0]]),
            pytest.approx([outcome[1] - 0.2, outcome[1]]),
            [0.0],
        ]
    ]


def test_each_comparison_has_a_scale_of_its_own():
    # Two values 1 apart deviate by sqrt(0.5); 0.4 apart by 0.4 * sqrt(0.5).
    std = 0.5**0.5
    group = [rewards(0.2, 1.0), rewards(0.6, 0.0)]
    (first, second) = Credit("mt_grpo").advantages([group])[0]
    outcome, turn = 0.5 / (std + STD_EPSILON), 0.2 / (0.4 * std + STD_EPSILON)
    assert first == pytest.approx([outcome - turn, outcome])
    assert second == pytest.approx([-outcome + turn, -outcome])


def test_a_group_can_train_when_only_its_turns_differ():
    group = [rewards(0.2, 1.0), rewards(0.6, 1.0)]
    assert not Credit().has_reward_variance(group)
    assert Credit("return").has_reward_variance(group)
    assert Credit("mt_grpo").has_reward_variance(group)
    last_only = [rewards(0.2, 1.0), rewards(1.0)]
    assert not Credit("mt_grpo").has_reward_variance(last_only)
    assert not Credit("return").has_reward_variance([rewards(0.5, 1.0), rewards(0.5, 1.0)])
    assert not Credit("return").has_reward_variance([])


def test_groups_keep_their_places():
    groups = [[rewards(0, 1), rewards(0)], [rewards(3), rewards(1, 1)]]
    for kind in ("episode", "return", "mt_grpo"):
        found = Credit(kind).advantages(groups)
        assert [[len(episode) for episode in group] for group in found] == [[2, 1], [1, 2]]
        assert found[0][0][0] > 0 > found[0][1][0]
        assert found[1][0][0] > 0 > found[1][1][0]


# Through the trainer.


class TurnRewards(TalkEnv):
    """The outcome is always 1; a turn earns the letters it says."""

    async def step(self, message):
        result = await super().step(message)
        result.reward = 1.0 if result.terminated else float(len(message["content"]))
        return result


LENGTHS = [[1, 8, 3], [2, 4, 3], [4, 2, 3], [9, 6, 3]]
"""Letters that each episode of a group says at each turn: 4, 5 and 3 on average."""


def say_lengths(key, turn, rng):
    return "a" * LENGTHS[member(key)][turn]


def test_turns_train_with_advantages_of_their_own(model_dir, tmp_path):
    with scripted(say_lengths):
        trainer = make_trainer(
            model_dir, tmp_path, env=TurnRewards, batch_size=1, credit="return", turn_discount=0.0, scale_rewards="none"
        )
    groups = trainer.sampler.sample(0)
    rows = trainer._rows(groups)
    assert [list(row.advantages) for row in rows] == [[-3, 3, 0], [-2, -1, 0], [0, -3, 0], [5, 1, 0]]
    episode = groups[0].episodes[0]
    assert episode.provenance["turn_advantages"] == [-3, 3, 0]
    trainer._backward(trainer.model, rows)
    assert trainer.model.lm_head.weight.grad.abs().max() > 0


def test_by_default_turn_rewards_change_nothing(model_dir, tmp_path):
    with scripted(say_lengths):
        trainer = make_trainer(model_dir, tmp_path, env=TurnRewards)
    assert trainer._rows(trainer.sampler.sample(0)) == []


def test_the_reference_reads_the_last_step_alone(model_dir, tmp_path):
    class Early(LetterEnv):
        turns = 2

        async def step(self, message):
            result = await super().step(message)
            result.reward = 5.0 if not result.terminated else result.reward
            return result

    trainer = make_trainer(model_dir, tmp_path, env=Early)
    assert all(e.reward <= 1.0 for g in trainer.sampler.sample(0) for e in g.episodes)
