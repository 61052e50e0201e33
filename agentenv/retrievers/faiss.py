"""Dense retrieval: an encoder and a FAISS inner-product index over one corpus."""

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
"""How a passage is encoded: a sentence encoder reads the title as a sentence of its own
(`benchmarks/index_recall.py` in the repository measures it)."""

ENCODE_ROWS = 1024  # passages encoded between two reports of progress
_SPARE = 8  # candidates fetched beyond k, among which ties at the edge are settled
_NORM_SLACK = 1e-3


class FaissRetriever(CorpusRetriever):
    """Exact or approximate nearest passages by the inner product of unit vectors.

    Make one with `build` or `load`. All waiting queries are encoded in one call and searched in one call, in
    one thread; set ``threads`` higher only where cores are idle, because FAISS's threads spin at barriers. With
    more than one, load after a fork and not before it: FAISS hangs in the child.

    Args:
        corpus: the documents, row i of the index being document i.
        encoder: encodes the queries; the passages were encoded with the same one.
        index: a FAISS index over the passages.
        spec: how the index stores vectors, in FAISS's words.
        layout: how title and text were put together for the encoder.
        timeout_s: seconds that a batch may take before its waiters get a `RetrieverFault`.
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
        # All that results depend on besides the corpus; the effort too, because an approximate index finds more with
        # more of it.
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
        """Encodes the documents and indexes them in memory; `build_folder` does it for any size.

        Args:
            documents: a corpus, or the documents of one.
            encoder: for passages now and for queries later.
            spec: a FAISS factory string; ``Flat`` is exact, ``SQfp16`` half and ``SQ8`` a quarter of its
                size, ``HNSW32_SQ8`` a graph for millions of passages.
            progress: called with passages done and passages in all, first before any is done.

        Raises:
            CorpusError: no documents, or duplicate ids.
            ConfigurationError: FAISS knows no such index, or the encoder's vectors have not length 1.
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
        """Writes index, corpus and card; on any failure nothing is left behind.

        Raises:
            ConfigurationError: the folder is something else than a retriever, or cannot be written.
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
        """Opens what `save` or `build_folder` wrote. Index and corpus are mapped: processes share one copy.

        Args:
            folder: where it was saved.
            encoder: the encoder that built the index; None makes it from the card.
            timeout_s: seconds that a batch may take.

        Raises:
            ConfigurationError: the folder holds no FAISS retriever, or an index of a kind that cannot be searched here.
            IndexMismatch: encoder or corpus are not those that the index was built with, or a newer FAISS wrote it.
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
        """At most ``k`` hits for each text, best first, ties by row."""
        vectors = self._queries.encode(texts)
        hits: list[list[Hit]] = [[] for _ in texts]
        # Most queries are settled by the first search; only those with ties at the edge are searched again.
        pending = np.arange(len(texts))
        fetch = k + _SPARE
        while len(pending):
            fetch = min(fetch, len(self.corpus))
            with faiss_threads(self.threads):
                scores, rows = self._index.search(vectors[pending], fetch)
            for place, query in enumerate(pending):
                hits[query] = best_hits(scores[place], rows[place], k)
            # A tie that reaches past what was fetched could hide an earlier row: look further, where there is more.
            tied = _ties_reach_edge(scores, k) & (rows[:, -1] >= 0) & (fetch < len(self.corpus))
            pending, fetch = pending[tied], 2 * fetch
        return hits


def _ties_reach_edge(scores: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """For each row of descending scores (q, n), n >= k: whether the k-th equals the last after rounding."""
    rounded = np.round(scores.astype(np.float64), SCORE_DECIMALS)
    tied: NDArray[np.bool_] = rounded[:, k - 1] <= rounded[:, -1]
    return tied


def encode_documents(encoder: Encoder, documents: Sequence[Document]) -> Vectors:
    """Vectors (n, d) of documents, checked to have length 1; a text without words may give 0.

    Raises:
        ConfigurationError: one has another length: inner products of such vectors are no similarities.
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
    """What is encoded of a document, in composed characters; one without a title is its text."""
    if not document.title:
        return composed(document.text)
    return composed(layout.format(title=document.title, text=document.text).strip())


def dense_card(
    corpus: Corpus, encoder: Encoder, spec: str, *, layout: str = LAYOUT, corpus_file: str = ""
) -> Card:
    """The card of a FAISS retriever."""
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
