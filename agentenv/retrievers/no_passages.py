"""A retriever without documents, for environments that require one and episodes without search."""

from collections.abc import Sequence

from agentenv.core.types import Passage, Query, RetrieverInfo


class NoPassages:
    """Finds nothing; used if questions have no corpus and only an answer is accepted."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """Returns an empty list for each query."""
        return [[] for _ in queries]

    def info(self) -> RetrieverInfo:
        """Returns a description with no documents."""
        return RetrieverInfo("nothing", 0, "nothing")
