"""Dense retrieval: an encoder and a FAISS index with inner products over a corpus."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, IndexMismatch
from agentenv.retrievers.base import SCORE_DECIMALS, CorpusRetriever, Hit, best_hits, composed
from agentenv.retrievers.encoder import CachedQueries, Encoder, Vectors, make_encoder
from agentenv.retrievers.indexes import (
    EFFORT,
    add_rest,
    faiss_threads,
    load_faiss,
    new_index,
    read_index,
    refuse_unsearchable,
    train,
    tune,
    write_index,
)
from agentenv.retrievers.storage.corpus import Corpus, as_corpus
from agentenv.retrievers.storage.mapped_corpus import write_corpus
from agentenv.retrievers.storage.retriever_folder import Card, new_folder, read_card, read_corpus, write_card

INDEX_FILE = "index.faiss"
METRIC = "inner_product"
LAYOUT = "{title}. {text}"
"""How a passage is encoded: the title is a sentence of its own for the encoder (measured by `benchmarks/index_recall.py` in
the repository)."""

ENCODE_ROWS = 1024  # number of passages between two reports of progress
_EXTRA_CANDIDATES = 8  # additional candidates beyond k, by which ties at the k-th place are resolved
_NORM_SLACK = 1e-3


class FaissRetriever(CorpusRetriever):
    """Finds the nearest passages by the inner product of unit vectors, exactly or approximately.

    Create it with `build` or `load`. All waiting queries are encoded in one call and searched in one call, in one thread.
    Use more ``threads`` only if cores are idle, because FAISS's threads use processor time while they wait. With more than
    one, load after a fork and not before it, because FAISS hangs in the child process.

    Args:
        corpus: The documents; row i of the index is document i.
        encoder: Encodes the queries; the same encoder encoded the passages.
        index: A FAISS index of the passages.
        spec: How the index stores vectors, as a FAISS factory string.
        layout: How title and text were combined for the encoder.
        timeout_s: Time limit of a batch in seconds, after which its callers get a `RetrieverFault`.
    """

    def __init__(
        self,
        corpus: Corpus,
        encoder: Encoder,
        index: Any,
        spec: str,
        *,
        layout: str = LAYOUT,
        timeout_s: float = 60.0,
    ) -> None:
        # Everything besides the corpus that results depend on, including the search effort, because an approximate index
        # finds more with more effort.
        settings = f"{spec}\n{encoder.id}\n{layout}\n{EFFORT}"
        super().__init__(corpus, name="faiss", settings=settings, timeout_s=timeout_s)
        self.encoder = encoder
        self.spec = spec
        self.layout = layout
        self._index = index
        self._queries = CachedQueries(encoder)

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        spec: str = "Flat",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> "FaissRetriever":
        """Encodes the documents and indexes them in memory; `build_folder` does so for any size.

        Args:
            documents: A corpus, or its documents.
            encoder: The encoder of passages now and of queries later.
            spec: A FAISS factory string; ``Flat`` is exact, ``SQfp16`` has half and ``SQ8`` a quarter of its size,
                ``HNSW32_SQ8`` is a graph for millions of passages.
            progress: Called with the numbers of finished passages and of all passages, for the first time with 0 finished.

        Raises:
            CorpusError: there are no documents, or an id is repeated.
            ConfigurationError: FAISS knows no such index, or the encoder's vectors do not have length 1.
        """
        corpus = as_corpus(documents)
        index = new_index(spec, encoder.dim)
        vectors = np.empty((len(corpus), encoder.dim), dtype=np.float32)
        report = progress or (lambda done, total: None)
        report(0, len(corpus))
        for start in range(0, len(corpus), ENCODE_ROWS):
            chunk = corpus[start : start + ENCODE_ROWS]
            vectors[start : start + len(chunk)] = encode_documents(encoder, chunk)
            report(start + len(chunk), len(corpus))
        with faiss_threads(1):
            train(index, vectors, spec)
            add_rest(index, vectors)
        tune(index)
        return cls(corpus, encoder, index, spec)

    def save(self, folder: Path | str) -> None:
        """Writes index, corpus and card. If it fails, nothing is left behind.

        Raises:
            ConfigurationError: the folder contains something other than a retriever, or cannot be written.
        """
        folder = Path(folder)
        with new_folder(folder) as fresh:
            corpus = write_corpus(self.corpus, fresh)
            write_index(self._index, fresh / INDEX_FILE)
            write_card(fresh, dense_card(corpus, self.encoder, self.spec, layout=self.layout))

    @classmethod
    def load(
        cls, folder: Path | str, *, encoder: Encoder | None = None, timeout_s: float = 60.0
    ) -> "FaissRetriever":
        """Opens a saved retriever. Index and corpus are mapped, so that processes share one copy.

        Args:
            folder: The folder to which `save` or `build_folder` wrote it.
            encoder: The encoder that built the index; None makes it from the card.
            timeout_s: Time limit of a batch in seconds.

        Raises:
            ConfigurationError: the folder contains no FAISS retriever, or an index of an unsupported kind.
            IndexMismatch: encoder or corpus are not those of which the index was built, or a newer FAISS wrote it.
        """
        folder = Path(folder)
        card = read_card(folder, "faiss")
        _refuse_newer(card, folder)
        corpus = read_corpus(folder, card)
        encoder = encoder or make_encoder(card.encoder_spec)
        _refuse_other_encoder(card, encoder, folder)
        index = read_index(folder / INDEX_FILE)
        refuse_unsearchable(index, folder / INDEX_FILE)
        if (index.ntotal, index.d) != (len(corpus), encoder.dim):
            raise IndexMismatch(
                f"The index in {folder} holds {index.ntotal} vectors of {index.d} dimensions, "
                f"not {len(corpus)} of {encoder.dim}; build the retriever again."
            )
        return cls(corpus, encoder, index, card.index, layout=card.layout, timeout_s=timeout_s)

    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most ``k`` hits for each text, best first, ties by row."""
        vectors = self._queries.encode(texts)
        hits: list[list[Hit]] = [[] for _ in texts]
        # Most queries need only the first search; those with ties at the last place are searched again.
        pending = np.arange(len(texts))
        fetch = k + _EXTRA_CANDIDATES
        while len(pending):
            fetch = min(fetch, len(self.corpus))
            with faiss_threads(self.threads):
                scores, rows = self._index.search(vectors[pending], fetch)
            for place, query in enumerate(pending):
                hits[query] = best_hits(scores[place], rows[place], k)
            # A tie that extends to the last candidate could hide an earlier row, so more candidates are fetched, if there
            # are any.
            tied = _ties_reach_edge(scores, k) & (rows[:, -1] >= 0) & (fetch < len(self.corpus))
            pending, fetch = pending[tied], 2 * fetch
        return hits


def _ties_reach_edge(scores: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """Returns for each row of descending scores (q, n), n >= k, whether the k-th equals the last after rounding."""
    rounded = np.round(scores.astype(np.float64), SCORE_DECIMALS)
    tied: NDArray[np.bool_] = rounded[:, k - 1] <= rounded[:, -1]
    return tied


def encode_documents(encoder: Encoder, documents: Sequence[Document]) -> Vectors:
    """Returns vectors (n, d) of documents, checked to have length 1; a text without words may give 0.

    Raises:
        ConfigurationError: a vector has another length, so that inner products would not be similarities.
    """
    vectors = encoder.encode_passages([laid_out(document, LAYOUT) for document in documents])
    lengths = np.linalg.norm(vectors, axis=1)
    wrong = np.flatnonzero(~((abs(lengths - 1) <= _NORM_SLACK) | (lengths == 0)))
    if len(wrong):
        raise ConfigurationError(
            f"The encoder {encoder.id!r} gave document {documents[wrong[0]].id!r} a vector of length "
            f"{lengths[wrong[0]]:.3g}; encoders give vectors of length 1."
        )
    return vectors


def laid_out(document: Document, layout: str) -> str:
    """Returns the text to encode for a document, normalised to NFC; without a title, only its text."""
    if not document.title:
        return composed(document.text)
    return composed(layout.format(title=document.title, text=document.text).strip())


def dense_card(
    corpus: Corpus, encoder: Encoder, spec: str, *, layout: str = LAYOUT, corpus_file: str = ""
) -> Card:
    """Makes the card of a FAISS retriever."""
    return Card(
        kind="faiss",
        rows=len(corpus),
        corpus=corpus.fingerprint,
        corpus_file=corpus_file,
        encoder=encoder.id,
        encoder_spec=encoder.spec,
        dim=encoder.dim,
        layout=layout,
        metric=METRIC,
        index=spec,
        **encoder.recipe._asdict(),
        normalised=True,
        faiss=load_faiss().__version__,
    )


def _refuse_newer(card: Card, folder: Path) -> None:
    ours = load_faiss().__version__
    if _release(card.faiss) > _release(ours):
        raise IndexMismatch(
            f"The index in {folder} was written by FAISS {card.faiss} and this is {ours}: "
            f"install 'faiss-cpu>={card.faiss}' or build the retriever again."
        )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if re.fullmatch("[0-9]{1,9}", part))


def _refuse_other_encoder(card: Card, encoder: Encoder, folder: Path) -> None:
    for name, ours in encoder.recipe._asdict().items():
        if getattr(card, name) != ours:
            raise IndexMismatch(
                f"The index in {folder} was built with {name} {getattr(card, name)!r}, but this encoder has {ours!r}; "
                f"use {card.encoder_spec!r} or build the index again."
            )
    if encoder.id != card.encoder:
        raise IndexMismatch(
            f"The index in {folder} was built with encoder {card.encoder!r}, not {encoder.id!r}; "
            f"use that one or build the index again."
        )
