"""The query queue of a retrieval server: each distinct query is computed once, and the number of waiting ones is limited.

A query that was answered recently is answered from the cache. One that is being computed is waited for. Any other query
takes a place in a bounded queue and goes to the retriever, whose batcher combines it with all waiting ones.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query
from agentenv.errors import AgentEnvError
from agentenv.retrievers.base import texts_of
from agentenv.retrievers.remote import SearchReply

# queries of one request that are in one batch, so that a huge request leaves room for the others
_QUERIES_PER_CHUNK = 256
_REPLY_CHARS = 4_096  # average size of a cached reply: a query and three passages of a thousand characters
_PASSAGE_CHARS = 256  # memory of a passage besides its text
_EMPTY: "Reply" = ([], ())

Reply = tuple[list[Passage], tuple[str, ...]]
"""Passages for one query, and the shards that did not answer."""
Key = tuple[Any, ...]


class QueueFull(AgentEnvError):
    """The queue has no free place; the caller may try again later."""


class QueryMetrics(Protocol):
    """Receives the counts of a query queue."""

    def queries(self, corpus: str, source: str, count: int) -> None:
        """Counts ``count`` queries that were blank, cached, joined or searched."""


class ReplyCache:
    """Least-recently-used cache of replies by (index, k, normalised query), shared by all query queues of a server.

    It is also limited in characters, because a reply may have a thousand passages, and a query 32,768 characters.

    Args:
        size: Largest number of cached replies; 0 caches none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.chars = 0
        """Number of characters of all cached queries and passages."""
        self._replies: OrderedDict[Key, Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: Key) -> Reply | None:
        """Returns the cached reply for ``key``."""
        reply = self._replies.get(key)
        if reply is not None:
            self._replies.move_to_end(key)
        return reply

    def put(self, key: Key, reply: Reply) -> None:
        """Caches a reply; drops the least recently used ones if necessary."""
        if (old := self._replies.pop(key, None)) is not None:
            self.chars -= _chars(key, old)
        self._replies[key] = reply
        self.chars += _chars(key, reply)
        while len(self._replies) > self.size or self.chars > self.size * _REPLY_CHARS:
            self.chars -= _chars(*self._replies.popitem(last=False))


def _chars(key: Key, reply: Reply) -> int:
    query = key[-1] if isinstance(key[-1], str) else ""
    return len(query) + sum(_PASSAGE_CHARS + len(passage.title) + len(passage.text) for passage in reply[0])


@dataclass(eq=False)
class _InflightQuery:
    """One query that the retriever is processing."""

    key: Key
    query: Query | str
    group: "_Group"
    reply: "asyncio.Future[Reply]"


@dataclass(eq=False)
class _Group:
    """The queries that one request added to the queue, and how many requests still need any of them."""

    inflight: list[_InflightQuery] = field(default_factory=list)
    wanted_by: int = 0
    task: "asyncio.Task[None] | None" = None


class QueryQueue:
    """Accepts the searches in one corpus.

    Args:
        name: The name of the corpus.
        retriever: The retriever that answers the queries.
        cache: The cache of replies, shared between query queues.
        queue: Largest number of queries that may wait or be in progress.
        metrics: Receives the queue's counts.
    """

    def __init__(
        self, name: str, retriever: Retriever, *, cache: ReplyCache, queue: int, metrics: QueryMetrics
    ) -> None:
        self.name = name
        self.retriever = retriever
        self.info = retriever.info()
        self.queue = queue
        self.waiting = 0
        """Number of queries that wait or are in progress."""
        self._cache = cache
        self._metrics = metrics
        self._inflight: dict[Key, _InflightQuery] = {}

    async def search(self, queries: Sequence[Query | str], k: int, timeout_s: float) -> SearchReply:
        """Returns the results of the retriever, in the order of the queries.

        Raises:
            QueueFull: the queries that are not cached do not fit into the queue.
            TimeoutError: there was no answer in time; queries that no other request needs are dropped.
            RetrieverFault: the search failed.
        """
        texts = texts_of(queries, k)
        keys = [self._key(query, text, k) for query, text in zip(queries, texts, strict=True)]
        replies: dict[Key, Reply] = {}
        inflight: dict[Key, _InflightQuery] = {}
        new: dict[Key, Query | str] = {}
        for key, query, text in zip(keys, queries, texts, strict=True):
            if key in replies or key in inflight or key in new:
                continue
            if (known := _EMPTY if not text else self._cache.get(key)) is not None:
                replies[key] = known
            elif (flight := self._inflight.get(key)) is not None:
                inflight[key] = flight
            else:
                new[key] = query if isinstance(query, Query) and self.info.contextual else text
        blank = sum(not text for text in texts)
        counts = {
            "blank": blank,
            "cached": len(replies) - bool(blank),
            "joined": len(inflight),
            "searched": len(new),
        }
        inflight |= self._enqueue(new, k)
        for source, count in counts.items():
            self._metrics.queries(self.name, source, count)
        if inflight:
            await self._wait(list(inflight.values()), timeout_s)
        replies |= {key: flight.reply.result() for key, flight in inflight.items()}
        missing = dict.fromkeys(shard for key in keys for shard in replies[key][1])
        return SearchReply([replies[key][0] for key in keys], tuple(missing))

    def _key(self, query: Query | str, text: str, k: int) -> Key:
        if not text:
            return ()
        # If results depend on the context, each query has a unique key, so that nothing is shared or cached.
        return (object(),) if self.info.contextual else (self.info.fingerprint, k, text)

    def _enqueue(self, new: dict[Key, Query | str], k: int) -> dict[Key, _InflightQuery]:
        """Adds queries to the queue and starts their processing, which continues even if callers stop waiting."""
        # Checked first, because a request is accepted or refused as a whole.
        if self.waiting + len(new) > self.queue:
            raise QueueFull(
                f"{self.waiting} of {self.queue} places are taken and {len(new)} more queries came; try again later."
            )
        if not new:
            return {}
        group, loop = _Group(), asyncio.get_running_loop()
        inflight = {
            key: _InflightQuery(key, query, group, loop.create_future()) for key, query in new.items()
        }
        group.inflight = list(inflight.values())
        self._inflight |= inflight
        self.waiting += len(inflight)
        group.task = loop.create_task(self._run_group(group, k))
        return inflight

    async def _wait(self, inflight: list[_InflightQuery], timeout_s: float) -> None:
        groups = {flight.group for flight in inflight}
        for group in groups:
            # Counted, because other requests may have joined its queries; it is dropped when the last of them has ended.
            group.wanted_by += 1
        try:
            _, late = await asyncio.wait({flight.reply for flight in inflight}, timeout=timeout_s)
            if late:
                raise TimeoutError(f"{self.name} gave no answer within {timeout_s:g} s.")
        finally:
            for group in groups:
                group.wanted_by -= 1
                if not group.wanted_by and group.task is not None and not group.task.done():
                    # at once, so that no request joins queries that are about to be dropped
                    self._release(group.inflight)
                    group.task.cancel()

    async def _run_group(self, group: _Group, k: int) -> None:
        """Answers the queries of one request, chunk by chunk."""
        try:
            for start in range(0, len(group.inflight), _QUERIES_PER_CHUNK):
                await self._answer(group.inflight[start : start + _QUERIES_PER_CHUNK], k)
        finally:
            self._release(group.inflight)
            for flight in group.inflight:
                # Wakes the callers that still wait, also if the group was cancelled.
                flight.reply.cancel()
            group.inflight = []  # breaks a reference cycle, which would keep all passages until a garbage collection

    async def _answer(self, inflight: list[_InflightQuery], k: int) -> None:
        try:
            found = await self._ask([flight.query for flight in inflight], k)
        except Exception as error:
            self._release(inflight)
            for flight in inflight:
                flight.reply.set_exception(error)
                flight.reply.exception()  # retrieved, even if no caller waits any more
            return
        self._release(inflight)
        for flight, passages in zip(inflight, found.passages, strict=True):
            reply = (passages, found.missing)
            flight.reply.set_result(reply)
            # An incomplete reply is returned but not cached, because the missing shard may answer the next time.
            if self._cache.size and not self.info.contextual and not found.missing:
                self._cache.put(flight.key, reply)

    async def _ask(self, queries: list[Query | str], k: int) -> SearchReply:
        partial = getattr(self.retriever, "search_partial", None)
        if partial is not None:
            found: SearchReply = await partial(queries, k)
            return found
        return SearchReply(await self.retriever.search(queries, k))

    def _release(self, inflight: list[_InflightQuery]) -> None:
        """Frees the queue places of queries, each once."""
        for flight in inflight:
            if self._inflight.get(flight.key) is flight:
                del self._inflight[flight.key]
                self.waiting -= 1
