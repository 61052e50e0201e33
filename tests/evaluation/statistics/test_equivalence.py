"""Equivalence by two one-sided tests: a p-value by hand, error rate and power by simulation, and what is refused."""

from math import sqrt

import numpy as np
import pytest

from agentenv.errors import ConfigurationError
from agentenv.evaluation.statistics.equivalence import equivalence_p


@pytest.mark.parametrize(
    ("b", "margin", "t"),
    [
        # Variances of 2 over 2 seeds: squared errors of 1 each, error sqrt(2), (1 + 1)^2 / (1 + 1) = 2 degrees of freedom.
        ([0.0, 2.0], 2.0, sqrt(2)),
        ([1.0, 3.0], 2.0, 1 / sqrt(2)),
        ([3.0, 1.0], 2.0, 1 / sqrt(2)),  # the order of the seeds does not matter
        ([-1.0, 1.0], 2.0, 1 / sqrt(2)),  # nor which of the two is higher
        ([4.0, 6.0], 2.0, -2 / sqrt(2)),  # farther apart than the margin
    ],
)
def test_a_p_value_by_hand(b: list[float], margin: float, t: float) -> None:
    # Student's t with 2 degrees of freedom is at least t with probability 1/2 - t / (2 sqrt(2 + t^2)).
    tail = 0.5 - t / (2 * sqrt(2 + t * t))
    assert equivalence_p([0.0, 2.0], b, margin) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize("a", [[1.0, 1.0], [0.1 + 0.2, 0.3]])
def test_scores_without_a_spread_show_nothing(a: list[float]) -> None:
    assert equivalence_p(a, a, 0.6) == 1.0


def test_the_error_rate_holds_where_few_seeds_learn_anything() -> None:
    """One system learns under one seed of five and the other under none; their means differ by the margin exactly.

    All five seeds of both are 0 with a probability of .8^5 = .33, which must not count as equivalent.
    """
    rng = np.random.default_rng(5)
    found = [equivalence_p(0.5 * (rng.random(5) < 0.2), np.zeros(5), 0.1) <= 0.05 for _ in range(1000)]
    assert np.mean(found) <= 0.05


@pytest.mark.parametrize(
    ("difference", "low", "high"), [(1.0, 0.02, 0.06), (0.0, 0.15, 0.3), (-1.0, 0.02, 0.06)]
)
def test_error_rate_at_the_margin_and_power_at_no_difference(
    difference: float, low: float, high: float
) -> None:
    """Eight seeds of each, a margin of one deviation: the level is .05 where the systems differ by the margin exactly.

    With no difference the power is about P(|d| < 1 - 1.76 sqrt(2 / 8)) = P(|d| < .12) for d of deviation .5, about .2 for a
    known deviation; estimated deviations that happen to be small add to it.
    """
    rng = np.random.default_rng(3)
    found = [
        equivalence_p(rng.standard_normal(8) + difference, rng.standard_normal(8), 1.0) <= 0.05
        for _ in range(1500)
    ]
    assert low <= np.mean(found) <= high


@pytest.mark.parametrize(
    ("a", "margin", "named"),
    [
        ([1.0], 0.1, r"\[1.0\]"),
        ([1.0, float("nan")], 0.1, "nan"),
        ([1.0, 2.0], 0.0, r"\b0\.0\b"),
        ([1.0, 2.0], float("nan"), "nan"),
    ],
)
def test_what_cannot_be_tested_is_refused(a: list[float], margin: float, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        equivalence_p(a, [0.0, 1.0], margin)
