"""`agentenv retriever serve`: what it takes, and what it refuses before it listens or once it has loaded."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rich.console import Console

from agentenv.cli.main import main
from agentenv.cli.retriever_serve import Serve
from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, IndexMismatch

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client", "bm25s"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.retrievers.bm25 import BM25Retriever  # noqa: E402
from agentenv.web.server import listen  # noqa: E402


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "wiki"
    BM25Retriever.build(
        [Document("a", "Halvik", "A harbour town."), Document("b", "Herring", "A fish.")]
    ).save(folder)
    return folder


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (Serve(), "--shards"),
        (Serve(("nowhere",)), "nowhere"),
        (Serve(("a/wiki", "b/wiki")), r"\(wiki, wiki\)"),
        (Serve(("a",), shards=("http://b",)), "--shards"),
        (Serve(shards=("b:80",)), "'b:80'"),
        (Serve(("a",), threads=0), "--threads"),
        (Serve(("a",), timeout=0.0), "--timeout"),
        (Serve(("a",), timeout=float("nan")), "--timeout"),
        (Serve(("a",), timeout=float("inf")), "--timeout"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_loaded(command: Serve, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        command.run()


def test_a_port_in_use_is_one_sentence(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert main(["retriever", "serve", str(index), "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"127.0.0.1:{port}" in said
    with pytest.raises(ConfigurationError, match=r"\b99999\b"):
        Serve((str(index),), port=99_999).run()


def test_an_index_that_cannot_be_opened_ends_the_server(index: Path) -> None:
    (index / "corpus.jsonl").write_text('{"id": "x", "title": "", "text": "another corpus"}\n')
    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(Serve((f"name={index}",), port=0).run)
        with pytest.raises(IndexMismatch, match=r"corpus\.jsonl"):
            serving.result(120)


def asked(tmp_path: Path, *rows: str) -> Path:
    file = tmp_path / "asked.jsonl"
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    return file


def test_an_index_that_finds_too_little_is_not_served(index: Path, tmp_path: Path) -> None:
    """Half of what two questions need is found: .5 is enough for .5, and not for .6."""
    questions = asked(
        tmp_path,
        '{"question": "Which town is Halvik?", "answer": "a harbour town", "supporting_ids": ["a"]}',
        '{"question": "Who was a sailor?", "answer": "Orla", "supporting_ids": ["b"]}',
    )
    load = Serve((str(index),), questions=questions)._asked(Serve((str(index),))._folders())
    assert list(load()) == ["wiki"]
    with ThreadPoolExecutor(1) as thread:
        serving = thread.submit(Serve((str(index),), port=0, questions=questions, least_recall=0.6).run)
        with pytest.raises(ConfigurationError, match=r"wiki finds a share of 0\.500 .* 2 questions"):
            serving.result(120)


def test_questions_that_name_no_passage_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    questions = asked(tmp_path, '{"id": "x", "question": "Who?", "answer": "Orla"}')
    with pytest.raises(ConfigurationError, match="'x' has no supporting_ids"):
        Serve(("nowhere",), questions=questions)._asked(dict)
    with pytest.raises(ConfigurationError, match="least-recall"):
        Serve(("nowhere",), questions=questions, least_recall=0.0)._asked(dict)


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retriever", "serve", "--help"]) == 0
    assert "agentenv retriever serve wiki --port 8000" in " ".join(capsys.readouterr().out.split())


def test_the_end_is_summed_up() -> None:
    console = Console(width=100, file=io.StringIO(), record=True)
    Serve(("a",)).show({"requests": 1234, "seconds": 61.7}, console)
    assert console.export_text() == "1,234 requests in 62 s.\n"
