"""Reciprocal rank fusion of a dense and a lexical retriever over one corpus.

Useful if both rankings have similar quality; if one is clearly better, fusion reduces recall (measured: HotpotQA gains,
Natural Questions loses). So this is an option and not the default.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from agentenv.core.types import Document, Passage, Query, RetrieverInfo
from agentenv.errors import IndexMismatch
from agentenv.retrievers.base import Hit, texts_of
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.encoder import Encoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.storage.corpus import as_corpus
from agentenv.retrievers.storage.retriever_folder import Card, new_folder, read_card, write_card

RRF_K = 60  # the published value
HYBRID_K = 10  # better than 60 on three real sets of questions; see docs/indexes.md
DEPTH = 100  # number of ranks of each list that count

DENSE_FOLDER, BM25_FOLDER = "dense", "bm25"


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], k: int = RRF_K) -> list[Hit]:
    """Fuses rankings by ``score(d) = sum over lists of 1 / (k + rank(d))`` (Cormack et al. 2009).

    Ranks count from 1.

    Args:
        rankings: Lists of corpus rows, best first.
        k: Reduces the weight of the first ranks.

    Returns:
        The rows with their scores, best first; ties by the best single rank, then by row.
    """
    ranks: dict[int, list[int]] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            ranks.setdefault(row, []).append(rank)
    # fsum, so that the order of the lists cannot make equal sums different.
    scores = {row: math.fsum(1 / (k + rank) for rank in found) for row, found in ranks.items()}
    return [(row, scores[row]) for row in sorted(ranks, key=lambda row: (-scores[row], min(ranks[row]), row))]


class HybridRetriever:
    """Asks both retrievers and fuses the first `DEPTH` passages of each (``k`` if that is more).

    They are asked one after the other, because an episode may wait for one batcher at a time.

    Args:
        dense: The retriever by meaning.
        bm25: The retriever by words.

    Raises:
        IndexMismatch: they are over different corpora.
    """

    def __init__(self, dense: FaissRetriever, bm25: BM25Retriever) -> None:
        ours, theirs = dense.corpus.fingerprint, bm25.corpus.fingerprint
        if ours != theirs:
            raise IndexMismatch(
                f"A hybrid needs one corpus, but FAISS is over {ours[:12]} and BM25 over {theirs[:12]}."
            )
        self.dense = dense
        self.bm25 = bm25
        self.corpus = dense.corpus

    @classmethod
    def build(
        cls,
        documents: Iterable[Document],
        encoder: Encoder,
        spec: str = "Flat",
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> "HybridRetriever":
        """Builds a `FaissRetriever` and a `BM25Retriever`; arguments and errors as in `FaissRetriever.build`."""
        corpus = as_corpus(documents)
        dense = FaissRetriever.build(corpus, encoder, spec, progress=progress)
        return cls(dense, BM25Retriever.build(corpus))

    def save(self, folder: Path | str) -> None:
        """Writes the two retrievers and a card. If it fails, nothing is left behind.

        Raises:
            ConfigurationError: the folder contains something other than a retriever, or cannot be written.
        """
        folder = Path(folder)
        with new_folder(folder) as fresh:
            self.dense.save(fresh / DENSE_FOLDER)
            self.bm25.save(fresh / BM25_FOLDER)
            write_card(fresh, Card(kind="hybrid", rows=len(self.corpus), corpus=self.corpus.fingerprint))

    @classmethod
    def load(
        cls, folder: Path | str, *, encoder: Encoder | None = None, timeout_s: float = 60.0
    ) -> "HybridRetriever":
        """Opens a saved retriever; arguments and errors as in `FaissRetriever.load`."""
        folder = Path(folder)
        read_card(folder, "hybrid")
        dense = FaissRetriever.load(folder / DENSE_FOLDER, encoder=encoder, timeout_s=timeout_s)
        return cls(dense, BM25Retriever.load(folder / BM25_FOLDER, timeout_s=timeout_s))

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, best first, ties by best single rank, then in corpus order.

        Raises:
            RetrieverFault: one of the searches failed or missed its deadline.
        """
        texts = texts_of(queries, k)
        depth = max(DEPTH, k)
        # One after the other, because an episode may wait for one batcher at a time.
        dense = await self.dense.search(texts, depth)
        bm25 = await self.bm25.search(texts, depth)
        return [self._fuse(lists, k) for lists in zip(dense, bm25, strict=True)]

    def info(self) -> RetrieverInfo:
        """Returns the name, size and fingerprint."""
        parts = [retriever.info().fingerprint for retriever in (self.dense, self.bm25)]
        fingerprint = hashlib.sha256("\n".join([f"hybrid k={HYBRID_K}", *parts]).encode()).hexdigest()
        return RetrieverInfo("hybrid", len(self.corpus), fingerprint)

    def _fuse(self, lists: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
        rankings = [[self.corpus.row_of(passage.id) for passage in passages] for passages in lists]
        fused = ((self.corpus[row], score) for row, score in reciprocal_rank_fusion(rankings, HYBRID_K)[:k])
        return [Passage(document.id, document.title, document.text, score) for document, score in fused]
