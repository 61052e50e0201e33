"""The retrieval service without HTTP: authentication, the function of each route, and its limits."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentenv.core.protocols import Retriever
from agentenv.errors import check_known
from agentenv.retrievers.base import QUERY_CHARS, batching_parts
from agentenv.retrievers.remote import SearchReply
from agentenv.retrievers.service.pages import Pages
from agentenv.retrievers.service.query_queue import QueryQueue, ReplyCache
from agentenv.retrievers.service.telemetry import Telemetry
from agentenv.retrievers.service.wire import (
    DEFAULT_K,
    VERSION,
    AccessRequest,
    ContextQuery,
    RetrieveRequest,
    SearchRequest,
    accessed,
    retrieved,
)
from agentenv.web.gate import Gate, Refusal
from agentenv.web.memory import trim_soon

_LARGE_REQUEST = 8_192  # after requests with so many passages, memory is returned to the system at once
_MAX_WAIT_SHARE = 0.15  # share of a batch's time to wait for clients that ask one question after another


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of a service."""

    queue: int = 16_384
    """Largest number of queries of one corpus that wait or are in progress, and of queries in one request."""
    cache: int = 20_000
    """Number of cached replies; 0 caches none. A reply may have the size of three long passages; larger ones count as
    several."""
    passages: int = 65_536
    """Largest number of passages of one request: the number of its queries times k."""
    passages_at_once: int = 262_144
    """Largest number of passages of all requests in progress, until their answers have been sent."""
    documents: int = 1_024
    """Largest number of documents and pages in one request."""
    text_chars: int = 64 * 2**20
    """Largest total length of the documents that one request opens, in characters."""
    timeout_s: float = 30.0
    """Time limit from the end of a request to its answer in seconds."""
    body_s: float = 10.0
    """Time limit for receiving a request's body in seconds."""
    body_bytes: int = 8 * 2**20
    """Largest length of a request's body, in bytes."""
    query_chars: int = QUERY_CHARS
    """Largest length of a query, in characters."""
    most_k: int = 1_000
    """Largest number of passages for one query."""


class Service(Gate):
    """Serves corpora to HTTP requests. It starts without corpora; `open` makes it ready.

    Args:
        limits: The limits of the service.
        token: The bearer token that callers must send; None admits everyone.
    """

    def __init__(self, limits: ServiceLimits | None = None, *, token: str | None = None) -> None:
        super().__init__(token)
        self.limits = limits or ServiceLimits()
        self.queues: dict[str, QueryQueue] = {}
        self.wanted = 0
        """Number of passages of all requests in progress."""
        self._cache = ReplyCache(self.limits.cache)
        self._pages: dict[str, Pages] = {}
        self.telemetry = Telemetry(self, lambda corpus: self.queues[corpus].waiting)

    def open(self, retrievers: Mapping[str, Retriever]) -> None:
        """Starts to answer. The first corpus is the default for requests that name none."""
        for name, retriever in retrievers.items():
            self.queues[name] = QueryQueue(
                name, retriever, cache=self._cache, queue=self.limits.queue, metrics=self.telemetry
            )
            self.telemetry.watch(name, retriever)
            for part in batching_parts(retriever).values():
                # Only in a server, whose clients send single queries; the episodes of a run form batches anyway.
                part.max_wait = _MAX_WAIT_SHARE
            if hasattr(retriever, "corpus"):
                self._pages[name] = Pages(retriever.corpus)
        self.ready()

    def claim(self, body: RetrieveRequest | SearchRequest | AccessRequest, corpus: str | None) -> int:
        """Counts the passages that ``body`` requests as in progress and returns their number, for `release`.

        Raises:
            Refusal: it requests more than one request may, or too much is in progress.
            UnknownName: there is no such corpus.
        """
        if isinstance(body, AccessRequest):
            return 0
        k = body.k if isinstance(body, SearchRequest) else body.topk or DEFAULT_K
        if k > self.limits.most_k:
            raise Refusal(422, f"k is {k}; this server gives at most {self.limits.most_k}.", "BadRequest")
        # The largest possible number of results: a small corpus has fewer than k documents.
        wanted = len(body.queries) * min(k, self._queue_of(body.corpus or corpus).info.documents or k)
        most = self.limits.passages
        if wanted > most:
            said = f"{len(body.queries)} queries with k = {k} are more than {most} passages; send several requests."
            raise Refusal(413, said, "TooLarge")
        if self.wanted + wanted > self.limits.passages_at_once:
            raise Refusal(429, f"{self.wanted} passages are under way already; try again later.", "QueueFull")
        self.wanted += wanted
        return wanted

    def release(self, wanted: int) -> None:
        """Subtracts what `claim` has counted."""
        self.wanted -= wanted
        if wanted >= _LARGE_REQUEST:  # even if nothing was sent
            trim_soon()

    async def retrieve(self, body: RetrieveRequest, corpus: str | None) -> dict[str, Any]:
        """Answers Search-R1's route."""
        queue = self._queue_of(body.corpus or corpus)
        found = await self._search(queue, body.queries, body.topk or DEFAULT_K, body.partial)
        result = (retrieved(one, body.return_scores) for one in found.passages)
        reply: dict[str, Any] = {"result": result if _is_large(found) else list(result)}
        return reply | ({"complete": False, "missing": found.missing} if found.missing else {})

    async def search(self, body: SearchRequest, corpus: str | None) -> dict[str, Any]:
        """Answers the versioned route of this package."""
        queue = self._queue_of(body.corpus or corpus)
        queries = [query.query() if isinstance(query, ContextQuery) else query for query in body.queries]
        timeout_s = min(body.timeout_s or self.limits.timeout_s, self.limits.timeout_s)
        found = await self._search(queue, queries, body.k, body.partial, timeout_s)
        return {
            "version": VERSION,
            "corpus": queue.name,
            "index": queue.info.fingerprint,
            "results": (one for one in found.passages) if _is_large(found) else found.passages,
            "complete": not found.missing,
            "missing": found.missing,
        }

    async def access(self, body: AccessRequest, corpus: str | None) -> dict[str, Any]:
        """Returns whole documents by id and by address; null for one that does not exist."""
        queue = self._queue_of(body.corpus or corpus)
        if len(body.ids) + len(body.urls) > self.limits.documents:
            raise Refusal(413, f"At most {self.limits.documents} documents a request.", "TooLarge")
        if hasattr(queue.retriever, "documents"):
            return {"result": await queue.retriever.documents(body.ids, body.urls)}
        if queue.name not in self._pages:
            raise Refusal(
                404, f"{queue.name} is a {queue.info.name} retriever and holds no documents to open."
            )
        pages = self._pages[queue.name]
        # In a thread, because the first address makes the table of all titles.
        return {"result": await asyncio.to_thread(self._read_documents, pages, body)}

    def _read_documents(self, pages: Pages, body: AccessRequest) -> list[dict[str, Any] | None]:
        result: list[dict[str, Any] | None] = []
        room = self.limits.text_chars
        for ask, url in [*((one, None) for one in body.ids), *((one, one) for one in body.urls)]:
            documents = pages.by_id(ask) if url is None else pages.by_url(url)
            room -= sum(len(document.text) for document in documents)
            if room < 0:
                said = f"These documents have more than {self.limits.text_chars} characters; ask for fewer."
                raise Refusal(413, said, "TooLarge")
            result.append(accessed(documents, url))
        return result

    def info(self, corpus: str | None) -> dict[str, Any]:
        """Returns the card of one corpus."""
        return {"version": VERSION, **_card(self._queue_of(corpus))}

    def health(self) -> dict[str, Any]:
        """Reports that the process answers, and what it serves."""
        return {
            "status": self.state,
            "version": VERSION,
            "corpora": [_card(queue) for queue in self.queues.values()],
        }

    def _queue_of(self, name: str | None) -> QueryQueue:
        if name is None:
            return next(iter(self.queues.values()))
        check_known("corpus", name, self.queues)
        return self.queues[name]

    async def _search(
        self, queue: QueryQueue, queries: list[Any], k: int, partial: bool, timeout_s: float | None = None
    ) -> SearchReply:
        if len(queries) > self.limits.queue:
            raise Refusal(
                413, f"{len(queries)} queries; at most {self.limits.queue} fit into one request.", "TooLarge"
            )
        texts = (query if isinstance(query, str) else query.text for query in queries)
        if (longest := max(map(len, texts), default=0)) > self.limits.query_chars:
            raise Refusal(
                413,
                f"A query has {longest} characters; at most {self.limits.query_chars} are taken.",
                "TooLarge",
            )
        found = await queue.search(queries, k, timeout_s or self.limits.timeout_s)
        if found.missing and not partial:
            said = f"No answer from {len(found.missing)} shards; the rest would be incomplete."
            raise Refusal(503, said, "ShardsMissing", missing=found.missing)
        return found


def _is_large(found: SearchReply) -> bool:
    """Whether a reply is encoded while it is sent, because as a whole it would need several times its passages' memory."""
    return sum(map(len, found.passages)) >= _LARGE_REQUEST


def _card(queue: QueryQueue) -> dict[str, Any]:
    retriever = queue.retriever
    encoder = getattr(getattr(retriever, "encoder", None), "id", None)
    of_index = {
        "index_spec": getattr(retriever, "spec", None),
        "threads": getattr(retriever, "threads", None),
    }
    return {"corpus": queue.name, **asdict(queue.info), "encoder": encoder, **of_index}
