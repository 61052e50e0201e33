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


def test_a_seeded_run_begins_with_the_right_actions_likely() -> None:
    """e^3 for 99 right actions and e^5 for the anchor, beside 1 for each of 1180 others: 2136.9 of 3316.9."""
    script: Any = importlib.import_module("broadened_rollouts")
    start = script.softmax(script.first_logits(1280, 100, seeded=True))
    assert start[:100].sum() == pytest.approx(0.644, abs=5e-4)
    assert start[0] / start[1] == pytest.approx(np.exp(2.0))
    assert script.simulate(512, 0, steps=20, seeded=True)["right_mass"] > start[:100].sum()


def test_more_actions_of_either_kind_leave_the_start_as_it_is() -> None:
    """Twice the actions, of which as many are right, begin with the same mass of right ones, 100 of 1280."""
    script: Any = importlib.import_module("broadened_rollouts")
    one, two = (script.simulate(16, 0, steps=1, scale=scale)["right_mass"] for scale in (1, 2))
    assert one == pytest.approx(two, abs=1e-3) == pytest.approx(100 / 1280, abs=1e-3)
    seeded = script.simulate(16, 0, steps=1, scale=2, seeded=True)["right_mass"]
    assert seeded == pytest.approx((199 * np.e**3 + np.e**5) / (199 * np.e**3 + np.e**5 + 2360), abs=1e-3)


def test_adamw_s_first_steps_by_hand() -> None:
    """The first step is the sign of the gradient. Then .9 .1 + .1 (-1) over 1 - .81 is -.01 / .19; the square stays 1.

    A hundredth of the weights comes on top.
    """
    adam: Any = importlib.import_module("broadened_rollouts").AdamW((1,))
    assert adam.update(np.array([2.0]), np.array([3.0])) == pytest.approx([1.03])
    adam = type(adam)((1,))
    adam.update(np.array([1.0]), np.zeros(1))
    assert adam.update(np.array([-1.0]), np.array([-2.0])) == pytest.approx([-0.01 / 0.19 - 0.02])


def test_a_crossing_needs_an_interval_on_either_side() -> None:
    script: Any = importlib.import_module("rollout_crossover")

    def intervals(*bounds: tuple[float, float]) -> list[dict[str, list[float]]]:
        return [{"ci95": list(one)} for one in bounds]

    assert script.crossing(intervals((-0.2, -0.1), (-0.1, 0.1), (0.1, 0.2), (0.2, 0.3))) == 2
    assert script.crossing(intervals((0.1, 0.2), (-0.1, 0.1), (0.1, 0.2))) is None
    assert script.crossing(intervals((-0.2, -0.1), (-0.1, 0.1))) is None


def test_pairs_are_compared_seed_by_seed() -> None:
    """Two seeds at two looks: the broader arm is behind by .1 and .2, and then ahead by .3 both times."""
    script: Any = importlib.import_module("rollout_crossover")
    narrow, broad = [[0.2, 0.4], [0.3, 0.5]], [[0.1, 0.7], [0.1, 0.8]]
    runs = {"64x4": narrow, "16x16": narrow, "4x64": broad}
    pairs = script.compared(runs, (10, 20))
    difference = pairs["4x64 over 64x4"]["differences"]
    assert difference["2560"]["mean"] == pytest.approx(-0.15)
    # Deviation .0707: half 12.7062 * .0707 / sqrt(2) = .6353.
    assert difference["2560"]["ci95"] == pytest.approx([-0.7853, 0.4853], abs=1e-4)
    assert difference["5120"] == {"mean": pytest.approx(0.3)}  # equal seeds tell of no spread
    assert pairs["16x16 over 64x4"]["crossover_episodes"] is None


def test_all_arms_play_equally_many_episodes_and_raise_the_right_actions() -> None:
    script: Any = importlib.import_module("rollout_crossover")
    start = script.RIGHT / script.ACTIONS
    for rollouts in script.ARMS.values():
        assert script.EPISODES % rollouts == 0
        first, last = script.right_mass(rollouts, 0, seeded=False, scaled=False, looks=(5, 60))
        assert start < first < last
