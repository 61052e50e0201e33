"""The benchmark of the value search: the file that it has written holds what the arms and their difference say."""

import importlib
import json
from pathlib import Path
from statistics import fmean

import pytest

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "value_search.json"


def test_differences_are_those_of_the_means() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    means, found = result["means"], result["differences"]
    assert found["search - best"]["difference"] == pytest.approx(means["search"] - means["best"])
    for arm in ("search", "best"):
        difference = means[arm] - means["majority"]
        assert found[f"{arm} - majority"]["difference"] == pytest.approx(difference)
    assert found["best - single"]["difference"] == pytest.approx(means["best"] - means["single"])
    assert all(row["ci95"][0] <= row["difference"] <= row["ci95"][1] for row in found.values())
    most = result["setup"]["iterations"] * result["setup"]["samples"]
    assert (
        result["setup"]["samples"]
        <= result["episodes"]["fewest"]
        <= fmean([most, result["episodes"]["most"]])
    )


def test_the_most_frequent_answer_counts_and_the_first_of_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULT.parents[1]))
    voted = importlib.import_module("value_search").voted
    assert voted([("a", 0.0), ("b", 1.0), ("b", 1.0)]) == 1.0
    assert voted([("a", 0.0), ("b", 1.0)]) == 0.0
