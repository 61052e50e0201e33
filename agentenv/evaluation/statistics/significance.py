"""How sure a score is: intervals for one system, paired tests for two, corrections for many.

Everything is a pure function; randomness comes from the given seed only. N is the number of questions.
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

SMALL_SAMPLE = (
    200  # questions or clusters, below which the percentile bootstrap is too narrow (Bowyer et al. 2025)
)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions with its confidence interval and how the interval was made."""

    mean: float
    low: float
    high: float
    n: int
    method: str
    """``bootstrap``, ``bootstrap expanded``, ``wilson``, ``t`` or ``unknown``; all but the second and the last also with
    ``clustered``."""

    @property
    def ci95(self) -> list[float] | None:
        """The ends of the interval, for a file; None where one value or cluster says nothing of the spread."""
        return finite_ends(self.low, self.high)


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of ``b - a`` over the same questions, its interval, and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float
    method: str = (
        "bootstrap"  # of the interval: or "mover", "t", "bootstrap expanded", and each also "clustered"
    )

    @property
    def ci95(self) -> list[float] | None:
        """Both ends of the 95 % interval, as in `Estimate`."""
        return finite_ends(self.low, self.high)


def finite_ends(low: float, high: float) -> list[float] | None:
    """The ends of an interval, or None where it is the whole line, for which JSON has no numbers."""
    return [low, high] if isfinite(low) and isfinite(high) else None


def bootstrap_ci(
    values: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of ``values`` [N] (Efron 1979).

    Raises:
        ConfigurationError: no values, one that is not finite, or a level outside (0, 1).
    """
    means = _bootstrap_means(_checked(values), resamples, seed)
    low, high = np.quantile(means, _tails(level))
    return float(low), float(high)


def wilson_interval(successes: float, n: float, *, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson 1927, eq. 4); keeps a width where all or none succeed.

    Both counts may be effective ones, which are no whole numbers.

    Raises:
        ConfigurationError: not 0 <= successes <= n with n at least 1, or a level outside (0, 1).
    """
    if not 0 <= successes <= n or n <= 0:
        raise ConfigurationError(f"A proportion needs 0 <= successes <= n and n > 0, not {successes} of {n}.")
    z = NormalDist().inv_cdf(_tails(level)[1])
    centre, half = wilson_score(successes / n, n, z)
    # Exact where nothing or everything succeeded; the formula is off by a rounding error there.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def estimate(
    values: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    seed: int = 0,
    unbounded: bool = False,
) -> Estimate:
    """Mean of ``values`` [N] with its interval, by a method that covers (``benchmarks/interval_coverage.py``).

    - 0/1 values, fewer than `SMALL_SAMPLE` or nearly all equal: Wilson's;
    - values in [0, 1] that are nearly all equal: Wilson's for their sum (`bounded_interval`);
    - others, fewer than `FEW`: Student's t; fewer than `SMALL_SAMPLE`: the bootstrap with its percentiles moved out to
      Student's t (Hesterberg 2015);
    - from `SMALL_SAMPLE` on: the percentile bootstrap;
    - one value, values of one cluster, or equal values, that leave [0, 1]: the whole line, because nothing bounds the mean
      and nothing tells of the spread.

    Clusters count by what they weigh (`effective_clusters`): of 220 of which a few hold most of the questions there are
    fewer than `SMALL_SAMPLE`.

    Args:
        values: one score a question.
        clusters: what each question belongs to: those of one cluster (one passage) are not independent. Where there are
            fewer clusters than questions, the interval is of the clusters: below `SMALL_SAMPLE` of them, where nearly all
            have one mean, and for 0/1 values Wilson's with an effective n (`bounded_interval`), or Student's t where values
            leave [0, 1]; else the bootstrap.
        level: of the interval.
        seed: of the bootstrap.
        unbounded: whether another value could leave [0, 1] although none of these does, as a ratio of times could.

    Raises:
        ConfigurationError: no values, one that is not finite, or not one cluster a value.
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
    # First, because every method below would give an interval of no width.
    if not bounded and len(members) > 1 and _no_spread(x, members):
        return -inf, inf, "unknown"
    # Clusters that all hold one question are none: the simple methods are sharper there.
    if len(members) < x.size:
        if proportion or (bounded and (few or few_clusters_differ(x, members))):
            return *bounded_interval(x, members, level), "wilson clustered"
        if few:
            return *_student(x, members, level), "t clustered"
        return *np.quantile(_cluster_means(x, members, 2_000, seed), _tails(level)), "bootstrap clustered"
    if (proportion and few) or (bounded and few_differ(x)):
        return *bounded_interval(x, members, level), "wilson"
    if x.size == 1:
        return -inf, inf, "t"  # nothing bounds the value, and one tells nothing of the spread
    if x.size < FEW:
        return *_student(x, members, level), "t"
    if few:
        return *_expanded(x, level, seed), "bootstrap expanded"
    return *bootstrap_ci(x, level=level, seed=seed), "bootstrap"


def _no_spread(x: Floats, members: Sequence[Sequence[int]]) -> bool:
    """Whether questions, or clusters of them, do not differ: an interval from their spread would have no width."""
    residuals = np.array([(x[rows] - x.mean()).sum() for rows in members])
    return bool(abs(residuals).max() <= 1e-9 * max(1.0, float(abs(x).max())))


def _student(x: Floats, members: Sequence[Sequence[int]], level: float) -> tuple[float, float]:
    error, df = robust_error(x, members)
    half = t_quantile((1 + level) / 2, df) * error
    return float(x.mean()) - half, float(x.mean()) + half


def _expanded(x: Floats, level: float, seed: int, resamples: int = 10_000) -> tuple[float, float]:
    """The bootstrap's percentiles as far out as Student's t is, with N / (N - 1) for the variance."""
    reach = sqrt(x.size / (x.size - 1)) * t_quantile((1 + level) / 2, x.size - 1)
    tail = NormalDist().cdf(-reach)
    low, high = np.quantile(_bootstrap_means(x, resamples, seed), (tail, 1 - tail))
    return float(low), float(high)


def _expanded_p(share: float, n: int) -> float:
    """The p-value whose expanded interval ends at zero, where ``share`` of the resampled means of N lie beyond it.

    The inverse of `_expanded`: z = Phi^-1(share) is sqrt(N / (N - 1)) t, and p = P(|T| >= |t|) with N - 1 degrees of
    freedom. Twice the share itself is too small for few questions, whose resampled means spread too little.
    """
    z = NormalDist().inv_cdf(min(share, 0.5))
    return t_two_sided(z * sqrt((n - 1) / n), n - 1)


def _members(x: Floats, clusters: Sequence[Hashable]) -> list[list[int]]:
    """The rows of each cluster."""
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
    """Means of ``resamples`` samples of as many whole clusters of ``x`` [N] as there are -> [resamples].

    A resample of clusters of unequal size is a ratio: sum of scores over number of questions.
    """
    sums = np.array([x[rows].sum() for rows in members])
    sizes = np.array([len(rows) for rows in members])
    even = np.full(len(members), 1 / len(members))
    rng = np.random.default_rng(seed)
    # How often each cluster is drawn is enough: no index of a question is ever drawn.
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
    # A stable sort, so that answers of equal confidence fall into bins by their order and not by chance.
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
    # In whole numbers, which are exact however many pairs there are.
    tail = sum(comb(b + c, i) for i in range(min(b, c) + 1))
    return min(1.0, 2 * tail / (1 << (b + c)))


def mcnemar_clustered(differences: Sequence[int], clusters: Sequence[Hashable]) -> float:
    """`mcnemar_exact` where questions of one cluster are not independent.

    If the systems are equal, the sign of a cluster's net difference is a fair coin (Fisher 1935): the p-value is the
    share of all choices of signs whose sum is at least as far from 0 as the one seen. With one discordant pair a
    cluster these are McNemar's odds.

    Args:
        differences: for each question [N] 1 where the second system alone is right, -1 where the first alone is.
        clusters: what each question belongs to.

    Raises:
        ConfigurationError: not one cluster a question.
    """
    members = _members(np.asarray(differences, dtype=np.float64), clusters)
    nets = [sum(differences[row] for row in rows) for rows in members]
    chances = np.ones(1)  # of the sums reached so far, from the least to the greatest, in steps of 1
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

    With fewer ``clusters`` than questions whole clusters are drawn. Where the bootstrap is too narrow another interval
    stands for it: `difference_interval` with the p-value of `sign_flip_p` where nearly all differences are equal (of
    differences that leave [-1, 1], half of them besides), Student's t over fewer questions than `FEW` or fewer
    `effective_clusters` than `SMALL_SAMPLE`, and percentiles moved out to Student's t for fewer questions than that. One
    question, or one cluster, whose difference leaves [-1, 1] has no interval.

    The p-value of the bootstrap is twice the smaller share of resampled means on either side of zero, counting zero on
    both, with one added above and below so that it is never 0 (Davison and Hinkley 1997, eq. 4.11). Where the percentiles
    are moved out, that share is moved with them (`_expanded_p`), so that the p-value is at most 1 - ``level`` where the
    interval excludes zero, but for the one that is added: where zero is next to an end, it may be slightly larger.

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
    # Differences of a question are drawn as a pair, so that what makes a question hard for both does not widen the
    # interval.
    means = _cluster_means(d, members, resamples, seed) if clustered else _bootstrap_means(d, resamples, seed)
    low, high = (float(end) for end in np.quantile(means, _tails(level)))
    if not clustered and x.size < SMALL_SAMPLE:
        method, (low, high) = "bootstrap expanded", _expanded(d, level, seed, resamples)
    smaller = (min(int((means <= 0).sum()), int((means >= 0).sum())) + 1) / (resamples + 1)
    p_value = _expanded_p(smaller, x.size) if method == "bootstrap expanded" else min(1.0, 2 * smaller)
    return PairedDifference(float(d.mean()), low, high, p_value, method)


def _sparse(d: Floats, members: Sequence[Sequence[int]], *, few_clusters: bool) -> bool:
    """Whether the differences ``d`` [N] tell so little of their spread that `difference_interval` is wanted."""
    sums = np.array([d[rows].sum() for rows in members])
    if abs(d).max() <= 1:
        return few_differ(d) or few_differ(sums)
    # Nothing bounds the differences of rewards, so an interval from their own spread is kept wherever there is one.
    if len(members) == 1:
        return False
    return _no_spread(d, members) if few_clusters else mostly_equal(d) or mostly_equal(sums)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for having made all these tests, in the given order (Holm 1979).

    The i-th smallest of m (from 0) is multiplied by m - i; the results are made non-decreasing and cut at 1.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        # The largest so far, so that a smaller p-value never gets a larger adjusted one than its successor.
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
    # Fewer wrong samples than draws: one of the draws is right for certain, and the product below would have a factor
    # below 0.
    if n - c < k:
        return 1.0
    # The quotient of the two binomials as a product of factors near 1: each binomial by itself overflows a float.
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
    """Means of ``resamples`` samples of N drawn from ``x`` [N] with replacement -> [resamples].

    How often each distinct value is drawn is multinomial, so it is enough to draw the counts: scores have few
    distinct values, and 10,000 resamples of 7,405 questions take milliseconds.
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
