"""The sim-to-real table in seconds: it runs, its counts add up, and the recovered share by hand."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_has_every_arm_under_every_condition(tmp_path: Path, here: Callable[..., str]) -> None:
    sizes = {
        "seeds": 1,
        "steps": 1,
        "batch": 1,
        "documents": 200,
        "questions": 4,
        "threads": 1,
        "memory-steps": 1,
    }
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    words += ["--arms", "real", "mixed", "self", "--json"]
    out = tmp_path / "out.json"
    printed = here("sim2real", "--runs", str(tmp_path / "runs"), "--out", str(out), *words)
    figures = json.loads(printed)
    assert figures == json.loads(out.read_text())
    assert list(figures["table"]) == ["real", "mixed", "self"]
    for row in (figures["before"], *figures["table"].values()):
        assert [(name, cell["n"]) for name, cell in row.items()] == [
            ("real", 4),
            ("simulated", 4),
            ("none", 4),
        ]
    assert list(figures["recovered"]) == ["mixed", "self"]
    assert str(tmp_path) not in printed


@pytest.fixture(scope="module")
def script() -> Any:
    """The script as a module."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        spec = importlib.util.spec_from_file_location("sim2real", ROOT / "benchmarks" / "sim2real.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
    return module


def test_the_recovered_share_by_hand(script: Any) -> None:
    """Means: before .2, real .7, arm .6 over two seeds: (.6 - .2) / (.7 - .2) = .8."""
    recovered = script.recovered
    before = np.array([1.0] * 2 + [0.0] * 8)
    real = np.stack([np.array([1.0] * 7 + [0.0] * 3)] * 2)
    arm = np.stack([np.array([1.0] * 7 + [0.0] * 3), np.array([1.0] * 5 + [0.0] * 5)])
    share = recovered(arm, real, before)
    assert share["mean"] == pytest.approx(0.8)
    assert share["ci95"][0] <= 0.8 <= share["ci95"][1]
    assert recovered(real, real, before)["mean"] == pytest.approx(1.0)
    assert recovered(arm, np.stack([before]), before)["mean"] is None


def test_the_interval_of_a_mean_is_over_seeds_as_well(script: Any) -> None:
    """Every question is scored .2 under one seed and .8 under the other, so that questions alone would have no spread.

    The sample deviation of the two seeds is .3 sqrt(2), so their mean has a standard error of .3. That of the resamples
    is as much larger as t with one degree of freedom reaches beyond the normal distribution at 95 %: 12.706 / 1.960 times.
    """
    scores = np.stack([np.full(50, 0.2), np.full(50, 0.8)])
    rng = np.random.default_rng(0)
    draws = rng.integers(50, size=(20_000, 50))
    means = script.resampled_means(scores, draws, rng)
    assert means.mean() == pytest.approx(0.5, abs=0.01)
    assert means.std() == pytest.approx(0.3 * 12.7062 / 1.95996, abs=0.05)
    alone = script.resampled_means(scores[:1], draws, rng)
    assert alone == pytest.approx(0.2)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_intervals_over_seeds_and_questions_cover_where_seeds_differ_most(script: Any, seeds: int) -> None:
    """Seeds of a deviation of .1, questions of .3 and .3 more: of 200 intervals at least 178 hold 0.

    Without the widening to t .79 of those of two seeds do and .86 of those of three.
    """
    rng, held = np.random.default_rng(3), 0
    for _ in range(200):
        spread = [rng.standard_normal(shape) for shape in ((seeds, 1), (1, 300), (seeds, 300))]
        scores = 0.1 * spread[0] + 0.3 * spread[1] + 0.3 * spread[2]
        draws = rng.integers(300, size=(400, 300))
        low, high = np.quantile(script.resampled_means(scores, draws, rng), [0.025, 0.975])
        held += low <= 0 <= high
    assert held >= 178
