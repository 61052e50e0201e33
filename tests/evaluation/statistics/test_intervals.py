"""Intervals for few questions, few clusters and sparse scores: quantiles against tables, errors by hand, coverage."""

import tracemalloc
from math import inf, sqrt

import numpy as np
import pytest

from agentenv.evaluation.statistics.intervals import (
    beta_cdf,
    beta_quantile,
    bounded_interval,
    difference_interval,
    effective_clusters,
    robust_error,
    sign_flip_p,
    t_quantile,
    t_two_sided,
    welch_interval,
)
from agentenv.evaluation.statistics.significance import estimate, paired_bootstrap, wilson_interval


def singles(n: int) -> list[list[int]]:
    return [[i] for i in range(n)]


def test_beta_by_hand() -> None:
    # I_x(1, b) = 1 - (1 - x)^b, I_x(a, 1) = x^a, and I_x(2, 3) = 6x^2 - 8x^3 + 3x^4.
    assert beta_cdf(0.3, 1, 5) == pytest.approx(1 - 0.7**5, abs=1e-12)
    assert beta_cdf(0.3, 4, 1) == pytest.approx(0.3**4, abs=1e-12)
    assert beta_cdf(0.3, 2, 3) == pytest.approx(6 * 0.09 - 8 * 0.027 + 3 * 0.0081, abs=1e-12)
    assert beta_cdf(0.5, 1000, 1000) == pytest.approx(0.5, abs=1e-9)
    assert (beta_cdf(0, 2, 2), beta_cdf(1, 2, 2)) == (0.0, 1.0)
    assert beta_quantile(0.1, 1, 5) == pytest.approx(1 - 0.9**0.2, abs=1e-12)


@pytest.mark.parametrize(
    ("df", "table"), [(1, 12.7062), (2, 4.30265), (10, 2.22814), (30, 2.04227), (inf, 1.95996)]
)
def test_t_is_that_of_the_tables(df: float, table: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(table, abs=1e-4)
    assert t_two_sided(table, df) == pytest.approx(0.05, abs=1e-5)


def test_t_against_an_independent_implementation() -> None:
    stats = pytest.importorskip("scipy.stats")
    for level in (0.75, 0.95, 0.995):
        for df in (1, 2, 5, 8, 63):
            assert t_quantile(level, df) == pytest.approx(stats.t.ppf(level, df), rel=1e-9)


def test_the_error_over_clusters_by_hand() -> None:
    # The sums of residuals around 2/3 are -1/3, -1/3 and 2/3; the squares are divided by 1 - 2/6.
    error, df = robust_error(np.array([0.0, 1, 1, 0, 1, 1]), [[0, 1], [2, 3], [4, 5]])
    assert error == pytest.approx(sqrt(1.5 * (1 / 9 + 1 / 9 + 4 / 9)) / 6)
    assert df == pytest.approx(2.0)  # C - 1 where clusters are of one size
    _, uneven = robust_error(np.arange(12.0), [list(range(9)), [9], [10], [11]])
    assert uneven < 2  # one cluster holds most of it
    assert robust_error(np.array([0.0, 1.0]), [[0, 1]])[0] == inf


def test_the_freedom_of_clusters_is_that_of_the_matrix_of_their_residual_sums() -> None:
    """Satterthwaite's of the covariance M diag(v) M' with M = I - s 1', scaled on both sides, as it is defined."""
    sizes = np.array([1.0, 1.0, 2.0, 3.0, 40.0])
    scale = np.diag(1 / np.sqrt(1 - sizes / sizes.sum()))
    centred = np.eye(5) - np.outer(sizes / sizes.sum(), np.ones(5))
    squares = []
    for variances in (sizes, sizes**2):
        covariance = scale @ centred @ np.diag(variances) @ centred.T @ scale
        squares.append(np.trace(covariance) ** 2 / (covariance**2).sum())
    rows, of = np.arange(47), np.repeat(np.arange(5), sizes.astype(int))
    _, df = robust_error(np.arange(47.0), [rows[of == cluster].tolist() for cluster in range(5)])
    assert df == pytest.approx(min(squares))
    _, alone = robust_error(np.arange(1_000_001.0), [[0], list(range(1, 10**6 + 1))])
    assert alone == pytest.approx(1.0)


def test_an_interval_over_the_clusters_of_a_whole_suite_takes_little_memory() -> None:
    """Of 8,000 questions two share a passage: a matrix of the clusters would take 512 MB."""
    values = np.arange(8000.0) % 2
    tracemalloc.start()
    found = estimate(values, clusters=[0, *range(7999)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.method == "wilson clustered"
    assert peak < 50_000_000


def test_a_sparse_mean_is_bounded_as_a_proportion_of_its_sum() -> None:
    x = np.array([0.5, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    assert bounded_interval(x, singles(10), 0.95) == pytest.approx(wilson_interval(0.5, 10))
    assert bounded_interval(np.zeros(10), singles(10), 0.95)[0] == 0.0


def test_signs_by_hand() -> None:
    # The eight signed sums of .5, .5 and 1 are 2, 1, 1, 0, 0, -1, -1 and -2.
    d = np.array([0.5, 0.5, 0.0, -1.0])
    assert sign_flip_p(d, singles(4)) == 1.0
    assert sign_flip_p(abs(d), singles(4)) == 2 / 8
    assert sign_flip_p(np.zeros(3), singles(3)) == 1.0


@pytest.mark.parametrize("size", [19, 20, 21, 300])
def test_a_difference_that_every_question_makes_is_one(size: int) -> None:
    found = paired_bootstrap(np.zeros(size), np.ones(size))
    assert 0.75 < found.low < found.high == 1.0
    assert found.p_value == (2 / 2**size if size < 20 else pytest.approx(1 / 10_001))


def test_five_rewards_that_are_all_higher_are_no_more_than_five_coins() -> None:
    assert paired_bootstrap(np.zeros(5), np.full(5, 3.0)).p_value == 2 / 32


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e9])
def test_the_p_value_of_signs_does_not_depend_on_the_unit_of_the_rewards(scale: float) -> None:
    """Of n differences that are all above 0 the choice that was seen and its mirror image are as extreme: 2 of 2^n."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        assert sign_flip_p(rng.random(12) * scale, singles(12)) == 2 / 2**12
    d = np.array([0.5, 0.5, 0.0, -1.0])
    assert sign_flip_p(d * scale, singles(4)) == 1.0


def test_equal_differences_of_rewards_leave_room_for_other_questions() -> None:
    """Five questions on each of which the reward rises by 2, in units of 2: five gains of five, and no loss of five.

    The distances of the ends from 1 and from 0 are both z^2 / (5 + z^2) = .4345, and their squares add up.
    """
    found = paired_bootstrap(np.zeros(5), np.full(5, 2.0))
    assert (found.low, found.high) == pytest.approx((2 * (1 - sqrt(2) * 0.434482), 2.0), abs=1e-5)
    clusters = paired_bootstrap(np.zeros(6), np.full(6, 2.0), clusters="aabbcc")
    assert clusters.low < 1.0 < clusters.high == 2.0
    assert paired_bootstrap(np.zeros(6), np.full(6, 2.0), clusters="aaaaaa").ci95 is None


@pytest.mark.parametrize("count", [5, 20])
def test_intervals_of_differences_of_rewards_cover(count: int) -> None:
    """A reward of 2 that one system of two gets for nine questions of ten; of 200 intervals at least 178 hold 1.8."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(200):
        found = paired_bootstrap(np.zeros(count), 2.0 * (rng.random(count) < 0.9), resamples=500)
        held += found.low <= 1.8 <= found.high
    assert held >= 178


def test_equal_runs_of_both_systems_have_no_interval() -> None:
    """Five runs of each that all score the same tell nothing of the spread; one that differs does."""
    zeros, halves = np.zeros(5), np.full(5, 0.5)
    assert welch_interval(halves, zeros) is None
    assert welch_interval(halves, np.array([0.3 - 0.1, 0.2, 0.1 + 0.1])) is None
    assert welch_interval(halves, np.array([0.0])) is None
    found = welch_interval(halves, np.array([0.0, 0.0, 0.0, 0.0, 0.1]))
    # Mean .02, s^2 = .002: the error is sqrt(.002 / 5) = .02 with 4 degrees of freedom, t = 2.776.
    assert found == pytest.approx((0.48 - 2.7764 * 0.02, 0.48 + 2.7764 * 0.02), abs=1e-4)


def test_many_signs_are_drawn_as_fair_coins() -> None:
    d = np.array([1.0] * 16 + [-1.0] * 9)  # exactly twice the chance of at least 16 heads of 25: .2295
    assert sign_flip_p(d, singles(25)) == pytest.approx(0.2295, abs=0.015)


@pytest.mark.parametrize("gain", [1.0, 3.0])  # 3: rewards, whose differences leave [-1, 1]
def test_clusters_of_unequal_size_that_all_differ_alike_show_a_difference(gain: float) -> None:
    clusters = [number for number in range(30) for _ in range(1 + number % 4)]
    d = np.full(len(clusters), gain)
    found = paired_bootstrap(np.zeros(d.size), d, clusters=clusters)
    assert found.low > 0
    assert found.p_value < 0.001


def test_a_difference_that_one_question_makes_is_not_one_for_sure() -> None:
    d = np.array([1.0] + [0.0] * 49)
    low, high = difference_interval(d, singles(50), 0.95)
    assert low < 0 < d.mean() < high < 0.12
    assert paired_bootstrap(np.zeros(50), d).p_value == 1.0


def test_gains_and_losses_that_exclude_each_other_are_not_taken_for_independent() -> None:
    # Every question is a gain or a loss, so the mean difference is 2 p - 1 with p the share of gains, and so are its ends.
    d = np.array([1.0] * 20 + [-1.0] * 10)
    low, high = wilson_interval(20, 30)
    assert difference_interval(d, singles(30), 0.95) == pytest.approx((2 * low - 1, 2 * high - 1))


@pytest.mark.parametrize(
    ("count", "size", "mean", "partial"),
    [
        (20, 1, 0.1, True),
        (10, 1, 0.02, True),
        (50, 1, 0.02, True),
        (5, 4, 0.5, False),
        (10, 4, 0.5, False),
        (4, 4, 0.1, True),
    ],
)
def test_intervals_cover(count: int, size: int, mean: float, partial: bool) -> None:
    """Of 200 intervals at least 185 hold the mean; of percentile bootstraps of these .3 to .9 do."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(200):
        shared = rng.random(count) < (mean / 0.75 if partial else mean)
        own = rng.random((count, size)) < (mean / 0.75 if partial else mean)
        right = np.where(rng.random((count, size)) < 0.5, shared[:, None], own)
        x = (right * (rng.choice([0.5, 1.0], size=(count, size)) if partial else 1.0)).ravel()
        found = estimate(x, clusters=[i // size for i in range(x.size)])
        held += found.low <= mean <= found.high
    assert held >= 185


def scores_like_f1(rng: np.random.Generator, mean: float, n: int) -> np.ndarray:
    return rng.choice([0.5, 1.0], size=n) * (rng.random(n) < mean / 0.75)


def clustered(rng: np.random.Generator, mean: float, sizes: np.ndarray, alike: float) -> np.ndarray:
    """Scores of which the share ``alike`` is drawn once for a cluster."""
    parts = [
        (rng.random(n) < alike, scores_like_f1(rng, mean, 1), scores_like_f1(rng, mean, n)) for n in sizes
    ]
    return np.concatenate([np.where(*part) for part in parts])


FEW_LARGE = np.maximum(1, 300 // np.arange(1, 221))
"""Sizes of 220 clusters: 300, 150, 100 and so on, down to 1. They weigh as 19 equal ones do."""


def test_the_clusters_that_hold_most_of_the_questions_are_the_ones_that_count() -> None:
    # (3 + 1)^2 / (9 + 1), and as many as there are where all are of one size.
    assert effective_clusters([[0, 1, 2], [3]]) == pytest.approx(1.6)
    assert effective_clusters([[0, 1], [2, 3], [4, 5]]) == pytest.approx(3.0)
    assert effective_clusters([range(n) for n in FEW_LARGE]) == pytest.approx(19.39, abs=0.01)


@pytest.mark.parametrize(
    ("sizes", "mean", "least"),
    [
        (FEW_LARGE, 0.3, 185),
        (np.repeat([1, 4, 8], 80), 0.002, 180),
        (np.repeat([1, 4, 8], 80), 0.005, 180),
        (np.repeat([1, 4, 8], 160), 0.015, 188),
    ],
)
def test_intervals_over_many_clusters_cover(sizes: np.ndarray, mean: float, least: int) -> None:
    """Where few clusters have most questions, or hardly any has a score above 0; resampled clusters cover .87 to .91."""
    rng, held = np.random.default_rng(5), 0
    of = np.repeat(np.arange(sizes.size), sizes).tolist()
    for _ in range(200):
        found = estimate(clustered(rng, mean, sizes, 0.55), clusters=of)
        held += found.low <= mean <= found.high
    assert held >= least


def test_equal_systems_are_seldom_told_apart_where_few_clusters_have_most_questions() -> None:
    """At a level of .05 in at most 10 of 200 comparisons; by resampled clusters in .08 of 400."""
    rng, apart = np.random.default_rng(5), 0
    of = np.repeat(np.arange(FEW_LARGE.size), FEW_LARGE).tolist()
    for _ in range(200):
        a, b = (clustered(rng, 0.3, FEW_LARGE, 0.9) for _ in range(2))
        apart += paired_bootstrap(a, b, clusters=of, resamples=500).p_value <= 0.05
    assert apart <= 10


@pytest.mark.parametrize(("values", "clusters"), [([5.0], None), ([2.0, 0.3], [1, 1])])
def test_nothing_is_said_of_a_spread_that_one_value_or_cluster_does_not_show(
    values: list[float], clusters: list[int] | None
) -> None:
    assert estimate(values, clusters=clusters).ci95 is None
    found = paired_bootstrap([0.0] * len(values), values, clusters=clusters)
    assert (found.ci95, found.p_value) == (None, 1.0)
    assert estimate([1.0]).ci95 is not None  # 0/1 values are bounded, and so is their mean


@pytest.mark.parametrize("count", [2, 30, 400])
def test_equal_values_outside_the_unit_interval_have_no_known_interval(count: int) -> None:
    alike = [i // 2 for i in range(count)]
    for values, clusters in (([5.0] * count, None), ([-1.0] * count, alike), ([0.1 + 0.2 + 1] * count, None)):
        found = estimate(values, clusters=clusters)
        assert found.ci95 is None
        assert found.mean == pytest.approx(values[0])
    assert estimate([2.0, 4.0] * count, clusters=[i // 2 for i in range(2 * count)]).ci95 is None
    assert estimate([0.5] * count).ci95 is not None  # what lies in [0, 1] is bounded
    assert estimate([5.0, 6.0] * count).ci95 is not None
