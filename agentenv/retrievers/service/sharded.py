"""One corpus over several servers: each holds a block of its rows, all are asked, and their best are merged."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.errors import ConfigurationError, Fault, IndexMismatch, RetrieverFault
from agentenv.retrievers.remote import RemoteRetriever, SearchReply
from agentenv.retrievers.service.wire import quoted_contents
from agentenv.web.retries import RetryPolicy

SHARD_PATIENCE = RetryPolicy(timeout_s=15.0, connect_s=2.0, tries=3)
"""A dead shard is given up early, because callers of the front wait for it."""

_OWN_SCALE = ("bm25", "hybrid")  # their scores depend on the block itself, so two blocks cannot be compared
_ALIKE = ("name", "encoder", "index_spec")


class ShardedRetriever:
    """Asks all shards at once. Without one of them it raises, or, if asked to, says who is missing.

    Shards stand in the order of their rows, so ties are broken as one index over all rows would break them.

    Args:
        shards: their clients.

    Raises:
        ConfigurationError: no shards, or a kind whose scores cannot be compared between shards.
        IndexMismatch: the shards were not built alike.
        RetrieverFault: a shard does not answer.
    """

    def __init__(self, shards: Sequence[RemoteRetriever]) -> None:
        if not shards:
            raise ConfigurationError("No shard is given; name the address of at least one retrieval server.")
        self.shards = tuple(shards)
        cards = [shard.card() for shard in shards]
        for shard, card in zip(shards, cards, strict=True):
            if card["name"] in _OWN_SCALE:
                raise ConfigurationError(
                    f"{shard.url} serves {card['name']}, whose scores differ from shard to shard; serve faiss on every "
                    "shard."
                )
            if different := [key for key in _ALIKE if card.get(key) != cards[0].get(key)]:
                key = different[0]
                raise IndexMismatch(
                    f"{shard.url} has {key} {card.get(key)!r}, but {shards[0].url} {cards[0].get(key)!r}; "
                    f"build all shards alike."
                )
        infos = [shard.info() for shard in shards]
        fingerprint = hashlib.sha256("\n".join(info.fingerprint for info in infos).encode()).hexdigest()
        self._info = RetrieverInfo(
            infos[0].name,
            sum(info.documents for info in infos),
            fingerprint,
            any(info.contextual for info in infos),
        )

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query out of all shards, best first.

        Raises:
            RetrieverFault: a shard did not answer.
        """
        found = await self.search_partial(queries, k)
        if found.missing:
            raise RetrieverFault(f"Shards without an answer: {', '.join(found.missing)}.")
        return found.passages

    async def search_partial(self, queries: Sequence[Query | str], k: int) -> SearchReply:
        """What the living shards found, and the addresses of the others.

        Raises:
            RetrieverFault: no shard answered.
        """
        asked = (shard.search_partial(queries, k) for shard in self.shards)
        # All answers, because a shard that fails must not cost what the others found.
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[SearchReply] = []
        missing: list[str] = []
        for shard, answer in zip(self.shards, answers, strict=True):
            if isinstance(answer, Fault):
                missing.append(shard.url)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
                missing += answer.missing
        if not found:
            raise RetrieverFault(f"No shard answered: {', '.join(missing)}.")
        lists = zip(*(part.passages for part in found), strict=True)
        return SearchReply([merge(parts, k) for parts in lists], tuple(missing))

    async def documents(
        self, ids: Sequence[str] = (), urls: Sequence[str] = ()
    ) -> list[dict[str, Any] | None]:
        """Whole documents by id, then by address; None for one that no shard has.

        Raises:
            RetrieverFault: a shard did not answer, and it may be the one that has them.
        """
        parts = await gather_all(shard.documents(ids, urls) for shard in self.shards)
        return [_joined([one for one in copies if one is not None]) for copies in zip(*parts, strict=True)]

    def info(self) -> RetrieverInfo:
        """Documents of all shards, and a fingerprint of theirs."""
        return self._info


def merge(parts: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """The ``k`` best of several lists; ties by list, then by rank; a document that stands in two lists counts once."""
    ranked = sorted((passage for part in parts for passage in part), key=lambda passage: -passage.score)
    best: dict[str, Passage] = {}
    for passage in ranked:
        best.setdefault(passage.id, passage)
    return list(best.values())[:k]


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """One document whose text may lie in several shards."""
    if not parts:
        return None
    text = "\n".join(part["text"] for part in parts)
    return parts[0] | {"text": text, "contents": quoted_contents(parts[0]["title"], text)}
