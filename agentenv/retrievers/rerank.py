"""Reranking: a slower model that sees query and passage together reorders the results of a fast retriever."""

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Protocol, runtime_checkable

from agentenv.core.concurrency.batching import Batcher
from agentenv.core.io.digests import PathState, path_state
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.normalize import squad_words
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import AgentEnvError, ConfigurationError, RetrieverFault
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.retrievers.base import found_by, passage_text, texts_of
from agentenv.retrievers.encoder import Encoder, folder_digest, make_encoder
from agentenv.retrievers.sentence_models import load_sentence_model

OVERLAP = "overlap"  # the spec of the reranker that needs no model
ENCODER = "encoder:"  # prefix of the spec of a reranker that compares vectors
DEPTH = 30  # number of passages that are scored for each query
_QUERIES_AT_ONCE = 8
"""Queries in one batch: a cross-encoder of 6 layers takes 20 s on two cores for 30 passages of each."""
_TIMEOUT_S = 600.0
_TAG = re.compile(r"</?\w+>")


@runtime_checkable
class Reranker(Protocol):
    """Scores how well passages answer a query."""

    @property
    def id(self) -> str:
        """An id that differs between rerankers with different scores, weights included."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Returns one number for each pair of query and passage text; higher is better. Called in a single thread."""


class CrossEncoderReranker:
    """A cross-encoder of sentence-transformers in a local folder (Nogueira and Cho 2019).

    Args:
        path: The folder of the model.
        max_tokens: Longer pairs of query and passage are cut to this number of tokens.
        compute: Device and precision of the model, float32 unless bfloat16 is named; None uses ``process_compute``.

    Raises:
        CheckpointMismatch: the model in the folder is no cross-encoder that gives one number for a pair, or is damaged.
        ConfigurationError: the folder contains no model, or the device cannot be used.
        MissingExtra: sentence-transformers is not installed.
    """

    def __init__(self, path: Path, *, max_tokens: int = 512, compute: ComputeSettings | None = None) -> None:
        if not (path / "config.json").is_file():
            raise ConfigurationError(f"{path} holds no cross-encoder (no config.json).")
        resolved = (compute or process_compute()).precise().resolved()
        self._model = load_sentence_model(path, "CrossEncoder", resolved, max_length=max_tokens, num_labels=1)
        self.id = f"cross:{folder_digest(path)}:{max_tokens}{':bfloat16' if resolved.rounds else ''}"

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Returns the logit of every pair, or its sigmoid if the model is configured so."""
        scores = self._model.predict(list(map(list, pairs)), batch_size=32, show_progress_bar=False)
        return [float(score) for score in scores]


class EncoderReranker:
    """Scores by the cosine of query and passage vectors of a sentence encoder.

    HierSearch's refiner uses it to select evidence, with bge-m3 (Tan et al. 2025, arXiv:2508.08088).
    """

    def __init__(self, encoder: Encoder) -> None:
        """Compares the vectors of ``encoder``."""
        self._encoder = encoder
        self.id = f"encoder:{encoder.id}"

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Returns the cosine in [-1, 1] of every pair. Each distinct text is encoded once."""
        queries = {text: place for place, text in enumerate(dict.fromkeys(query for query, _ in pairs))}
        passages = {text: place for place, text in enumerate(dict.fromkeys(text for _, text in pairs))}
        if not pairs:
            return []
        similarities = self._encoder.encode_queries([*queries]) @ self._encoder.encode_passages([*passages]).T
        return [float(similarities[queries[query], passages[text]]) for query, text in pairs]


class OverlapReranker:
    """Scores by the share of the query's words that the passage contains; needs no model.

    Words are compared after `squad_words`, so punctuation or a tag next to a word does not matter. For Chinese and Japanese,
    every character is a word.
    """

    id = "overlap:squad"

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """Returns the share of each query's words that its passage contains, from 0 to 1."""
        return [_overlap(_words(query), _words(text)) for query, text in pairs]


def _overlap(query: set[str], text: set[str]) -> float:
    return len(query & text) / max(1, len(query))


def _words(text: str) -> set[str]:
    return set(squad_words(_TAG.sub(" ", text)))


_Pairs = tuple[tuple[str, str], ...]


class RerankRetriever:
    """Asks another retriever for more passages than requested, and keeps the best by the reranker's scores.

    Passages with equal scores keep the order in which they were found.

    Args:
        inner: The retriever that finds the candidates.
        reranker: Scores the candidates.
        depth: The number of candidates for each query, if it is more than the requested number.
        timeout_s: Time limit in seconds for scoring a batch of at most eight queries, after which its callers get a
            `RetrieverFault`.
    """

    def __init__(
        self, inner: Retriever, reranker: Reranker, *, depth: int = DEPTH, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.inner = inner
        self.reranker = reranker
        self.depth = depth
        self._timeout_s = timeout_s
        self._batcher = Batcher[_Pairs, list[float]](
            self._judge, rank=0, max_batch=_QUERIES_AT_ONCE, timeout_s=timeout_s
        )

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query, best first, with the reranker's scores.

        Raises:
            RetrieverFault: the search or the reranker failed or missed its deadline.
        """
        texts = texts_of(queries, k)
        found = await found_by(self.inner, queries, max(k, self.depth))
        # One after the other: a search may hold hundreds of queries, and an episode waits for one batch at a time.
        return [await self._best(text, passages, k) for text, passages in zip(texts, found, strict=True)]

    def info(self) -> RetrieverInfo:
        """Returns the name, size and fingerprint."""
        inner = self.inner.info()
        identity = f"rerank\n{self.reranker.id}\n{self.depth}\n{inner.fingerprint}"
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        return RetrieverInfo(f"rerank({inner.name})", inner.documents, fingerprint, inner.contextual)

    async def _best(self, text: str, passages: Sequence[Passage], k: int) -> list[Passage]:
        """At most ``k`` of ``passages``, by what the reranker says of them.

        Raises:
            RetrieverFault: it failed or missed its deadline.
        """
        if not passages:
            return []
        try:
            scores = await self._batcher.submit(tuple((text, passage_text(passage)) for passage in passages))
        except AgentEnvError:
            raise
        except TimeoutError as error:
            raise RetrieverFault(
                f"the reranker judged {len(passages)} passages of each of up to {_QUERIES_AT_ONCE} queries and was not done "
                f"within {self._timeout_s:g} s"
            ) from error
        except Exception as error:
            raise RetrieverFault(f"reranker: {type(error).__name__}: {error}") from error
        return _reordered(list(zip(passages, scores, strict=True)), k)

    def _judge(self, requests: list[_Pairs]) -> list[list[float]]:
        # Each distinct pair is scored once, because episodes of a group find the same passages by the same queries.
        distinct = list(dict.fromkeys(pair for request in requests for pair in request))
        scores = dict(zip(distinct, self.reranker.score(distinct), strict=True))
        return [[scores[pair] for pair in request] for request in requests]


def _reordered(judged: Sequence[tuple[Passage, float]], k: int) -> list[Passage]:
    # A stable sort by the negated score, so that equal passages keep their order.
    best = sorted(judged, key=lambda pair: -pair[1])[:k]
    return [Passage(passage.id, passage.title, passage.text, score) for passage, score in best]


def make_reranker(spec: str) -> Reranker:
    """Returns the reranker that ``spec`` names, and keeps it for later calls, because all environments of a run use it.

    It is ``overlap``; ``encoder:SPEC``, which compares vectors of an encoder, such as ``encoder:bge:PATH``; or the folder of
    a cross-encoder. It is opened again if its files or its device have changed.

    Raises:
        ConfigurationError: the folder contains no model.
        UnknownName: there is no such encoder.
    """
    if spec == OVERLAP:
        return OverlapReranker()
    named = spec.removeprefix(ENCODER).partition(":")[2] if spec.startswith(ENCODER) else spec
    state = path_state(Path(named)) if named else ()  # an empty path would be the current folder
    return _opened(spec, Path(named).resolve(), state, process_compute())


@lru_cache(maxsize=4)
def _opened(spec: str, folder: Path, state: PathState, compute: ComputeSettings) -> Reranker:
    if spec.startswith(ENCODER):
        return _OneAtATime(EncoderReranker(make_encoder(spec.removeprefix(ENCODER))))
    return _OneAtATime(CrossEncoderReranker(Path(spec), compute=compute))


class _OneAtATime:
    """Another reranker, which several environments share: tokenizers are not made for several threads."""

    def __init__(self, reranker: Reranker) -> None:
        self._reranker = reranker
        self._lock = Lock()

    @property
    def id(self) -> str:
        """That of the other one."""
        return self._reranker.id

    def score(self, pairs: Sequence[tuple[str, str]]) -> Sequence[float]:
        """As the other one."""
        with self._lock:
            return self._reranker.score(pairs)
