"""`agentenv retriever`: what the two commands parse, return, print and refuse."""

import io
import json
from pathlib import Path

import pytest
import tyro
from rich.console import Console

from agentenv.cli.retriever import Build, Command, Query
from agentenv.errors import AgentEnvError, ConfigurationError, CorpusError, UnknownName

pytest.importorskip("faiss", reason="faiss-cpu is not installed")
pytest.importorskip("bm25s", reason="bm25s is not installed")

ROWS = [
    {"id": "a", "title": "Halvik", "text": "A harbour town on [red] rocks."},
    {"id": "b", "title": "Herring", "text": "A fish, smoked."},
]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def parse(*args: str) -> Build | Query:
    command: Build | Query = tyro.cli(Command, args=list(args))
    return command


def test_command_lines_parse() -> None:
    assert parse("build", "c.jsonl", "--out", "d", "--index", "SQ8", "--encoder", "hash") == Build(
        Path("c.jsonl"), Path("d"), "SQ8", "hash"
    )
    assert parse("query", "d", "who?", "-k", "3") == Query(Path("d"), "who?", 3)
    assert parse("query", "d", "who?").k == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(("index", "name"), [("Flat", "faiss"), ("bm25", "bm25"), ("hybrid", "hybrid")])
def test_build_then_query(corpus: Path, tmp_path: Path, index: str, name: str) -> None:
    built = Build(corpus.parent, tmp_path / "out", index, "hash").run()
    assert (built["name"], built["documents"]) == (name, 2)
    answer = Query(tmp_path / "out", "smoked herring", 1).run()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["retriever"]["fingerprint"] == built["fingerprint"]
    assert [passage["id"] for passage in answer["passages"]] == ["b"]


def test_people_see_a_table_and_the_next_command(corpus: Path, tmp_path: Path) -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    build, query = Build(corpus, tmp_path / "out", "bm25"), Query(tmp_path / "out", "harbour")
    build.show(build.run(), console)
    query.show(query.run(), console)
    text = console.export_text()
    assert "2 documents, bm25" in text
    assert "agentenv retriever query" in text
    assert "on [red] rocks" in text


def test_nothing_found_is_said(corpus: Path, tmp_path: Path) -> None:
    Build(corpus, tmp_path / "out", "bm25").run()
    console = Console(width=100, file=io.StringIO(), record=True)
    query = Query(tmp_path / "out", "zebra")
    query.show(query.run(), console)
    assert console.export_text().strip() == "Nothing found."


@pytest.mark.parametrize(
    ("index", "encoder", "error"),
    [
        ("Flt", "hash", ConfigurationError),
        ("Flat", "hush", UnknownName),
        ("Flat", "st:nowhere", ConfigurationError),
    ],
)
def test_bad_input_leaves_nothing_behind(
    corpus: Path, tmp_path: Path, index: str, encoder: str, error: type[AgentEnvError]
) -> None:
    with pytest.raises(error):
        Build(corpus, tmp_path / "out", index, encoder).run()
    assert list(tmp_path.iterdir()) == [corpus]


def test_a_corrupt_corpus_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text("{")
    with pytest.raises(CorpusError, match="line 1 is not JSON"):
        Build(tmp_path, tmp_path / "out", "Flat", "hash").run()
    assert not (tmp_path / "out").exists()
