"""Loads the corpus of a question set and builds retrievers over it. Both are cached for later calls."""

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
"""Names of the retrievers that are built over a corpus: FAISS, BM25, and their fusion."""


def build_retriever(
    spec: str, corpus: Corpus, encoder: str, index: str, progress: Callable[[int, int], None] | None
) -> Retriever:
    """Builds a retriever over ``corpus``, or returns the cached one of an earlier call with the same arguments.

    Args:
        spec: One of ``BUILT``.
        corpus: The documents.
        encoder: Spec of the encoder of FAISS.
        index: Kind of FAISS index.
        progress: Called with the numbers of encoded passages and of all passages while a FAISS index is built.

    Raises:
        UnknownName: there is no such encoder.
        MissingExtra: faiss or the encoder's library is not installed.
    """
    if spec == _BM25:
        return _lexical(corpus)
    _, _, folder = encoder.partition(":")
    weights = path_state(Path(folder)) if folder else ()  # Path("") would be the current folder
    dense = _dense(_IndexKey(corpus, encoder, weights, index, progress))
    return _fused(dense, _lexical(corpus)) if spec == _HYBRID else dense


def corpus_of(source: Source) -> Corpus | None:
    """Returns the documents of a source; None if it has only questions."""
    if source.documents is not None:
        return as_corpus(source.documents)
    if source.corpora:
        return _joined_corpora(source.corpora, tuple(path_state(path) for _, path in source.corpora))
    return _load(source.corpus, path_state(source.corpus)) if source.corpus else None


@lru_cache(maxsize=2)
def _joined_corpora(corpora: tuple[tuple[str, Path], ...], states: tuple[PathState, ...]) -> Corpus:
    """Joins several corpora, with the corpus's name as a prefix of each document id; cached until a file changes."""
    return Corpus(
        replace(document, id=f"{name}:{document.id}")
        for name, path in corpora
        for document in read_documents(path)
    )


@lru_cache(maxsize=4)
def _load(path: Path, state: PathState) -> Corpus:
    """Reads the documents of a file; cached until the file changes."""
    return load_corpus(path)


@lru_cache(maxsize=4)
def _lexical(corpus: Corpus) -> BM25Retriever:
    return BM25Retriever.build(corpus)


@lru_cache(maxsize=4)
def _fused(dense: FaissRetriever, lexical: BM25Retriever) -> Retriever:
    return HybridRetriever(dense, lexical)


@dataclass(frozen=True)
class _IndexKey:
    """A corpus with the encoder and the kind of index, as the key of a cached FAISS index."""

    corpus: Corpus
    encoder: str
    weights: PathState
    """State of the encoder's files. The index is rebuilt if they have changed."""
    index: str
    progress: Callable[[int, int], None] | None = field(compare=False)


@lru_cache(maxsize=4)
def _dense(wanted: _IndexKey) -> FaissRetriever:
    from agentenv.retrievers.encoder import make_encoder

    encoder = make_encoder(wanted.encoder)
    return FaissRetriever.build(wanted.corpus, encoder, wanted.index, progress=wanted.progress)
