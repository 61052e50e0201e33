"""The sequential comparison: a case by enumeration, error rates by simulation, and what it asks for next."""

from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.sequential import (
    Decision,
    Floats,
    Verdict,
    _most_extreme,
    _threshold,
    compare_sequentially,
)


def verdicts(found: Decision) -> dict[tuple[str, str], Verdict]:
    return {(pair.first, pair.second): pair.verdict for pair in found.pairs}


def told_apart(found: Decision) -> bool:
    return any(pair.verdict in (Verdict.FIRST_BETTER, Verdict.SECOND_BETTER) for pair in found.pairs)


def test_one_look_is_the_permutation_test() -> None:
    # Of the C(8, 4) = 70 ways to split 8 distinct scores only the observed one and its mirror image are as
    # extreme: p = 2/70 = .0286. So the pair is told apart at .05 and not at .02.
    a, b = [5.0, 6.1, 7.3, 8.6], [1.0, 2.2, 3.5, 4.9]
    pool = a + b
    sums = [abs(sum(part) - (sum(pool) - sum(part))) for part in combinations(pool, 4)]
    assert sum(s >= abs(sum(a) - sum(b)) - 1e-9 for s in sums) == 2
    assert comb(8, 4) == 70
    at = {
        alpha: compare_sequentially({"a": a, "b": b}, per_interim=4, interims=1, alpha=alpha)
        for alpha in (0.05, 0.02)
    }
    assert verdicts(at[0.05]) == {("a", "b"): Verdict.FIRST_BETTER}
    assert verdicts(at[0.02]) == {("a", "b"): Verdict.NO_DIFFERENCE}
    assert at[0.02].enough


def test_a_pair_is_told_apart_when_its_p_value_is_alpha_exactly() -> None:
    """Of 100 permutations 29 are as extreme as the one seen: p is at most alpha = .29, whose float times 100 is below 29."""
    assert 0.29 * 100 < 29
    scores = {"a": [10.0, 11.0], "b": [0.0, 1.0]}  # 2 of 6 splits are as extreme, so 29 of 100 are not rare

    def apart(alpha: float, seed: int) -> bool:
        return told_apart(
            compare_sequentially(scores, per_interim=2, interims=1, alpha=alpha, permutations=99, seed=seed)
        )

    seeds = [seed for seed in range(200) if apart(0.295, seed) and not apart(0.285, seed)]
    assert seeds
    assert all(apart(0.29, seed) for seed in seeds)


@pytest.mark.parametrize("unit", [0.1, 1 / 3, 1e9 / 3])
def test_the_unit_of_the_scores_decides_nothing(unit: float) -> None:
    """Splits with equal sums of whole numbers are equally extreme in tenths too, where their sums differ by rounding."""
    rng = np.random.default_rng(1)
    settings: dict[str, Any] = {"per_interim": 3, "interims": 1, "permutations": 99}
    told = 0
    for seed in range(60):
        whole = {
            name: rng.integers(0, 9, 3).astype(np.float64) + shift for name, shift in (("a", 3), ("b", 0))
        }
        scaled = {name: values * unit for name, values in whole.items()}
        for alpha in (0.1, 0.2, 0.3, 0.5):
            found = [
                verdicts(compare_sequentially(scores, alpha=alpha, seed=seed, **settings))
                for scores in (whole, scaled)
            ]
            assert found[0] == found[1], (whole, alpha)
            told += found[0]["a", "b"] is Verdict.FIRST_BETTER
    assert 20 < told < 220  # both outcomes were compared


AB, AC = ("a", "b"), ("a", "c")


def sizes(*looks: list[float]) -> list[Floats]:
    """Sums under the identity and four other permutations, for each look."""
    return [np.array(look) for look in looks]


def test_a_permutation_is_taken_at_one_look_only() -> None:
    """One of five permutations a look, by hand.

    The fifth is taken at the first look and the fourth at the second. At the third the second is the most extreme of the
    three left, whatever the first two taken are by now. At the fourth the identity is.
    """
    looks = sizes([3, 1, 1, 1, 9], [3, 1, 1, 9, 0], [3, 5, 1, 0, 0], [3, 0, 1, 9, 9])
    found = [_most_extreme({AB: looks[:depth]}, 0.2) for depth in (1, 2, 3, 4)]
    assert found == [None, None, None, (AB, 4)]


def test_a_pair_is_as_extreme_as_the_family_s_largest_sum_lets_it_be() -> None:
    """The largest sums are 5, 4, 4, 1 and 1: the identity is the one of five. Its mean, 2.5, is below the third's 4."""
    assert _most_extreme({AB: sizes([5, 0, 4, 1, 1]), AC: sizes([0, 4, 4, 1, 1])}, 0.2) == (AB, 1)
    # A permutation that is more extreme for the other pair keeps this one in the family.
    assert _most_extreme({AB: sizes([5, 0, 0, 1, 1]), AC: sizes([0, 6, 0, 1, 1])}, 0.2) is None


def test_the_pair_with_the_largest_difference_seen_leaves_the_family_first() -> None:
    assert _most_extreme({AB: sizes([4, 0, 1, 1, 1]), AC: sizes([-5, 0, 1, 1, 1])}, 0.2) == (AC, 1)
    assert _most_extreme({AB: sizes([-5, 0, 1, 1, 1]), AC: sizes([4, 0, 1, 1, 1])}, 0.2) == (AB, 1)


@pytest.mark.parametrize(("allowed", "exceed"), [(-1, 0), (0, 0), (1, 1), (3, 3), (4, 4), (5, 4)])
def test_as_many_values_exceed_the_cut_as_are_allowed(allowed: int, exceed: int) -> None:
    for values in ([0.0, 2.0, 3.0, 4.0], [4e9, 0.0, 3e9, 2e9]):
        assert sum(value > _threshold(np.array(values), allowed) for value in values) == exceed


def test_ties_with_the_cut_do_not_exceed_it() -> None:
    for size in (1.0, 1e9):
        values = np.array([1.0, 3.0, np.nextafter(3.0, 4.0)]) * size
        assert [int((values > _threshold(values, allowed)).sum()) for allowed in (0, 1, 2, 3)] == [0, 0, 2, 3]


def test_two_looks_permute_each_interim_by_itself() -> None:
    """One look at two seeds each can tell nothing apart: 2 of the C(4, 2) = 6 splits are as extreme as the one seen.

    Over two looks 2 of 36 are, .056 of at most .2. Were both interims split alike, it would be 2 of 6 again.
    """
    scores = {"a": [10.0, 11.0, 12.0, 13.0], "b": [0.0, 1.0, 2.0, 3.0]}
    found = compare_sequentially(scores, per_interim=2, interims=2, alpha=0.2)
    assert verdicts(found) == {("a", "b"): Verdict.FIRST_BETTER}
    assert (found.pairs[0].interim, found.interims) == (2, 2)
    assert told_apart(compare_sequentially(scores, per_interim=2, interims=2, alpha=0.05)) is False


def test_a_system_that_has_not_run_yet_waits_without_a_difference() -> None:
    found = compare_sequentially({"a": [], "b": [0.5, 0.4]})
    assert (found.pairs[0].difference, found.pairs[0].verdict) == (0.0, Verdict.UNDECIDED)
    assert (found.interims, found.more_seeds) == (0, 5)


def test_no_look_is_taken_beyond_the_last() -> None:
    same = [0.5, 0.4, 0.6, 0.5, 0.45]
    found = compare_sequentially({"a": same * 3, "b": same[::-1] * 3}, interims=2)
    assert (found.interims, found.more_seeds, found.enough) == (2, 0, True)
    assert (found.pairs[0].verdict, found.pairs[0].interim) == (Verdict.NO_DIFFERENCE, 2)


def test_a_pair_keeps_the_interim_that_decided_it() -> None:
    rng = np.random.default_rng(0)
    scores = {"good": rng.normal(9, 0.1, 10), "alike": rng.normal(9, 0.1, 10), "bad": rng.normal(0, 0.1, 10)}
    found = {
        (pair.first, pair.second): pair.interim for pair in compare_sequentially(scores, interims=3).pairs
    }
    assert found == {("good", "alike"): 2, ("good", "bad"): 1, ("alike", "bad"): 1}


def test_equal_scores_of_any_size_are_never_told_apart() -> None:
    """Every permutation is as extreme as what was seen, up to rounding of great sums."""
    for size in (0.0, 0.1, 1e9 / 3):
        assert not told_apart(compare_sequentially({"a": [size] * 5, "b": [size] * 5}, interims=1))
    pool = [1e9 / 3 * k for k in (1, 2)]
    assert not told_apart(compare_sequentially({"a": pool, "b": pool}, per_interim=2, interims=1, alpha=0.3))


@pytest.mark.parametrize("systems", [2, 3])
def test_equal_systems_are_told_apart_no_oftener_than_alpha(systems: int) -> None:
    rng = np.random.default_rng(7)
    trials, alpha = 600, 0.1
    wrong = 0
    for trial in range(trials):
        scores = {f"s{i}": rng.beta(2, 5, size=12) for i in range(systems)}
        found = compare_sequentially(
            scores, per_interim=4, interims=3, alpha=alpha, permutations=199, seed=trial
        )
        wrong += told_apart(found)
    # Three standard errors of the rate: 3 * sqrt(.1 * .9 / 600) = .037.
    assert wrong / trials <= alpha + 0.037
    assert wrong / trials >= 0.04  # and the level is used, not wasted


def test_looking_early_and_often_costs_no_error_and_saves_seeds() -> None:
    rng = np.random.default_rng(3)
    looks, right = [], 0
    for trial in range(100):
        scores = {"a": rng.normal(1.5, 1, size=25), "b": rng.normal(0, 1, size=25)}
        found = compare_sequentially(scores, permutations=499, seed=trial)
        right += found.pairs[0].verdict is Verdict.FIRST_BETTER
        looks.append(found.pairs[0].interim)
    assert right >= 95
    assert np.mean(looks) < 4  # of 5: stops early


def test_the_difference_decides_the_direction() -> None:
    low, high = [0.1, 0.11, 0.12, 0.13, 0.14], [0.5, 0.51, 0.52, 0.53, 0.54]
    found = compare_sequentially({"low": low, "high": high})
    assert verdicts(found) == {("low", "high"): Verdict.SECOND_BETTER}
    assert found.pairs[0].difference == pytest.approx(-0.4)
    assert (found.enough, found.interims) == (True, 1)


def test_a_system_whose_pairs_are_decided_may_stop() -> None:
    rng = np.random.default_rng(0)
    scores = {"good": rng.normal(9, 0.1, 10), "alike": rng.normal(9, 0.1, 10), "bad": rng.normal(0, 0.1, 5)}
    found = compare_sequentially(scores, interims=3)
    known = verdicts(found)
    assert known["good", "bad"] is known["alike", "bad"] is Verdict.FIRST_BETTER
    assert known["good", "alike"] is Verdict.UNDECIDED
    assert (found.interims, found.more_seeds, found.enough) == (2, 5, False)


def test_it_says_how_many_more_seeds_are_needed() -> None:
    same = [0.5, 0.4, 0.6, 0.5, 0.45]
    assert compare_sequentially({"a": same[:2], "b": same[:4]}).more_seeds == 3
    waiting = compare_sequentially({"a": same, "b": [*same[::-1], 0.5]})
    assert (waiting.interims, waiting.more_seeds) == (1, 5)  # b's sixth seed waits for the next look
    done = compare_sequentially({"a": same * 5, "b": same[::-1] * 5})
    assert (done.enough, done.more_seeds, done.interims) == (True, 0, 5)
    assert verdicts(done) == {("a", "b"): Verdict.NO_DIFFERENCE}


def test_scores_of_earlier_looks_decide_alike_when_more_are_there() -> None:
    rng = np.random.default_rng(11)
    a, b = rng.normal(1, 1, 15), rng.normal(0, 1, 15)
    early = compare_sequentially({"a": a[:10], "b": b[:10]})
    late = compare_sequentially({"a": a, "b": b})
    if early.enough:
        assert late.pairs[0].interim == early.pairs[0].interim
    else:
        assert late.pairs[0].interim > 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"scores": {"a": [1.0]}}, "two"),
        ({"scores": {"a": [1.0], "b": [float("nan")]}}, "'b'"),
        ({"alpha": 0.0}, r"and 0\.0"),
        ({"alpha": 1.0}, r"and 1\.0"),
        ({"per_interim": 1}, "1, 5, 10000"),
        ({"interims": 0}, "5, 0, 10000"),
        ({"permutations": 0}, "5, 5, 0"),
    ],
)
def test_settings_without_meaning_are_refused(changes: dict[str, object], named: str) -> None:
    arguments: dict[str, object] = {"scores": {"a": [1.0, 2.0], "b": [1.0, 2.0]}, **changes}
    with pytest.raises(ConfigurationError, match=named):
        compare_sequentially(**arguments)  # type: ignore[arg-type]


def test_the_direction_of_a_decided_pair_is_that_of_its_look() -> None:
    """Seeds that are run for another pair, or beyond the last full interim, do not turn a verdict around."""
    a, b = [10.0, 11.0, 12.0, 13.0], [0.0, 1.0, 2.0, 3.0]
    for later in ([], [-1e3], [-1e3] * 4):
        found = compare_sequentially({"a": a + later, "b": b}, per_interim=4, interims=2, alpha=0.2)
        (pair,) = found.pairs
        assert (pair.verdict, pair.interim) == (Verdict.FIRST_BETTER, 1)
        assert (pair.difference, pair.seeds) == (10.0, 4)
        # Both have a variance of 5/3, so 5/12 of the mean, and 6 degrees of freedom: t = 2.4469.
        assert pair.ci95 == pytest.approx(
            (10 - 2.4469 * (5 / 6) ** 0.5, 10 + 2.4469 * (5 / 6) ** 0.5), abs=1e-3
        )


def test_a_pair_that_nothing_tells_apart_is_described_by_all_its_looks() -> None:
    a, b = [0.1, 0.4, 0.2, 0.5], [0.3, 0.2, 0.5, 0.2]
    found = compare_sequentially({"a": [*a, 9.0], "b": b}, per_interim=2, interims=3)
    (pair,) = found.pairs
    assert (pair.verdict, pair.seeds) == (Verdict.UNDECIDED, 4)  # the ninth waits for the next look
    assert pair.difference == pytest.approx(0.0)
    before = compare_sequentially({"a": a[:3], "b": b[:1]}, per_interim=4, interims=3).pairs[0]
    assert (before.seeds, before.ci95) == (1, None)
    assert before.difference == pytest.approx(-0.2)


def test_the_seed_draws_the_permutations_and_is_0_by_default() -> None:
    rng = np.random.default_rng(3)
    scores = {"a": rng.normal(0.3, 1.0, 5), "b": rng.normal(0.0, 1.0, 5)}

    def apart(**seed: int) -> list[bool]:
        """Whether they are told apart at each of many levels, which shows where the p-value lies."""
        levels = [level / 100 for level in range(1, 100)]
        return [
            told_apart(
                compare_sequentially(scores, per_interim=5, interims=1, alpha=level, permutations=60, **seed)
            )
            for level in levels
        ]

    assert apart() == apart() == apart(seed=0)
    assert any(apart(seed=seed) != apart() for seed in range(1, 9))
