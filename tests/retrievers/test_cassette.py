"""Any retriever can be recorded, and its replay is the same retriever to its caller, without it being there."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Query, QueryContext, RetrieverInfo
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.retrievers.cassette import CassetteRetriever
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.retriever_contract import DOCUMENTS, RetrieverContract
from agentenv.retrievers.retriever_spec import make_retriever


class TestRecording(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, documents: Sequence[Document]) -> Retriever:
        inner = InMemoryRetriever(documents)
        return CassetteRetriever(self.folder / f"{inner.info().fingerprint}.jsonl", inner)


class Simulated:
    """Its results are the question behind the query, so they depend on the context."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        contexts = [query.context for query in queries if isinstance(query, Query)]
        return [[Passage("p", "", context.question if context else "", 1.0)] for context in contexts]

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("simulated", 0, "s", contextual=True)


def test_a_replay_is_the_recording(tmp_path: Path) -> None:
    queries = ["Orla Venn", "", "herring of Halvik", "Orla  Venn", "日本 \U0010fffd"]
    inner = InMemoryRetriever(DOCUMENTS)
    recording = CassetteRetriever(tmp_path / "tape", inner)
    recorded = asyncio.run(recording.search(queries, 3))
    replay = CassetteRetriever(tmp_path / "tape")
    assert recorded == asyncio.run(inner.search(queries, 3))
    assert repr(recorded) == repr(asyncio.run(replay.search(queries, 3)))
    # in other batches and another order
    assert asyncio.run(replay.search(queries[:1], 3)) == recorded[:1]
    assert replay.info() == inner.info()


def test_what_was_not_recorded_is_a_fault_of_ours(tmp_path: Path) -> None:
    recording = CassetteRetriever(tmp_path / "tape", InMemoryRetriever(DOCUMENTS))
    asyncio.run(recording.search(["herring"], 3))
    replay = CassetteRetriever(tmp_path / "tape")
    for query, k in (("herrings", 3), ("herring", 2)):
        with pytest.raises(RetrieverFault, match=f'"{query}"'):
            asyncio.run(replay.search([query], k))
    assert asyncio.run(replay.search([], 3)) == []


def test_a_failed_search_is_not_recorded(tmp_path: Path) -> None:
    recording = CassetteRetriever(
        tmp_path / "tape", FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0})
    )
    with pytest.raises(RetrieverFault, match=r"\b0\b"):
        asyncio.run(recording.search(["herring"], 3))
    assert asyncio.run(recording.search(["herring"], 1))[0]
    assert len((tmp_path / "tape").read_text().splitlines()) == 2  # the header and the search that went well


def test_the_recorded_retriever_is_asked_once(tmp_path: Path) -> None:
    inner = FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on=())
    recording = CassetteRetriever(tmp_path / "tape", inner)
    for _ in range(3):
        asyncio.run(recording.search(["herring", "Halvik"], 2))
    assert inner.calls == 1


def test_contexts_are_told_apart_where_they_matter(tmp_path: Path) -> None:
    queries = [Query("who?", QueryContext("e1", question)) for question in ("first", "second")]
    recording = CassetteRetriever(tmp_path / "tape", Simulated())
    asyncio.run(recording.search(queries, 1))
    replay = CassetteRetriever(tmp_path / "tape")
    assert [found[0].text for found in asyncio.run(replay.search(queries, 1))] == ["first", "second"]
    with pytest.raises(RetrieverFault):
        asyncio.run(replay.search(["who?"], 1))


def test_specs(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="bm25s is not installed")
    from agentenv.retrievers.bm25 import BM25Retriever

    BM25Retriever.build(DOCUMENTS).save(tmp_path / "index")
    tape = tmp_path / "tape.jsonl"
    recording = make_retriever(f"cassette:{tape}@bm25:{tmp_path / 'index'}")
    found = asyncio.run(recording.search(["herring"], 2))
    assert found[0]
    assert asyncio.run(make_retriever(f"cassette:{tape}").search(["herring"], 2)) == found
    with pytest.raises(ConfigurationError, match="'cassette'"):
        make_retriever("cassette:")


def test_a_cassette_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text('{"cassette": 1, "about": {"judge": "strict"}}\n')
    with pytest.raises(ConfigurationError, match="tape"):
        CassetteRetriever(tmp_path / "tape")
