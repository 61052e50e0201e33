"""A retriever that misses: what comes instead, which queries, and that the same episode misses again."""

import asyncio
from collections.abc import Sequence

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Query, QueryContext
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.retriever_contract import RetrieverContract
from agentenv.retrievers.simulation.lossy import LossyRetriever

DOCUMENTS = [Document(f"d{i}", f"Page {i}", " ".join(["word"] + ["stone"] * (i < 3))) for i in range(5)]


class TestOneThatNeverMisses(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return LossyRetriever(InMemoryRetriever(documents), 0.0)


def found(share: float, *queries: Query | str, k: int = 2) -> list[list[str]]:
    retriever = LossyRetriever(InMemoryRetriever(DOCUMENTS), share)
    return [[p.id for p in ranking] for ranking in asyncio.run(retriever.search(queries, k))]


def test_a_miss_returns_what_is_ranked_behind() -> None:
    assert found(0.0, "stone word") == [["d0", "d1"]]
    assert found(1.0, "stone word") == [["d2", "d3"]]
    assert found(1.0, "stone word", k=4) == [["d4"]]
    assert found(1.0, "stone") == [["d2"]]


def test_the_share_of_queries_that_miss() -> None:
    """Of 1000 queries at share .3, 300 within 5 standard errors of 14.5."""
    queries = [Query("word", QueryContext("e", seed=seed)) for seed in range(1000)]
    missed = [ids != ["d0", "d1"] for ids in found(0.3, *queries)]
    assert abs(sum(missed) - 300) < 73
    assert missed == [ids != ["d0", "d1"] for ids in found(0.3, *reversed(queries))][::-1]


def test_it_says_that_it_depends_on_who_asks() -> None:
    plain = InMemoryRetriever(DOCUMENTS)
    info, other = LossyRetriever(plain, 0.3).info(), LossyRetriever(plain, 0.5).info()
    assert info.contextual
    assert len({info.fingerprint, other.fingerprint, plain.info().fingerprint}) == 3
    assert info.documents == 5
