"""Tests whether two systems are equally good, by two one-sided tests: finding no difference would prove nothing.

Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach for assessing the equivalence of
average bioavailability", J. Pharmacokinetics and Biopharmaceutics 15, 657-680; with Welch's error and degrees of freedom, so
that the variances may differ.

A and B are the numbers of seeds of the two systems.
"""

from math import inf, sqrt

import numpy as np
from numpy.typing import ArrayLike

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.intervals import Floats, all_equal, t_two_sided


def equivalence_p(a_A: ArrayLike, b_B: ArrayLike, margin: float) -> float:
    """Returns the p-value of "the means differ by ``margin`` or more"; a small one says that they are equivalent.

    It is the larger of the p-values of "a is lower by the margin or more" and "a is higher by the margin or more", so that
    both are rejected if it is below the level. It is 1 if the seeds of each system all have the same score: a few equal
    scores, for example of runs that learned nothing, do not tell how much further ones would vary.

    Args:
        a_A: One score for each seed of the first system, at least two.
        b_B: The same of the second system.
        margin: The smallest difference that would matter.

    Raises:
        ConfigurationError: there are fewer than two scores, one is not finite, or the margin is not above 0.
    """
    a, b = (_checked(values) for values in (a_A, b_B))
    if not margin > 0:
        raise ConfigurationError(f"A margin of equivalence is above 0, not {margin}.")
    # Separately for each system, as in Welch's test: a pooled variance would assume equal variances.
    errors = np.array([x.var(ddof=1) / x.size for x in (a, b)])
    room = margin - abs(float(a.mean() - b.mean()))
    if all_equal(a) and all_equal(b):
        return 1.0
    df = float(errors.sum() ** 2 / (errors**2 / np.array([a.size - 1, b.size - 1])).sum())
    return _upper_tail(room / sqrt(errors.sum()), df)


def _upper_tail(t: float, df: float) -> float:
    """Probability that Student's t with ``df`` degrees of freedom is at least ``t``."""
    # One-sided, because each of the two tests concerns one end of the margin.
    half = t_two_sided(abs(t), df) / 2 if abs(t) < inf else 0.0
    return half if t >= 0 else 1 - half


def _checked(values: ArrayLike) -> Floats:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size < 2 or not np.isfinite(x).all():
        raise ConfigurationError(
            f"A test of equivalence needs two finite scores of each system, not {x.tolist()}."
        )
    return x
