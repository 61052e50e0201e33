"""One corpus on several servers: each has a block of its rows, all are asked, and their results are merged."""

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
"""Short time limits for a shard, because callers of this server wait for it."""

_INCOMPARABLE_SCORES = (
    "bm25",
    "hybrid",
)  # their scores depend on the block, so two blocks cannot be compared
_SHARED_SETTINGS = ("name", "encoder", "index_spec")


class ShardedRetriever:
    """Asks all shards at once. If one fails, it raises an error or, on request, reports the missing ones.

    Shards are in the order of their rows, so ties are broken as in a single index over all rows.

    Args:
        shards: The clients of the shards.

    Raises:
        ConfigurationError: there are no shards, or their kind has scores that cannot be compared between shards.
        IndexMismatch: the shards were built differently.
        RetrieverFault: a shard does not answer.
    """

    def __init__(self, shards: Sequence[RemoteRetriever]) -> None:
        if not shards:
            raise ConfigurationError("No shard is given; name the address of at least one retrieval server.")
        self.shards = tuple(shards)
        cards = [shard.card() for shard in shards]
        for shard, card in zip(shards, cards, strict=True):
            if card["name"] in _INCOMPARABLE_SCORES:
                raise ConfigurationError(
                    f"{shard.url} serves {card['name']}, whose scores differ from shard to shard; serve faiss on every "
                    "shard."
                )
            if different := [key for key in _SHARED_SETTINGS if card.get(key) != cards[0].get(key)]:
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
        """Returns at most ``k`` passages per query from all shards, best first.

        Raises:
            RetrieverFault: a shard did not answer.
        """
        found = await self.search_partial(queries, k)
        if found.missing:
            raise RetrieverFault(f"Shards without an answer: {', '.join(found.missing)}.")
        return found.passages

    async def search_partial(self, queries: Sequence[Query | str], k: int) -> SearchReply:
        """Returns what the working shards found, and the addresses of the others.

        Raises:
            RetrieverFault: no shard answered.
        """
        asked = (shard.search_partial(queries, k) for shard in self.shards)
        # All answers are awaited, because a failed shard must not discard the results of the others.
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
        """Returns whole documents by id, then by address; None for one that no shard has.

        Raises:
            RetrieverFault: a shard did not answer, which may be the one that has them.
        """
        parts = await gather_all(shard.documents(ids, urls) for shard in self.shards)
        return [_joined([one for one in copies if one is not None]) for copies in zip(*parts, strict=True)]

    def info(self) -> RetrieverInfo:
        """Returns the number of documents of all shards, and a fingerprint of their fingerprints."""
        return self._info


def merge(parts: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """Returns the ``k`` best of several lists; ties by list, then by rank; a document in two lists counts once."""
    ranked = sorted((passage for part in parts for passage in part), key=lambda passage: -passage.score)
    best: dict[str, Passage] = {}
    for passage in ranked:
        best.setdefault(passage.id, passage)
    return list(best.values())[:k]


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Joins one document whose text may be on several shards."""
    if not parts:
        return None
    text = "\n".join(part["text"] for part in parts)
    return parts[0] | {"text": text, "contents": quoted_contents(parts[0]["title"], text)}
