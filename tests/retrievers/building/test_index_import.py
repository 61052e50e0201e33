"""Indexes built elsewhere, in the layout of Search-R1 and FlashRAG: taken over without copying, strangers refused."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.errors import ConfigurationError, CorpusError, IndexMismatch
from agentenv.retrievers.building.index_import import import_index
from agentenv.retrievers.encoder import HashEncoder, Vectors
from agentenv.retrievers.faiss import INDEX_FILE, FaissRetriever, laid_out
from agentenv.retrievers.storage.corpus import load_corpus
from agentenv.retrievers.storage.mapped_corpus import CORPUS_FILE

faiss = pytest.importorskip("faiss", reason="faiss-cpu is not installed")

ROWS = 300
ENCODER = HashEncoder(dim=64)
THEIRS = '"{title}"\n{text}'


class LettersEncoder(HashEncoder):
    """Sees quotes, as a model does: every character is a word."""

    def __init__(self) -> None:
        super().__init__(dim=64)

    def encode_passages(self, texts: Sequence[str]) -> Vectors:
        return super().encode_passages([" ".join(f"c{ord(letter)}" for letter in text) for text in texts])


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rows = [{"id": str(n), "contents": f'"Town {n}"\nTown {n} lies on river {n % 7}.'} for n in range(ROWS)]
    path = tmp_path / "wiki-18.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def vectors(corpus: Path) -> Vectors:
    return ENCODER.encode_passages([laid_out(document, THEIRS) for document in load_corpus(corpus)])


def write(index: Any, vectors: Vectors, path: Path) -> Path:
    """Writes an index as FlashRAG's builder does."""
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return path


@pytest.fixture
def flat(corpus: Path, tmp_path: Path) -> Path:
    return write(faiss.IndexFlatIP(64), vectors(corpus), tmp_path / "e5_Flat.index")


def test_an_adopted_index_is_searched_where_it_lies(corpus: Path, flat: Path, tmp_path: Path) -> None:
    import_index(flat, corpus, tmp_path / "wiki", ENCODER)
    retriever = FaissRetriever.load(tmp_path / "wiki", encoder=ENCODER)
    (found,) = asyncio.run(retriever.search(["Town 7 lies on river 0"], 1))
    assert (found[0].id, found[0].title, found[0].text) == ("7", "Town 7", "Town 7 lies on river 0.")
    assert (tmp_path / "wiki" / CORPUS_FILE).readlink() == corpus
    assert (tmp_path / "wiki" / INDEX_FILE).readlink() == flat
    truth = np.argsort(-(ENCODER.encode_queries(["Town 123"]) @ vectors(corpus).T)[0], kind="stable")[:5]
    assert [passage.id for passage in asyncio.run(retriever.search(["Town 123"], 5))[0]] == [
        str(row) for row in truth
    ]


@pytest.mark.parametrize("layout", [THEIRS, "{title}\n{text}"])
def test_vectors_of_quoted_and_of_bare_titles_are_adopted(corpus: Path, tmp_path: Path, layout: str) -> None:
    texts = [laid_out(document, layout) for document in load_corpus(corpus)]
    flat = write(faiss.IndexFlatIP(64), LettersEncoder().encode_passages(texts), tmp_path / "e5_Flat.index")
    assert import_index(flat, corpus, tmp_path / "wiki", LettersEncoder()).layout == layout


def test_a_graph_and_codes_are_adopted_too(corpus: Path, tmp_path: Path) -> None:
    for n, spec in enumerate(["HNSW64", "SQ8", "PQ16x4", "IVF4,Flat", "PCA32,IVF4,SQ8"]):
        index = faiss.index_factory(64, spec, faiss.METRIC_INNER_PRODUCT)
        path = write(index, vectors(corpus), tmp_path / f"{n}.index")
        retriever = import_index(path, corpus, tmp_path / f"out{n}", ENCODER)
        assert len(asyncio.run(retriever.search(["Town 7"], 3))[0]) == 3


def test_a_corpus_in_another_order_is_refused(corpus: Path, flat: Path, tmp_path: Path) -> None:
    lines = corpus.read_text().splitlines()
    corpus.write_text("\n".join(lines[1:] + lines[:1]))
    with pytest.raises(IndexMismatch, match=r"\b16\b.*\b0\b.*'hash'"):
        import_index(flat, corpus, tmp_path / "wiki", ENCODER)
    assert not (tmp_path / "wiki").exists()


@pytest.mark.parametrize("length", [0.5, 30.0])
def test_vectors_of_another_length_are_refused(corpus: Path, tmp_path: Path, length: float) -> None:
    """As those of an encoder that does not normalise: every inner product with long ones is large."""
    others = length * np.roll(vectors(corpus), 1, axis=0)
    flat = write(faiss.IndexFlatIP(64), others, tmp_path / "e5_Flat.index")
    with pytest.raises(IndexMismatch, match=r"\b0%.*'hash'"):
        import_index(flat, corpus, tmp_path / "wiki", ENCODER)


def test_another_prefix_is_refused(corpus: Path, tmp_path: Path) -> None:
    texts = [f"passage: {laid_out(document, THEIRS)}" for document in load_corpus(corpus)]
    flat = write(faiss.IndexFlatIP(64), ENCODER.encode_passages(texts), tmp_path / "e5_Flat.index")
    with pytest.raises(IndexMismatch, match=r"\b0%.*'hash'"):
        import_index(flat, corpus, tmp_path / "wiki", ENCODER)


@pytest.mark.parametrize("change", ["fewer passages", "other dimensions"])
def test_another_size_is_refused(corpus: Path, flat: Path, tmp_path: Path, change: str) -> None:
    encoder = HashEncoder(dim=32) if change == "other dimensions" else ENCODER
    if change == "fewer passages":
        corpus.write_text("".join(corpus.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(IndexMismatch, match=r"\b300\b.*\b64\b"):
        import_index(flat, corpus, tmp_path / "wiki", encoder)


def test_what_cannot_be_searched_is_refused(corpus: Path, tmp_path: Path) -> None:
    distance = write(faiss.IndexFlatL2(64), vectors(corpus), tmp_path / "l2.index")
    with pytest.raises(ConfigurationError, match=r"l2\.index"):
        import_index(distance, corpus, tmp_path / "wiki", ENCODER)
    labelled = faiss.IndexIDMap(faiss.IndexFlatIP(64))
    labelled.add_with_ids(vectors(corpus), np.arange(ROWS) + 5)
    faiss.write_index(labelled, str(tmp_path / "ids.index"))
    with pytest.raises(ConfigurationError, match=r"ids\.index"):
        import_index(tmp_path / "ids.index", corpus, tmp_path / "wiki", ENCODER)
    with pytest.raises(ConfigurationError, match=r"nowhere\.index"):
        import_index(tmp_path / "nowhere.index", corpus, tmp_path / "wiki", ENCODER)
    good = write(faiss.IndexFlatIP(64), vectors(corpus), tmp_path / "good.index")
    for name in ("c.jsonl.gz", "nowhere.jsonl"):
        with pytest.raises(CorpusError, match=name):
            import_index(good, Path(name), tmp_path / "wiki", ENCODER)


def test_a_corpus_that_changed_since_is_refused(corpus: Path, flat: Path, tmp_path: Path) -> None:
    import_index(flat, corpus, tmp_path / "wiki", ENCODER)
    corpus.write_text(corpus.read_text().replace("Town 7 lies", "Town 7 lay"))
    with pytest.raises(IndexMismatch, match=r"corpus\.jsonl"):
        FaissRetriever.load(tmp_path / "wiki", encoder=ENCODER)
