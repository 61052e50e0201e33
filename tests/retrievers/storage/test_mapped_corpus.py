"""Corpora that stay in their file: equal to those in memory, whatever the layout, and refused when damaged."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from agentenv.core.types import Document
from agentenv.errors import CorpusError
from agentenv.retrievers.storage.corpus import Corpus, load_corpus
from agentenv.retrievers.storage.mapped_corpus import (
    CORPUS_FILE,
    IDS_FILE,
    STARTS_FILE,
    MappedCorpus,
    link_corpus,
    write_corpus,
)

DOCUMENTS = [
    Document("a", "Ärger 😀", 'He said "no".\nThen left.\u2028And came back.'),
    Document("b", "", "Plain."),
    Document("0", "Zero", ""),
]


def test_it_is_the_same_corpus_as_in_memory(tmp_path: Path) -> None:
    written, memory = write_corpus(iter(DOCUMENTS), tmp_path), Corpus(DOCUMENTS)
    for corpus in (written, MappedCorpus(tmp_path, written.fingerprint)):
        assert corpus.fingerprint == memory.fingerprint
        assert (len(corpus), list(corpus), corpus[1:], corpus[-1]) == (
            3,
            DOCUMENTS,
            DOCUMENTS[1:],
            DOCUMENTS[2],
        )
        assert [corpus.row_of(document.id) for document in DOCUMENTS] == [0, 1, 2]
        with pytest.raises(KeyError):
            corpus.row_of("c")
        with pytest.raises(IndexError):
            corpus[3]
    assert list(load_corpus(tmp_path)) == DOCUMENTS


def test_rows_are_found_among_many(tmp_path: Path) -> None:
    corpus = write_corpus((Document(f"id{n}", f"t{n}", "x" * (n % 7)) for n in range(1000)), tmp_path)
    assert [corpus.row_of(f"id{n}") for n in (0, 1, 500, 999)] == [0, 1, 500, 999]
    assert corpus[977] == Document("id977", "t977", "x" * (977 % 7))


def test_a_foreign_file_is_linked_and_not_copied(tmp_path: Path) -> None:
    rows = [{"id": 7, "contents": '"The Title"\nBody, line 1\nline 2'}, {"id": "8", "contents": "No title"}]
    path, folder = tmp_path / "wiki.jsonl", tmp_path / "out"
    # Blank lines, no last newline.
    path.write_text("\n".join(map(json.dumps, rows[:1])) + "\n\n  \n" + json.dumps(rows[1]))
    folder.mkdir()
    corpus = link_corpus(path, folder)
    expected = [Document("7", "The Title", "Body, line 1\nline 2"), Document("8", "", "No title")]
    assert list(corpus) == expected
    assert corpus.fingerprint == Corpus(expected).fingerprint
    assert (folder / CORPUS_FILE).readlink() == path


def test_a_double_id_and_an_empty_corpus_are_refused(tmp_path: Path) -> None:
    twice = [Document("a", "", "1"), Document("b", "", "2"), Document("a", "", "3")]
    with pytest.raises(CorpusError, match=r"'a'.*\b1\b.*\b3\b"):
        write_corpus(twice, tmp_path, source="the file")
    with pytest.raises(CorpusError, match="the file"):
        write_corpus([], tmp_path, source="the file")


@pytest.mark.parametrize(
    ("content", "named"),
    [(b"{", "line 1"), (b'{"id": "\xff"}', "line 1"), (b"\n", "c.jsonl")],
)
def test_a_bad_foreign_file_is_refused(tmp_path: Path, content: bytes, named: str) -> None:
    (tmp_path / "c.jsonl").write_bytes(content)
    (tmp_path / "out").mkdir()
    with pytest.raises(CorpusError, match=named):
        link_corpus(tmp_path / "c.jsonl", tmp_path / "out")


def test_a_missing_and_a_compressed_foreign_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"c\.jsonl\.gz"):
        link_corpus(tmp_path / "c.jsonl.gz", tmp_path)
    with pytest.raises(CorpusError, match=r"c\.jsonl"):
        link_corpus(tmp_path / "c.jsonl", tmp_path)


def test_tables_of_another_corpus_are_refused(tmp_path: Path) -> None:
    corpus = write_corpus(DOCUMENTS, tmp_path)
    np.save(tmp_path / STARTS_FILE, np.array([0, 5]))
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        MappedCorpus(tmp_path, corpus.fingerprint)
    np.save(tmp_path / STARTS_FILE, np.array([0, 5, 10**6]))
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        MappedCorpus(tmp_path, corpus.fingerprint)
    (tmp_path / IDS_FILE).unlink()
    with pytest.raises(CorpusError, match=r"corpus\.jsonl"):
        MappedCorpus(tmp_path, corpus.fingerprint)


def test_documents_survive_the_corpus(tmp_path: Path) -> None:
    document = write_corpus(DOCUMENTS, tmp_path)[0]
    assert pickle.loads(pickle.dumps(document)) == DOCUMENTS[0]  # copied out of the map


TEXT, BROKEN, NONE, FAR = "U20", "float64", 0, 2**40


@pytest.mark.parametrize("made", [TEXT, BROKEN, NONE, FAR])
def test_tables_that_somebody_has_made_up_are_one_sentence(tmp_path: Path, made: str | int) -> None:
    """Whoever writes a folder writes its checksums too."""
    corpus = write_corpus(DOCUMENTS, tmp_path)
    starts, ids = np.load(tmp_path / STARTS_FILE), np.load(tmp_path / IDS_FILE)
    if isinstance(made, str):
        starts, ids = starts.astype(made), ids.astype(made)
    elif made == NONE:
        starts, ids = starts[:0], ids[:, :0]
    else:
        ids[1] += made
    np.save(tmp_path / STARTS_FILE, starts)
    np.save(tmp_path / IDS_FILE, ids)
    with pytest.raises(CorpusError, match="does not match the tables"):
        MappedCorpus(tmp_path, corpus.fingerprint).row_of(DOCUMENTS[0].id)
