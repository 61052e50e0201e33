"""The mean over several question sets with equal weights, with its interval over their questions."""

from collections.abc import Hashable, Sequence
from math import inf, sqrt
from statistics import fmean

import numpy as np

from agentenv.evaluation.statistics.intervals import robust_error, t_quantile
from agentenv.evaluation.statistics.significance import SMALL_SAMPLE, finite_ends, rows_of_clusters


def macro_mean(
    sets: Sequence[Sequence[float]],
    clusters: Sequence[Sequence[Hashable]],
    *,
    level: float = 0.95,
    lowest: float = 0.0,
) -> tuple[float, list[float] | None]:
    """Returns the mean of the means of several sets, and the ends of its interval.

    Its standard error is sqrt(sum of squared errors) / number of sets. The interval is the normal one, or Student's t with
    Welch's degrees of freedom if sets have few questions or clusters, or if a few clusters have most of the questions
    (`robust_error`). It is clipped to [``lowest``, 1] if all values are in that range.

    Args:
        sets: The values of each set, one per question.
        clusters: The cluster of each question, for each set.
        level: The confidence level.
        lowest: The lower bound of the values, if they are bounded: 0 for scores, -1 for differences of two scores.
    """
    mean = fmean(fmean(values) for values in sets)
    parts = [_squared_error(values, of, lowest) for values, of in zip(sets, clusters, strict=True)]
    total = sqrt(sum(square for square, _ in parts))
    half = t_quantile((1 + level) / 2, _freedom(parts)) * total / len(sets)
    ends = (mean - half, mean + half)
    if all(lowest <= value <= 1 for values in sets for value in values):
        ends = (max(lowest, ends[0]), min(1.0, ends[1]))
    return mean, finite_ends(*ends)


def combined_interval(
    means: Sequence[float], intervals: Sequence[Sequence[float]], weights: Sequence[float]
) -> tuple[float, float]:
    """Returns the interval of a weighted mean of independent means, from their own intervals of the same level.

    The method of variance estimates recovery (Zou and Donner 2008, Statistics in Medicine 27, section 2): the distance of an
    end from the mean is sqrt(sum_i (w_i d_i)^2), where d_i is the distance of that end of interval i from mean i. The
    intervals may be asymmetric, such as those of shares near 0 or 1. If all parts are such shares, the interval is too
    narrow: for two or three parts of 20 to 100 questions, of which .01 to .05 are right, it contained the true value in .91
    to .93 of 400 simulations, and for seven parts of 20 questions in .84.

    Args:
        means: One for each part.
        intervals: Lower and upper end for each part.
        weights: One for each part, at least 0.
    """
    parts = list(zip(means, intervals, weights, strict=True))
    middle = sum(weight * mean for mean, _, weight in parts)
    below = sqrt(sum((weight * (mean - ends[0])) ** 2 for mean, ends, weight in parts))
    above = sqrt(sum((weight * (ends[1] - mean)) ** 2 for mean, ends, weight in parts))
    return middle - below, middle + above


def _freedom(parts: Sequence[tuple[float, float]]) -> float:
    """Returns Welch's degrees of freedom of a sum of squared errors with their own; infinite from `SMALL_SAMPLE` on."""
    spread = sum(square**2 / df for square, df in parts)
    found = sum(square for square, _ in parts) ** 2 / spread if spread else inf
    return found if found < SMALL_SAMPLE else inf


def _squared_error(
    values: Sequence[float], clusters: Sequence[Hashable], lowest: float
) -> tuple[float, float]:
    """Returns the squared error of the mean, and its degrees of freedom.

    For constant values or a single cluster, it is that with one more success and failure, because 0 would claim certainty.
    It is infinite for such values outside of [``lowest``, 1], because nothing is known about their variance.
    """
    x, members = np.asarray(values, dtype=np.float64), rows_of_clusters(clusters)
    if len(members) > 1:
        # Of clusters that are all alike the questions may differ.
        for groups in (members, [[row] for row in range(x.size)]):
            error, df = robust_error(x, groups)
            if error > 0:
                return error**2, df
    if x.min() < lowest or x.max() > 1:
        return inf, 1.0
    n = len(members)
    guess = (abs(float(x.mean())) * n + 1) / (n + 2)
    return guess * (1 - guess) / (n + 2), max(1.0, n - 1.0)
