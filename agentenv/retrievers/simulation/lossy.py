"""A retriever that misses: the quality of a search as a dial."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo


class LossyRetriever:
    """Passes searches on; a share of the queries misses and gets the passages right behind the best ones.

    Which queries miss depends on their text and on the seed and step of the episode that asks, so an episode that is played
    again misses again.

    Args:
        inner: answers the searches.
        share: chance of a query to miss, 0 to 1.
    """

    def __init__(self, inner: Retriever, share: float) -> None:
        self.inner = inner
        self.share = share

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """At most ``k`` passages a query: the best ones, or of a query that misses the next ones."""
        rankings = await self.inner.search(queries, 2 * k)
        return [
            ranking[k:] if self._misses(query) else ranking[:k]
            for query, ranking in zip(queries, rankings, strict=True)
        ]

    def _misses(self, query: Query | str) -> bool:
        return chance_of(query) < self.share

    def info(self) -> RetrieverInfo:
        """The inner retriever's, as one whose results depend on who asks."""
        inner = self.inner.info()
        return replace(
            inner,
            name=f"lossy {inner.name}",
            fingerprint=f"lossy {self.share!r} {inner.fingerprint}",
            contextual=True,
        )


def chance_of(query: Query | str, purpose: str = "") -> float:
    """A number in [0, 1) that is drawn for a query: always the same for its text, its episode's seed and its turn.

    Args:
        query: What is searched.
        purpose: Other purposes draw other numbers.
    """
    text, context = (query, None) if isinstance(query, str) else (query.text, query.context)
    key = f"{context.seed}/{context.step}/{text}" if context else text
    return zlib.crc32(f"{purpose}{key}".encode()) / 2**32
