"""BroRL's simulation: its first-order formula against the derivative, and what few and many rollouts do."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_the_formula_is_the_derivative_of_the_step() -> None:
    """The step moves logit i by p_i (R_i - S) where i was sampled and by -p_i S elsewhere, times eta / N."""
    script: Any = importlib.import_module("broadened_rollouts")

    rng = np.random.default_rng(0)
    for _ in range(20):
        logits = rng.normal(size=12)
        p, right, sampled = script.softmax(logits), rng.random(12) < 0.4, rng.random(12) < 0.5
        good, bad = 1.3, -0.7
        rewards = np.where(right, good, bad) * sampled
        step = p * (rewards - (rewards * p).sum())
        small = 1e-6
        moved = script.softmax(logits + small * step)[right].sum() - p[right].sum()
        assert script.mass_change(p, right, sampled, good=good, bad=bad) == pytest.approx(
            moved / small, abs=1e-5
        )


def test_many_rollouts_raise_more_right_actions_than_few() -> None:
    script: Any = importlib.import_module("broadened_rollouts")
    few, many = (script.simulate(rollouts, 0, steps=300) for rollouts in (4, 512))
    assert many["right_mass"] > 1.2 * few["right_mass"]
    assert many["share_that_rose"] == 1.0 > few["share_that_rose"]
    assert many["largest_fall"] == 0.0 < few["largest_fall"]
