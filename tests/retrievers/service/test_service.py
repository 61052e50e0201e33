"""Every route of the retrieval service: the shapes on the wire, what is refused and how, and what is counted."""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from agentenv.core.protocols import Retriever
from agentenv.core.types import Document
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever

for module in ("fastapi", "orjson", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.retrievers.service.app import make_app  # noqa: E402
from agentenv.retrievers.service.service import Service, ServiceLimits  # noqa: E402

WIKI = [
    Document("a", "Halvik", "A harbour town\non rocks."),
    Document("b", "Herring", "A smoked fish."),
    Document("c", "Herring", "It swims in schools."),
]
B = {"id": "b", "url": "b", "contents": '"Herring"\nA smoked fish.'}
C = {"id": "c", "url": "c", "contents": '"Herring"\nIt swims in schools.'}


class Wire:
    """A service and a client in front of it."""

    def __init__(
        self, retrievers: Mapping[str, Retriever] | None = None, *, token: str | None = None, **limits: Any
    ) -> None:
        self.service = Service(ServiceLimits(**limits), token=token)
        self.service.open(retrievers or {"wiki": InMemoryRetriever(WIKI)})
        self.app = make_app(self.service)

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        async def scene() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
                return await client.request(method, path, content=content, headers=headers)

        return asyncio.run(scene())

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        response = self.send("POST", path, body, **headers)
        return response.status_code, response.json()


@pytest.fixture(scope="module")
def wire() -> Wire:
    return Wire()


def test_retrieve_with_scores_has_search_r1s_shape(wire: Wire) -> None:
    body = {"queries": ["smoked fish", "herring schools"], "topk": 2, "return_scores": True}
    assert wire.post("/retrieve", body) == (
        200,
        {
            "result": [
                [{"document": B, "score": 2.0}],
                [{"document": C, "score": 2.0}, {"document": B, "score": 1.0}],
            ]
        },
    )


def test_retrieve_without_scores_has_search_r1s_shape(wire: Wire) -> None:
    body = {"queries": ["smoked fish", "herring schools"], "topk": 2, "return_scores": False}
    assert wire.post("/retrieve", body) == (200, {"result": [[B], [C, B]]})
    del body["return_scores"]
    assert wire.post("/retrieve", body) == (200, {"result": [[B], [C, B]]})


@pytest.mark.parametrize(
    "body",
    [
        {"query": "smoked fish"},
        {"queries": ["smoked fish"], "topk": None},
        {"queries": ["smoked fish"], "topk": 0},
        {"queries": ["smoked fish"], "top_n": 1, "return_score": False},
        {"queries": ["smoked fish"], "topk": 1, "a field of somebody else": 1},
    ],
)
def test_retrieve_takes_the_spellings_of_other_servers(wire: Wire, body: dict[str, Any]) -> None:
    assert wire.post("/retrieve", body) == (200, {"result": [[B]]})


def test_k_has_search_r1s_default() -> None:
    wire = Wire({"wiki": InMemoryRetriever([Document(str(n), "", "fish") for n in range(9)])})
    for body in ({"query": "fish"}, {"query": "fish", "topk": 0}):
        assert len(wire.post("/retrieve", body)[1]["result"][0]) == 3


def test_search_v1(wire: Wire) -> None:
    status, reply = wire.post("/v1/search", {"queries": ["herring schools", {"text": ""}], "k": 1})
    assert status == 200
    assert reply == {
        "version": "v1",
        "corpus": "wiki",
        "index": InMemoryRetriever(WIKI).info().fingerprint,
        "results": [[{"id": "c", "title": "Herring", "text": "It swims in schools.", "score": 2.0}], []],
        "complete": True,
        "missing": [],
    }


def test_access_by_id_and_by_address(wire: Wire) -> None:
    status, reply = wire.post(
        "/access",
        {"ids": ["a", "zz"], "urls": ["https://en.wikipedia.org/wiki/Herring", "https://x.example/y"]},
    )
    page = "A smoked fish.\nIt swims in schools."
    assert status == 200
    assert reply["result"] == [
        {
            "id": "a",
            "url": None,
            "title": "Halvik",
            "text": "A harbour town\non rocks.",
            "contents": '"Halvik"\nA harbour town\non rocks.',
        },
        None,
        {
            "id": "b",
            "url": "https://en.wikipedia.org/wiki/Herring",
            "title": "Herring",
            "text": page,
            "contents": f'"Herring"\n{page}',
        },
        None,
    ]


def test_the_address_of_a_found_document_opens_it(wire: Wire) -> None:
    """As ASearcher's clients go from a search to its pages."""
    _, found = wire.post("/retrieve", {"queries": ["smoked fish"], "topk": 1})
    ((document,),) = found["result"]
    _, opened = wire.post("/access", {"urls": [document["url"]]})
    assert opened["result"][0]["contents"] == document["contents"]


def test_several_corpora_by_field_and_by_path() -> None:
    wire = Wire(
        {"wiki": InMemoryRetriever(WIKI), "news": InMemoryRetriever([Document("n", "N", "fish news")])}
    )
    ask = {"queries": ["fish"], "k": 1}
    assert wire.post("/v1/search", ask)[1]["corpus"] == "wiki"
    for path, body in (("/v1/search", ask | {"corpus": "news"}), ("/corpora/news/v1/search", ask)):
        status, reply = wire.post(path, body)
        assert (status, reply["corpus"], reply["results"][0][0]["id"]) == (200, "news", "n")
    assert wire.post("/corpora/news/retrieve", {"query": "fish"})[1]["result"][0][0]["id"] == "n"
    assert wire.send("GET", "/corpora/news/v1/info").json()["documents"] == 1
    status, reply = wire.post("/corpora/newz/v1/search", ask)
    assert (status, reply["kind"]) == (404, "UnknownName")
    assert all(name in reply["error"] for name in ("'newz'", "'news'"))


def test_one_memory_keeps_corpora_apart() -> None:
    wire = Wire(
        {"wiki": InMemoryRetriever(WIKI), "news": InMemoryRetriever([Document("n", "N", "fish news")])}
    )
    for _ in range(2):
        for corpus, first in (("wiki", "b"), ("news", "n")):
            reply = wire.post("/v1/search", {"queries": ["fish"], "corpus": corpus})[1]
            assert reply["results"][0][0]["id"] == first


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        (
            "/v1/search",
            {"queries": ["a"], "k": 0},
            422,
            "k: Input should be greater than or equal to 1, not '0'.",
        ),
        ("/v1/search", {"queries": ["a"], "k": -3}, 422, "k: "),
        ("/v1/search", {"queries": ["a"], "k": 1001}, 422, "k is 1001; this server gives at most 1000."),
        ("/v1/search", {"queries": ["a"], "kk": 3}, 422, "kk: Extra inputs are not permitted"),
        ("/v1/search", {"queries": "a"}, 422, "queries: Input should be a valid array, not 'a'."),
        ("/v1/search", {"queries": [None]}, 422, "queries.0"),
        ("/v1/search", {"queries": ["a"], "timeout_s": 0}, 422, "timeout_s"),
        ("/v1/search", {}, 422, "queries: Field required."),
        ("/v1/search", [], 422, "body: "),
        ("/v1/search", b'{"queries": ["a"', 400, "Invalid JSON"),
        ("/v1/search", b"", 400, "Invalid JSON"),
        ("/v1/search", b"\xff\xfe", 400, "Invalid JSON"),
        ("/v1/search", b'{"queries": ["\\ud800"]}', 400, "Invalid JSON"),
        ("/retrieve", {"queries": ["a"], "topk": -1}, 422, "topk"),
        ("/retrieve", {"topk": 3}, 422, "queries: Field required."),
        ("/access", {"ids": "a"}, 422, "ids: "),
    ],
)
def test_wrong_requests_get_one_sentence(wire: Wire, path: str, body: Any, status: int, said: str) -> None:
    got, reply = wire.post(path, body)
    assert got == status
    assert said in reply["error"]
    assert set(reply) == {"error", "kind"}


def test_k_may_exceed_the_corpus(wire: Wire) -> None:
    status, reply = wire.post("/v1/search", {"queries": ["herring halvik"], "k": 1000})
    assert (status, len(reply["results"][0])) == (200, 3)


def test_blank_and_no_queries(wire: Wire) -> None:
    assert wire.post("/retrieve", {"queries": []}) == (200, {"result": []})
    assert wire.post("/search", {"query": ""}) == (200, {"result": [[]]})
    assert wire.post("/retrieve", {"queries": ["", " \t"], "return_scores": True}) == (
        200,
        {"result": [[], []]},
    )


def test_characters_of_every_plane_travel_unchanged() -> None:
    # One of each plane that has any, a combining mark, a zero, line separators, and noncharacters.
    planes = [chr(plane * 0x10000 + 0x2F0) for plane in range(17)]
    texts = [*planes, "e\u0301", "a\u0000b", "a\u2028b\u2029", "\ufffe\U0010ffff", "مرحبا", "👩‍👩‍👧"]
    wire = Wire(
        {
            "wiki": InMemoryRetriever(
                [Document(f"id {t}", f"T{t}", f"word{n} {t}") for n, t in enumerate(texts)]
            )
        }
    )
    status, reply = wire.post(
        "/v1/search", {"queries": [f"word{n}" for n in range(len(texts))] + texts, "k": 1}
    )
    assert status == 200
    got = [(one[0]["id"], one[0]["title"], one[0]["text"]) for one in reply["results"][: len(texts)]]
    assert got == [(f"id {t}", f"T{t}", f"word{n} {t}") for n, t in enumerate(texts)]
    assert len(reply["results"]) == 2 * len(texts)


def test_too_much_is_refused_by_name() -> None:
    wire = Wire(queue=5, body_bytes=2_000, query_chars=100, documents=5)
    status, reply = wire.post("/v1/search", {"queries": ["a"] * 6})
    assert status == 413
    assert re.search(r"\b6\b.*\b5\b", reply["error"])
    status, reply = wire.post("/v1/search", {"queries": ["a" * 101]})
    assert status == 413
    assert re.search(r"\b101\b.*\b100\b", reply["error"])
    status, reply = wire.post("/v1/search", {"queries": ["a" * 5_000]})
    assert status == 413
    assert re.search(r"\b2000\b", reply["error"])
    assert wire.post("/access", {"ids": ["a"] * 6})[0] == 413
    assert wire.post("/v1/search", {"queries": ["a" * 100] * 5})[0] == 200


def test_a_token_is_asked_for_everywhere_but_at_the_health_routes() -> None:
    wire = Wire(token="s3cret")
    ask = {"queries": ["fish"]}
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cret"}):
        status, reply = wire.post("/v1/search", ask, **header)
        assert (status, reply["kind"]) == (401, "Unauthorised")
        assert "s3cret" not in json.dumps(reply)
    assert wire.post("/v1/search", ask, Authorization="Bearer s3cret")[0] == 200
    assert wire.send("GET", "/v1/info").status_code == 401
    assert wire.send("GET", "/healthz").status_code == 200


def test_health_and_readiness_through_a_life() -> None:
    service = Service()
    wire = Wire()
    wire.service, wire.app = service, make_app(service)
    ask = {"queries": ["fish"]}

    def seen() -> tuple[int, str, int, str | None, int]:
        health, ready = wire.send("GET", "/healthz"), wire.send("GET", "/readyz")
        assert wire.send("GET", "/health").json() == health.json()
        search = wire.send("POST", "/v1/search", ask)
        return (
            health.status_code, health.json()["status"], ready.status_code, search.headers.get("retry-after"),
            search.status_code,
        )  # fmt: skip

    assert seen() == (200, "starting", 503, "1", 503)
    service.open({"wiki": InMemoryRetriever(WIKI)})
    assert seen() == (200, "ready", 200, None, 200)
    service.stop()
    assert seen() == (200, "stopping", 503, "1", 503)
    card = wire.send("GET", "/healthz").json()["corpora"][0]
    assert (card["corpus"], card["name"], card["documents"]) == ("wiki", "memory", 3)


def test_a_service_stopped_while_it_loads_does_not_become_ready() -> None:
    service = Service()
    service.stop()
    service.open({"wiki": InMemoryRetriever(WIKI)})
    assert service.state == "stopping"


def test_a_failing_search_is_status_500_with_its_reason_and_the_next_one_works() -> None:
    wire = Wire({"wiki": FaultyRetriever(InMemoryRetriever(WIKI), fail_on={0})})
    status, reply = wire.post("/retrieve", {"query": "fish"})
    assert (status, reply) == (500, {"error": "Search call 0 was told to fail.", "kind": "RetrieverFault"})
    assert wire.post("/retrieve", {"query": "fish"}) == (200, {"result": [[B]]})
    status, reply = wire.post("/access", {"ids": ["a"]})
    assert status == 404
    assert "wiki" in reply["error"]


def test_metrics_count_what_happened() -> None:
    wire = Wire()
    for _ in range(2):
        wire.post("/v1/search", {"queries": ["fish", "fish", "", "halvik"]})
    wire.post("/corpora/wiki/retrieve", b"{")
    response = wire.send("GET", "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    for line in (
        'agentenv_requests_total{route="/v1/search",status="200"} 2.0',
        'agentenv_requests_total{route="/retrieve",status="400"} 1.0',
        'agentenv_queries_total{corpus="wiki",source="searched"} 2.0',
        'agentenv_queries_total{corpus="wiki",source="cached"} 2.0',
        'agentenv_queries_total{corpus="wiki",source="blank"} 2.0',
        'agentenv_queue{corpus="wiki"} 0.0',
        'agentenv_batch_queries_sum{corpus="wiki",part=""} 2.0',
        'agentenv_request_seconds_count{route="/v1/search"} 2.0',
        "agentenv_ready 1.0",
    ):
        assert line in lines


def test_the_schema_describes_the_bodies(wire: Wire) -> None:
    paths = wire.send("GET", "/openapi.json").json()["paths"]
    body = paths["/v1/search"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["k"]["minimum"] == 1
    assert {
        "/retrieve",
        "/access",
        "/healthz",
        "/health",
        "/readyz",
        "/metrics",
        "/corpora/{corpus}/retrieve",
    } <= set(paths)
