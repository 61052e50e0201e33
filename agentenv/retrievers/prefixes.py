"""Results cut at random, so that a policy does not learn to rely on their number (SSRL, Fan et al. 2025)."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from agentenv.core.protocols import Retriever
from agentenv.core.types import Passage, Query, RetrieverInfo
from agentenv.retrievers.base import found_by


class PrefixRetriever:
    """Shows a random prefix of another retriever's results, at least one passage.

    Its length depends on the query and the episode, so that an episode that is played again sees the same.

    Args:
        inner: The retriever that searches.
    """

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns the first passages of each ranking.

        Raises:
            RetrieverFault: the search failed.
        """
        rankings = await found_by(self._inner, queries, k)
        return [
            ranking[: prefix_length(query, len(ranking))]
            for query, ranking in zip(queries, rankings, strict=True)
        ]

    def info(self) -> RetrieverInfo:
        """Returns the `info` of the inner retriever, marked as depending on the episode."""
        inner = self._inner.info()
        return replace(
            inner, name=f"prefix of {inner.name}", fingerprint=f"prefix {inner.fingerprint}", contextual=True
        )


def prefix_length(query: Query | str, found: int) -> int:
    """Returns how many of ``found`` passages are shown: uniformly from 1 to all; 0 of none."""
    if found < 2:
        return found
    text = query if isinstance(query, str) else query.text
    context = None if isinstance(query, str) else query.context
    asked = (context.episode, context.step, context.seed) if context else ()
    return Random(f"{text}/{asked}").randint(1, found)
