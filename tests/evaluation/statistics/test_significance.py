"""Covers intervals, paired tests and corrections against numbers derived by hand or by brute force."""

from itertools import combinations, product
from math import comb, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.intervals import t_two_sided
from agentenv.evaluation.statistics.significance import (
    all_at_k,
    bootstrap_ci,
    calibration_error,
    estimate,
    holm,
    mcnemar_clustered,
    mcnemar_exact,
    paired_bootstrap,
    pass_at_k,
    wilson_interval,
)


def test_bootstrap_has_the_width_of_the_binomial() -> None:
    # 300 ones of 1,000: SE = sqrt(.3 * .7 / 1000) = .01449, so the interval is .3 -+ 1.96 * .01449.
    low, high = bootstrap_ci([1.0] * 300 + [0.0] * 700)
    half = 1.96 * sqrt(0.3 * 0.7 / 1000)
    assert low == pytest.approx(0.3 - half, abs=0.002)
    assert high == pytest.approx(0.3 + half, abs=0.002)


def test_bootstrap_of_three_values_equals_the_enumeration() -> None:
    # All 27 samples of (0, .5, 1) are equally likely: the mean is 0 with 1/27 and at most 1/6 with 4/27, so
    # the 10 % quantile is 1/6 and, by symmetry, the 90 % quantile 5/6.
    means = sorted(sum(sample) / 3 for sample in product((0.0, 0.5, 1.0), repeat=3))
    assert (means[2], means[24]) == pytest.approx((1 / 6, 5 / 6))
    assert bootstrap_ci([0.0, 0.5, 1.0], level=0.8) == pytest.approx((1 / 6, 5 / 6))


def test_bootstrap_is_decided_by_its_seed_and_not_by_order() -> None:
    values = np.random.default_rng(3).random(50)
    assert bootstrap_ci(values, seed=1) == bootstrap_ci(values[::-1], seed=1)
    assert bootstrap_ci(values, seed=1) != bootstrap_ci(values, seed=2)


def test_bootstrap_in_blocks_keeps_every_resample() -> None:
    # 5,000 distinct values make blocks of 800 resamples. SE of a uniform mean: sqrt(1/12/5000) = .00408.
    low, high = bootstrap_ci(np.linspace(0, 1, 5000), resamples=1000)
    assert (high - low) / 2 == pytest.approx(1.96 * sqrt(1 / 12 / 5000), rel=0.1)


def test_wilson_by_hand() -> None:
    # 0 of 10: the upper end is z^2 / (n + z^2) = 3.8415 / 13.8415; the lower is 0.
    low, high = wilson_interval(0, 10)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(0.27753, abs=1e-5)
    # 5 of 10 is symmetric around 1/2: half = z/(1+z^2/10) * sqrt(.025 + z^2/400).
    low, high = wilson_interval(5, 10)
    assert (low, high) == pytest.approx((0.23659, 0.76341), abs=1e-5)


def test_estimate_takes_wilson_where_the_bootstrap_has_no_width() -> None:
    perfect = estimate([1.0] * 300)
    # 300 of 300: the lower end is n / (n + z^2) = 300 / 303.8415.
    assert (perfect.mean, perfect.method, perfect.n) == (1.0, "wilson", 300)
    assert (perfect.low, perfect.high) == pytest.approx((0.98736, 1.0), abs=1e-5)
    assert estimate([1.0, 0.0]).method == "wilson"
    assert estimate([1.0, 0.0] * 100).method == "bootstrap"
    assert estimate([0.5, 0.0]).method == "wilson"  # two values tell a bootstrap nothing
    assert estimate([n / 40 for n in range(40)]).method == "bootstrap expanded"
    assert estimate([n / 200 for n in range(200)]).method == "bootstrap"
    assert estimate([-1.0, 3.0]).method == "t"
    assert estimate([-1.0, *range(18)]).method == "t"
    assert estimate([-1.0, *range(19)]).method == "bootstrap expanded"


def test_levels_and_resamples_are_those_asked_for() -> None:
    # z(.95) = 1.644854: half = z / (1 + z^2/10) * sqrt(.025 + z^2/400).
    half = 1.644854 / (1 + 1.644854**2 / 10) * sqrt(0.025 + 1.644854**2 / 400)
    assert wilson_interval(5, 10, level=0.9) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    # Clusters -1, 1 and 3: SE = 2 / sqrt(3), t(.9, 2) = 1.885618.
    signed = estimate([-1.0, -1.0, 1.0, 1.0, 3.0, 3.0], clusters="aabbcc", level=0.8)
    assert (signed.low, signed.high) == pytest.approx((1 - 2.177325, 1 + 2.177325), abs=1e-5)
    low, high = bootstrap_ci([0.0, 0.5, 1.0], resamples=1)
    assert low == high
    with pytest.raises(ConfigurationError, match=r"1\.5"):
        estimate([-1.0, -1.0, 1.0, 1.0, 3.0, 3.0], clusters="aabbcc", level=1.5)
    with pytest.raises(ConfigurationError, match="not 1"):
        bootstrap_ci([0.0, 1.0], level=1)
    with pytest.raises(ConfigurationError, match="0 of 0"):
        wilson_interval(0, 0)


def test_few_scores_move_the_bootstrap_out_to_students_t() -> None:
    # t(.975, 19) = 2.093024 and t(.9, 19) = 1.327728, with 20/19 for the variance.
    values = [
        one + step for one in (-1.0, -0.7, -0.25, 0.1, 0.35, 0.5, 0.8, 1.4, 1.7, 2.0) for step in (0, 0.05)
    ]
    for level, t in ((0.95, 2.093024), (0.8, 1.327728)):
        inside = 1 - 2 * NormalDist().cdf(-sqrt(20 / 19) * t)
        found = estimate(values, level=level, seed=5)
        assert found.method == "bootstrap expanded"
        assert (found.low, found.high) == pytest.approx(bootstrap_ci(values, level=inside, seed=5), abs=1e-3)
        pairs = paired_bootstrap([0.0] * 20, values, level=level, seed=5)
        assert (pairs.low, pairs.high, pairs.method) == (found.low, found.high, "bootstrap expanded")
    assert estimate(values, seed=5) != estimate(values, seed=6)


@pytest.mark.parametrize(
    ("values", "a_cluster", "method"),
    [
        ([0.0] * 39 + [3.0], 1, "bootstrap expanded"),  # Wilson's needs values in [0, 1]
        ([1.0] * 39 + [-2.0], 1, "bootstrap expanded"),
        ([0.0, 1.0] * 20, 1, "wilson"),
        ([0.0] * 999 + [1.0], 1, "wilson"),  # many, and nearly all equal
        ([0.0] * 999 + [0.5], 1, "wilson"),
        ([0.0] * 999 + [7.0], 1, "bootstrap"),
        ([0.0, 1.0] * 500, 1, "bootstrap"),
        ([0.25, 0.75, 0.5, 0.1] * 125, 10, "wilson clustered"),  # 50 clusters are few, 500 questions are not
        ([0.0, 1.0] * 300, 2, "wilson clustered"),  # 300 clusters of right and wrong
        ([0.25, 0.5, 0.5, 0.75] * 150, 2, "bootstrap clustered"),
        ([0.25, 0.5] * 99 + [0.0] * 600, 2, "wilson clustered"),  # 99 of 399 clusters have a score
        ([0.25, 0.5] * 100 + [0.0] * 600, 2, "bootstrap clustered"),
        (
            [0.25, 0.5] * 300,
            2,
            "wilson clustered",
        ),  # clusters that are all alike: no resample would differ from another
        ([-1.0, 0.5] * 50, 2, "unknown"),  # all clusters alike, and nothing bounds the values
        ([-1.0, 0.5, 0.5, 0.5] * 25, 2, "t clustered"),
        ([0.5, 3.0, 3.0, 3.0] * 25, 2, "t clustered"),
    ],
)
def test_the_method_follows_the_scores(values: list[float], a_cluster: int, method: str) -> None:
    assert estimate(values, clusters=[i // a_cluster for i in range(len(values))]).method == method


@pytest.mark.parametrize("values", [[0.9, 0.95, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
def test_values_that_nothing_bounds_have_no_bound_where_none_leaves_the_interval(values: list[float]) -> None:
    """As ratios of times: on one day all are below one, and on another they are not."""
    assert estimate(values, clusters=[0, 0, 0]).ci95 is not None
    assert estimate(values, clusters=[0, 0, 0], unbounded=True).ci95 is None
    spread = estimate(values, unbounded=True)
    assert spread.method == ("unknown" if len(set(values)) == 1 else "t")


def test_clusters_of_unequal_size_weigh_by_their_questions() -> None:
    """Of 250 pairs and 250 single questions the pairs are right: the mean is 2/3, however the clusters are drawn.

    The ratio of sums has the linear error sqrt(sum_c (s_c - n_c * 2/3)^2) / N = sqrt(250 * 4/9 * 2) / 750.
    """
    values = [0.75] * 500 + [0.25] * 250
    clusters = [i // 2 for i in range(500)] + list(range(250, 500))
    found = estimate(values, clusters=clusters, seed=1)
    assert found.method == "bootstrap clustered"
    mean = (0.75 * 500 + 0.25 * 250) / 750
    error = sqrt(250 * (1.5 - 2 * mean) ** 2 + 250 * (0.25 - mean) ** 2) / 750
    assert found.mean == pytest.approx(mean)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * error, rel=0.08)
    assert found != estimate(values, clusters=clusters, seed=2)


def test_the_p_value_of_the_bootstrap_counts_what_lies_at_zero_and_stays_a_probability() -> None:
    """Half of 400 questions won and half lost: no difference, p near 1. A sure win has the least p there is."""
    even = paired_bootstrap([0.0, 1.0] * 200, [1.0, 0.0] * 200)
    assert (even.method, even.difference) == ("bootstrap", 0.0)
    assert 0.9 < even.p_value <= 1.0
    # 200 wins and losses even out in C(200, 100) / 2^200 = .056 of all resamples: on either side lie .528 with them.
    assert paired_bootstrap([0.0, 1.0] * 100, [1.0, 0.0] * 100).p_value == 1.0
    sure = paired_bootstrap([0.0] * 250, [1.0, 0.5] * 125, resamples=99)
    assert sure.p_value == pytest.approx(2 / 100)
    still = paired_bootstrap([0.0, 0.0, 3.0, 3.0], [1.0, -1.0, 5.0, 1.0], clusters="aabb")
    assert (still.difference, still.p_value, still.method) == (0.0, 1.0, "mover clustered")
    none = paired_bootstrap([0.0] * 8, [2.0, -2.0] * 4, clusters=[i // 2 for i in range(8)])
    assert none.p_value == 1.0
    assert none.low < -0.5 < 0.5 < none.high  # further clusters need not even out as these four do


def test_the_method_of_a_difference_follows_the_differences() -> None:
    zeros = [0.0] * 400
    one = [1.0] + [0.0] * 399
    assert paired_bootstrap(zeros, one).method == "mover"
    assert paired_bootstrap(zeros, one, clusters=[i // 2 for i in range(400)]).method == "mover clustered"
    assert paired_bootstrap(zeros, [2.0] + [0.0] * 399).method == "mover"
    assert paired_bootstrap(zeros[:9], [2.0] * 4 + [1.0, 0.5, 0.3, 0.2, 0.1]).method == "t"
    assert paired_bootstrap(zeros[:20], [n / 4 for n in range(20)]).method == "bootstrap expanded"
    # Within each cluster a win and a loss: questions differ, clusters do not.
    wins = [1.0, -1.0] * 200
    assert paired_bootstrap(zeros, wins, clusters=[i // 2 for i in range(400)]).method == "mover clustered"
    thirds = [0.5, 0.25, -0.5, 0.125] * 125
    assert (
        paired_bootstrap([0.0] * 500, thirds, clusters=[i // 10 for i in range(500)]).method == "t clustered"
    )
    assert paired_bootstrap([0.0] * 200, thirds[:200]).method == "bootstrap"
    assert paired_bootstrap([0.0] * 199, thirds[:199]).method == "bootstrap expanded"


def test_lists_of_another_length_are_refused_on_either_side() -> None:
    for first, second in (([1.0, 0.0], [1.0]), ([1.0], [1.0, 0.0])):
        with pytest.raises(ConfigurationError):
            paired_bootstrap(first, second)
        with pytest.raises(ConfigurationError):
            calibration_error(first, second)
    for clusters in ("a", "abc"):
        with pytest.raises(ConfigurationError):
            estimate([1.0, 0.0], clusters=clusters)
    with pytest.raises(ConfigurationError):
        mcnemar_exact(2, -1)
    for n, c, k in ((3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)):
        for measure in (pass_at_k, all_at_k):
            with pytest.raises(ConfigurationError, match=f"k={k}"):
                measure(n, c, k)


def test_calibration_puts_the_rest_into_the_last_bin_and_ties_stay_in_order() -> None:
    # Bins of 2 over 4 equal confidences: the first two answers, right and right, then wrong and wrong.
    assert calibration_error([0.5] * 4, [1, 1, 0, 0], per_bin=2) == pytest.approx(0.5)
    assert calibration_error([0.5] * 4, [1, 0, 1, 0], per_bin=2) == pytest.approx(0.0)
    # Seven answers in bins of 3: three and four, not three, three and one.
    found = calibration_error([0.5] * 7, [1, 1, 1, 0, 0, 0, 1], per_bin=3)
    assert found == pytest.approx(sqrt((3 * 0.5**2 + 4 * 0.25**2) / 7))
    # Two hundred equal ones: an order that is not stable would mix them.
    assert calibration_error([0.5] * 200, [1.0] * 100 + [0.0] * 100) == pytest.approx(0.5)


def test_questions_on_one_passage_widen_the_interval_as_if_there_were_fewer() -> None:
    # 40 passages with 5 questions each, all right or all wrong: 200 questions are worth 40. With the factor
    # C/(C-1) the effective n is 39, times (z / t)^2 with t(.975, 39) = 2.0227, and the interval is Wilson's of half of that.
    values = [float(passage % 2) for passage in range(40) for _ in range(5)]
    clusters = [passage for passage in range(40) for _ in range(5)]
    found = estimate(values, clusters=clusters)
    assert (found.method, found.n, found.mean) == ("wilson clustered", 200, 0.5)
    effective = 39 * (1.959964 / 2.022691) ** 2
    assert (found.low, found.high) == pytest.approx(wilson_interval(effective / 2, effective), abs=1e-6)
    plain = estimate(values)
    assert found.high - found.low > 2 * (plain.high - plain.low)


def test_clusters_never_narrow_a_proportion_and_keep_a_width_where_all_succeed() -> None:
    mixed = estimate([0.0, 1.0] * 20, clusters=[i // 2 for i in range(40)])
    effective = 40 * (1.959964 / 2.093024) ** 2  # 20 clusters: t(.975, 19)
    assert (mixed.low, mixed.high) == pytest.approx(wilson_interval(effective / 2, effective), abs=1e-6)
    perfect = estimate([1.0] * 50, clusters=[i // 5 for i in range(50)])
    effective = 10 * (1.959964 / 2.262157) ** 2  # t(.975, 9)
    assert (perfect.low, perfect.high) == pytest.approx(wilson_interval(effective, effective), abs=1e-6)
    single = estimate([0.0, 1.0] * 20, clusters=["one"] * 40)
    assert single.low < 0.01  # one cluster says nothing
    assert single.high > 0.99


def test_partial_scores_are_drawn_by_cluster() -> None:
    values = [0.2] * 600 + [0.6] * 600
    found = estimate(values, clusters=[i // 4 for i in range(1200)])
    # 300 clusters of .2 or .6: SE = .2 / sqrt(300) = .01155.
    assert found.method == "bootstrap clustered"
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 0.2 / sqrt(300), rel=0.1)
    few = estimate(values[:8] + values[-8:], clusters=[i // 4 for i in range(16)])
    # Four clusters, mean .4, SE .1155: an effective n of .24 / .01333 = 18, at most 16, times (z / t(.975, 3))^2.
    effective = 16 * (1.959964 / 3.182446) ** 2
    assert few.method == "wilson clustered"
    assert (few.low, few.high) == pytest.approx(wilson_interval(0.4 * effective, effective), abs=1e-6)
    signed = estimate([-1.0, -1.0, 1.0, 1.0, 3.0, 3.0], clusters="aabbcc")
    # Clusters -1, 1 and 3: SE = 2 / sqrt(3), t(.975, 2) = 4.302653.
    assert signed.method == "t clustered"
    assert (signed.low, signed.high) == pytest.approx((1 - 4.968276, 1 + 4.968276), abs=1e-5)


def test_clusters_of_one_question_each_change_nothing() -> None:
    values = [1.0, 0.0, 0.0, 1.0, 1.0]
    assert estimate(values, clusters="abcde") == estimate(values)
    with pytest.raises(ConfigurationError, match=r"\b2\b.*\b5\b"):
        estimate(values, clusters="ab")


def test_calibration_error_by_hand() -> None:
    # One bin: mean confidence .7 against accuracy .5.
    assert calibration_error([0.9, 0.5], [1.0, 0.0]) == pytest.approx(0.2)
    # Bins of 2: {.1, .1} against 0, {.9, .9, .9} against 2/3: sqrt((2 * .01 + 3 * (.9 - 2/3)^2) / 5).
    found = calibration_error([0.9, 0.1, 0.9, 0.1, 0.9], [1, 0, 1, 0, 0], per_bin=2)
    assert found == pytest.approx(sqrt((2 * 0.01 + 3 * (0.9 - 2 / 3) ** 2) / 5))
    assert calibration_error([1.0, 0.0], [1.0, 0.0], per_bin=1) == 0.0


def test_mcnemar_by_hand() -> None:
    # 1 against 7: 2 * (C(8,0) + C(8,1)) / 2^8 = 18/256.
    assert mcnemar_exact(1, 7) == mcnemar_exact(7, 1) == 18 / 256
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(4, 4) == 1.0  # both tails hold the middle term, so the sum passes 1
    assert mcnemar_exact(0, 2000) == 2.0**-1999  # far beyond what floats could sum


def test_clustered_mcnemar_flips_whole_clusters() -> None:
    # Nets 2, 1, -1 of three clusters: the eight signed sums are 4, 2, 2, 0, 0, -2, -2, -4, and 6 are 2 or more from 0.
    signs, clusters = [1, 1, 0, 1, -1, -1, 1], ["a", "a", "a", "b", "c", "c", "c"]
    assert mcnemar_clustered(signs, clusters) == pytest.approx(6 / 8)
    # Three wins on one passage are one coin; as three questions they would be 2/8.
    assert mcnemar_clustered([1, 1, 1], ["a", "a", "a"]) == 1.0
    assert mcnemar_clustered([1, -1], ["a", "a"]) == mcnemar_clustered([0], ["a"]) == 1.0
    with pytest.raises(ConfigurationError, match=r"\b1\b.*\b2\b"):
        mcnemar_clustered([1, 0], ["a"])


@given(st.lists(st.sampled_from([-1, 0, 1]), min_size=1, max_size=60))
def test_with_one_question_a_cluster_it_is_mcnemars_test(signs: list[int]) -> None:
    exact = mcnemar_exact(signs.count(1), signs.count(-1))
    assert mcnemar_clustered(signs, range(len(signs))) == pytest.approx(exact)


def test_paired_bootstrap_draws_whole_clusters() -> None:
    # Five questions a passage, all moved by the same: SE over 400 passages is sqrt(.25 * .75 / 400) = .0217.
    gains = [float(passage % 4 == 0) for passage in range(400) for _ in range(5)]
    passages = [passage for passage in range(400) for _ in range(5)]
    found = paired_bootstrap([0.0] * 2000, gains, clusters=passages)
    assert found.difference == 0.25
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * sqrt(0.25 * 0.75 / 400), rel=0.1)
    # Of 100 passages the error is sqrt(.25 * .75 / 99), and t(.975, 99) = 1.984217.
    few = paired_bootstrap([0.0] * 500, gains[:500], clusters=passages[:500])
    assert (few.high - few.low) / 2 == pytest.approx(1.984217 * sqrt(0.25 * 0.75 / 99), rel=1e-6)
    assert few.p_value < 1e-6
    alone = paired_bootstrap([0.0] * 2000, gains)
    assert found.high - found.low == pytest.approx((alone.high - alone.low) * sqrt(5), rel=0.15)
    assert paired_bootstrap([0.0] * 2000, gains, clusters=range(2000)) == alone


def test_paired_bootstrap_sees_what_pairing_removes() -> None:
    # b wins 30 of 400 questions and never loses: d has mean .075 and SE sqrt(.075 * .925 / 400) = .01317.
    a = np.array([0.0, 1.0] * 200)
    b = a.copy()
    b[:60:2] = 1.0
    result = paired_bootstrap(a, b)
    assert result.difference == pytest.approx(0.075)
    assert (result.low, result.high) == pytest.approx((0.075 - 0.0258, 0.075 + 0.0258), abs=0.003)
    assert result.p_value == pytest.approx(2 / 10_001)
    assert paired_bootstrap(b, a).difference == pytest.approx(-0.075)


def test_paired_bootstrap_of_equals_finds_nothing() -> None:
    result = paired_bootstrap([0.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    assert (result.difference, result.p_value) == (0.0, 1.0)
    assert result.low == -result.high < -0.5  # three equal pairs do not show that there is no difference


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 times 3 2 1 = .03 .04 .03; the last is raised to .04.
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 2), (10, 3, 4), (4, 0, 2), (4, 4, 1), (3, 2, 2)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_one(n: int, c: int, k: int) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k))


def test_pass_at_k_by_hand_is_not_the_biased_shortcut() -> None:
    # 2 of 5 right, 2 draws: both wrong in C(3,2)=3 of C(5,2)=10 -> .7; the shortcut gives 1 - .6^2 = .64.
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 2), (4, 4, 3), (4, 0, 1), (6, 3, 3)])
def test_all_at_k_is_the_share_of_subsets_that_are_all_right(n: int, c: int, k: int) -> None:
    subsets = list(combinations([1] * c + [0] * (n - c), k))
    assert all_at_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


@pytest.mark.parametrize("values", [[], [[1.0]], [float("nan")]])
def test_scores_that_have_no_mean_are_refused(values: list[float]) -> None:
    with pytest.raises(ConfigurationError):
        bootstrap_ci(values)


def test_right_and_wrong_may_be_given_as_truth_values() -> None:
    first, second = [True, False] * 20, [True, True, False, False] * 10
    assert estimate(first) == estimate([float(one) for one in first])
    assert paired_bootstrap(first, second) == paired_bootstrap([1.0, 0.0] * 20, [1.0, 1.0, 0.0, 0.0] * 10)


def test_arguments_without_meaning_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 against 2"):
        paired_bootstrap([1.0, 1.0, 0.0], [1.0, 0.0])
    with pytest.raises(ConfigurationError, match="5 of 3"):
        wilson_interval(5, 3)
    with pytest.raises(ConfigurationError, match="k=6"):
        pass_at_k(5, 2, 6)
    with pytest.raises(ConfigurationError, match=r"not 1\.5"):
        bootstrap_ci([1.0], level=1.5)
    with pytest.raises(ConfigurationError, match="-1"):
        mcnemar_exact(-1, 2)


@pytest.mark.parametrize("n", [1, 10, 400, 1234.5])
def test_wilson_touches_the_ends_exactly(n: float) -> None:
    assert wilson_interval(0, n)[0] == 0.0
    assert wilson_interval(n, n)[1] == 1.0
    low, high = wilson_interval(n / 2, n)
    assert 0 < low < 0.5 < high < 1


@pytest.mark.parametrize("size", [40, 400])
def test_by_default_ten_thousand_resamples_are_drawn_with_seed_0_for_95_percent(size: int) -> None:
    values = np.random.default_rng(1).normal(size=size)
    zeros = np.zeros(size)
    assert bootstrap_ci(values) == bootstrap_ci(values, level=0.95, resamples=10_000, seed=0)
    assert bootstrap_ci(values) != bootstrap_ci(values, resamples=9_999)
    assert estimate(values) == estimate(values, level=0.95, seed=0)
    plain = paired_bootstrap(zeros, values)
    assert plain == paired_bootstrap(zeros, values, level=0.95, resamples=10_000, seed=0)
    assert plain != paired_bootstrap(zeros, values, seed=1)
    assert plain != paired_bootstrap(zeros, values, resamples=999)
    assert plain.ci95 != paired_bootstrap(zeros, values, level=0.9).ci95


def test_clusters_are_drawn_two_thousand_times() -> None:
    values = np.random.default_rng(1).random(600)
    clusters = [i // 2 for i in range(600)]
    found = estimate(values, clusters=clusters)
    assert found.method == "bootstrap clustered"
    pairs = paired_bootstrap(np.zeros(600), values, clusters=clusters, resamples=2_000)
    assert (pairs.low, pairs.high) == (found.low, found.high)
    assert paired_bootstrap(np.zeros(600), values, clusters=clusters).ci95 != pairs.ci95


def test_one_pair_has_a_difference_and_nothing_else() -> None:
    found = paired_bootstrap([0.0], [2.0])
    assert (found.difference, found.ci95, found.method) == (2.0, None, "t")
    assert found.p_value == 1.0
    assert estimate([2.0]).method == "t"
    assert estimate([2.0]).ci95 is None


def test_few_values_without_a_bound_have_students_interval() -> None:
    """-1, 1 and 6: mean 2, deviation sqrt(13), t(.975, 2) = 4.302653, so 2 -+ 4.302653 sqrt(13/3) = 2 -+ 8.957.

    No resample has a mean outside of [-1, 6], so that percentiles, however far out, gave an interval without 0 to one in
    four of all triples around 0. The p-value for 2 degrees of freedom is 1 - t / sqrt(2 + t^2), with t = 2 / sqrt(13/3).
    """
    found, paired = estimate([-1.0, 1.0, 6.0]), paired_bootstrap([0.0] * 3, [-1.0, 1.0, 6.0])
    for one in (found, paired):
        assert one.method == "t"
        assert (one.low, one.high) == pytest.approx((2 - 8.9567, 2 + 8.9567), abs=1e-3)
    t = 2 / sqrt(13 / 3)
    assert paired.p_value == pytest.approx(1 - t / sqrt(2 + t * t))


def test_the_p_value_of_moved_percentiles_agrees_with_their_interval() -> None:
    """Of 24 differences the p-value is .05 where the interval just excludes 0, and about .05 of the samples are below it.

    Twice the share of resampled means beyond 0 is smaller by the factor by which the percentiles are moved.
    """
    rng = np.random.default_rng(0)
    agree = below = 0
    for _ in range(400):
        found = paired_bootstrap(np.zeros(24), rng.normal(size=24) * 3, resamples=2000)
        assert found.method == "bootstrap expanded"
        excluded = found.low > 0 or found.high < 0
        agree += excluded == (found.p_value <= 0.05)
        below += found.p_value <= 0.05
    assert agree >= 396  # all but where the quantile falls between two resamples
    assert below <= 33  # 20 expected, with a deviation of 4.4
    shifted = rng.normal(size=24) * 3
    shifted += 1.45 - shifted.mean()
    found = paired_bootstrap(np.zeros(24), shifted)
    means = shifted.std() / sqrt(24)  # of resampled means, which are nearly normal
    t = 1.45 / (means * sqrt(24 / 23))
    assert found.p_value == pytest.approx(t_two_sided(t, 23), rel=0.25)


def test_the_p_value_of_students_t_by_hand() -> None:
    """Clusters with net 0, 2 and 4 of two questions each: mean 1, SE 2 / sqrt(3) / 2 = .577, t = sqrt(3) with 2 degrees.

    For 2 degrees the two-sided p-value is 1 - t / sqrt(2 + t^2) = 1 - sqrt(3/5) = .2254.
    """
    found = paired_bootstrap([0.0] * 6, [0.0, 0.0, 2.0, 0.0, 3.0, 1.0], clusters="aabbcc")
    assert (found.method, found.difference) == ("t clustered", 1.0)
    assert found.p_value == pytest.approx(1 - sqrt(3 / 5))
    assert found.high - 1 == pytest.approx(4.302653 / sqrt(3), abs=1e-5)


def test_bins_of_calibration_hold_a_hundred_answers() -> None:
    confidences, right = [0.5] * 200, [1.0] * 100 + [0.0] * 100
    assert calibration_error(confidences, right) == calibration_error(confidences, right, per_bin=100)
    assert calibration_error(confidences, right, per_bin=101) != pytest.approx(0.5)
    assert calibration_error([0.5] * 100, right[50:150]) == 0.0
