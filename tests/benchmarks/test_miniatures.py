"""The miniatures: how a preset is made small, what is counted, and the cells of the table of methods."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results" / "miniatures.json"


@pytest.fixture(scope="module", autouse=True)
def path() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def script(name: str) -> Any:
    return importlib.import_module(name)


def test_the_table_has_the_figures_of_the_result_file() -> None:
    page, results = script("miniatures_page"), json.loads(RESULTS.read_text(encoding="utf-8"))
    assert page.filled(METHODS, results, page.sentences()) == METHODS
    assert page.counts(results["summary"]) in METHODS
    assert page.days(results["miniatures"]) in METHODS


def test_no_method_is_without_a_figure_or_a_sentence() -> None:
    rows = [line.strip("| ").split(" | ") for line in METHODS.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    for cells in rows:
        assert len(cells) == 7, cells[0]
        assert all(cells), cells[0]
        assert script("miniatures_page").NOT_YET not in cells[6], cells[0]
        assert re.search(r" → \S+ \([+-]?\S+ \[\S+, \S+\]\)", cells[6]) or cells[6].endswith("."), cells[0]


def test_the_counts_are_those_of_the_runs() -> None:
    miniatures, results = script("miniatures"), json.loads(RESULTS.read_text(encoding="utf-8"))
    assert set(results["miniatures"]) <= set(miniatures.presets())
    assert results["summary"] == miniatures.summary(results["miniatures"])


def test_a_cell_by_hand() -> None:
    page = script("miniatures_page")
    row = {"before": 0.314, "after": 0.5, "difference": 0.186, "ci95": [-0.004, 1.0]}
    assert page.figure(row) == ".31 → .50 (+.19 [0, 1.00])"
    assert (
        page.figure(row | {"difference": -0.186, "ci95": [-0.3, -0.051]}) == ".31 → .50 (-.19 [-.30, -.05])"
    )
    results = {"miniatures": {"a": row, "b": {"error": "Fault: x."}}}
    said = {"methods": {"m": "Said."}, "not_run": {"c": "Not run."}}
    assert page.cell("m", ["a"], results, said) == "Said."
    assert page.cell("n", ["c"], results, said) == "Not run."
    assert page.cell("n", ["a", "c"], results, said) == "`a` .31 → .50 (+.19 [0, 1.00]); `c` Not run."
    assert page.cell("n", ["d"], results, said) == page.NOT_YET
    assert page.cell("n", ["b"], results, said) == "It ended with an error: Fault: x."


def test_the_days_of_the_runs() -> None:
    rows = {name: {"date": f"2026-11-{day}"} for name, day in zip("dcba", (23, 23, 25, 24), strict=True)}
    said = "They ran on these days: `b` on 2026-11-25; `a` on 2026-11-24; all others on 2026-11-23."
    assert script("miniatures_page").days(rows) == said


def test_what_rose_and_what_fell() -> None:
    miniatures = script("miniatures")
    found = {"dapo": [0.1, 0.2], "dars": [0.0, 0.2], "vade": [-0.2, -0.1]}
    rows = {name: {"ci95": interval} for name, interval in found.items()} | {"vcpo": {"error": ""}}
    left = len(miniatures.presets()) - 4
    assert miniatures.summary(rows) == {"runs": 3, "rose": 1, "fell": 1, "neither": 1, "open": left}


def test_a_preset_is_made_small_and_keeps_its_method() -> None:
    miniatures = script("miniatures")
    for name, run in miniatures.presets().items():
        config = miniatures.small(run, name, miniatures.own_values(name))
        whole = miniatures.load_config(miniatures.place_of(run))
        assert config.optimizer.steps == 12
        assert config.rollout.questions * config.rollout.group_size <= 128
        assert config.test.limit >= 100
        assert (config.rollout.strategy, config.rollout.sampler) == (
            whole.rollout.strategy,
            whole.rollout.sampler,
        )
        assert config.loss == whole.loss
        assert config.env.id == whole.env.id


def test_every_start_that_is_named_can_be_made() -> None:
    table = script("miniatures").TABLE
    named = {values["start"] for values in table["presets"].values() if "start" in values}
    assert named == set(table["starts"])
