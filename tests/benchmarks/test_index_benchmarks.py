"""The benchmarks of retrieval in seconds: they run, their counts add up, their files name no place."""

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

for _module in ("faiss", "bm25s", "Stemmer"):
    pytest.importorskip(_module, reason=f"{_module} is not installed")

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, *words: str, out: Path) -> dict[str, Any]:
    """What a benchmark printed, which is what it wrote."""
    script = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *words]
    done = subprocess.run(
        [*script, "--threads", "1", "--repeats", "1", "--json", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed == json.loads(out.read_text(encoding="utf-8"))
    assert str(out.parent) not in done.stdout
    return printed


def test_index_million(tmp_path: Path) -> None:
    specs = ["SQfp16", "PQ8x4fs,Refine(SQfp16)", "PQ8x4fs"]
    words = ("--rows", "3000", "--worst-rows", "2000", "--dim", "32", "--queries", "64", "--only", *specs)
    figures = run("index_million", *words, out=tmp_path / "out.json")
    assert [(table["vectors"], table["rows"]) for table in figures["tables"]] == [
        ("clustered", 3000),
        ("independent", 2000),
    ]
    for table in figures["tables"]:
        rows = {row["index"]: row for row in table["indexes"]}
        assert list(rows) == ["Flat", *specs]
        assert rows["Flat"]["overlap"] == 1
        assert rows["SQfp16"]["overlap"] > 0.98
        assert rows["PQ8x4fs"]["overlap"] < rows["PQ8x4fs,Refine(SQfp16)"]["overlap"] <= 1
        assert rows["Flat"]["file_bytes"] == pytest.approx(table["rows"] * 32 * 4, abs=200)
        assert rows["SQfp16"]["expected_bytes"] == table["rows"] * 32 * 2
        assert all(row["milliseconds_alone"] > 0 for row in rows.values())
    default = figures["defaults"]["to 200,000"]
    assert default["index"] == "PQ8x4fs,Refine(SQfp16)"
    assert default["met"] == (default["overlap"] >= 0.98 and default["share_of_flat"] <= 0.25)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The three sets in their layout: 80 towns, and questions that need two of them."""
    root = tmp_path / "data"
    files = {
        "hotpotqa": "hotpotqa_dev_200.json.gz",
        "2wiki": "2wiki_dev_164.json.gz",
        "musique": "musique_dev_200.jsonl.gz",
    }
    for name, file in files.items():
        (root / name).mkdir(parents=True)
        corpus = (
            json.dumps({"id": str(n), "title": f"Town{n}", "text": f"Town{n} is old."}) for n in range(80)
        )
        (root / name / "corpus.jsonl").write_text("\n".join(corpus))
        key = "id" if name == "musique" else "_id"
        rows = [{key: f"q{n}", "question": f"Is Town{n} older than Town{n + 40}?"} for n in range(4)]
        text = "\n".join(map(json.dumps, rows)) if name == "musique" else json.dumps(rows)
        (root / name / file).write_bytes(gzip.compress(text.encode()))
        needed = "".join(f"q{n}\t{n}\t1\nq{n}\t{n + 40}\t1\n" for n in range(4))
        (root / name / f"{file.partition('.')[0]}.qrels.tsv").write_text(needed)
    return root


def test_index_recall(data: Path, tmp_path: Path) -> None:
    figures = run("index_recall", "--data", str(data), "--encoder", "hash", out=tmp_path / "out.json")
    assert figures["passages"] == 3 * 80
    for table in figures["sets"].values():
        rows = {row["retriever"]: row for row in table["retrievers"]}
        assert (table["questions"], table["passages"]) == (4, 80)
        assert {"bm25", "hybrid", "Flat", "SQ8", "HNSW32_SQ8", "IVF2,Flat", "PQ128x4fs,Refine(SQ8)"} <= set(
            rows
        )
        # BM25 finds exactly the two towns that are named, by their unique words
        assert rows["bm25"]["recall@2"] == rows["bm25"]["all@5"] == 1
        assert rows["Flat"]["overlap@10"] == 1
        assert all(row["recall@2"] <= row["recall@10"] <= 1 for row in rows.values())
        assert "met" not in rows["Flat"]  # the baselines are those of another encoder


def test_index_recall_without_data_is_one_sentence(tmp_path: Path) -> None:
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / "index_recall.py"),
        "--out",
        str(tmp_path / "out.json"),
    ]
    done = subprocess.run(
        script,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 1
    assert "AGENTENV_DATA" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_constant_that_changes_few_questions_is_not_told_apart(
    script: Callable[[str], Any],
) -> None:
    """Five better and none worse of 100: random signs are as far from 0 in 2 of 32. Percentiles of resamples are above 0."""
    published = [0.5] * 100
    found = script("fusion_constant").gain({60: published, 10: [1.0] * 5 + published[5:]}, 10)
    assert (found["gain"], found["better"], found["worse"]) == (pytest.approx(0.025), 5, 0)
    assert found["p_value"] == pytest.approx(2 / 32)
    assert found["interval"] == "mover"
    assert found["ci95"][0] < 0.0 < found["ci95"][1]
