"""The corpus of a set of questions, and the retrievers that are built over one: both are kept for later calls."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from agentenv.core.io.digests import PathState, path_state
from agentenv.core.protocols import Retriever
from agentenv.data.sources import Source
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.storage.corpus import Corpus, as_corpus, load_corpus, read_documents

_FAISS, _BM25, _HYBRID = "", "bm25", "hybrid"
BUILT = (_FAISS, _BM25, _HYBRID)
"""Specs of the retrievers that are built over a corpus: FAISS, BM25, and both fused."""


def build_retriever(
    spec: str, corpus: Corpus, encoder: str, index: str, progress: Callable[[int, int], None] | None
) -> Retriever:
    """A retriever over ``corpus``, kept for the next call with the same arguments.

    Args:
        spec: One of ``BUILT``.
        corpus: The documents.
        encoder: Spec of the encoder of FAISS.
        index: Kind of FAISS index.
        progress: Called with passages encoded and passages in all while a FAISS index is built.

    Raises:
        UnknownName: no such encoder.
        MissingExtra: faiss or the encoder's library is not installed.
    """
    if spec == _BM25:
        return _lexical(corpus)
    _, _, folder = encoder.partition(":")
    weights = path_state(Path(folder)) if folder else ()  # an empty path would be the current folder
    dense = _dense(_Encoded(corpus, encoder, weights, index, progress))
    return _fused(dense, _lexical(corpus)) if spec == _HYBRID else dense


def corpus_of(source: Source) -> Corpus | None:
    """The documents of a source, or None where it has questions only."""
    if source.documents is not None:
        return as_corpus(source.documents)
    if source.corpora:
        return _together(source.corpora, tuple(path_state(path) for _, path in source.corpora))
    return _load(source.corpus, path_state(source.corpus)) if source.corpus else None


@lru_cache(maxsize=2)
def _together(corpora: tuple[tuple[str, Path], ...], states: tuple[PathState, ...]) -> Corpus:
    """The documents of several corpora, each under an id that begins with the name of its own; read again after a change."""
    return Corpus(
        replace(document, id=f"{name}:{document.id}")
        for name, path in corpora
        for document in read_documents(path)
    )


@lru_cache(maxsize=4)
def _load(path: Path, state: PathState) -> Corpus:
    """The documents of a file, read again where its state is another one."""
    return load_corpus(path)


@lru_cache(maxsize=4)
def _lexical(corpus: Corpus) -> BM25Retriever:
    return BM25Retriever.build(corpus)


@lru_cache(maxsize=4)
def _fused(dense: FaissRetriever, lexical: BM25Retriever) -> Retriever:
    return HybridRetriever(dense, lexical)


@dataclass(frozen=True)
class _Encoded:
    """A corpus as an encoder reads it and an index keeps it."""

    corpus: Corpus
    encoder: str
    weights: PathState
    """State of the files of the encoder; the index is built again where they have changed."""
    index: str
    progress: Callable[[int, int], None] | None = field(compare=False)


@lru_cache(maxsize=4)
def _dense(wanted: _Encoded) -> FaissRetriever:
    from agentenv.retrievers.encoder import make_encoder

    encoder = make_encoder(wanted.encoder)
    return FaissRetriever.build(wanted.corpus, encoder, wanted.index, progress=wanted.progress)
