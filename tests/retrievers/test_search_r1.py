"""A server of Search-R1: the contract suite passes against our own route of it, and an answer of another form is a fault."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage
from agentenv.errors import RetrieverFault
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.retriever_contract import RetrieverContract
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.retrievers.search_r1 import SearchR1Retriever
from agentenv.web.retries import RetryPolicy

QUICK = RetryPolicy(timeout_s=30.0, pause_s=0.001, tries=2)


class Server(httpx.AsyncBaseTransport):
    """Knows ``POST /retrieve`` alone and answers it with fixed JSON, as Search-R1's own server does."""

    def __init__(self, reply: Any, status: int = 405) -> None:
        self.reply, self.status = reply, status

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        known = request.method == "POST" and request.url.path == "/retrieve"
        return httpx.Response(200, json=self.reply) if known else httpx.Response(self.status, text="no")


def asking(*documents: dict[str, Any], **entry: Any) -> list[Passage]:
    found = [{"document": document, "score": 0.5, **entry} for document in documents]
    retriever = SearchR1Retriever("http://test/retrieve", transport=Server({"result": [found]}))
    (ranking,) = asyncio.run(retriever.search(["mill"], 3))
    return ranking


class TestSearchR1(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("fastapi", reason="fastapi is not installed")
        from agentenv.retrievers.service.app import make_app
        from agentenv.retrievers.service.service import Service, ServiceLimits

        service = Service(ServiceLimits())
        service.open({"corpus": InMemoryRetriever(documents)})
        transport = httpx.ASGITransport(make_app(service))
        return SearchR1Retriever("http://test/retrieve", timeouts=QUICK, transport=transport)

    def test_info_says_name_size_and_fingerprint(self) -> None:
        """The interface has no word for the index."""
        info = self.make([Document("1", "", "a")]).info()
        assert (info.name, info.documents, info.contextual) == ("http://test/retrieve", 0, False)
        assert info.fingerprint != SearchR1Retriever("http://other/retrieve").info().fingerprint


def test_the_forms_of_documents_that_servers_give_are_read() -> None:
    ranking = asking(
        {"id": "7", "contents": '"Mill"\nBuilt by Ada.'},
        {"id": 8, "title": "Fox", "text": "An animal.", "contents": "Fox\nAn animal."},
        {"contents": '"Web"\nA snippet without an id.'},
    )
    assert ranking[0] == Passage("7", "Mill", "Built by Ada.", 0.5)
    assert ranking[1] == Passage("8", "Fox", "An animal.", 0.5)
    assert (ranking[2].title, ranking[2].text, len(ranking[2].id)) == ("Web", "A snippet without an id.", 12)


def test_passages_without_scores_keep_the_order_of_the_server() -> None:
    """Search-R1's servers of web searches give none, and every search of them ended as a failure of the retriever."""
    found = [{"document": {"contents": f'"{title}"\nA snippet.'}} for title in "cab"]
    retriever = SearchR1Retriever("http://test/retrieve", transport=Server({"result": [found]}))
    (ranking,) = asyncio.run(retriever.search(["mill"], 3))
    assert [(passage.title, passage.score) for passage in ranking] == [("c", 0.0), ("a", 0.0), ("b", 0.0)]


def test_no_more_passages_than_were_asked_for_and_none_for_a_blank_query() -> None:
    entry = {"document": {"id": "1", "contents": "a"}, "score": 1}
    retriever = SearchR1Retriever("http://test/retrieve", transport=Server({"result": [[entry] * 5]}))
    assert [len(one) for one in asyncio.run(retriever.search(["", "mill", " "], 2))] == [0, 2, 0]


@pytest.mark.parametrize(
    "reply",
    [
        {},
        [],
        {"result": []},
        {"result": "no"},
        {"result": [[{"id": "1", "contents": "without scores"}]]},
        {"result": [[{"document": {"id": "1"}, "score": 1}]]},
        {"result": [[{"document": {"contents": 5}, "score": 1}]]},
        {"result": [[{"document": {"contents": "a"}, "score": "high"}]]},
        {"result": [None]},
    ],
)
def test_an_answer_of_another_form_is_a_fault_that_names_the_server(reply: Any) -> None:
    retriever = SearchR1Retriever("http://test/retrieve", transport=Server(reply))
    with pytest.raises(RetrieverFault, match="http://test/retrieve"):
        asyncio.run(retriever.search(["mill"], 3))
    with pytest.raises(RetrieverFault, match="http://test/retrieve"):
        retriever.check()


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_that_knows_this_route_alone_is_told_of_by_it(status: int) -> None:
    """The guide said that its address was enough, and the client asked for routes that it does not have."""
    retriever = RemoteRetriever("http://test", timeouts=QUICK, transport=Server({}, status))
    with pytest.raises(RetrieverFault, match="http://test/retrieve"):
        retriever.info()


def test_a_server_that_does_not_answer_is_told_of_when_it_is_named() -> None:
    with pytest.raises(RetrieverFault, match=r"127\.0\.0\.1:9"):
        make_retriever("http://127.0.0.1:9/retrieve")
