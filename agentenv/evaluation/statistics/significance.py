"""Confidence intervals of one system, paired tests of two systems, and corrections for multiple tests.

All functions are pure; randomness comes only from the given seed. N is the number of questions.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, inf, isfinite, prod, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.intervals import (
    FEW,
    bounded_interval,
    difference_interval,
    effective_clusters,
    few_clusters_differ,
    few_differ,
    mostly_equal,
    robust_error,
    sign_flip_p,
    t_quantile,
    t_two_sided,
    wilson_score,
)

Floats = NDArray[np.float64]

# number of questions or clusters below which the percentile bootstrap is too narrow (Bowyer et al. 2025)
SMALL_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions with its confidence interval and the method of the interval."""

    mean: float
    low: float
    high: float
    n: int
    method: str
    """``bootstrap``, ``bootstrap expanded``, ``wilson``, ``t`` or ``unknown``; each except the second and the last also with
    ``clustered``."""

    @property
    def ci95(self) -> list[float] | None:
        """The ends of the interval, for a file; None if the variance cannot be estimated from one value or cluster."""
        return finite_ends(self.low, self.high)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of ``b - a`` over the same questions, its interval, and the two-sided p-value of a mean of 0."""

    difference: float
    low: float
    high: float
    p_value: float
    # method of the interval: "bootstrap", "mover", "t" or "bootstrap expanded"; " clustered" may follow
    method: str = "bootstrap"

    @property
    def ci95(self) -> list[float] | None:
        """Both ends of the 95 % interval, as in `Estimate`."""
        return finite_ends(self.low, self.high)


def finite_ends(low: float, high: float) -> list[float] | None:
    """Returns the ends of an interval; None if it is the whole line, because JSON has no infinite numbers."""
    return [low, high] if isfinite(low) and isfinite(high) else None


def bootstrap_ci(
    values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of ``values`` [N] (Efron 1979).

    Raises:
        ConfigurationError: there are no values, one is not finite, or the level is outside of (0, 1).
    """
    means = _bootstrap_means(_checked(values), resamples, seed)
    low, high = np.quantile(means, _tails(level))
    return float(low), float(high)


def wilson_interval(successes: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927, eq. 4); it has a positive width even if all or none succeed.

    Both counts may be effective ones, and so not whole numbers.

    Raises:
        ConfigurationError: 0 <= successes <= n does not hold, n is below 1, or the level is outside of (0, 1).
    """
    if not 0 <= successes <= n or n <= 0:
        raise ConfigurationError(f"A proportion needs 0 <= successes <= n and n > 0, not {successes} of {n}.")
    z = NormalDist().inv_cdf(_tails(level)[1])
    centre, half = wilson_score(successes / n, n, z)
    # Exact if nothing or everything succeeded, where the formula has a rounding error.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def estimate(
    values: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    seed: int = 0,
    unbounded: bool = False,
) -> Estimate:
    """Mean of ``values`` [N] with its interval, by a method with the stated coverage (``benchmarks/interval_coverage.py``).

    - 0/1 values, if there are fewer than `SMALL_SAMPLE` or nearly all are equal: Wilson's interval;
    - values in [0, 1] of which nearly all are equal: Wilson's interval for their sum (`bounded_interval`);
    - other values: Student's t below `FEW`; below `SMALL_SAMPLE` the bootstrap with its percentiles expanded to Student's
      t (Hesterberg 2015); otherwise the percentile bootstrap;
    - one value, values of one cluster, or equal values, outside of [0, 1]: the whole line, because the mean is not bounded
      and the variance cannot be estimated.

    Clusters count by their weight (`effective_clusters`): 220 clusters, a few of which have most of the questions, count as
    fewer than `SMALL_SAMPLE`.

    Args:
        values: One score per question.
        clusters: The cluster of each question. Questions of one cluster (one passage) are not independent. If there are
            fewer clusters than questions, the interval is over clusters: below `SMALL_SAMPLE` clusters, if nearly all have
            the same mean, and for 0/1 values Wilson's with an effective n (`bounded_interval`), or Student's t for values
            outside of [0, 1]; otherwise the bootstrap.
        level: The confidence level.
        seed: The seed of the bootstrap.
        unbounded: Whether further values could be outside of [0, 1] although none of these is, as with a ratio of times.

    Raises:
        ConfigurationError: there are no values, one is not finite, or the number of clusters differs from that of values.
    """
    x = _checked(values)
    _tails(level)
    members = _members(x, range(x.size) if clusters is None else clusters)
    low, high, method = _interval(x, members, level, seed, unbounded=unbounded)
    return Estimate(float(x.mean()), float(low), float(high), x.size, method)


def _interval(
    x: Floats, members: Sequence[Sequence[int]], level: float, seed: int, *, unbounded: bool
) -> tuple[float, float, str]:
    bounded = not unbounded and bool(x.min() >= 0 and x.max() <= 1)
    proportion = bounded and bool(np.isin(x, (0.0, 1.0)).all())
    few = effective_clusters(members) < SMALL_SAMPLE
    # Checked first, because every method below would give an interval of width 0.
    if not bounded and len(members) > 1 and _no_spread(x, members):
        return -inf, inf, "unknown"
    # If every cluster has a single question, the simple methods are more precise.
    if len(members) < x.size:
        if proportion or (bounded and (few or few_clusters_differ(x, members))):
            return *bounded_interval(x, members, level), "wilson clustered"
        if few:
            return *_student(x, members, level), "t clustered"
        return *np.quantile(_cluster_means(x, members, 2_000, seed), _tails(level)), "bootstrap clustered"
    if (proportion and few) or (bounded and few_differ(x)):
        return *bounded_interval(x, members, level), "wilson"
    if x.size == 1:
        return -inf, inf, "t"  # the value is unbounded, and one value has no variance
    if x.size < FEW:
        return *_student(x, members, level), "t"
    if few:
        return *_expanded(x, level, seed), "bootstrap expanded"
    return *bootstrap_ci(x, level=level, seed=seed), "bootstrap"


def _no_spread(x: Floats, members: Sequence[Sequence[int]]) -> bool:
    """Whether all questions (or all clusters) are equal, so that an interval from their variance would have width 0."""
    residuals = np.array([(x[rows] - x.mean()).sum() for rows in members])
    return bool(abs(residuals).max() <= 1e-9 * max(1.0, float(abs(x).max())))


def _student(x: Floats, members: Sequence[Sequence[int]], level: float) -> tuple[float, float]:
    error, df = robust_error(x, members)
    half = t_quantile((1 + level) / 2, df) * error
    return float(x.mean()) - half, float(x.mean()) + half


def _expanded(x: Floats, level: float, seed: int, resamples: int = 10_000) -> tuple[float, float]:
    """The bootstrap's percentiles expanded to those of Student's t, with the variance multiplied by N / (N - 1)."""
    reach = sqrt(x.size / (x.size - 1)) * t_quantile((1 + level) / 2, x.size - 1)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(_bootstrap_means(x, resamples, seed), (tail, 1 - tail))
    return float(low), float(high)


def _expanded_p(share: float, n: int) -> float:
    """The p-value whose expanded interval ends at zero, if ``share`` of the resampled means of N values lie beyond it.

    The inverse of `_expanded`: z = Phi^-1(share) is sqrt(N / (N - 1)) t, and p = P(|T| >= |t|) with N - 1 degrees of
    freedom. Twice the share itself would be too small for few questions, whose resampled means vary too little.
    """
    z = NormalDist().inv_cdf(min(share, 0.5))
    return t_two_sided(z * sqrt((n - 1) / n), n - 1)


def _members(x: Floats, clusters: Sequence[Hashable]) -> list[list[int]]:
    """Returns the indices of the values of each cluster."""
    if len(clusters) != x.size:
        raise ConfigurationError(f"Every score needs one cluster; there are {len(clusters)} for {x.size}.")
    return rows_of_clusters(clusters)


def rows_of_clusters(clusters: Sequence[Hashable]) -> list[list[int]]:
    """The rows of each cluster, in the order in which clusters first appear."""
    rows: dict[Hashable, list[int]] = {}
    for row, cluster in enumerate(clusters):
        rows.setdefault(cluster, []).append(row)
    return list(rows.values())


def _cluster_means(x: Floats, members: Sequence[Sequence[int]], resamples: int, seed: int) -> Floats:
    """Returns the means of ``resamples`` samples of clusters drawn with replacement from ``x`` [N] -> [resamples].

    With clusters of unequal size, the mean of a resample is a ratio: the sum of scores over the number of questions.
    """
    sums = np.array([x[rows].sum() for rows in members])
    sizes = np.array([len(rows) for rows in members])
    even = np.full(len(members), 1 / len(members))
    rng = np.random.default_rng(seed)
    # It suffices to draw how often each cluster occurs, without indices of questions.
    draws = (rng.multinomial(len(members), even, size=rows) for rows in _blocks(resamples, len(members)))
    return np.concatenate([drawn @ sums / (drawn @ sizes) for drawn in draws])


def calibration_error(confidences: Sequence[float], correct: Sequence[float], *, per_bin: int = 100) -> float:
    """Root mean square difference of confidence and accuracy over bins of equally many answers.

    Answers are sorted by confidence; the last bin takes the remainder (Hendrycks et al. 2019, as in HLE).

    Raises:
        ConfigurationError: the two lengths differ, or there are no answers.
    """
    claimed, right = _checked(confidences), _checked(correct)
    if claimed.size != right.size:
        raise ConfigurationError(
            f"Every answer needs one confidence; there are {claimed.size} for {right.size}."
        )
    # A stable sort, so that answers of equal confidence are assigned to bins by their order and not at random.
    order = np.argsort(claimed, kind="stable")
    bins = np.array_split(order, np.arange(per_bin, claimed.size - per_bin + 1, per_bin))
    squares = [rows.size * (claimed[rows].mean() - right[rows].mean()) ** 2 for rows in bins]
    return float(sqrt(sum(squares) / claimed.size))


def mcnemar_exact(b: int, c: int) -> float:
    """Two-sided exact p-value of ``b`` against ``c`` discordant pairs under equal odds (McNemar 1947).

    Raises:
        ConfigurationError: a negative count.
    """
    if b < 0 or c < 0:
        raise ConfigurationError(f"Discordant counts cannot be negative: {b}, {c}.")
    # In integers, which are exact for any number of pairs.
    tail = sum(comb(b + c, i) for i in range(min(b, c) + 1))
    return min(1.0, 2 * tail / (1 << (b + c)))


def mcnemar_clustered(differences: Sequence[int], clusters: Sequence[Hashable]) -> float:
    """`mcnemar_exact` for questions that are not independent within clusters.

    If the systems are equal, the sign of a cluster's net difference is a fair coin flip (Fisher 1935). The p-value is the
    share of all choices of signs whose sum is at least as far from 0 as the observed one. With one discordant pair per
    cluster, this equals McNemar's test.

    Args:
        differences: For each question [N], 1 if only the second system is right, -1 if only the first is, otherwise 0.
        clusters: The cluster of each question.

    Raises:
        ConfigurationError: the number of clusters differs from that of questions.
    """
    members = _members(np.asarray(differences, dtype=np.float64), clusters)
    nets = [sum(differences[row] for row in rows) for rows in members]
    chances = np.ones(1)  # probabilities of the possible sums so far, in ascending order with step 1
    for size in filter(None, map(abs, nets)):
        apart = np.zeros(2 * size)
        chances = (np.append(chances, apart) + np.append(apart, chances)) / 2
    distance = abs(np.arange(chances.size) - chances.size // 2)
    return min(1.0, float(chances[distance >= abs(sum(nets))].sum()))


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> PairedDifference:
    """Bootstrap over questions of the mean of ``b - a``, both [N] and in the same order of questions.

    With fewer ``clusters`` than questions, whole clusters are drawn. If the bootstrap interval would be too narrow, another
    one replaces it: `difference_interval` with the p-value of `sign_flip_p` if nearly all differences are equal (for
    differences outside of [-1, 1], also at least half of them); Student's t for fewer than `FEW` questions or fewer than
    `SMALL_SAMPLE` `effective_clusters`; percentiles expanded to Student's t for fewer than `SMALL_SAMPLE` questions. A
    single question or cluster whose difference is outside of [-1, 1] has no interval.

    The p-value of the bootstrap is twice the smaller share of resampled means on either side of zero. Means of zero count on
    both sides, and one is added to numerator and denominator so that it is never 0 (Davison and Hinkley 1997, eq. 4.11). If
    the percentiles are expanded, the share is adjusted accordingly (`_expanded_p`), so that the p-value is at most 1 -
    ``level`` if the interval excludes zero. Because of the added one, it may be slightly larger if zero is very close to an
    end.

    Raises:
        ConfigurationError: the two lengths differ, or as in `bootstrap_ci`.
    """
    x, y = _checked(a), _checked(b)
    if x.size != y.size:
        raise ConfigurationError(
            f"Paired scores must be over the same questions, not {x.size} against {y.size}."
        )
    d, members = y - x, _members(x, range(x.size) if clusters is None else clusters)
    clustered = len(members) < x.size
    few_clusters = clustered and effective_clusters(members) < SMALL_SAMPLE
    if _sparse(d, members, few_clusters=few_clusters):
        low, high = difference_interval(d, members, level)
        method = "mover clustered" if clustered else "mover"
        return PairedDifference(float(d.mean()), low, high, sign_flip_p(d, members), method)
    if x.size < FEW or few_clusters:
        low, high = _student(d, members, level)
        error, df = robust_error(d, members)
        p_value = t_two_sided(float(d.mean()) / error, df) if error > 0 else sign_flip_p(d, members)
        return PairedDifference(float(d.mean()), low, high, p_value, "t clustered" if clustered else "t")
    method = "bootstrap clustered" if clustered else "bootstrap"
    # The differences of a question are drawn as a pair, so that a question's difficulty for both systems does not widen the
    # interval.
    means = _cluster_means(d, members, resamples, seed) if clustered else _bootstrap_means(d, resamples, seed)
    low, high = (float(end) for end in np.quantile(means, _tails(level)))
    if not clustered and x.size < SMALL_SAMPLE:
        method, (low, high) = "bootstrap expanded", _expanded(d, level, seed, resamples)
    smaller = (min(int((means <= 0).sum()), int((means >= 0).sum())) + 1) / (resamples + 1)
    p_value = _expanded_p(smaller, x.size) if method == "bootstrap expanded" else min(1.0, 2 * smaller)
    return PairedDifference(float(d.mean()), low, high, p_value, method)


def _sparse(d: Floats, members: Sequence[Sequence[int]], *, few_clusters: bool) -> bool:
    """Whether the differences ``d`` [N] vary so little that `difference_interval` is needed."""
    sums = np.array([d[rows].sum() for rows in members])
    if abs(d).max() <= 1:
        return few_differ(d) or few_differ(sums)
    # Differences of rewards are unbounded, so an interval from their own variance is used whenever they vary.
    if len(members) == 1:
        return False
    return _no_spread(d, members) if few_clusters else mostly_equal(d) or mostly_equal(sums)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for multiple tests, in the given order (Holm 1979).

    The i-th smallest of m (from 0) is multiplied by m - i; the results are made non-decreasing and limited to 1.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # The running maximum, so that a smaller p-value never has a larger adjusted value than a larger one.
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that one of ``k`` draws from ``n`` samples, ``c`` of them right, is right.

    ``1 - C(n-c, k) / C(n, k)`` (Chen et al. 2021, eq. 1); ``1 - (1 - c/n)^k`` would be biased.

    Raises:
        ConfigurationError: not 0 <= c <= n with 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ConfigurationError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n={n}, c={c}, k={k}.")
    # With fewer wrong samples than draws, one draw is certainly right, and the product below would have a negative factor.
    if n - c < k:
        return 1.0
    # The quotient of the two binomials as a product of factors near 1, because each binomial alone overflows a float.
    return 1.0 - prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def all_at_k(n: int, c: int, k: int) -> float:
    """Unbiased probability that all of ``k`` draws from ``n`` samples, ``c`` of them right, are right.

    ``C(c, k) / C(n, k)``, also called pass^k (Yao et al. 2024).

    Raises:
        ConfigurationError: as in `pass_at_k`.
    """
    pass_at_k(n, c, k)
    return comb(c, k) / comb(n, k)


def _checked(values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ConfigurationError(
            f"The scores must be a flat, non-empty list of finite numbers, not one of shape {x.shape}."
        )
    return x


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ConfigurationError(f"A confidence level lies between 0 and 1, not {level}.")
    return (1 - level) / 2, (1 + level) / 2


def _bootstrap_means(x: Floats, resamples: int, seed: int) -> Floats:
    """Returns the means of ``resamples`` samples of N values drawn from ``x`` [N] with replacement -> [resamples].

    The counts of the distinct values are multinomial, so only counts are drawn. Scores have few distinct values, so 10,000
    resamples of 7,405 questions take milliseconds.
    """
    distinct, counts = np.unique(x, return_counts=True)
    rng = np.random.default_rng(seed)
    draws = (
        rng.multinomial(x.size, counts / x.size, size=rows) for rows in _blocks(resamples, distinct.size)
    )
    return np.concatenate([drawn @ distinct / x.size for drawn in draws])


def _blocks(total: int, width: int) -> Iterator[int]:
    # At most 4 million counts (32 MB) at a time, however many distinct values there are.
    step = max(1, 4_000_000 // width)
    for start in range(0, total, step):
        yield min(step, total - start)
