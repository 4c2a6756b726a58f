"""The formulas against values worked out by hand, from tables, or by trying every case."""

from __future__ import annotations

import itertools
import math

import pytest

from llmgym.evaluation.statistics import (
    Estimate,
    cluster_estimate,
    has_reward_variance,
    pass_at_k,
    pass_hat_k,
    sign_flip_test,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "value"), [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (10, 2.228), (60, 2.000)]
)
def test_quantiles_of_student_are_those_of_the_table(degrees, value):
    assert t_quantile(degrees) == pytest.approx(value, abs=5e-4)


def test_the_quantile_tends_to_that_of_the_normal_distribution():
    assert 1.95996 < t_quantile(10**6) < 1.9625


def test_clusters_of_one_size():
    # Mean 1/2; deviations within the clusters add up to 1 and -1. Their squares make 2, times 2 / 1 for two clusters:
    # 4. sqrt(4) / 4 values = 0.5, times 12.7062.
    estimate = cluster_estimate([[1.0, 1.0], [0.0, 0.0]])
    assert estimate.mean == 0.5
    assert estimate.high == pytest.approx(0.5 + 6.3531, abs=1e-4)
    assert estimate.low == pytest.approx(0.5 - 6.3531, abs=1e-4)


def test_clusters_of_different_sizes():
    # Mean 4/6. Sums of deviations: 3 - 2 = 1, 0 - 2/3, 1 - 4/3; squares 1 + 4/9 + 1/9 = 14/9, times 3/2: 7/3.
    # sqrt(7/3) / 6 = 0.254588, times 4.302653.
    estimate = cluster_estimate([[1.0, 1.0, 1.0], [0.0], [1.0, 0.0], []])
    assert estimate.mean == pytest.approx(4 / 6)
    assert estimate.high - estimate.mean == pytest.approx(1.095402, abs=1e-5)


def test_with_one_value_a_cluster_it_is_the_textbook_interval():
    values = [0.2, 0.4, 0.9, 0.5]  # mean 0.5, sample variance (0.09 + 0.01 + 0.16 + 0) / 3 = 0.0866667
    estimate = cluster_estimate([[value] for value in values])
    assert estimate.mean == pytest.approx(0.5)
    assert estimate.high - 0.5 == pytest.approx(3.182446 * math.sqrt(0.0866667 / 4), abs=1e-5)


def test_episodes_that_are_copies_add_no_certainty():
    once = cluster_estimate([[1.0], [0.0], [1.0]])
    assert cluster_estimate([[1.0] * 50, [0.0] * 50, [1.0] * 50]) == pytest.approx(once)


@pytest.mark.parametrize("clusters", [[[1.0, 0.0]], [[1.0], [1.0]], [[0.1], [0.1], [0.1]], [[0.0, 1.0], [1.0, 0.0]]])
def test_no_interval_without_two_clusters_that_differ(clusters):
    estimate = cluster_estimate(clusters)
    assert estimate.mean == pytest.approx(math.fsum(map(math.fsum, clusters)) / sum(map(len, clusters)))
    assert (estimate.low, estimate.high) == (None, None)


def test_no_value_has_no_mean():
    assert cluster_estimate([[], []]) == cluster_estimate([]) == Estimate(None)


@pytest.mark.parametrize(
    ("episodes", "successes", "k", "at_least_one", "all_of_them"),
    [
        (4, 1, 1, 0.25, 0.25),
        (4, 1, 2, 0.5, 0.0),  # 1 - C(3,2) / C(4,2) = 1 - 3/6
        (4, 3, 2, 1.0, 0.5),  # C(3,2) / C(4,2)
        (5, 2, 3, 0.9, 0.0),  # 1 - C(3,3) / C(5,3) = 1 - 1/10
        (5, 4, 3, 1.0, 0.4),  # C(4,3) / C(5,3) = 4/10
        (3, 0, 3, 0.0, 0.0),
        (3, 3, 3, 1.0, 1.0),
    ],
)
def test_pass_at_k_and_pass_hat_k(episodes, successes, k, at_least_one, all_of_them):
    assert pass_at_k(episodes, successes, k) == pytest.approx(at_least_one)
    assert pass_hat_k(episodes, successes, k) == pytest.approx(all_of_them)
    draws = list(itertools.combinations([True] * successes + [False] * (episodes - successes), k))
    assert sum(map(any, draws)) / len(draws) == pytest.approx(at_least_one)
    assert sum(map(all, draws)) / len(draws) == pytest.approx(all_of_them)


def test_reward_variance_has_a_tolerance():
    assert has_reward_variance([0.0, 0.0, 0.1])
    assert has_reward_variance([1.0, 1.0, 1.0 + 2e-6])
    assert not has_reward_variance([1.0, 1.0 + 0.5e-6])
    assert not has_reward_variance([0.3, 0.1 + 0.2])  # differ by one bit
    assert not has_reward_variance([1.0])
    assert not has_reward_variance([])


def test_five_equal_differences_reach_one_in_sixteen():
    # Of the 32 assignments of signs only all plus and all minus are as far from 0.
    assert sign_flip_test([1.0] * 5) == (2 / 32, "exact sign-flip test over 5 differing tasks")


def test_differences_of_different_size():
    # |3 + 1 - 1| = 3. With plus before the 3 the sums are 5, 3, 3, 1: three of four reach it, and so with minus.
    p_value, text = sign_flip_test([3.0, 1.0, -1.0, 0.0])
    assert p_value == 0.75
    assert text == "exact sign-flip test over 3 differing tasks"  # the zero has no sign


def test_sums_that_differ_only_by_rounding_count_as_equal():
    # 0.1 + 0.2 - 0.3 is not 0 in binary; every assignment is at least as far from 0.
    assert sign_flip_test([0.1, 0.2, -0.3])[0] == 1.0


def test_no_difference_is_no_evidence():
    assert sign_flip_test([0.0, 0.0])[0] == 1.0


def test_many_tasks_take_random_signs():
    # 11 plus against 9 minus: the sum is 2, and only the C(20, 10) = 184756 assignments with sum 0 are closer to 0.
    differences = [1.0] * 11 + [-1.0] * 9
    p_value, text = sign_flip_test(differences, seed=3)
    assert p_value == pytest.approx(1 - 184756 / 2**20, abs=0.015)
    assert text == "sign-flip test over 20 differing tasks, 20000 random flips with seed 3"
    assert sign_flip_test(differences, seed=3) == (p_value, text)
    assert sign_flip_test(differences, seed=4)[0] != p_value


def test_random_signs_never_give_zero():
    assert sign_flip_test([1.0] * 40)[0] == 1 / 20001
