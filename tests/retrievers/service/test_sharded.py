"""Shards give what one index over all rows gives, and a dead shard is always heard of."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage
from agentenv.errors import ConfigurationError, IndexMismatch, RetrieverFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.retriever_contract import DOCUMENTS, RetrieverContract
from agentenv.retrievers.service.sharded import ShardedRetriever, merge
from agentenv.web.retries import RetryPolicy

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.retrievers.service.app import make_app  # noqa: E402
from agentenv.retrievers.service.service import Service, ServiceLimits  # noqa: E402

QUICK = RetryPolicy(timeout_s=20.0, connect_s=5.0, pause_s=0.001, tries=2)


def client(retriever: Retriever, url: str = "http://test") -> RemoteRetriever:
    """A client of a server in the same process."""
    service = Service(ServiceLimits(cache=0))
    service.open({"corpus": retriever})
    return RemoteRetriever(url, timeouts=QUICK, transport=httpx.ASGITransport(make_app(service)))


def blocks(documents: Sequence[Document], count: int = 3) -> list[Sequence[Document]]:
    size = -(-len(documents) // count)
    return [documents[start : start + size] for start in range(0, len(documents), size)]


class TestSharded(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        parts = [client(InMemoryRetriever(block)) for block in blocks(documents)]
        return ShardedRetriever(parts)


def passages(*scored: tuple[str, float]) -> list[Passage]:
    return [Passage(name, "", "", score) for name, score in scored]


def test_merging_keeps_the_order_of_rows_among_equals() -> None:
    first, second = passages(("a", 3.0), ("b", 1.0)), passages(("c", 3.0), ("d", 2.0), ("b", 1.0))
    assert [passage.id for passage in merge([first, second], 10)] == ["a", "c", "d", "b"]
    assert [passage.id for passage in merge([first, second], 2)] == ["a", "c"]
    assert merge([[], []], 3) == []


def test_faiss_in_blocks_is_faiss_in_one() -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    from agentenv.retrievers.encoder import HashEncoder
    from agentenv.retrievers.faiss import FaissRetriever

    documents = [
        Document(f"d{n}", f"Town {n % 7}", f"wool herring clock {n % 5} bridge {n}") for n in range(60)
    ]
    whole = FaissRetriever.build(documents, HashEncoder())
    parts = ShardedRetriever(
        [client(FaissRetriever.build(block, HashEncoder())) for block in blocks(documents)]
    )
    queries = [f"herring of town {n} with clock" for n in range(12)]
    expected, got = (asyncio.run(retriever.search(queries, 7)) for retriever in (whole, parts))
    assert [[p.id for p in found] for found in got] == [[p.id for p in found] for found in expected]


def test_a_failing_shard_is_a_fault_or_named_but_never_silent() -> None:
    failing = FaultyRetriever(InMemoryRetriever(DOCUMENTS[2:]), fail_on=range(100))
    front = ShardedRetriever(
        [client(InMemoryRetriever(DOCUMENTS[:2]), "http://one"), client(failing, "http://two")]
    )
    with pytest.raises(RetrieverFault, match="http://two"):
        asyncio.run(front.search(["Orla Venn"], 6))
    found = asyncio.run(front.search_partial(["Orla Venn"], 6))
    assert found.missing == ("http://two",)
    assert {passage.id for passage in found.passages[0]} == {"d0", "d1"}


def test_without_any_shard_there_is_no_answer() -> None:
    failing = [
        client(FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on=range(100)), f"http://{n}") for n in "ab"
    ]
    with pytest.raises(RetrieverFault, match=r"http://a.*http://b"):
        asyncio.run(ShardedRetriever(failing).search_partial(["Orla Venn"], 6))


def test_a_shard_that_dies_behind_a_front_is_said_on_the_wire(serving: Any) -> None:
    blocks_of_two = [DOCUMENTS[start : start + 2] for start in (0, 2, 4)]
    ask = {"queries": ["Orla Venn of Halvik"], "k": 6}
    with ExitStack() as living:
        urls = [
            living.enter_context(serving({"rows": InMemoryRetriever(block)})) for block in blocks_of_two[:2]
        ]
        with serving({"rows": InMemoryRetriever(blocks_of_two[2])}) as last:
            front = ShardedRetriever([RemoteRetriever(url, timeouts=QUICK) for url in [*urls, last]])
            url = living.enter_context(serving({"all": front}))
            whole = httpx.post(f"{url}/v1/search", json=ask, timeout=60).json()
            assert (whole["complete"], whole["missing"]) == (True, [])
            assert {p["id"] for p in whole["results"][0]} == {"d0", "d1", "d4"}
        # remembered, so still complete; another question is not
        assert httpx.post(f"{url}/v1/search", json=ask, timeout=60).json() == whole
        ask["k"] = 5
        refused = httpx.post(f"{url}/v1/search", json=ask, timeout=60)
        assert (refused.status_code, refused.json()["kind"], refused.json()["missing"]) == (
            503,
            "ShardsMissing",
            [last],
        )
        assert httpx.post(f"{url}/retrieve", json=ask, timeout=60).status_code == 503
        partial = httpx.post(f"{url}/v1/search", json=ask | {"partial": True}, timeout=60).json()
        assert (partial["complete"], partial["missing"]) == (False, [last])
        assert {p["id"] for p in partial["results"][0]} == {"d0", "d1"}
        partial = httpx.post(f"{url}/retrieve", json=ask | {"partial": True}, timeout=60).json()
        assert (partial["complete"], partial["missing"]) == (False, [last])
        with pytest.raises(RetrieverFault, match=r"\b1\b"):
            asyncio.run(RemoteRetriever(url, timeouts=QUICK).search(["Orla Venn"], 5))


def test_documents_are_found_in_whatever_shard_holds_them() -> None:
    parts = (
        [Document("1", "Herring", "A fish."), Document("2", "Cod", "")],
        [Document("3", "Herring", "Smoked.")],
    )
    front = ShardedRetriever([client(InMemoryRetriever(part)) for part in parts])
    found = asyncio.run(front.documents(["3", "9"], ["https://en.wikipedia.org/wiki/Herring"]))
    assert [one and one["text"] for one in found] == ["Smoked.", None, "A fish.\nSmoked."]
    assert found[2] is not None
    assert found[2]["contents"] == '"Herring"\nA fish.\nSmoked.'


def test_shards_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        ShardedRetriever([])
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    from agentenv.retrievers.bm25 import BM25Retriever
    from agentenv.retrievers.encoder import HashEncoder
    from agentenv.retrievers.faiss import FaissRetriever

    with pytest.raises(ConfigurationError, match=r"http://test.*bm25"):
        ShardedRetriever([client(BM25Retriever.build(DOCUMENTS))])
    dims = [client(FaissRetriever.build(DOCUMENTS, HashEncoder(dim)), f"http://{dim}") for dim in (64, 128)]
    with pytest.raises(IndexMismatch, match=r"http://128.*'hash:128'.*http://64.*'hash:64'"):
        ShardedRetriever(dims)


def test_info_sums_the_shards_and_changes_with_each() -> None:
    def front(*sizes: int) -> ShardedRetriever:
        return ShardedRetriever([client(InMemoryRetriever(DOCUMENTS[:size])) for size in sizes])

    assert front(2, 3).info().documents == 5
    assert front(2, 3).info() == front(2, 3).info()
    assert len({front(*sizes).info().fingerprint for sizes in ((2, 3), (3, 2), (2, 4))}) == 3
