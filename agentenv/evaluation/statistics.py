"""How sure a score is: intervals for one system, paired tests for two, corrections for many.

Everything is a pure function; randomness comes from the given seed only. N is the number of questions.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import comb, prod, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentenv.errors import ConfigurationError

Floats = NDArray[np.float64]

SMALL_SAMPLE = 200  # below it the bootstrap of a proportion is too narrow (Bowyer et al. 2025)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions with its confidence interval and how the interval was made."""

    mean: float
    low: float
    high: float
    n: int
    method: str  # "bootstrap" or "wilson", each also "clustered"


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Mean of ``b - a`` over the same questions, its interval, and the two-sided p-value of no difference."""

    difference: float
    low: float
    high: float
    p_value: float


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
    p = successes / n
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # Exact where nothing or everything succeeded; the formula is off by a rounding error there.
    return 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half


def estimate(
    values: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    seed: int = 0,
) -> Estimate:
    """Mean of ``values`` [N] with its interval: the bootstrap, or Wilson's where the bootstrap fails.

    Wilson's is taken for 0/1 values that are fewer than `SMALL_SAMPLE` or all equal, where the bootstrap
    would be too narrow or have no width at all.

    Args:
        values: one score a question.
        clusters: what each question belongs to: those of one cluster (one passage) are not independent. The
            interval is then of the clusters, where there are fewer of them than questions.
        level: of the interval.
        seed: of the bootstrap.

    Raises:
        ConfigurationError: no values, one that is not finite, or not one cluster a value.
    """
    x = _checked(values)
    proportion = bool(np.isin(x, (0.0, 1.0)).all())
    if clusters is not None and len(_members(x, clusters)) < x.size:
        return _clustered(x, clusters, proportion, level, seed)
    if proportion and (x.size < SMALL_SAMPLE or x.min() == x.max()):
        low, high = wilson_interval(int(x.sum()), x.size, level=level)
        return Estimate(float(x.mean()), low, high, x.size, "wilson")
    low, high = bootstrap_ci(x, level=level, seed=seed)
    return Estimate(float(x.mean()), low, high, x.size, "bootstrap")


def standard_error(values: ArrayLike, clusters: Sequence[Hashable] | None = None) -> float:
    """Standard error of the mean of ``values`` [N]; 0 for a single value or cluster.

    With clusters the residuals are summed within each before they are squared: sqrt(C/(C-1) sum_c (sum_{i in c}
    (x_i - mean))^2) / N with C clusters (Miller 2024, "Adding error bars to evals", eq. 4, with the usual
    factor for few clusters). Without, every value is a cluster of its own.

    Raises:
        ConfigurationError: as in `estimate`.
    """
    x = _checked(values)
    members = _members(x, range(x.size) if clusters is None else clusters)
    if len(members) == 1:
        return 0.0
    residuals = np.array([(x[rows] - x.mean()).sum() for rows in members])
    return float(sqrt(len(members) / (len(members) - 1) * (residuals**2).sum()) / x.size)


def _members(x: Floats, clusters: Sequence[Hashable]) -> list[list[int]]:
    """The rows of each cluster."""
    if len(clusters) != x.size:
        raise ConfigurationError(f"Needs one cluster a score, not {len(clusters)} for {x.size}.")
    rows: dict[Hashable, list[int]] = {}
    for row, cluster in enumerate(clusters):
        rows.setdefault(cluster, []).append(row)
    return list(rows.values())


def _clustered(
    x: Floats, clusters: Sequence[Hashable], proportion: bool, level: float, seed: int
) -> Estimate:
    """The interval over clusters: Wilson's with an effective n for 0/1 scores, otherwise the bootstrap of clusters.

    The effective n is that whose simple standard error would be the clustered one, at most N (Korn and
    Graubard 1998; Dean and Pagano 2015); where all scores are equal or there is one cluster, it is their number.
    """
    members, mean = _members(x, clusters), float(x.mean())
    if proportion:
        error = standard_error(x, clusters)
        if len(members) == 1 or mean in (0.0, 1.0):
            effective = float(len(members))
        else:
            effective = min(mean * (1 - mean) / error**2, x.size) if error > 0 else float(x.size)
        low, high = wilson_interval(mean * effective, effective, level=level)
        return Estimate(mean, low, high, x.size, "wilson clustered")
    low, high = np.quantile(_cluster_means(x, members, 2_000, seed), _tails(level))
    return Estimate(mean, float(low), float(high), x.size, "bootstrap clustered")


def _cluster_means(x: Floats, members: Sequence[Sequence[int]], resamples: int, seed: int) -> Floats:
    """Means of ``resamples`` samples of as many whole clusters of ``x`` [N] as there are -> [resamples].

    A resample of clusters of unequal size is a ratio: sum of scores over number of questions.
    """
    sums = np.array([x[rows].sum() for rows in members])
    sizes = np.array([len(rows) for rows in members])
    even = np.full(len(members), 1 / len(members))
    rng = np.random.default_rng(seed)
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
        raise ConfigurationError(f"One confidence an answer, not {claimed.size} for {right.size}.")
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

    With fewer ``clusters`` than questions whole clusters are drawn, as in `estimate`.

    The p-value is twice the smaller share of resampled means on either side of zero, counting zero on both,
    with one added above and below so that it is never 0 (Davison and Hinkley 1997, eq. 4.11).

    Raises:
        ConfigurationError: the two lengths differ, or as in `bootstrap_ci`.
    """
    x, y = _checked(a), _checked(b)
    if x.size != y.size:
        raise ConfigurationError(
            f"Paired scores must be over the same questions, not {x.size} against {y.size}."
        )
    members = _members(x, range(x.size) if clusters is None else clusters)
    if len(members) < x.size:
        means = _cluster_means(y - x, members, resamples, seed)
    else:
        means = _bootstrap_means(y - x, resamples, seed)
    low, high = np.quantile(means, _tails(level))
    smaller = min(int((means <= 0).sum()), int((means >= 0).sum()))
    p_value = min(1.0, 2 * (smaller + 1) / (resamples + 1))
    return PairedDifference(float((y - x).mean()), float(low), float(high), p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for having made all these tests, in the given order (Holm 1979).

    The i-th smallest of m (from 0) is multiplied by m - i; the results are made non-decreasing and cut at 1.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
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
    if n - c < k:
        return 1.0
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
            f"Needs a flat, non-empty list of finite scores, not one of shape {x.shape}."
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
