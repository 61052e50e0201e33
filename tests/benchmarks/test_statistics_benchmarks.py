"""Simulations of intervals and tests: what is drawn has the mean that it should, and what is counted is counted by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def interval_coverage(script: Callable[[str], Any]) -> Any:
    return script("interval_coverage")


@pytest.fixture
def error_levels(script: Callable[[str], Any]) -> Any:
    return script("error_levels")


@pytest.mark.parametrize("kind", ["binary", "f1"])
@pytest.mark.parametrize("mean", [0.02, 0.1, 0.5, 0.9])
def test_scores_have_the_mean_that_is_asked_for(interval_coverage: Any, kind: str, mean: float) -> None:
    rng = np.random.default_rng(0)
    alone = getattr(interval_coverage, kind)(rng, mean, 40_000)
    together, of = interval_coverage.clustered(kind, rng, mean, 3_000)
    assert alone.min() >= 0
    assert alone.max() <= 1
    assert alone.mean() == pytest.approx(mean, abs=0.01)
    assert together.mean() == pytest.approx(mean, abs=0.02)
    assert len(together) == len(of)
    assert set(np.bincount(of)) == set(range(1, 9))
    # Neighbours in a cluster agree more than strangers do.
    beside = np.flatnonzero(np.diff(of) == 0)
    assert np.corrcoef(together[beside], together[beside + 1])[0, 1] > 0.15


def test_a_row_counts_the_intervals_that_hold_the_mean(
    interval_coverage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four intervals hold .5; each is .2 wide."""
    ends = iter([(0.4, 0.6), (0.5, 0.7), (0.6, 0.8), (0.1, 0.3)])

    class Interval:
        def __init__(self) -> None:
            self.low, self.high = next(ends)
            self.method = "by hand"

    monkeypatch.setattr(interval_coverage, "estimate", lambda x, clusters: Interval())
    row = interval_coverage.measure("independent", "binary", 0.5, 5, 4)
    assert (row["coverage"], row["width"], row["methods"]) == (0.5, 0.2, {"by hand": 4})


def test_coverage_is_calculated_by_hand(interval_coverage: Any) -> None:
    """Of five, Wilson's interval of none right is [0, .434], of one [.036, .624] and of two [.118, .769]: two miss .1."""
    assert interval_coverage.exact(0.1, 5)["coverage"] == pytest.approx(0.9**5 + 5 * 0.1 * 0.9**4, abs=1e-4)


def test_what_is_calculated_agrees_with_samples(
    tmp_path: Path, here: Callable[..., str], interval_coverage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interval_coverage, "QUESTIONS", (10,))
    out = tmp_path / "out.json"
    printed = json.loads(here("interval_coverage", "--exact", "--json", "--out", str(out)))
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    assert [row["mean"] for row in printed["rows"]] == list(interval_coverage.MEANS)
    for row in printed["rows"]:
        sampled = interval_coverage.measure("independent", "binary", row["mean"], 10, 400)["coverage"]
        assert sampled == pytest.approx(row["coverage"], abs=0.05)


def test_the_table_of_coverage(
    tmp_path: Path, here: Callable[..., str], interval_coverage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell for cell in interval_coverage.cells() if cell[3] == 5]
    monkeypatch.setattr(interval_coverage, "cells", lambda: iter(cells))
    out = tmp_path / "out.json"
    printed = json.loads(here("interval_coverage", "--trials", "3", "--json", "--out", str(out)))
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    assert printed["trials"] == 3
    assert [(row["form"], row["scores"], row["mean"], row["size"]) for row in printed["rows"]] == cells
    assert {row["form"] for row in printed["rows"]} == {"independent", "clusters", "paired"}


def test_a_share_has_the_interval_of_its_simulations(error_levels: Any) -> None:
    """Wilson's interval of 1 of 10 is [.0179, .4042]."""
    row = error_levels.share("found", [True] + [False] * 9, questions=5)
    assert row == {"what": "found", "questions": 5, "share": 0.1, "ci95": [0.0179, 0.4042], "n": 10}
    assert error_levels.holds(None, 3.0)
    assert error_levels.holds((0.1, 0.2), 0.2)
    assert not error_levels.holds((0.1, 0.2), 0.21)


def test_systems_that_differ_in_every_seed_are_told_apart(error_levels: Any) -> None:
    rising = np.arange(10.0)
    assert error_levels.any_better({"a": rising, "b": rising + 100.0}, 0)
    assert not error_levels.any_better({"a": rising, "b": rising.reshape(2, 5)[:, ::-1].flatten()}, 0)


def test_the_levels_of_every_part(tmp_path: Path, here: Callable[..., str], error_levels: Any) -> None:
    out = tmp_path / "out.json"
    printed = json.loads(here("error_levels", "--trials", "2", "--json", "--out", str(out)))
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    assert list(printed["rows"]) == [part.__name__ for part in error_levels.PARTS]
    for part, rows in printed["rows"].items():
        assert rows
        assert all(row["ci95"][0] <= row["share"] <= row["ci95"][1] for row in rows)
        simulated = {"families": {100}, "seeds": {2, 10}, "equal_systems": {2}}.get(part)
        assert simulated is None or {row["n"] for row in rows} == simulated
