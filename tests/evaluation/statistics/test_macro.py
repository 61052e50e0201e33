"""Means over several sets of questions or environments, and their intervals."""

from math import sqrt

import numpy as np
import pytest

from agentenv.evaluation.statistics.intervals import wilson_score
from agentenv.evaluation.statistics.macro import combined_interval, macro_mean


def test_the_interval_of_a_weighted_mean_by_hand() -> None:
    """.5 * .8 + .5 * .2 = .5; sqrt((.5 * .2)^2 + (.5 * .1)^2) = sqrt(.0125) below, sqrt((.5 * .1)^2 * 2) above."""
    low, high = combined_interval([0.8, 0.2], [(0.6, 0.9), (0.1, 0.3)], [0.5, 0.5])
    assert low == pytest.approx(0.5 - sqrt(0.0125))
    assert high == pytest.approx(0.5 + sqrt(0.005))


def test_one_part_keeps_its_own_interval() -> None:
    assert combined_interval([0.9], [(0.7, 0.95)], [1.0]) == pytest.approx((0.7, 0.95))


def test_the_interval_covers_the_mean_of_unequal_environments() -> None:
    """Shares of .98, .5 and .05 over 20 to 60 questions, with Wilson intervals: 95 % within two points of 2,000 trials."""
    rng, truths, sizes, weights = np.random.default_rng(5), (0.98, 0.5, 0.05), (20, 60, 40), (0.5, 0.3, 0.2)
    truth = sum(weight * share for weight, share in zip(weights, truths, strict=True))
    covered = 0
    for _ in range(2000):
        right = [int(rng.binomial(n, share)) for n, share in zip(sizes, truths, strict=True)]
        means = [k / n for k, n in zip(right, sizes, strict=True)]
        scores = [wilson_score(p, n, 1.959964) for p, n in zip(means, sizes, strict=True)]
        ends = [(centre - half, centre + half) for centre, half in scores]
        low, high = combined_interval(means, ends, weights)
        covered += low <= truth <= high
    assert 0.93 <= covered / 2000 <= 0.99


@pytest.mark.parametrize(
    "sizes", [np.maximum(1, 100 // np.arange(1, 21)), np.maximum(1, 300 // np.arange(1, 221))]
)
def test_the_interval_covers_the_mean_of_sets_whose_clusters_are_of_unequal_size(sizes: np.ndarray) -> None:
    """Two sets of clusters of 100 (300), 50, 33 and fewer questions, whose rates are Beta(.7, 1.6): .93 hold the mean .304.

    With as many degrees of freedom as clusters, and an error that is not adjusted for their sizes, .87 did.
    """
    rng, truth, held = np.random.default_rng(5), 0.7 / 2.3, 0
    of = np.repeat(np.arange(sizes.size), sizes).tolist()
    for _ in range(500):
        sets = [rng.random(len(of)) < np.repeat(rng.beta(0.7, 1.6, sizes.size), sizes) for _ in range(2)]
        _, ends = macro_mean([one.astype(float).tolist() for one in sets], [of, of])
        assert ends is not None
        held += ends[0] <= truth <= ends[1]
    assert held >= 465


def test_a_set_that_is_one_cluster_counts_as_one_question() -> None:
    """(.5 + 1) / 3 = .5 is right of one question and two more: the squared error is .25 / 3, with one degree of freedom."""
    _, ends = macro_mean([[0.0, 1.0] * 15], [["passage"] * 30])
    assert ends == [0.0, 1.0]
    assert macro_mean([[0.0, 2.0] * 15], [["passage"] * 30])[1] is None
