"""The query queue of a retrieval server: each distinct query is computed once, and no more are taken than can wait.

A query that was answered lately is answered from memory; one that is being computed is waited for; any other one takes
a place in a bounded queue and goes to the retriever, whose own batcher puts it in one batch with all that wait.
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

_CHUNK = (
    256  # queries of one request that are in one batch, so that a huge request leaves room for the others
)
_REPLY_CHARS = 4_096  # a remembered reply has so much room on average: a query and three passages of a thousand characters
_PASSAGE_CHARS = 256  # what a passage takes in memory beside its text
_EMPTY: "Reply" = ([], ())

Reply = tuple[list[Passage], tuple[str, ...]]
"""Passages for one query, and the shards that were not heard."""
Key = tuple[Any, ...]


class QueueFull(AgentEnvError):
    """The queue has no free place; the caller may try again later."""


class QueryMetrics(Protocol):
    """Counts what a query queue does."""

    def queries(self, corpus: str, source: str, count: int) -> None:
        """``count`` queries were blank, cached, joined or searched."""


class ReplyCache:
    """The replies that were used last, by (index, k, normalised query); shared by all query queues of a server.

    It is bounded in characters too: a reply may hold a thousand passages, and a query 32,768 characters.

    Args:
        size: most replies kept; 0 keeps none.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.chars = 0
        """Characters of all queries and passages that are kept."""
        self._replies: OrderedDict[Key, Reply] = OrderedDict()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: Key) -> Reply | None:
        """The reply kept for ``key``."""
        reply = self._replies.get(key)
        if reply is not None:
            self._replies.move_to_end(key)
        return reply

    def put(self, key: Key, reply: Reply) -> None:
        """Keeps a reply; the one unused for longest goes."""
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
    """One query on its way through the retriever."""

    key: Key
    query: Query | str
    group: "_Group"
    reply: "asyncio.Future[Reply]"


@dataclass(eq=False)
class _Group:
    """What one request added to the queue, and how many requests still want any of it."""

    inflight: list[_InflightQuery] = field(default_factory=list)
    wanted_by: int = 0
    task: "asyncio.Task[None] | None" = None


class QueryQueue:
    """Takes the searches over one corpus.

    Args:
        name: name of the corpus.
        retriever: answers the queries.
        cache: remembers replies; shared between query queues.
        queue: most queries that may wait or be under way.
        metrics: counts what the queue does.
    """

    def __init__(
        self, name: str, retriever: Retriever, *, cache: ReplyCache, queue: int, metrics: QueryMetrics
    ) -> None:
        self.name = name
        self.retriever = retriever
        self.info = retriever.info()
        self.queue = queue
        self.waiting = 0
        """Queries that wait or are under way."""
        self._cache = cache
        self._metrics = metrics
        self._inflight: dict[Key, _InflightQuery] = {}

    async def search(self, queries: Sequence[Query | str], k: int, timeout_s: float) -> SearchReply:
        """What the retriever finds, in the order of the queries.

        Raises:
            QueueFull: the queries that nobody has asked lately do not fit into the queue.
            TimeoutError: no answer in time; what nobody else waits for is dropped.
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
        # Where the context decides, each query is one of its own: nothing is shared or remembered.
        return (object(),) if self.info.contextual else (self.info.fingerprint, k, text)

    def _enqueue(self, new: dict[Key, Query | str], k: int) -> dict[Key, _InflightQuery]:
        """Puts queries into the queue and has them answered, even if callers stop waiting."""
        # Before anything is taken: a request is taken as a whole or refused as a whole.
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
            # Counted, because others may have joined its queries: it is dropped when the last of them has gone.
            group.wanted_by += 1
        try:
            _, late = await asyncio.wait({flight.reply for flight in inflight}, timeout=timeout_s)
            if late:
                raise TimeoutError(f"{self.name} gave no answer within {timeout_s:g} s.")
        finally:
            for group in groups:
                group.wanted_by -= 1
                if not group.wanted_by and group.task is not None and not group.task.done():
                    self._release(group.inflight)  # at once, so that nobody joins what is about to be dropped
                    group.task.cancel()

    async def _run_group(self, group: _Group, k: int) -> None:
        """Answers the queries of one request, a chunk after the other."""
        try:
            for start in range(0, len(group.inflight), _CHUNK):
                await self._answer(group.inflight[start : start + _CHUNK], k)
        finally:
            self._release(group.inflight)
            for flight in group.inflight:
                # Callers that still wait are woken, also where the group was cancelled.
                flight.reply.cancel()
            group.inflight = []  # a circle, which would keep all passages until the collector comes by

    async def _answer(self, inflight: list[_InflightQuery], k: int) -> None:
        try:
            found = await self._ask([flight.query for flight in inflight], k)
        except Exception as error:
            self._release(inflight)
            for flight in inflight:
                flight.reply.set_exception(error)
                flight.reply.exception()  # seen, even if nobody waits any more
            return
        self._release(inflight)
        for flight, passages in zip(inflight, found.passages, strict=True):
            reply = (passages, found.missing)
            flight.reply.set_result(reply)
            # An incomplete reply is given and not kept: the shard that was silent may be back for the next one.
            if self._cache.size and not self.info.contextual and not found.missing:
                self._cache.put(flight.key, reply)

    async def _ask(self, queries: list[Query | str], k: int) -> SearchReply:
        partial = getattr(self.retriever, "search_partial", None)
        if partial is not None:
            found: SearchReply = await partial(queries, k)
            return found
        return SearchReply(await self.retriever.search(queries, k))

    def _release(self, inflight: list[_InflightQuery]) -> None:
        """Frees the places of flights, each once."""
        for flight in inflight:
            if self._inflight.get(flight.key) is flight:
                del self._inflight[flight.key]
                self.waiting -= 1
