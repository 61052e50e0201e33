"""A retriever over nothing, for environments that take one and episodes that may not search."""

from collections.abc import Sequence

from agentenv.core.types import Passage, Query, RetrieverInfo


class NoPassages:
    """Finds nothing: what is searched where questions have no corpus and only an answer is taken."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        """An empty list for each query."""
        return [[] for _ in queries]

    def info(self) -> RetrieverInfo:
        """No documents."""
        return RetrieverInfo("nothing", 0, "nothing")
