"""Confidence intervals that are valid for few questions, few clusters and sparse scores, without SciPy.

N is the number of questions, C that of clusters.
"""

from collections.abc import Sequence
from math import exp, inf, isinf, lgamma, log, log1p, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_TINY = 1e-30
_HALVINGS = 60
_DRAWS = 10_000  # number of random choices of signs
_ALL_SIGNS = 20  # from this number of sums on, signs are drawn at random (there are 2^n choices)
_STEPS = 300  # most steps of the continued fraction, which needs O(sqrt(max(a, b)))
FEW = 20
"""With fewer values, resampling is inadequate: no resample of three values goes beyond their maximum."""
FEW_CLUSTERS = 100
"""With fewer clusters with a score other than 0, intervals of resampled clusters are too narrow for sparse scores: in 600
samples of 500 clusters they contained the mean in .92 if 24 or 35 clusters had such a score, in .94 for 68 and .95 for
110."""
_ROUNDING = 1e-9  # relative to the scale of the scores; closer values count as equal


def beta_cdf(x: float, a: float, b: float) -> float:
    """Probability that a Beta(a, b) variable is at most ``x``: the regularised incomplete beta function I_x(a, b).

    By its continued fraction (Abramowitz and Stegun 26.5.8), evaluated with Lentz's method.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The fraction converges quickly only below this point; above it, the symmetric one does.
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    # In logarithms, because the gamma functions overflow for arguments above 171.
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    c, d, value = _TINY, 0.0, _TINY
    for step in range(_STEPS):
        term = _coefficient(step, x, a, b)
        d = 1 / _nonzero(1 + term * d)
        c = _nonzero(1 + term / c)
        value *= c * d
        # A factor this close to 1 no longer changes a double.
        if abs(c * d - 1) < 1e-15:
            break
    return front * value


def _coefficient(step: int, x: float, a: float, b: float) -> float:
    m = step // 2
    if step == 0:
        return 1.0
    if step % 2:
        return -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
    return m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))


def beta_quantile(q: float, a: float, b: float) -> float:
    """The x with ``beta_cdf(x, a, b) = q``, by bisection."""
    low, high = 0.0, 1.0
    # By bisection, because the density may be infinite at an end, where Newton's steps leave [0, 1].
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_cdf(middle, a, b) < q else (low, middle)
    return (low + high) / 2


def t_quantile(q: float, df: float) -> float:
    """Quantile q > 1/2 of Student's t with ``df`` degrees of freedom, possibly fractional; normal if ``df`` is infinite."""
    if isinf(df):
        return NormalDist().inv_cdf(q)
    # X = df / (df + T^2) is Beta(df / 2, 1 / 2), and both tails of T are the lower tail of X.
    x = beta_quantile(2 * (1 - q), df / 2, 0.5)
    return sqrt(df * (1 - x) / x)


def t_two_sided(t: float, df: float) -> float:
    """Probability that Student's t with ``df`` degrees of freedom is at least as far from 0 as ``t``."""
    # With infinite degrees of freedom, the argument of the beta function would be inf / inf.
    return 2 * (1 - NormalDist().cdf(abs(t))) if isinf(df) else beta_cdf(df / (df + t * t), df / 2, 0.5)


def robust_error(x: Floats, members: Sequence[Sequence[int]]) -> tuple[float, float]:
    """Standard error of the mean of ``x`` [N] over C clusters, and its degrees of freedom.

    CR2: the summed residual of a cluster of size n_c is divided by sqrt(1 - n_c / N), which makes the variance unbiased for
        independent scores (Bell and McCaffrey 2002). The degrees of freedom are Satterthwaite's, (sum of eigenvalues)^2 /
        sum of their squares of the covariance of the adjusted residual sums: the smaller of the values for independent
        scores and for scores that are equal within each cluster. With clusters of one size it is C - 1. With a single
        cluster, the error is infinite.
    """
    sizes = np.array([len(rows) for rows in members], dtype=np.float64)
    if len(sizes) < 2:
        return inf, 1.0
    # With at least two clusters none contains all questions, so there is no division by 0.
    adjust = 1 / np.sqrt(1 - sizes / x.size)
    residuals = adjust * np.array([(x[rows] - x.mean()).sum() for rows in map(list, members)])
    return float(sqrt((residuals**2).sum()) / x.size), min(
        _freedom(sizes, adjust, sizes), _freedom(sizes, adjust, sizes**2)
    )


def _freedom(sizes: Floats, adjust: Floats, variances: Floats) -> float:
    """Returns Satterthwaite's degrees of freedom, if the sum of cluster c has the variance ``variances[c]``.

    The sums S of clusters with the shares s have residuals S - s sum(S), whose covariance is A = diag(v) - u s' - s u' with
    u = v - s sum(v) / 2 for the variances v, scaled by the adjustments on both sides. The trace of A and the sum of its
    squares are computed without A, which would take gigabytes for the ten thousand clusters of a suite.
    """
    shares, scale = sizes / sizes.sum(), adjust**2
    u = variances - shares * variances.sum() / 2
    # Each sum is of positive terms or over the other clusters, so that nothing cancels if one cluster dominates.
    diagonal = scale * (variances * (1 - shares) ** 2 + shares**2 * _sums_of_others(variances))
    one, other, mixed = scale * u**2, scale * shares**2, scale * u * shares
    beside = 2 * float((one * _sums_of_others(other) + mixed * _sums_of_others(mixed)).sum())
    return float(diagonal.sum()) ** 2 / (float((diagonal**2).sum()) + beside)


def _sums_of_others(x: Floats) -> Floats:
    """Returns for each value of ``x`` [C] the sum of all others."""
    others: Floats = np.zeros_like(x)
    others[1:] += np.cumsum(x)[:-1]
    others[:-1] += np.cumsum(x[::-1])[-2::-1]
    return others


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def wilson_score(p: float, n: float, z: float) -> tuple[float, float]:
    """Centre and half width of the interval of a proportion ``p`` of ``n`` trials at the normal quantile z (Wilson 1927)."""
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    return centre, z / (1 + z**2 / n) * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))


def bounded_interval(x: Floats, members: Sequence[Sequence[int]], level: float) -> tuple[float, float]:
    """Interval of the mean of ``x`` [N] with values in [0, 1] over C clusters; valid for few clusters and sparse scores.

    Wilson's interval (1927) for an effective number of questions. That is the number whose simple standard error would equal
    the clustered one (`robust_error`), at most N, times (z / t)^2 for the degrees of freedom of that error (Korn and
    Graubard 1998). If all scores are 0 or 1, or there is one cluster, it is the number of clusters. For values between 0 and
    1 the interval is wider than necessary, because 0/1 values have the largest variance for a given mean; if nearly all
    values are equal, no narrower interval has the stated coverage.
    """
    mean, z = float(x.mean()), t_quantile((1 + level) / 2, inf)
    if len(members) == x.size:
        effective = float(x.size)
    else:
        error, df = robust_error(x, members)
        if len(members) == 1 or mean in (0.0, 1.0):
            # The error would be 0, or cannot be estimated, so each cluster counts as one question.
            effective, df = float(len(members)), max(1.0, len(members) - 1.0)
        else:
            effective = min(mean * (1 - mean) / error**2, x.size) if error > 0 else float(x.size)
        effective *= (z / t_quantile((1 + level) / 2, df)) ** 2
    centre, half = wilson_score(mean, effective, z)
    return 0.0 if mean == 0 else max(0.0, centre - half), 1.0 if mean == 1 else min(1.0, centre + half)


def difference_interval(d: Floats, members: Sequence[Sequence[int]], level: float) -> tuple[float, float]:
    """Interval of the mean of ``d`` [N], differences of which almost all are 0, or almost all are equal.

    The means of the positive and of the negative parts each have a `bounded_interval`. Their distances are combined as a
    root of squares minus twice their product times the correlation of the two parts (Zou and Donner 2008, "MOVER", for
    dependent estimates). The correlation is at most 0, because no difference is both positive and negative.

    Differences outside of [-1, 1] are assumed to be bounded by the largest observed one, in both directions. Without any
    bound, equal differences would have an interval of width 0, as if further questions could not differ.
    """
    if (largest := float(abs(d).max())) > 1:
        low, high = difference_interval(d / largest, members, level)
        return largest * low, largest * high
    up, down = np.maximum(d, 0), np.maximum(-d, 0)
    # Each part is in [0, 1], where Wilson's interval has a positive width even if nearly all values are 0.
    (low_up, high_up), (low_down, high_down) = (bounded_interval(part, members, level) for part in (up, down))
    # The covariance of the two parts is E[up down] - E[up] E[down], and its first term is 0.
    spread = sqrt(up.var() * down.var())
    # because up times down is 0
    correlation = -float(up.mean() * down.mean()) / spread if spread > 0 else 0.0
    lower_ends = (float(up.mean()) - low_up, high_down - float(down.mean()))
    upper_ends = (high_up - float(up.mean()), float(down.mean()) - low_down)
    below, above = (
        sqrt(one**2 + other**2 - 2 * correlation * one * other) for one, other in (lower_ends, upper_ends)
    )
    return max(-1.0, float(d.mean()) - below), min(1.0, float(d.mean()) + above)


def sign_flip_p(d: Floats, members: Sequence[Sequence[int]]) -> float:
    """Two-sided p-value of a mean of 0, if the sign of a cluster's sum is a fair coin flip (Fisher 1935).

    For fewer than 20 non-zero sums it is exact, over all choices of signs. For more, it is the share among 10,000 random
    choices, to which the observed one is added so that the p-value is never 0 (Phipson and Smyth 2010).
    """
    sums = np.array([total for rows in members if (total := float(d[list(rows)].sum()))])
    # The tolerance prevents that rounding makes the observed choice less extreme than itself; it scales with the scores.
    least = abs(sums.sum()) - _ROUNDING * abs(sums).sum()
    if sums.size >= _ALL_SIGNS:
        rng = np.random.default_rng(0)
        extreme = sum(
            abs(np.where(rng.random(sums.size) < 0.5, sums, -sums).sum()) >= least for _ in range(_DRAWS)
        )
        return float((extreme + 1) / (_DRAWS + 1))
    # All sums over the signs chosen so far. Each cluster doubles their number, up to 2^19 = 524,288.
    reached = np.zeros(1)
    for total in sums:
        reached = np.concatenate([reached - total, reached + total])
    return float((abs(reached) >= least).mean())


def welch_interval(a: Floats, b: Floats) -> tuple[float, float] | None:
    """95 % interval of the difference of two means, ``a`` [A] minus ``b`` [B] (Welch 1947).

    With squared errors v = s^2 / n it has (v_a + v_b)^2 / (v_a^2 / (A - 1) + v_b^2 / (B - 1)) degrees of freedom.

    Returns:
        The interval, or None if the variance cannot be estimated: fewer than two values of either, or equal values in both.
        A few runs with the same score do not tell how much further ones would vary.
    """
    if min(a.size, b.size) < 2 or (all_equal(a) and all_equal(b)):
        return None
    errors = np.array([x.var(ddof=1) / x.size for x in (a, b)])
    difference, total = float(a.mean() - b.mean()), float(errors.sum())
    df = total**2 / float((errors**2 / np.array([a.size - 1, b.size - 1])).sum())
    half = t_quantile(0.975, df) * sqrt(total)
    return difference - half, difference + half


def all_equal(x: Floats) -> bool:
    """Whether the values of ``x`` differ only by rounding."""
    return bool(np.ptp(x) <= _ROUNDING * max(1.0, float(abs(x).max())))


def few_differ(x: Floats) -> bool:
    """Whether fewer than `FEW` values of ``x`` differ from the most frequent one."""
    return x.size - _commonest(x) < FEW


def few_clusters_differ(x: Floats, members: Sequence[Sequence[int]]) -> bool:
    """Whether fewer than `FEW_CLUSTERS` clusters of ``x`` [N] have another mean than the commonest one."""
    means = np.array([x[list(rows)].mean() for rows in members]).round(9)
    return means.size - _commonest(means) < FEW_CLUSTERS


def effective_clusters(members: Sequence[Sequence[int]]) -> float:
    """How many clusters of one size would weigh as these do: (sum of sizes)^2 / sum of their squares (Kish 1965).

    C for clusters of one size; fewer where a few of them hold most of the questions.
    """
    sizes = [len(rows) for rows in members]
    return sum(sizes) ** 2 / sum(size**2 for size in sizes)


def mostly_equal(x: Floats) -> bool:
    """Whether `few_differ` holds and at least half of the values are the most frequent one."""
    return few_differ(x) and 2 * _commonest(x) >= x.size


def _commonest(x: Floats) -> int:
    """Number of occurrences of the most frequent value."""
    return int(np.unique(x, return_counts=True)[1].max())
