"""The benchmark of the value search: the file that it has written holds what the arms and their difference say."""

import json
from pathlib import Path
from statistics import fmean

import pytest

RESULT = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "value_search.json"


def test_differences_are_those_of_the_means() -> None:
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    means, found = result["means"], result["differences"]
    assert found["search - best"]["difference"] == pytest.approx(means["search"] - means["best"])
    assert found["best - single"]["difference"] == pytest.approx(means["best"] - means["single"])
    assert all(row["ci95"][0] <= row["difference"] <= row["ci95"][1] for row in found.values())
    most = result["setup"]["iterations"] * result["setup"]["samples"]
    assert (
        result["setup"]["samples"]
        <= result["episodes"]["fewest"]
        <= fmean([most, result["episodes"]["most"]])
    )
