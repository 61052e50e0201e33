"""Many queries of one caller reach a retriever a block at a time."""

from collections.abc import Sequence

from agentenv.core.types import Document, Passage, Query
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.fakes import InMemoryRetriever


class Counting(InMemoryRetriever):
    """Notes how many queries each search had."""

    def __init__(self, documents: Sequence[Document]) -> None:
        super().__init__(documents)
        self.sizes: list[int] = []

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        self.sizes.append(len(queries))
        return await super().search(queries, k)


def test_every_query_is_answered_in_its_order_and_no_search_has_them_all() -> None:
    """Each search has a deadline, which 100,000 questions in one would miss on any machine."""
    retriever = Counting([Document(str(n), f"town{n}", f"town{n} is a town.") for n in range(600)])
    found = list(search_all(retriever, [f"town{n}" for n in range(600)], 1))
    assert [passages[0].id for passages in found] == [str(n) for n in range(600)]
    assert retriever.sizes == [256, 256, 88]
    assert list(search_all(retriever, [], 1)) == []
