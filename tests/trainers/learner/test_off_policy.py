"""Off-policy corrections by hand: weights by level and mode, rejection, splices, interpolation, effective samples."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from agentenv.trainers.credit.group_statistics import weighted_baseline
from agentenv.trainers.learner.off_policy import (
    effective_sample_ratio,
    importance_weights,
    interpolated,
    learning_rate_scale,
    log_weights,
    off_context_weights,
    rejected,
)

ROWS = torch.tensor([0, 0, 1])
LOGS = torch.tensor([3.0, 0.5, 0.4], dtype=torch.float64).log()  # products 1.5 and .4


def double(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2.0, 0.5, 0.4]),
        ({"high": 5.0}, [3.0, 0.5, 0.4]),
        ({"level": "sequence"}, [1.5, 1.5, 0.4]),
        ({"level": "sequence", "high": 1.2}, [1.2, 1.2, 0.4]),
        ({"level": "geometric"}, [1.5**0.5, 1.5**0.5, 0.4]),
        ({"mode": "mask", "low": 0.5, "high": 2.0}, [0.0, 0.5, 0.0]),
        ({"mode": "mask", "level": "sequence", "high": 1.4}, [0.0, 0.0, 0.4]),
        ({"mode": "mask", "level": "geometric", "low": 0.9, "high": 1.3}, [1.5**0.5, 1.5**0.5, 0.0]),
    ],
)
def test_importance_weights(options: dict[str, Any], expected: list[float]) -> None:
    assert importance_weights(LOGS, ROWS, **options).tolist() == pytest.approx(expected, abs=1e-12)


def test_a_lost_token_has_a_finite_weight() -> None:
    assert importance_weights(double([800.0, -800.0, 0.0]), ROWS).tolist() == pytest.approx(
        [2.0, 0.0, 1.0], abs=1e-8
    )


def test_weights_carry_no_gradient() -> None:
    assert not importance_weights(LOGS.clone().requires_grad_(), ROWS).requires_grad


@pytest.mark.parametrize(
    ("divergence", "reduce", "values"),
    [
        # l = 1, -1, .5. k1 = -l; k2 = l^2/2 = .5 .5 .125; k3 = e^l - l - 1 = .718282 .367879 .148721
        ("k1", "token", [-1.0, 1.0, -0.5]),
        ("k1", "sum", [0.0, 0.0, -0.5]),
        ("k2", "token", [0.5, 0.5, 0.125]),
        ("k2", "sum", [1.0, 1.0, 0.125]),
        ("k2", "max", [0.5, 0.5, 0.125]),
        ("k3", "token", [0.718282, 0.367879, 0.148721]),
        ("k3", "mean", [0.543081, 0.543081, 0.148721]),
        ("k3", "max", [0.718282, 0.718282, 0.148721]),
    ],
)
def test_rejection(divergence: Any, reduce: Any, values: list[float]) -> None:
    """Each value is rejected just below itself and kept just above."""
    logs = double([1.0, -1.0, 0.5])
    for place, value in enumerate(values):
        for offset, gone in ((-1e-5, True), (1e-5, False)):
            found = rejected(logs, ROWS, divergence=divergence, reduce=reduce, cap=value + offset)
            assert found[place].item() is gone


def test_a_difference_beyond_20_nats_counts_as_20() -> None:
    rows = torch.tensor([0, 1])
    for cap, gone in ((199.9, [True, True]), (200.1, [False, False])):
        found = rejected(double([25.0, -30.0]), rows, divergence="k2", reduce="token", cap=cap)
        assert found.tolist() == gone  # 20^2 / 2


def test_no_tokens_are_no_trouble() -> None:
    nothing, rows = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert len(importance_weights(nothing, rows, level="sequence")) == 0
    assert len(rejected(nothing, rows, reduce="max", cap=1.0)) == 0
    assert effective_sample_ratio(nothing) == 1.0


def test_tokens_of_another_context_have_no_log_weight() -> None:
    off_context = torch.tensor([False, True])
    found = log_weights(double([-1.0, -1.0]), double([-2.0, -9.0]), off_context)
    assert found.tolist() == [1.0, 0.0]


def test_tokens_of_another_context_weigh_by_themselves_where_asked() -> None:
    # min(e^(-1 + 1.5), 2) = 1.64872; min(e^(-1 + 4), 2) = 2; the own token 1
    weights = off_context_weights(
        double([-1.0] * 3), double([-1.5, -4.0, -7.0]), torch.tensor([True, True, False])
    )
    assert weights.tolist() == pytest.approx([1.64872, 2.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    ("age", "update", "expected"),
    [
        (1, 0.5, -5 / 3),  # half of a batch's steps are made: (1 - 0) / (1.5 - 0) = 2/3
        (0, 0, -3.0),  # sampled by the present weights: the sampler's own
        (0, 2, -3.0),
        (2, 0, -1.0),  # no step made yet: the present weights are the proximal ones
        (1, 0, -1.0),
        (2, 2, -2.0),  # (5 - 3) / (7 - 3) = 1/2
        (1, 3, -2.5),
    ],
)
def test_interpolated_log_probs(age: int, update: float, expected: float) -> None:
    found = interpolated(double([-3.0]), double([-1.0]), torch.tensor([age]), update)
    assert found.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "ratio", "scale"),
    [
        ([1, 1, 1, 1], 1.0, 1.0),
        # (4.3)^2 / (4 * 16.03) = 18.49 / 64.12
        ([4, 0.1, 0.1, 0.1], 0.28837, 0.53700),
        ([7], 1.0, 1.0),
    ],
)
def test_effective_samples(weights: list[float], ratio: float, scale: float) -> None:
    found = effective_sample_ratio(double(weights))
    assert found == pytest.approx(ratio, abs=1e-5)
    assert learning_rate_scale(found) == pytest.approx(scale, abs=1e-5)
    assert learning_rate_scale(found, rule="linear") == pytest.approx(ratio, abs=1e-5)
    assert effective_sample_ratio(1e9 * double(weights)) == pytest.approx(found)


def test_a_lower_base_forgives_more() -> None:
    assert learning_rate_scale(0.25, base=0.5) == pytest.approx(math.sqrt(0.5))
    assert learning_rate_scale(0.5, base=0.25) == 1.0


def test_the_baseline_of_least_variance() -> None:
    # (1 * 1 + 4 * 0) / 5
    assert weighted_baseline([1, 0], [1, 2], [1, 1]) == pytest.approx(0.2)
    assert weighted_baseline([1, 0], [1, 1], [1, 3]) == pytest.approx(0.1)
    assert weighted_baseline([1], [0], [1]) == 0.0
