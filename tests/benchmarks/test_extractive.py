"""The table of the extractive baseline is made of its result file, and of the evaluation of a suite."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def extractive(script: Callable[[str], Any]) -> Any:
    return script("extractive")


def test_the_page_has_the_table_of_the_result_file(extractive: Any) -> None:
    found = json.loads((ROOT / "benchmarks/results/extractive.json").read_text("utf-8"))
    table = "\n".join(extractive._table(found["sets"], found["over_sets"]))
    assert f"\n\n{table}\n" in (ROOT / "docs/evaluation.md").read_text("utf-8")


def test_a_suite_of_two_small_sets(tmp_path: Path, here: Callable[..., str]) -> None:
    """Each page tells one founder, and the rules find both."""
    founders = {"Brent": "Ada Hill", "Corin": "Ben Wood"}
    questions = [
        {"id": t, "question": f"Who founded the town of {t}?", "answers": [w]} for t, w in founders.items()
    ]
    pages = [
        {"id": t, "title": t, "text": f"The town of {t} was founded by {w}."} for t, w in founders.items()
    ]
    for name, rows in (("questions", questions), ("pages", pages)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    section = f'dataset = "{tmp_path / "questions.jsonl"}"\ncorpus = "{tmp_path / "pages.jsonl"}"\n'
    suite, out = tmp_path / "suite.toml", tmp_path / "out.json"
    suite.write_text(f'retriever = "bm25"\n[both]\n{section}[first]\n{section}limit = 1\n', encoding="utf-8")
    words = ("--suite", str(suite), "--runs", str(tmp_path / "runs"), "--json", "--out", str(out))
    found = json.loads(here("extractive", *words))
    assert found == json.loads(out.read_text("utf-8"))
    assert {name: (one["n"], one["scores"]["em_squad"]["mean"]) for name, one in found["sets"].items()} == {
        "both": (2, 1.0),
        "first": (1, 1.0),
    }
    assert found["over_sets"]["em_squad"]["micro"]["n"] == 3
