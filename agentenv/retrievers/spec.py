"""From a spec such as ``faiss:DIR`` to a retriever."""

from collections.abc import Callable
from pathlib import Path

from agentenv.core.protocols import Retriever
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.rerank import RerankRetriever, make_reranker
from agentenv.retrievers.storage import read_card

LOADERS: dict[str, Callable[[Path], Retriever]] = {
    "faiss": FaissRetriever.load,
    "bm25": BM25Retriever.load,
    "hybrid": HybridRetriever.load,
}


def _rerank(rest: str) -> Retriever:
    reranker, at, inner = rest.partition("@")
    if not at:
        raise ConfigurationError(f"'rerank:{rest}' names no retriever; write 'rerank:MODEL@faiss:DIR'.")
    return RerankRetriever(make_retriever(inner), make_reranker(reranker))


def make_retriever(spec: str) -> Retriever:
    """The retriever that ``spec`` names: ``faiss:DIR``, ``bm25:DIR``, ``hybrid:DIR`` or ``rerank:MODEL@SPEC``.

    Raises:
        UnknownName: no such kind of retriever.
        ConfigurationError: no folder is named, or it holds no retriever of that kind.
        IndexMismatch: encoder or corpus are not those that the index was built with.
    """
    kind, _, rest = spec.partition(":")
    if kind == "rerank":
        return _rerank(rest)
    if kind not in LOADERS:
        raise UnknownName.among("retriever", kind, (*LOADERS, "rerank"))
    if not rest:
        raise ConfigurationError(f"{spec!r} names no folder; write '{kind}:DIR'.")
    return LOADERS[kind](Path(rest))


def open_retriever(folder: Path) -> Retriever:
    """The retriever saved in ``folder``, of whatever kind its card says.

    Raises:
        ConfigurationError: the folder holds no retriever.
        IndexMismatch: encoder or corpus are not those that the index was built with.
    """
    return make_retriever(f"{read_card(folder).kind}:{folder}")
