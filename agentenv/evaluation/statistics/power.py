"""Simulates the power of the sequential test and of the equivalence test: what a comparison could have found.

Scores are drawn from normal distributions with standard deviation 1, so differences and margins are in standard deviations
between seeds. One of M systems is shifted by ``effect``. The power is the probability that the test distinguishes it from
another one, in the right direction, at some interim analysis.

M is the number of systems, N of seeds between two interim analyses, R of simulated comparisons, P of pairs, S of
permutations including the identity, and K of interim analyses.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from agentenv.evaluation.statistics.equivalence import equivalence_p
from agentenv.evaluation.statistics.sequential import Floats, signs

_WIDEST = 8.0  # standard deviations; larger differences are not considered
_HALVINGS = 7


def least_p(per_interim: int) -> float:
    """Returns the smallest possible p-value at the first interim analysis, that of two systems whose scores do not overlap.

    Of the C(2N, N) ways to split the scores, only the observed one and its mirror image are as extreme.
    """
    return 2 / comb(2 * per_interim, per_interim)


def sequential_power(
    effect: float,
    *,
    systems: int = 2,
    per_interim: int,
    interims: int,
    alpha: float,
    replications: int = 200,
    permutations: int = 500,
    seed: int = 0,
) -> float:
    """Returns the share of simulated comparisons in which ``compare_sequentially`` finds one system better than another.

    Args:
        effect: The difference of the first system from all others, in standard deviations.
        systems: The number of systems in the family.
        per_interim: The number of seeds of each system between two interim analyses.
        interims: The largest number of interim analyses.
        alpha: The error level of the family.
        replications: The number of simulated comparisons.
        permutations: The number of random permutations, in addition to the identity.
        seed: The seed of the simulation.
    """
    rng = np.random.default_rng(seed)
    pairs = [*combinations(range(systems), 2)]
    sums_RPS = np.zeros((replications, len(pairs), 1 + permutations))
    looks = []
    for _ in range(interims):
        scores_RMN = rng.standard_normal((replications, systems, per_interim))
        scores_RMN[:, 0] += effect
        signs_SN = signs(rng, permutations, per_interim)
        pools = [np.concatenate([scores_RMN[:, one], scores_RMN[:, other]], axis=1) for one, other in pairs]
        # A new array instead of `+=`, because `looks` keeps the sums of every analysis.
        sums_RPS = sums_RPS + np.stack([pool @ signs_SN.T for pool in pools], axis=1)
        looks.append(sums_RPS)
    apart_RP = distinguished(np.stack(looks), alpha / interims)
    # The sum of the first pair under the identity is positive if the first system is better.
    return float((apart_RP[:, 0] & (sums_RPS[:, 0, 0] > 0)).mean())


def distinguished(sums_KRPS: Floats, step: float) -> NDArray[np.bool_]:
    """Returns which pairs each of R comparisons distinguishes -> [R, P]: the rule of ``sequential.py``, vectorised.

    Args:
        sums_KRPS: The cumulative sums of scores at each interim analysis under each permutation, the identity first.
        step: The error level of one interim analysis.
    """
    sizes_KRPS = np.abs(sums_KRPS)
    apart_RP = np.zeros(sums_KRPS.shape[1:3], dtype=np.bool_)
    for depth in range(1, len(sizes_KRPS) + 1):
        rows = np.arange(len(apart_RP))
        while rows.size:
            extreme_R = _extreme_pairs(sizes_KRPS[:depth, rows], ~apart_RP[rows], step)
            rows, extreme_R = rows[extreme_R >= 0], extreme_R[extreme_R >= 0]
            apart_RP[rows, extreme_R] = True
    return apart_RP


def _extreme_pairs(sizes_KRPS: Floats, open_RP: NDArray[np.bool_], step: float) -> NDArray[np.int64]:
    """Returns the pair of each comparison that leaves its family next, or -1 -> [R]."""
    _, count, _, permutations = sizes_KRPS.shape
    left_RS = np.ones((count, permutations), dtype=np.bool_)
    found_R = np.full(count, -1)
    for look, sizes_RPS in enumerate(sizes_KRPS, start=1):
        largest_RS = np.where(open_RP[:, :, None], sizes_RPS, -1.0).max(axis=1)
        # The small addition prevents a product such as .05 * 20 / 20 from being rounded down to one less.
        allowed_R = int(look * step * permutations + 1e-9) - (~left_RS).sum(axis=1)
        ranked_RS = np.sort(np.where(left_RS, largest_RS, -np.inf), axis=1)[:, ::-1]
        place_R = np.clip(allowed_R, 0, permutations - 1)
        # Ties with the value at the threshold are not counted: only larger values, by more than rounding, are more extreme.
        cut_R = np.take_along_axis(ranked_RS, place_R[:, None], axis=1)
        taken_RS = left_RS & (largest_RS > cut_R + 1e-9 * np.maximum(1.0, np.abs(cut_R)))
        new_R = taken_RS[:, 0] & (found_R < 0) & open_RP.any(axis=1)
        identity_RP = np.where(open_RP, sizes_RPS[:, :, 0], -1.0)
        found_R[new_R] = identity_RP[new_R].argmax(axis=1)
        left_RS &= ~taken_RS
    return found_R


def equivalence_power(
    margin: float,
    *,
    per_interim: int,
    interims: int,
    alpha: float,
    replications: int = 300,
    seed: int = 0,
) -> float:
    """Returns the share of simulated comparisons of two systems with equal means that are found equivalent.

    Args:
        margin: The smallest difference that would matter, in standard deviations between seeds.
        per_interim: The number of seeds of each system between two interim analyses.
        interims: The largest number of interim analyses, each of which has an equal part of ``alpha``.
        alpha: The error level of the pair.
        replications: The number of simulated comparisons.
        seed: The seed of the simulation.
    """
    rng = np.random.default_rng(seed)
    equivalent_runs = 0
    for _ in range(replications):
        a, b = rng.standard_normal((2, per_interim * interims))
        looks = range(per_interim, per_interim * interims + 1, per_interim)
        equivalent_runs += any(equivalence_p(a[:n], b[:n], margin) <= alpha / interims for n in looks)
    return equivalent_runs / replications


@lru_cache(maxsize=64)
def detectable_difference(
    *, systems: int, per_interim: int, interims: int, alpha: float, power: float = 0.8
) -> float | None:
    """Returns the smallest difference, in standard deviations between seeds, that is found with probability ``power``.

    Returns None if even eight standard deviations are not found: the test then cannot decide anything.
    """
    return _smallest(
        lambda effect: sequential_power(
            effect, systems=systems, per_interim=per_interim, interims=interims, alpha=alpha
        ),
        power,
    )


@lru_cache(maxsize=64)
def detectable_margin(*, per_interim: int, interims: int, alpha: float, power: float = 0.8) -> float | None:
    """Returns the smallest margin, in standard deviations between seeds, in which equal systems are found with ``power``."""
    return _smallest(
        lambda margin: equivalence_power(margin, per_interim=per_interim, interims=interims, alpha=alpha),
        power,
    )


def _smallest(power_of: Callable[[float], float], power: float) -> float | None:
    """Returns the argument at which an increasing power reaches ``power``, by bisection."""
    low, high = 0.0, _WIDEST
    # Checked first, because the bisection would otherwise end at the upper limit as if the power were reached there.
    if power_of(high) < power:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high
