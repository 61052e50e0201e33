"""A retriever that misses some queries, with an adjustable quality."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo


class LossyRetriever:
    """Passes searches on; a share of the queries misses, and gets the passages right after the best ones.

    Whether a query misses depends on its text, and on the seed and turn of its episode, so an episode that is played again
    has the same misses.

    Args:
        inner: The retriever that answers the searches.
        share: The probability that a query misses, 0 to 1.
    """

    def __init__(self, inner: Retriever, share: float) -> None:
        self.inner = inner
        self.share = share

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns at most ``k`` passages per query: the best ones, or for a miss the next ones."""
        rankings = await self.inner.search(queries, 2 * k)
        return [
            ranking[k:] if self._misses(query) else ranking[:k]
            for query, ranking in zip(queries, rankings, strict=True)
        ]

    def _misses(self, query: Query | str) -> bool:
        return chance_of(query) < self.share

    def info(self) -> RetrieverInfo:
        """Returns the inner retriever's description, marked as depending on the context."""
        inner = self.inner.info()
        return replace(
            inner,
            name=f"lossy {inner.name}",
            fingerprint=f"lossy {self.share!r} {inner.fingerprint}",
            contextual=True,
        )


def chance_of(query: Query | str, purpose: str = "") -> float:
    """Returns a number in [0, 1) for a query, which depends only on its text, its episode's seed and its turn.

    Args:
        query: The query.
        purpose: Different purposes give different numbers.
    """
    text, context = (query, None) if isinstance(query, str) else (query.text, query.context)
    key = f"{context.seed}/{context.step}/{text}" if context else text
    return zlib.crc32(f"{purpose}{key}".encode()) / 2**32
