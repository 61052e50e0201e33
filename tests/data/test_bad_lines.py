"""Lines that nobody can use, with half of a surrogate pair or with bottomless nesting: one sentence that names the place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.types import Document
from agentenv.data.dataset_files import read_records
from agentenv.data.sql_sets import column_notes
from agentenv.data.world import WorldConfig, read_world, write_world
from agentenv.errors import AgentEnvError, CorpusError, DatasetError
from agentenv.evaluation.records import read_records as read_episodes
from agentenv.retrievers.storage.corpus import Corpus, load_corpus
from agentenv.retrievers.storage.mapped_corpus import link_corpus

HALF = '"a \\ud83d b"'
DEEP = "[" * 100_000 + "]" * 100_000
GOOD = '{"id": "1", "title": "T", "text": "x", "question": "q", "answers": ["a"]}'
BAD = {
    "half a pair": GOOD.replace('"x"', HALF).replace('"q"', HALF),
    "half a pair in a key": GOOD.replace('"title"', '"title": "T", "\\uDC00"'),
    "deep": GOOD.replace('"1"', DEEP),
}


def linked(path: Path) -> Any:
    (path.parent / "linked").mkdir()
    return link_corpus(path, path.parent / "linked")


READERS: dict[str, tuple[Callable[[Path], Any], type[AgentEnvError]]] = {
    "questions": (lambda path: list(read_records(path)), DatasetError),
    "corpus": (load_corpus, CorpusError),
    "foreign corpus": (linked, CorpusError),
    "episodes": (read_episodes, DatasetError),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_a_bad_line_is_one_sentence_with_its_place(tmp_path: Path, reader: str, bad: str) -> None:
    read, error = READERS[reader]
    good = '{"id": "0", "question": "q", "answers": [], "prediction": null, "valid": true, '
    good += '"end_reason": "answered", "searches": 0}'
    first = good if reader == "episodes" else GOOD.replace('"1"', '"0"')
    path = tmp_path / "set.jsonl"
    path.write_text(f"{first}\n{BAD[bad]}\n")
    with pytest.raises(error, match="line 2"):
        read(path)


def test_a_list_that_is_one_document_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(f"[{GOOD}, {BAD['half a pair']}]")
    with pytest.raises(DatasetError, match=r"set\.json"):
        list(read_records(tmp_path / "set.json"))


def test_a_world_with_such_a_line_names_it(tmp_path: Path) -> None:
    write_world(WorldConfig(documents=200, questions=5), tmp_path)
    for name in ("corpus.jsonl", "questions.jsonl"):
        whole = (tmp_path / name).read_text()
        lines = whole.splitlines()
        for bad in (DEEP, '{"id": "\\ud83d"}'):
            (tmp_path / name).write_text("\n".join([lines[0], bad, *lines[2:]]))
            with pytest.raises(AgentEnvError, match=rf"{name}:2"):
                read_world(tmp_path)
        (tmp_path / name).write_text(whole)


def test_whole_pairs_and_ordinary_nesting_are_read() -> None:
    assert read_json_text('{"a": "\\ud83d\\ude00 \\\\ud83d", "b": [[[1]]]}') == {
        "a": "😀 \\ud83d",
        "b": [[[1]]],
    }


def test_documents_that_are_no_text_are_refused_in_memory() -> None:
    with pytest.raises(CorpusError, match="'d'"):
        Corpus([Document("d", "", "half \ud83d")])


@pytest.mark.parametrize("bad", BAD)
def test_the_command_line_prints_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    (tmp_path / "corpus.jsonl").write_text(f"{GOOD}\n{BAD[bad]}\n")
    assert (
        main(
            [
                "retriever",
                "build",
                str(tmp_path / "corpus.jsonl"),
                "--out",
                str(tmp_path / "o"),
                "--index",
                "bm25",
            ]
        )
        == 1
    )
    said = capsys.readouterr().err
    assert "line 2" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("reader", "name", "error"),
    [
        (lambda path: list(read_records(path)), "questions.csv", DatasetError),
        (load_corpus, "passages.tsv", CorpusError),
        (lambda path: column_notes(path.parent), "columns.csv", DatasetError),
    ],
    ids=["questions", "corpus", "columns of BIRD"],
)
def test_a_quote_that_stays_open_is_named_and_not_the_limit_of_the_library(
    tmp_path: Path, reader: Callable[[Path], Any], name: str, error: type[AgentEnvError]
) -> None:
    """The reader takes what follows the quote for one field, up to 131,072 characters of it."""
    gap = "\t" if name.endswith(".tsv") else ","
    row = gap.join("123") + "\n"
    head = gap.join(("id", "text", "title")) + "\n"
    (tmp_path / name).write_text(head + f'0{gap}"open{gap}a\n' + row * 30_000)
    with pytest.raises(error, match=rf"{name}.*131,072.*quote"):
        reader(tmp_path / name)
