import math

import pytest

from llmgym import Episode, StopReason, Task, Turn
from llmgym.episode import TurnTokens
from llmgym_trainer.algorithm.advantages import (
    STD_EPSILON,
    Credit,
    OverlongPenalty,
    compute_advantages,
    episode_length,
)


def episode(stop_reason: StopReason, *turns: tuple[int, int, bool]) -> Episode:
    """An episode whose turns have (context, sampled) tokens and extend the turn before or do not."""
    tokens = [TurnTokens([5] * c, [6] * s, [0.0] * s, extends, "stop") for c, s, extends in turns]
    return Episode(Task("x"), stop_reason, turns=[Turn(tokens=t) for t in tokens])


def test_group_scale():
    # Mean 0.5; squared deviations 4 * 0.25, over n - 1 = 3.
    scale = math.sqrt(1 / 3) + STD_EPSILON
    assert compute_advantages([[1, 0, 0, 1]], "group") == [
        pytest.approx([0.5 / scale, -0.5 / scale, -0.5 / scale, 0.5 / scale])
    ]


def test_batch_scale_takes_the_deviation_of_all_rewards():
    # Rewards 1, 0, 3, 3: mean 1.75, squared deviations 0.5625 + 3.0625 + 1.5625 + 1.5625 = 6.75, over 3.
    scale = math.sqrt(6.75 / 3) + STD_EPSILON
    assert compute_advantages([[1, 0], [3, 3]], "batch") == [pytest.approx([0.5 / scale, -0.5 / scale]), [0, 0]]


def test_no_scale():
    assert compute_advantages([[1, 0, 0.5], [2, 4]], "none") == [pytest.approx([0.5, -0.5, 0]), [-1, 1]]


def test_two_survivors_and_fewer():
    scale = math.sqrt(0.5) + STD_EPSILON  # rewards 1 and 0: deviations 0.25 + 0.25, over 1
    found = compute_advantages([[1, 0], [1], []], "group")
    assert found == [pytest.approx([0.5 / scale, -0.5 / scale]), [0.0], []]


def test_a_group_without_reward_variance_has_no_advantage():
    assert compute_advantages([[0.3, 0.3, 0.3]], "group") == [pytest.approx([0, 0, 0], abs=1e-9)]


def test_length_of_an_episode_is_that_of_its_last_row():
    assert episode_length(episode(StopReason.TERMINATED)) == 0
    assert episode_length(episode(StopReason.TERMINATED, (10, 5, False), (3, 2, True))) == 20
    assert episode_length(episode(StopReason.TERMINATED, (10, 5, False), (12, 2, False), (1, 1, True))) == 16


def test_the_penalty_is_subtracted_from_the_reward():
    overflow = episode(StopReason.CONTEXT_OVERFLOW, (90, 10, False))
    overflow.reward = 0.75
    assert Credit().rewards(overflow).outcome == 0.75
    assert Credit(overlong=OverlongPenalty(0.5, 0, 100)).rewards(overflow).outcome == 0.25


@pytest.mark.parametrize("reason", list(StopReason))
def test_only_spent_budgets_cost(reason):
    spent = reason in (StopReason.CONTEXT_OVERFLOW, StopReason.MAX_TURNS)
    assert OverlongPenalty(0.5, 0, 100).cost(episode(reason, (95, 5, False))) == (0.5 if spent else 0)


@pytest.mark.parametrize(("length", "cost"), [(60, 0), (80, 0), (81, 0.025), (90, 0.25), (100, 0.5), (101, 0.5)])
def test_the_ramp_is_linear_inside_the_buffer(length, cost):
    # Budget 100, buffer 20: full cost 0.5 at 100, nothing up to 80.
    finished = episode(StopReason.TERMINATED, (length - 5, 5, False))
    assert OverlongPenalty(0.5, 20, 100).cost(finished) == pytest.approx(cost)


def test_the_ramp_is_for_terminated_episodes():
    assert OverlongPenalty(0.5, 20, 100).cost(episode(StopReason.PARSE_FAILURE, (95, 5, False))) == 0
    assert OverlongPenalty(0.5, 20, 100).cost(episode(StopReason.MAX_TURNS, (5, 5, False))) == 0.5


def test_leave_one_out_compares_with_the_mean_of_the_others():
    # Rewards 1, 0, 0.5: the others' means are 0.25, 0.75 and 0.5.
    found = compute_advantages([[1, 0, 0.5], [2, 4], [7]], "none", "leave_one_out")
    assert found == [pytest.approx([0.75, -0.75, 0]), pytest.approx([-2, 2]), [0]]
    scale = 0.5 + STD_EPSILON  # squared deviations 0.25 + 0.25, over n - 1 = 2
    found = compute_advantages([[1, 0, 0.5]], "group", "leave_one_out")
    assert found == [pytest.approx([0.75 / scale, -0.75 / scale, 0])]
