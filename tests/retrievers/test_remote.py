"""A remote retriever is the one behind the server: the contract suite passes, environments cannot tell, faults are typed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Passage, Query, QueryContext, RetrieverInfo
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.remote import TOKEN_VARIABLE, RemoteRetriever
from agentenv.retrievers.retriever_contract import DOCUMENTS, RetrieverContract
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.web.retries import RetryPolicy

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.retrievers.service.app import make_app  # noqa: E402
from agentenv.retrievers.service.service import Service, ServiceLimits  # noqa: E402

QUICK = RetryPolicy(timeout_s=30.0, pause_s=0.001, tries=3)


def behind(retriever: Retriever, *, token: str | None = None, **limits: Any) -> RemoteRetriever:
    """A client of a server in the same process."""
    service = Service(ServiceLimits(**limits), token=token)
    service.open({"corpus": retriever})
    return RemoteRetriever("http://test", timeouts=QUICK, transport=httpx.ASGITransport(make_app(service)))


class TestRemote(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return behind(InMemoryRetriever(documents))


class TestRemoteWithoutMemory(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        return behind(InMemoryRetriever(documents), cache=0)


class TestRemoteFaiss(RetrieverContract):
    def make(self, documents: Sequence[Document]) -> Retriever:
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")
        from agentenv.retrievers.encoder import HashEncoder
        from agentenv.retrievers.faiss import FaissRetriever

        return behind(FaissRetriever.build(documents, HashEncoder()))


def test_a_query_longer_than_servers_take_is_cut_and_not_refused() -> None:
    """A refusal would mask the episode of the policy that wrote it."""
    documents = [Document("a", "Vel", "a town"), Document("b", "Tor", "a river")]
    ((found,),) = asyncio.run(behind(InMemoryRetriever(documents)).search(["town " + "x" * 100_000], 1))
    assert found.id == "a"


class Contextual:
    """Answers with the question behind the query."""

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        contexts = [query.context for query in queries if isinstance(query, Query)]
        return [[Passage(str(context), "", "", 1.0)] for context in contexts]

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("simulated", 0, "s", contextual=True)


class Replies(httpx.AsyncBaseTransport):
    """A server that answers a path with fixed JSON."""

    def __init__(self, **replies: Any) -> None:
        self.replies = {"info": card(), **replies}
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(await request.aread())
        return httpx.Response(200, json=self.replies[request.url.path.rpartition("/")[2]])


def card(**changes: Any) -> dict[str, Any]:
    return {"name": "faiss", "documents": 3, "fingerprint": "f" * 64, "contextual": False, **changes}


def fault_of(**replies: Any) -> str:
    retriever = RemoteRetriever("http://test", timeouts=QUICK, transport=Replies(**replies))
    with pytest.raises(RetrieverFault) as caught:
        asyncio.run(retriever.search(["herring"], 3))
    return str(caught.value)


def test_results_are_those_of_the_retriever_in_the_process() -> None:
    inner = InMemoryRetriever(DOCUMENTS)
    remote = behind(inner)
    queries = ["Orla Venn", "", "herring \u2028 日本 \U0010fffd", "Orla  Venn"]
    assert asyncio.run(remote.search(queries, 4)) == asyncio.run(inner.search(queries, 4))
    assert remote.info() == inner.info()


def test_an_environment_cannot_tell() -> None:
    inner = InMemoryRetriever(DOCUMENTS)
    seen = []
    for retriever in (inner, behind(inner)):
        env = LocalSearch(retriever=retriever)
        env.reset(seed=3)
        step = env.step("<search>Orla Venn\nherring</search>")
        seen.append((step.observation[0].text, step.reward, step.info["tool_results"]))
    assert "Orla Venn was an engineer" in str(seen[0])
    assert seen[0] == seen[1]


def test_a_fault_of_the_server_is_a_fault_of_ours_in_an_environment() -> None:
    env = LocalSearch(retriever=behind(FaultyRetriever(InMemoryRetriever(DOCUMENTS), fail_on={0})))
    env.reset(seed=3)
    with pytest.raises(RetrieverFault, match=r"\b500\b.*\b0\b"):
        env.step("<search>Orla Venn</search>")


def test_nothing_is_asked_where_nothing_is_wanted() -> None:
    server = Replies()
    retriever = RemoteRetriever("http://test", transport=server)
    assert asyncio.run(retriever.search(["", " "], 3)) == [[], []]
    with pytest.raises(ConfigurationError, match="k is 0"):
        asyncio.run(retriever.search(["herring"], 0))
    assert server.bodies == []


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = InMemoryRetriever(DOCUMENTS)
    monkeypatch.setenv(TOKEN_VARIABLE, "s3cret")
    assert asyncio.run(behind(inner, token="s3cret").search(["herring"], 1))[0]
    monkeypatch.delenv(TOKEN_VARIABLE)
    with pytest.raises(RetrieverFault, match=r"\b401\b"):
        asyncio.run(behind(inner, token="s3cret").search(["herring"], 1))


def test_context_goes_only_to_retrievers_that_depend_on_it() -> None:
    query = Query("herring", QueryContext("e1", "the question", ("the gold answer",), 2, "test", 5))
    server = Replies(search={"index": "f" * 64, "results": [[]], "missing": []})
    asyncio.run(RemoteRetriever("http://test", transport=server).search([query], 1))
    assert b"gold" not in b"".join(server.bodies)
    ((passage,),) = asyncio.run(behind(Contextual()).search([query], 1))
    assert passage.id == str(query.context)


def test_another_index_than_before_is_a_fault() -> None:
    said = fault_of(search={"index": "e" * 64, "results": [[]], "missing": []})
    assert "e" * 12 in said
    assert "f" * 12 in said


PASSAGE = {"id": "a", "title": "b", "text": "c", "score": 1.0}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ([], "no 'index' in its answer"),
        ({"result": []}, "no 'index' in its answer"),
        ({"index": "f" * 64, "results": [], "missing": []}, "0 results for 1 questions"),
        ({"index": "f" * 64, "results": [[{"id": "a"}]], "missing": []}, "passages of another shape"),
        ({"index": "f" * 64, "results": [[{"id": "a", "name": "b"}]], "missing": []}, "another shape"),
        ({"index": "f" * 64, "results": [[PASSAGE | {"score": 10**400}]], "missing": []}, "the score 1000"),
    ],
)
def test_answers_of_another_shape_are_one_sentence(reply: Any, said: str) -> None:
    assert said in fault_of(search=reply)


def test_documents() -> None:
    remote = behind(InMemoryRetriever(DOCUMENTS))
    found = asyncio.run(remote.documents(["d4", "none"], ["https://en.wikipedia.org/wiki/Halvik"]))
    assert [one and one["id"] for one in found] == ["d4", None, "d4"]


def test_a_full_queue_is_waited_for(serving: Any) -> None:
    # One place, eight clients: all are served in the end, because 429 is tried again.
    with serving({"corpus": InMemoryRetriever(DOCUMENTS)}, queue=1, cache=0) as url:
        retriever = RemoteRetriever(url, timeouts=RetryPolicy(timeout_s=60.0, tries=60))

        async def crowd() -> list[list[list[Passage]]]:
            return await asyncio.gather(*(retriever.search([f"herring {n}"], 1) for n in range(8)))

        answers = asyncio.run(crowd())
    alone = asyncio.run(InMemoryRetriever(DOCUMENTS).search(["herring 0"], 1))
    assert all(answer == alone for answer in answers)


def test_specs(serving: Any) -> None:
    with serving({"first": InMemoryRetriever(DOCUMENTS), "second": InMemoryRetriever(DOCUMENTS[:2])}) as url:
        assert make_retriever(url).info().documents == 6
        assert make_retriever(f"http:{url}/corpora/second").info().documents == 2
        assert asyncio.run(make_retriever(url).search(["smoked herring fish"], 1))[0][0].id == "d5"
        with pytest.raises(RetrieverFault, match=r"\b404\b.*'third'"):
            make_retriever(f"{url}/corpora/third")
