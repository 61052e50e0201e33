"""`agentenv retriever`: what the two commands parse, return, print and refuse."""

import io
import json
from hashlib import sha256
from pathlib import Path

import pytest
import tyro
from rich.console import Console

from agentenv.cli.retriever import Build, Check, Command, ImportIndex, Query
from agentenv.errors import AgentEnvError, ConfigurationError, CorpusError, UnknownName
from agentenv.retrievers.building.builder import JOURNAL
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import INDEX_FILE, LAYOUT
from agentenv.retrievers.storage.corpus import load_corpus
from agentenv.retrievers.storage.retriever_folder import read_card

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


def parse(*args: str) -> Build | Query | ImportIndex | Check:
    command: Build | Query | ImportIndex | Check = tyro.cli(Command, args=list(args))
    return command


def test_command_lines_parse() -> None:
    assert parse("build", "c.jsonl", "--out", "d", "--index", "SQ8", "--encoder", "hash") == Build(
        Path("c.jsonl"), Path("d"), "SQ8", "hash"
    )
    assert parse("query", "d", "who?", "-k", "3") == Query(Path("d"), "who?", 3)
    assert parse("query", "d", "who?").k == 5  # type: ignore[union-attr]
    assert parse("build", "c.jsonl", "--out", "d") == Build(Path("c.jsonl"), Path("d"), "auto", "minilm")
    assert parse("check", "d") == Check(Path("d"))
    assert parse("import", "e5.index", "w.jsonl", "--encoder", "e5:p", "--out", "d") == ImportIndex(
        Path("e5.index"), Path("w.jsonl"), Path("d"), "e5:p"
    )


def test_the_index_is_chosen_by_size_and_an_interrupted_build_is_taken_up(tmp_path: Path) -> None:
    rows = (json.dumps({"id": str(n), "title": "", "text": f"text {n}"}) for n in range(1500))
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    build = Build(tmp_path, tmp_path / "out", encoder="hash")
    assert (build.run()["index"], build.run()["resumed_rows"]) == ("PQ128x4fs,Refine(SQfp16)", 0)
    work = tmp_path / ".next.building" / "work"
    work.mkdir(parents=True)
    corpus = load_corpus(tmp_path)
    vectors = HashEncoder().encode_passages([document.text for document in corpus[:1024]])
    (work / "vectors.f32").write_bytes(vectors.tobytes() + b"half a row")
    journal = [[corpus.fingerprint, "hash:512", 512, LAYOUT], [1024, sha256(vectors.tobytes()).hexdigest()]]
    (work / JOURNAL).write_text("".join(json.dumps(line) + "\n" for line in journal))
    console = Console(width=100, file=io.StringIO(), record=True)
    again = Build(tmp_path, tmp_path / "next", encoder="hash")
    again.show(again.run(), console)
    assert "1,024 of them had already been encoded by an interrupted build." in console.export_text()
    assert (tmp_path / "next" / INDEX_FILE).read_bytes() == (tmp_path / "out" / INDEX_FILE).read_bytes()


def test_an_index_of_elsewhere_is_adopted_and_asked(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    contents = ['"Halvik"\nA harbour town.', '"Herring"\nA fish, smoked.']
    index = faiss.IndexFlatIP(512)
    index.add(HashEncoder().encode_passages(contents))
    faiss.write_index(index, str(tmp_path / "e5_Flat.index"))
    lines = (json.dumps({"id": str(n), "contents": text}) for n, text in enumerate(contents))
    (tmp_path / "wiki.jsonl").write_text("\n".join(lines))
    adopt = ImportIndex(tmp_path / "e5_Flat.index", tmp_path / "wiki.jsonl", tmp_path / "wiki", "hash")
    console = Console(width=100, file=io.StringIO(), record=True)
    result = adopt.run()
    adopt.show(result, console)
    assert (result["documents"], result["index"]) == (2, "IndexFlatIP")
    assert "nothing copied" in console.export_text()
    assert [p["id"] for p in Query(tmp_path / "wiki", "smoked fish", 1).run()["passages"]] == ["1"]


def test_a_query_may_be_reranked(corpus: Path, tmp_path: Path) -> None:
    Build(corpus, tmp_path / "out", "Flat", "hash").run()
    plain, judged = (Query(tmp_path / "out", "fish", 2, rerank).run() for rerank in ("", "overlap"))
    assert judged["retriever"]["name"] == "rerank(faiss)"
    assert [passage["score"] for passage in judged["passages"]] == [1.0, 0.0]  # "fish," is "fish"
    assert {p["id"] for p in plain["passages"]} == {p["id"] for p in judged["passages"]}


@pytest.mark.parametrize(("index", "name"), [("Flat", "faiss"), ("bm25", "bm25"), ("hybrid", "hybrid")])
def test_build_then_query(corpus: Path, tmp_path: Path, index: str, name: str) -> None:
    built = Build(corpus.parent, tmp_path / "out", index, "hash").run()
    assert (built["name"], built["documents"]) == (name, 2)
    answer = Query(tmp_path / "out", "smoked herring", 1).run()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["retriever"]["fingerprint"] == built["fingerprint"]
    assert [passage["id"] for passage in answer["passages"]] == ["b"]


def test_the_constants_of_bm25_belong_to_its_index_alone(corpus: Path, tmp_path: Path) -> None:
    Build(corpus, tmp_path / "out", "bm25", k1=0.9, b=0.4).run()
    assert (read_card(tmp_path / "out").k1, read_card(tmp_path / "out").b) == (0.9, 0.4)
    with pytest.raises(ConfigurationError, match=r"--k1 0\.9.*'Flat'"):
        Build(corpus, tmp_path / "flat", "Flat", "hash", k1=0.9).run()


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
    with pytest.raises(CorpusError, match=r"\b1\b"):
        Build(tmp_path, tmp_path / "out", "Flat", "hash").run()
    assert not (tmp_path / "out").exists()


def test_a_corpus_that_is_not_there_is_said_before_an_encoder_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="There is no"):
        Build(tmp_path / "corpus.jsonl", tmp_path / "out", "Flat", "st:nowhere").run()
    assert not list(tmp_path.iterdir())


def test_a_specification_where_a_folder_belongs_is_told_the_folder(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Build(corpus, tmp_path / "index", "bm25").run()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'bm25:index'.* 'index'"):
        Query(Path("bm25:index"), "who?").run()
