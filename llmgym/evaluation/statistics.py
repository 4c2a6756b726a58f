"""The formulas of an evaluation: means with intervals, pass@k, pass^k, a paired test."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

REWARD_TOLERANCE = 1e-6
"""Rewards that differ by no more count as the same."""

_EXACT_TASKS = 16
_RANDOM_FLIPS = 20_000


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval.

    Attributes:
        mean: None without any value.
        low: Lower end; None where no interval can be given: fewer than two tasks, or no variance between them.
        high: Upper end, likewise.
    """

    mean: float | None
    low: float | None = None
    high: float | None = None


def cluster_estimate(clusters: Sequence[Sequence[float]]) -> Estimate:
    """Mean of all values, with an interval that allows for values of one cluster being alike.

    With ``u_c`` the sum of the deviations from the mean within cluster ``c``, ``n`` values and ``G`` clusters, the
    standard error is ``sqrt(G / (G - 1) * sum(u_c ** 2)) / n``: the clustered standard error of Miller 2024
    (arXiv 2411.00640) with the usual correction for few clusters, and the quantile is that of Student's t
    with ``G - 1`` degrees of freedom (Cameron and Miller 2015, A Practitioner's Guide to Cluster-Robust Inference,
    section VI).

    Args:
        clusters: The values of each cluster, in an evaluation the rewards of each task. Empty ones do not count.
    """
    filled = [values for values in clusters if len(values)]
    count = sum(len(values) for values in filled)
    if not count:
        return Estimate(None)
    mean = math.fsum(value for values in filled for value in values) / count
    squares = math.fsum((math.fsum(values) - len(values) * mean) ** 2 for values in filled)
    groups = len(filled)
    if groups < 2 or squares <= (REWARD_TOLERANCE**2) * groups:
        return Estimate(mean)
    half = t_quantile(groups - 1) * math.sqrt(groups / (groups - 1) * squares) / count
    return Estimate(mean, mean - half, mean + half)


@functools.cache
def t_quantile(degrees: int) -> float:
    """The value that Student's t exceeds in size with probability 0.05.

    From the closed form of the distribution for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4).
    """
    degrees = min(degrees, 1000)  # the quantile of 1000 is wider than that of any higher number, by 0.1 % at most
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_probability(middle, degrees) < 0.95 else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _central_probability(angle: float, degrees: int) -> float:
    """P(|T| < t) for ``angle`` = arctan(t / sqrt(degrees))."""
    cosine, odd = math.cos(angle), degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for step in range(1, (degrees - odd) // 2 + 1):
        total += term
        term *= cosine**2 * ((2 * step) / (2 * step + 1) if odd else (2 * step - 1) / (2 * step))
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total


def pass_at_k(episodes: int, successes: int, k: int) -> float:
    """Probability that one at least of ``k`` episodes of a task succeeds: ``1 - C(n - c, k) / C(n, k)``.

    The unbiased estimator of Chen et al. 2021 (arXiv 2107.03374, equation 1), from ``n`` episodes with ``c`` successes.
    """
    return 1 - math.comb(episodes - successes, k) / math.comb(episodes, k)


def pass_hat_k(episodes: int, successes: int, k: int) -> float:
    """Probability that all of ``k`` episodes of a task succeed: ``C(c, k) / C(n, k)``.

    The unbiased estimator of tau-bench's pass^k (Yao et al. 2024, arXiv 2406.12045).
    """
    return math.comb(successes, k) / math.comb(episodes, k)


def has_reward_variance(rewards: Sequence[float]) -> bool:
    """Whether the episodes of a task differ in reward, so that GRPO could learn from them."""
    return len(rewards) > 1 and max(rewards) - min(rewards) > REWARD_TOLERANCE


def sign_flip_test(differences: Sequence[float], *, seed: int = 0) -> tuple[float, str]:
    """Two-sided paired test of the mean difference: under the null hypothesis each sign could be the other one.

    A difference of zero has no sign and changes nothing. With 16 others or fewer every assignment of signs is
    tried and the probability is exact; with more, 20,000 random ones, counted with the observed one among them
    (Phipson and Smyth 2010), so that it is never 0.

    Args:
        differences: One for each pair, in an evaluation for each task.
        seed: Of the random signs.

    Returns:
        The probability of a mean as far from zero as this one or farther, and a few words on how it was found.
    """
    given = np.asarray(differences, dtype=float)
    values = given[np.abs(given) > REWARD_TOLERANCE]
    bound = abs(values.sum()) - 1e-9 * np.abs(values).sum()  # sums of the same size may differ in the last digits
    if len(values) <= _EXACT_TASKS:
        signs = (np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1) * 2 - 1
        share = np.mean(np.abs(signs @ values) >= bound)
        return float(share), f"exact sign-flip test over {len(values)} differing tasks"
    rng = np.random.default_rng(seed)
    reached = 0
    for _ in range(_RANDOM_FLIPS // 1000):
        flips = rng.integers(0, 2, size=(1000, len(values)), dtype=np.int8) * 2.0 - 1.0
        reached += int(np.sum(np.abs(flips @ values) >= bound))
    text = f"sign-flip test over {len(values)} differing tasks, {_RANDOM_FLIPS} random flips with seed {seed}"
    return (1 + reached) / (1 + _RANDOM_FLIPS), text
