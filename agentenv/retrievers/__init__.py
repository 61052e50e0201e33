"""Retrievers: dense, lexical, hybrid, reranking, remote, recorded, and ones for tests."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.retrievers.bm25 import BM25Retriever
    from agentenv.retrievers.cassette import CassetteRetriever
    from agentenv.retrievers.encoder import make_encoder
    from agentenv.retrievers.faiss import FaissRetriever
    from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
    from agentenv.retrievers.hybrid import HybridRetriever
    from agentenv.retrievers.mixed import MixedRetriever
    from agentenv.retrievers.oracle import OracleRetriever
    from agentenv.retrievers.remote import RemoteRetriever
    from agentenv.retrievers.rerank import RerankRetriever
    from agentenv.retrievers.retriever_contract import RetrieverContract
    from agentenv.retrievers.retriever_spec import make_retriever, open_retriever
    from agentenv.retrievers.search_r1 import SearchR1Retriever
    from agentenv.retrievers.web import WebRetriever

__all__ = [
    "BM25Retriever",
    "CassetteRetriever",
    "FaissRetriever",
    "FaultyRetriever",
    "HybridRetriever",
    "InMemoryRetriever",
    "MixedRetriever",
    "OracleRetriever",
    "RemoteRetriever",
    "RerankRetriever",
    "RetrieverContract",
    "SearchR1Retriever",
    "WebRetriever",
    "make_encoder",
    "make_retriever",
    "open_retriever",
]

__getattr__, __dir__ = lazy_exports(__name__)
