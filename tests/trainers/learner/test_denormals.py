"""Denormal numbers are zeros inside and numbers again outside, whatever happened inside."""

import pytest

from agentenv.trainers.learner.denormals import flushed_denormals

SMALL, HALF = 1.5e-308, 0.5  # the product, 7.5e-309, is a denormal float64


def product() -> float:
    return SMALL * HALF


def test_denormals_are_flushed_inside_and_come_back() -> None:
    assert product() > 0
    with flushed_denormals():
        assert product() == 0
    assert product() > 0


def test_they_come_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), flushed_denormals():
        raise ZeroDivisionError
    assert product() > 0
