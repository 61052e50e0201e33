"""The limit of the comparison with TRL: what is counted, by hand, and that the script runs."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.parametrize(("prompts", "read"), [("own", 80 + 20), ("shared", 80 // 4 + 20)])
def test_a_shared_prompt_counts_once(prompts: str, read: int) -> None:
    """One layer of hidden size 2 and inner size 3 has 4*4 + 3*6 = 34 entries; 5 words make 10 more for sampled tokens."""
    shapes, limit = importlib.import_module("model_flops"), importlib.import_module("trl_limit")
    shape = shapes.ModelShape(hidden=2, layers=1, heads=1, key_value_heads=1, inner=3, vocabulary=5)
    cell = {"prompts": prompts, "agentenv": {"tokens": {"prompt": 80, "sampled": 7, "observed": 20}}}
    # Read tokens go forward twice and backward once (as two), sampled ones once forward and once backward here.
    assert limit.minimum_flops(shape, cell, 4) == (34 * (8 * read + 6 * 7) + 10 * 6 * 7, (34 + 10) * 2 * 7)


def test_it_prints_a_limit_for_every_cell(tmp_path: Path, here: Callable[..., str]) -> None:
    """The published grid with rates of this machine."""
    printed = here("trl_limit", "--seconds", ".01", "--threads", "1", "--out", str(tmp_path / "out.json"))
    figures = json.loads((tmp_path / "out.json").read_text())
    compared = json.loads((ROOT / "benchmarks/results/trl_comparison.json").read_text())
    assert len(figures["cells"]) == len(compared["cells"]) == len(printed.splitlines()) - 1
    for cell, other in zip(figures["cells"], compared["cells"], strict=True):
        assert cell["largest_ratio"] / cell["agentenv_over_limit"] == pytest.approx(other["ratio"])
