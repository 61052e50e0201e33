"""Dense retrieval: an encoder and a FAISS inner-product index over one corpus."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.core.types import Document
from agentenv.errors import ConfigurationError, IndexMismatch, MissingExtra
from agentenv.retrievers.base import SCORE_DECIMALS, CorpusRetriever, Hit, best_hits, passage_text
from agentenv.retrievers.corpus import Corpus, as_corpus
from agentenv.retrievers.encoder import CachedQueries, Encoder, make_encoder
from agentenv.retrievers.storage import CORPUS_FILE, Card, new_folder, read_card, read_corpus, write_card

INDEX_FILE = "index.faiss"
METRIC = "inner_product"

_CHUNK = 1024  # passages encoded between two reports of progress
_SPARE = 8  # candidates fetched beyond k, among which ties at the edge are settled
_EF_SEARCH = 64  # HNSW: candidates kept in a search; 16, the default, finds .86 of the true top 10, 64 .97


class FaissRetriever(CorpusRetriever):
    """Exact or approximate nearest passages by the inner product of unit vectors.

    Make one with `build` or `load`. All waiting queries are encoded in one call and searched in one call, in
    one thread; set ``threads`` higher only where cores are idle, because FAISS's threads spin at barriers.

    Args:
        corpus: the documents, row i of the index being document i.
        encoder: encodes the queries; the passages were encoded with the same one.
        index: a FAISS index over the passages.
        spec: how the index stores vectors, in FAISS's words.
        timeout_s: seconds that a batch may take before its waiters get a `RetrieverFault`.
    """

    def __init__(
        self,
        corpus: Corpus,
        encoder: Encoder,
        index: Any,
        spec: str,
        *,
        timeout_s: float = 60.0,
    ) -> None:
        super().__init__(corpus, name="faiss", settings=f"{spec}\n{encoder.id}", timeout_s=timeout_s)
        self.encoder = encoder
        self.spec = spec
        self._index = index
        self._queries = CachedQueries(encoder)
        self.threads = 1
        if hasattr(index, "hnsw"):
            index.hnsw.efSearch = _EF_SEARCH

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        spec: str = "Flat",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> "FaissRetriever":
        """Encodes the documents and indexes them.

        Args:
            documents: a corpus, or the documents of one.
            encoder: for passages now and for queries later.
            spec: a FAISS factory string; ``Flat`` is exact, ``SQfp16`` half and ``SQ8`` a quarter of its
                size, ``HNSW32`` a graph for millions of passages.
            progress: called with passages done and passages in all.

        Raises:
            CorpusError: no documents, or duplicate ids.
            ConfigurationError: FAISS knows no such index.
        """
        faiss = _faiss()
        corpus = as_corpus(documents)
        try:
            index = faiss.index_factory(encoder.dim, spec, faiss.METRIC_INNER_PRODUCT)
        except RuntimeError as error:
            raise ConfigurationError(f"FAISS knows no index {spec!r} of {encoder.dim} dimensions.") from error
        vectors = np.empty((len(corpus), encoder.dim), dtype=np.float32)
        for start in range(0, len(corpus), _CHUNK):
            chunk = corpus[start : start + _CHUNK]
            vectors[start : start + len(chunk)] = encoder.encode_passages(
                [passage_text(doc) for doc in chunk]
            )
            if progress is not None:
                progress(start + len(chunk), len(corpus))
        with _threads(1):
            try:
                index.train(vectors)
            except RuntimeError as error:
                raise ConfigurationError(
                    f"{len(corpus)} passages are too few to train {spec!r}; use Flat."
                ) from error
            index.add(vectors)
        return cls(corpus, encoder, index, spec)

    def save(self, folder: Path) -> None:
        """Writes index, corpus and card; on any failure nothing is left behind.

        Raises:
            ConfigurationError: the folder is something else than a retriever, or cannot be written.
        """
        faiss = _faiss()
        card = Card(
            kind="faiss",
            rows=len(self.corpus),
            corpus=self.corpus.fingerprint,
            encoder=self.encoder.id,
            encoder_spec=self.encoder.spec,
            dim=self.encoder.dim,
            metric=METRIC,
            index=self.spec,
        )
        with new_folder(folder) as fresh:
            self.corpus.save(fresh / CORPUS_FILE)
            with (fresh / INDEX_FILE).open("wb") as file:
                # Given a path, FAISS drops the error of a disk that fills up when it closes the file.
                faiss.write_index(self._index, faiss.PyCallbackIOWriter(file.write))
            write_card(fresh, card)

    @classmethod
    def load(
        cls, folder: Path, *, encoder: Encoder | None = None, timeout_s: float = 60.0
    ) -> "FaissRetriever":
        """Reads what `save` wrote.

        Args:
            folder: where it was saved.
            encoder: the encoder that built the index; None makes it from the card.
            timeout_s: seconds that a batch may take.

        Raises:
            ConfigurationError: the folder holds no FAISS retriever.
            IndexMismatch: encoder or corpus are not those that the index was built with.
        """
        faiss = _faiss()
        card = read_card(folder, "faiss")
        corpus = read_corpus(folder, card)
        encoder = encoder or make_encoder(card.encoder_spec)
        if encoder.id != card.encoder:
            raise IndexMismatch(
                f"The index in {folder} was built with encoder {card.encoder!r}, not {encoder.id!r}; "
                f"use that one or build the index again."
            )
        try:
            index = faiss.read_index(str(folder / INDEX_FILE))
        except RuntimeError as error:
            raise ConfigurationError(
                f"{folder / INDEX_FILE} cannot be read; build the retriever again."
            ) from error
        if (index.ntotal, index.d) != (len(corpus), encoder.dim):
            raise IndexMismatch(
                f"The index in {folder} holds {index.ntotal} vectors of {index.d} dimensions, "
                f"not {len(corpus)} of {encoder.dim}; build the retriever again."
            )
        return cls(corpus, encoder, index, card.index, timeout_s=timeout_s)

    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """At most ``k`` hits for each text, best first, ties by row."""
        vectors = self._queries.encode(texts)
        hits: list[list[Hit]] = [[] for _ in texts]
        pending = np.arange(len(texts))
        fetch = k + _SPARE
        while len(pending):
            fetch = min(fetch, len(self.corpus))
            with _threads(self.threads):
                scores, rows = self._index.search(vectors[pending], fetch)
            for place, query in enumerate(pending):
                hits[query] = best_hits(scores[place], rows[place], k)
            # A tie that reaches past what was fetched could hide an earlier row: look further.
            tied = _ties_reach_edge(scores, k) & (fetch < len(self.corpus))
            pending, fetch = pending[tied], 2 * fetch
        return hits


def _ties_reach_edge(scores: NDArray[np.float32], k: int) -> NDArray[np.bool_]:
    """For each row of descending scores (q, n), n >= k: whether the k-th equals the last after rounding."""
    rounded = np.round(scores.astype(np.float64), SCORE_DECIMALS)
    tied: NDArray[np.bool_] = rounded[:, k - 1] <= rounded[:, -1]
    return tied


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """FAISS runs with ``count`` threads inside.

    OpenMP's setting belongs to the calling thread and torch obeys the same one: left at 1 by a search, it made every
    training step after it three times slower.
    """
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss() -> Any:
    try:
        import faiss
    except ModuleNotFoundError as error:
        raise MissingExtra.of("faiss-cpu", "retrieval") from error
    return faiss
