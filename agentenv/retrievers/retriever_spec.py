"""Makes retrievers from specs such as ``faiss:DIR``."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from agentenv.core.io.digests import PathState, path_state
from agentenv.core.options import made_part, own_part
from agentenv.core.protocols import Retriever
from agentenv.core.registry import is_class
from agentenv.errors import ConfigurationError, RetrieverFault, UnknownName
from agentenv.policies.compute import ComputeSettings, process_compute
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.cassette import CassetteRetriever
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import HybridRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.rerank import RerankRetriever, make_reranker
from agentenv.retrievers.search_r1 import ROUTE, SearchR1Retriever
from agentenv.retrievers.simulation.simulated import SimulatedRetriever
from agentenv.retrievers.storage.retriever_folder import read_card
from agentenv.retrievers.web import WebRetriever
from agentenv.web.reach import refuse_unreachable

OWN = "python"
"""The kind of a user's own retriever."""
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
    """Makes the retriever that ``spec`` names.

    ``faiss:DIR``, ``bm25:DIR`` and ``hybrid:DIR`` are saved retrievers. ``rerank:MODEL@SPEC`` reorders the results of
    another one. ``simulated:SIMULATOR`` is a model in the role of the search engine, in the forms of
    `simulation.simulators.KINDS`. ``python:MODULE:NAME`` is the result of a user's class or function without arguments.
    ``http://HOST:PORT`` is a server of `agentenv retriever serve`, and ``http://HOST:PORT/retrieve`` any server with
    Search-R1's interface. ``web:NAME`` is a search engine. ``cassette:FILE`` replays a recording, and ``cassette:FILE@SPEC``
    also asks the retriever SPEC for what the file lacks, and records it.

    Raises:
        UnknownName: there is no such kind of retriever.
        ConfigurationError: what the spec names does not exist or is of another kind.
        IndexMismatch: encoder or corpus are not those of which the index was built.
        RetrieverFault: a server does not answer.
    """
    check_retriever(spec)
    kind, _, rest = spec.partition(":")
    return (OTHERS | {name: _folder_loader(name) for name in LOADERS})[kind](rest)


def shared_retriever(spec: str) -> Retriever:
    """The retriever that ``spec`` names, kept for the next call where it is a saved one: every environment asks for it.

    A folder whose files have changed is opened anew.

    Raises:
        AgentEnvError: as `make_retriever`.
    """
    kind, _, folder = spec.partition(":")
    if kind not in LOADERS or not folder:
        return make_retriever(spec)
    return _opened(spec, Path(folder).resolve(), path_state(Path(folder)), process_compute())


@lru_cache(maxsize=4)
def _opened(spec: str, folder: Path, state: PathState, compute: ComputeSettings) -> Retriever:
    return make_retriever(spec)


def check_retriever(spec: str) -> None:
    """Checks that a spec, and any spec inside it, names a kind of retriever; opens nothing.

    Raises:
        UnknownName: there is no such kind; the error carries the nearest name.
        ConfigurationError: it names a user's retriever without its module.
    """
    kind, _, rest = spec.partition(":")
    if kind not in (known := (*OTHERS, *LOADERS)):
        raise UnknownName.among("retriever", kind, known)
    if kind == OWN and not is_class(rest):
        raise ConfigurationError(f"{spec!r} names no retriever; write '{OWN}:MODULE:NAME'.")
    if kind in ("rerank", "cassette") and "@" in rest:
        check_retriever(rest.partition("@")[2])


def open_retriever(folder: Path | str) -> Retriever:
    """Opens the retriever saved in ``folder``, of the kind on its card.

    Raises:
        ConfigurationError: the folder contains no retriever, or its card names a kind that is not read from a folder.
        IndexMismatch: encoder or corpus are not those of which the index was built.
    """
    folder = Path(folder)
    # another author may have written it, so only kinds that read a folder are accepted
    kind = read_card(folder).kind
    if kind not in LOADERS:
        raise ConfigurationError(
            f"the card in {folder} names the kind {kind!r:.80}; a folder holds one of {', '.join(LOADERS)}"
        )
    return LOADERS[kind](folder)


def _folder_loader(kind: str) -> Callable[[str], Retriever]:
    def load(rest: str) -> Retriever:
        if not rest:
            raise ConfigurationError(f"{kind!r} names no folder; write '{kind}:DIR'.")
        return LOADERS[kind](Path(rest))

    return load


def _remote(scheme: str) -> Callable[[str], Retriever]:
    def connect(rest: str) -> Retriever:
        url = f"{scheme}:{rest}" if rest.startswith("//") else rest
        if url.rstrip("/").endswith(ROUTE):
            other = SearchR1Retriever(url)
            refuse_unreachable(other.url, RetrieverFault)
            other.check()
            return other
        retriever = RemoteRetriever(url)
        refuse_unreachable(retriever.url, RetrieverFault)
        retriever.info()  # fails before the first question if the server does not answer
        return retriever

    return connect


def _cassette(rest: str) -> Retriever:
    file, at, inner = rest.partition("@")
    if not file:
        raise ConfigurationError("'cassette' names no file; write 'cassette:FILE'.")
    return CassetteRetriever(Path(file), make_retriever(inner) if at else None)


def _own_retriever(rest: str) -> Retriever:
    make = own_part("retriever", rest, ())
    retriever: Retriever = made_part("retriever", f"{OWN}:{rest}", make, ("search", "info"))
    return retriever


OTHERS: dict[str, Callable[[str], Retriever]] = {
    "http": _remote("http"),
    "https": _remote("https"),
    "web": WebRetriever.named,
    "cassette": _cassette,
    "rerank": _rerank,
    "simulated": SimulatedRetriever.parse,
    OWN: _own_retriever,
}

FORMS = (
    *(f"{kind}:DIR" for kind in LOADERS),
    "http://HOST:PORT",
    "http://HOST:PORT/retrieve",
    "web:NAME",
    "cassette:FILE",
    "cassette:FILE@SPEC",
    "rerank:MODEL@SPEC",
    "simulated:SIMULATOR",
    "simulated:OPTION=VALUE,...@SIMULATOR",
    f"{OWN}:MODULE:NAME",
)
"""All forms of a spec, for messages."""
