"""What all retrievers over a corpus share: batches, collapsed duplicates, deadlines, deterministic ties."""

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
"""Length of a query; what is behind it is not searched for."""
SCORE_DECIMALS = 5  # floating-point noise between batch sizes stays below; equal after rounding is a tie


class _Request(NamedTuple):
    texts: tuple[str, ...]
    k: int


class CorpusRetriever(ABC):
    """Searches a corpus. The requests of all running episodes are answered together, each distinct text once.

    A subclass gives `rank`. A blank query finds nothing and never reaches `rank`.

    Args:
        corpus: the documents, in the order of the index.
        name: stands in `info`.
        settings: what else than the corpus the results depend on; goes into the fingerprint.
        timeout_s: seconds that a batch may take before its waiters get a `RetrieverFault`.
    """

    def __init__(self, corpus: Corpus, *, name: str, settings: str, timeout_s: float = 60.0) -> None:
        self.corpus = corpus
        self._name = name
        self._fingerprint = hashlib.sha256(f"{name}\n{settings}\n{corpus.fingerprint}".encode()).hexdigest()
        self._timeout_s = timeout_s
        self.threads = 1
        """Threads of the library behind `rank`, where it has any."""
        self.on_batch: Callable[[int, float], object] | None = None
        """Called after each batch, in its thread, with the distinct texts in it and the seconds it took."""
        # By the process number, because a fork copies the object and not the thread of its batcher.
        self._process = os.getpid()
        self._batcher = self._new_batcher()

    @abstractmethod
    def rank(self, texts: Sequence[str], k: int) -> list[list[Hit]]:
        """At most ``k`` hits for each text, best first, ties by row. Called in one thread."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query, best first, ties broken by corpus order; none for a blank query.

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
        """How long the batcher waits for callers that were just answered; see `Batcher`."""
        return self._batcher.max_wait

    @max_wait.setter
    def max_wait(self, share: float) -> None:
        self._batcher.max_wait = share

    def info(self) -> RetrieverInfo:
        """Name, size and fingerprint."""
        return RetrieverInfo(self._name, len(self.corpus), self._fingerprint)

    def _new_batcher(self) -> Batcher[_Request, list[list[Passage]]]:
        return Batcher(self._answer, rank=0, timeout_s=self._timeout_s)

    def _settle_in_child(self) -> None:
        """A fork copies the batcher without its thread, and OpenMP's state without its workers."""
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
            # One search for all: a request for fewer gets the first of them, and a text that two ask for is searched
            # once.
            widest = min(max(request.k for request in requests), len(self.corpus))
            hits |= zip(texts, self.rank(texts, widest), strict=True)
            if self.on_batch is not None:
                self.on_batch(len(texts), time.perf_counter() - began)
        return [[self._passages(hits[text][: request.k]) for text in request.texts] for request in requests]

    def _passages(self, hits: Iterable[Hit]) -> list[Passage]:
        found = ((self.corpus[row], score) for row, score in hits)
        return [Passage(document.id, document.title, document.text, score) for document, score in found]


def texts_of(queries: Sequence[Query | str], k: int) -> tuple[str, ...]:
    """The texts of ``queries`` in composed characters (NFC), white space collapsed, cut to `QUERY_CHARS`.

    A policy may write queries of any length, and a server that refused one would mask its episode. Half of a surrogate pair
    becomes a question mark: no encoder takes it, and the searches of all others in the batch would fail with it.

    Raises:
        ConfigurationError: ``k`` is below 1, or a bare string was given for the list of queries.
    """
    if isinstance(queries, str):
        raise ConfigurationError(f"queries is the string {queries[:40]!r}; give a list of queries.")
    if k < 1:
        raise ConfigurationError(f"k is {k}; ask for at least 1 passage.")
    texts = (replace_surrogates(query if isinstance(query, str) else query.text) for query in queries)
    return tuple(" ".join(composed(text).split())[:QUERY_CHARS].rstrip() for text in texts)


async def found_by(retriever: Retriever, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
    """What ``retriever``, which may be one of the user, finds for each of ``queries``.

    Raises:
        RetrieverFault: the search failed, or gave something else than a list of passages for each query.
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
    """``text`` in composed characters (NFC), in which queries and documents are compared: accents have two spellings."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def passage_of(fields: Any) -> Passage:
    """The passage of a JSON object from a server or a file.

    Raises:
        TypeError: it has other fields than a passage, or of other types.
        ValueError: its score is no finite number.
    """
    passage = Passage(**fields)
    if not all(isinstance(text, str) for text in (passage.id, passage.title, passage.text)):
        raise TypeError("a passage has an id, a title and a text")
    try:
        finite = math.isfinite(passage.score)
    except OverflowError:  # an integer that no float holds
        finite = False
    if not finite:
        raise ValueError(f"a passage has the score {str(passage.score)[:40]}, which is not finite")
    return passage


def passage_text(document: Document | Passage) -> str:
    """The words of a document in composed characters: its title and its text."""
    return composed(f"{document.title} {document.text}".strip())


_CJK_RUN = re.compile(f"[{CJK}]+")


def in_pairs(text: str) -> str:
    """``text`` in which Chinese and Japanese stand as pairs of neighbouring characters, with blanks between the pairs.

    These scripts put no blanks between words, so that a search by words would take a whole clause for one word.
    """
    return text if text.isascii() else _CJK_RUN.sub(_pairs, text)


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    pairs = (text[place : place + 2] for place in range(max(1, len(text) - 1)))
    return f" {' '.join(pairs)} "


def best_hits(scores: NDArray[np.floating], rows: NDArray[np.integer], k: int) -> list[Hit]:
    """The ``k`` best candidates by score rounded to `SCORE_DECIMALS`, ties by row.

    Args:
        scores: (n,) similarity of each candidate.
        rows: (n,) row of each candidate; -1, FAISS's mark for "none", is dropped.
        k: most hits to return.
    """
    kept = rows >= 0
    # Rounded before they are compared: the last digits depend on who else is in the batch.
    rounded, rows = np.round(scores[kept].astype(np.float64), SCORE_DECIMALS), rows[kept]
    order = np.lexsort((rows, -rounded))[:k]
    return [(int(rows[i]), float(rounded[i])) for i in order]


def batching_parts(retriever: object) -> dict[str, CorpusRetriever]:
    """What forms batches inside a retriever, by its name there: itself, or the two parts of a hybrid."""
    parts = {"": retriever} | {name: getattr(retriever, name, None) for name in ("dense", "bm25")}
    return {name: part for name, part in parts.items() if isinstance(part, CorpusRetriever)}
