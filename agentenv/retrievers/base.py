"""The common base of retrievers over a corpus: batches, shared duplicates, deadlines, and deterministic ties."""

import hashlib
import inspect
import math
import os
import re
import time
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentenv.core.concurrency.batching import Batcher
from agentenv.core.episodes import replace_surrogates
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.normalize import CJK
from agentenv.core.types import Document, Passage, Query, RetrieverInfo
from agentenv.errors import AgentEnvError, ConfigurationError, RetrieverFault
from agentenv.retrievers.storage.corpus import Corpus

Hit = tuple[int, float]
"""Row in the corpus and score."""

QUERY_CHARS = 32_768
"""Largest length of a query; the rest of a longer one is ignored."""
SCORE_DECIMALS = 5  # differences between batch sizes are smaller; scores that are equal after rounding tie


class _Request(NamedTuple):
    texts: tuple[str, ...]
    k: int


class CorpusRetriever(ABC):
    """Searches a corpus. Requests of all running episodes are answered in one batch, each distinct text once.

    A subclass implements `rank`. A blank query has no results and is never passed to `rank`.

    Args:
        corpus: The documents in the order of the index.
        name: The name in `info`.
        settings: Everything besides the corpus that results depend on; a part of the fingerprint.
        timeout_s: Time limit of a batch in seconds, after which its callers get a `RetrieverFault`.
    """

    def __init__(self, corpus: Corpus, *, name: str, settings: str, timeout_s: float = 60.0) -> None:
        self.corpus = corpus
        self._name = name
        self._fingerprint = hashlib.sha256(f"{name}\n{settings}\n{corpus.fingerprint}".encode()).hexdigest()
        self._timeout_s = timeout_s
        self.threads = 1
        """Number of threads of the library that `rank` uses, if it has threads."""
        self.on_batch: Callable[[int, float], object] | None = None
        """Called after each batch, in its thread, with the distinct texts in it and its duration in seconds."""
        # Compared with the present process id, because a fork copies the object but not the thread of its batcher.
        self._process = os.getpid()
        self._batcher = self._new_batcher()

    @abstractmethod
    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most ``k`` hits for each text, best first, ties by row. Called in a single thread."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, best first, ties in corpus order; none for a blank query.

        Raises:
            RetrieverFault: the search failed or missed its deadline.
        """
        request = _Request(texts_of(queries, k), k)
        if not request.texts:
            return []
        if self._process != os.getpid():
            self._settle_in_child()
        try:
            return await self._batcher.submit(request)
        except TimeoutError as error:
            raise RetrieverFault(f"{self._name} gave no answer within {self._timeout_s:g} s.") from error
        except AgentEnvError:
            raise
        except Exception as error:
            raise RetrieverFault(f"{self._name}: {type(error).__name__}: {error}") from error

    @property
    def max_wait(self) -> float:
        """How long the batcher waits for callers of the last batch; see `Batcher`."""
        return self._batcher.max_wait

    @max_wait.setter
    def max_wait(self, share: float) -> None:
        self._batcher.max_wait = share

    def info(self) -> RetrieverInfo:
        """Returns the name, size and fingerprint."""
        return RetrieverInfo(self._name, len(self.corpus), self._fingerprint)

    def _new_batcher(self) -> Batcher[_Request, list[list[Passage]]]:
        return Batcher(self._answer, rank=0, timeout_s=self._timeout_s)

    def _settle_in_child(self) -> None:
        """Resets what a fork cannot use: the batcher lacks its thread there, and OpenMP its worker threads."""
        if self.threads > 1:
            raise RetrieverFault(
                f"{self._name}: this process was forked from one that searches with {self.threads} threads, and "
                f"would hang; load the retriever in the child, or start it with spawn."
            )
        self._process, self._batcher = os.getpid(), self._new_batcher()

    def _answer(self, requests: list[_Request]) -> list[list[list[Passage]]]:
        texts = list(dict.fromkeys(text for request in requests for text in request.texts if text))
        hits: dict[str, list[Hit]] = {"": []}
        if texts:
            began = time.perf_counter()
            # One search for all requests: a request for fewer results gets the first ones, and a text in several requests is
            # searched once.
            widest = min(max(request.k for request in requests), len(self.corpus))
            hits |= zip(texts, self.rank(texts, widest), strict=True)
            if self.on_batch is not None:
                self.on_batch(len(texts), time.perf_counter() - began)
        return [[self._passages(hits[text][: request.k]) for text in request.texts] for request in requests]

    def _passages(self, hits: Iterable[Hit]) -> list[Passage]:
        found = ((self.corpus[row], score) for row, score in hits)
        return [Passage(document.id, document.title, document.text, score) for document, score in found]


def texts_of(queries: Sequence[Query | str], k: int) -> tuple[str, ...]:
    """Returns the texts of ``queries`` normalised to NFC, with collapsed white space, cut to `QUERY_CHARS`.

    A policy may write queries of any length, and an error of a server would mask its episode. Lone surrogates become
    question marks, because no encoder accepts them, and they would make all searches of the batch fail.

    Raises:
        ConfigurationError: ``k`` is below 1, or a single string was given instead of a list of queries.
    """
    if isinstance(queries, str):
        raise ConfigurationError(f"queries is the string {queries[:40]!r}; give a list of queries.")
    if k < 1:
        raise ConfigurationError(f"k is {k}; ask for at least 1 passage.")
    texts = (replace_surrogates(query if isinstance(query, str) else query.text) for query in queries)
    return tuple(" ".join(composed(text).split())[:QUERY_CHARS].rstrip() for text in texts)


async def found_by(retriever: Retriever, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
    """Searches with ``retriever``, which may be a user's, and checks the results.

    Raises:
        RetrieverFault: the search failed, or returned something other than a list of passages for each query.
    """
    kind, searching = type(retriever).__name__, retriever.search(queries, k)
    if not inspect.isawaitable(searching):
        raise RetrieverFault(f"{kind}.search is a plain function: write `async def search(self, queries, k)`")
    rankings = await searching
    lists = isinstance(rankings, list | tuple) and all(isinstance(one, list | tuple) for one in rankings)
    if not lists or len(rankings) != len(queries):
        raise RetrieverFault(
            f"{kind}.search must give one list of passages for each of {len(queries)} queries"
        )
    other = [one for ranking in rankings for one in ranking if not isinstance(one, Passage)]
    if other:
        raise RetrieverFault(f"{kind}.search must give agentenv.Passage objects, and gave {other[0]!r:.80}")
    return list(rankings)


def composed(text: str) -> str:
    """Returns ``text`` normalised to NFC, in which queries and documents are compared: accents have two encodings."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def passage_of(fields: Any) -> Passage:
    """Makes a passage of a JSON object from a server or a file.

    Raises:
        TypeError: its fields are not those of a passage, or have wrong types.
        ValueError: its score is not a finite number.
    """
    passage = Passage(**fields)
    if not all(isinstance(text, str) for text in (passage.id, passage.title, passage.text)):
        raise TypeError("a passage has an id, a title and a text")
    try:
        finite = math.isfinite(passage.score)
    except OverflowError:  # an integer that is too large for a float
        finite = False
    if not finite:
        raise ValueError(f"a passage has the score {str(passage.score)[:40]}, which is not finite")
    return passage


def passage_text(document: Document | Passage) -> str:
    """Returns title and text of a document, normalised to NFC."""
    return composed(f"{document.title} {document.text}".strip())


_CJK_RUN = re.compile(f"[{CJK}]+")


def in_pairs(text: str) -> str:
    """Replaces Chinese and Japanese in ``text`` by pairs of neighbouring characters, separated by blanks.

    These scripts have no blanks between words, so lexical search would otherwise take a whole clause for one word.
    """
    return text if text.isascii() else _CJK_RUN.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    pairs = (text[place : place + 2] for place in range(max(1, len(text) - 1)))
    return f" {' '.join(pairs)} "


def best_hits(scores: NDArray[np.floating], rows: NDArray[np.integer], k: int) -> list[Hit]:
    """Returns the ``k`` best candidates by score rounded to `SCORE_DECIMALS`, ties by row.

    Args:
        scores: (n,) The similarity of each candidate.
        rows: (n,) The row of each candidate; -1, FAISS's value for "none", is dropped.
        k: The largest number of hits.
    """
    kept = rows >= 0
    # Rounded before the comparison, because the last digits depend on the other queries in the batch.
    rounded, rows = np.round(scores[kept].astype(np.float64), SCORE_DECIMALS), rows[kept]
    order = np.lexsort((rows, -rounded))[:k]
    return [(int(rows[i]), float(rounded[i])) for i in order]


def batching_parts(retriever: object) -> dict[str, CorpusRetriever]:
    """Returns the parts of a retriever that form batches, by name: itself, or the two parts of a hybrid."""
    parts = {"": retriever} | {name: getattr(retriever, name, None) for name in ("dense", "bm25")}
    return {name: part for name, part in parts.items() if isinstance(part, CorpusRetriever)}
