"""Every retriever passes the contract suite: FAISS (exact, quantised, graph), BM25, hybrid and the fakes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.retriever_contract import RetrieverContract


class TestInMemory(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return InMemoryRetriever(documents)


class TestFaulty(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return FaultyRetriever(InMemoryRetriever(documents), fail_on=())


class TestFaiss(RetrieverContract):
    index = "Flat"

    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
        from agentenv.retrievers.faiss import FaissRetriever

        return FaissRetriever.build(documents, HashEncoder(), self.index)


class TestFaissHalf(TestFaiss):
    index = "SQfp16"


class TestFaissBytes(TestFaiss):
    index = "SQ8"


class TestFaissGraph(TestFaiss):
    index = "HNSW32"


class TestFaissGraphOfBytes(TestFaiss):
    index = "HNSW32_SQ8"


class TestFaissRefined(TestFaiss):
    index = "SQ8,Refine(SQfp16)"


class TestSavedFaiss(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
        from agentenv.retrievers.faiss import FaissRetriever

        FaissRetriever.build(documents, HashEncoder()).save(self.folder / "saved")
        return FaissRetriever.load(self.folder / "saved")


class TestBM25(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("bm25s", reason="bm25s is not installed")
        from agentenv.retrievers.bm25 import BM25Retriever

        return BM25Retriever.build(documents)


class TestHybrid(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
        pytest.importorskip("bm25s", reason="bm25s is not installed")
        from agentenv.retrievers.hybrid import HybridRetriever

        return HybridRetriever.build(documents, HashEncoder())


class TestSavedHybrid(RetrieverContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
        pytest.importorskip("bm25s", reason="bm25s is not installed")
        from agentenv.retrievers.hybrid import HybridRetriever

        HybridRetriever.build(documents, HashEncoder()).save(self.folder / "saved")
        return HybridRetriever.load(self.folder / "saved")
