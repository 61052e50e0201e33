"""Search engines behind JSON APIs, against fake ones on a local socket: what is sent, what is read, what stays secret."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from agentenv.core.types import Passage
from agentenv.errors import ConfigurationError, RetrieverFault, UnknownName
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.retrievers.web import BLOCKED_VARIABLE, WebRetriever
from agentenv.web.retries import RetryPolicy

KEY = "k3y-of-a-test"
QUICK = RetryPolicy(timeout_s=30.0, pause_s=0.001, tries=3)


class Engine:
    """A fake search engine that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.answer: Any = None

    def reply(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(path)
        params = {name: values[0] for name, values in parse_qs(parts.query).items()}
        asked = json.loads(body) if body else params
        self.asked.append({"method": method, "path": parts.path, "key": headers.get("X-API-KEY"), **asked})
        status = self.statuses.pop(0) if self.statuses else 200
        return status, self._results(asked["q"]) if self.answer is None else self.answer

    def _results(self, query: str) -> dict[str, Any]:
        urls = [f"https://site{n}.example/{query}" for n in range(12)]
        return {
            "organic": [{"link": url, "title": f"T {url}", "snippet": "serper snippet"} for url in urls],
            "results": [{"url": url, "title": f"T {url}", "content": "searxng snippet"} for url in urls],
        }


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A running fake engine; the environment names it and a key."""
    fake = Engine()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, reply = fake.reply(self.command, self.path, self.headers, body)
            content = json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    for name, value in (("SERPER_URL", url), ("SEARXNG_URL", url), ("SERPER_API_KEY", KEY)):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(BLOCKED_VARIABLE, raising=False)
    yield fake
    server.shutdown()
    server.server_close()
    thread.join(30)


def ask(name: str, *queries: str, k: int = 2) -> list[list[Passage]]:
    return asyncio.run(WebRetriever.named(name, retry_policy=QUICK).search(queries, k))


def test_serper(engine: Engine) -> None:
    ((first, second),) = ask("serper", " smoked  herring ")
    assert engine.asked == [
        {"method": "POST", "path": "/search", "key": KEY, "q": "smoked herring", "num": 2}
    ]
    url = "https://site0.example/smoked herring"
    assert first == Passage(url, f"T {url}", "serper snippet", 1.0)
    assert (second.id, second.score) == ("https://site1.example/smoked herring", 0.5)


def test_searxng_needs_no_key(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPER_API_KEY")
    ((first, _),) = ask("searxng", "日本 & more?")
    assert engine.asked == [
        {"method": "GET", "path": "/search", "key": None, "q": "日本 & more?", "format": "json"}
    ]
    assert first.text == "searxng snippet"


@pytest.mark.parametrize("name", ["serper", "searxng"])
def test_a_query_of_any_length_is_one_that_an_engine_takes(engine: Engine, name: str) -> None:
    """Engines refuse long queries, and where that failed a policy could write one to have its episode masked."""
    assert ask(name, "中" * 100_000)[0]
    assert [len(asked["q"]) for asked in engine.asked] == [500]


def test_each_distinct_query_is_asked_once_and_blank_ones_never(engine: Engine) -> None:
    answers = ask("serper", "a", "", "b", "a", k=1)
    assert [[p.id for p in found] for found in answers] == [
        ["https://site0.example/a"], [], ["https://site0.example/b"], ["https://site0.example/a"],
    ]  # fmt: skip
    assert sorted(asked["q"] for asked in engine.asked) == ["a", "b"]


def test_passing_failures_are_tried_again_and_others_are_faults(engine: Engine) -> None:
    engine.statuses = [429, 503]
    assert len(ask("serper", "a")[0]) == 2
    engine.statuses = [403]
    with pytest.raises(RetrieverFault, match="status 403"):
        ask("serper", "a")
    engine.statuses = [500]
    with pytest.raises(RetrieverFault, match="status 500"):
        ask("searxng", "a")


@pytest.mark.parametrize("answer", [[], "text", {"organic": {}}, {"organic": ["x"]}])
def test_answers_of_another_shape_are_faults(engine: Engine, answer: Any) -> None:
    engine.answer = answer
    with pytest.raises(RetrieverFault, match="'organic'"):
        ask("serper", "a")


def test_odd_results_are_left_out(engine: Engine) -> None:
    odd = [{"title": "no link"}, {"link": "u", "title": None}, {"link": "u"}, {"link": "v", "snippet": "s"}]
    engine.answer = {"organic": odd}
    assert ask("serper", "a", k=9) == [[Passage("u", "", "", 1.0), Passage("v", "", "s", 0.5)]]
    engine.answer = {}
    assert ask("serper", "a") == [[]]


def test_blocked_hosts_never_come_back(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    open_info = WebRetriever.named("serper").info()
    monkeypatch.setenv(BLOCKED_VARIABLE, "Site0.example, hub.example")
    engine.answer = {
        "organic": [
            {"link": f"https://{host}/x"}
            for host in ("site0.example", "www.hub.example:443", "nothub.example", "[bad", "site00.example")
        ]
    }
    assert [passage.id for passage in ask("serper", "a", k=9)[0]] == [
        "https://nothub.example/x",
        "https://site00.example/x",
    ]
    assert WebRetriever.named("serper").info().fingerprint != open_info.fingerprint


def test_the_key_stands_in_no_log_no_error_and_no_description(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    retriever = WebRetriever.named("serper", retry_policy=QUICK)
    asyncio.run(retriever.search(["a"], 1))
    engine.statuses = [401]
    with pytest.raises(RetrieverFault) as caught:
        asyncio.run(retriever.search(["b"], 1))
    assert engine.asked[0]["key"] == KEY
    assert caplog.text
    assert KEY not in f"{caplog.text} {caught.value!r} {retriever!r} {retriever.info()!r}"


def test_specs_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERPER_API_KEY", "SEARXNG_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match=r"web:serper.*SERPER_API_KEY"):
        make_retriever("web:serper")
    with pytest.raises(ConfigurationError, match=r"web:searxng.*SEARXNG_URL"):
        make_retriever("web:searxng")
    with pytest.raises(UnknownName, match=r"'serpr'.*'serper'"):
        make_retriever("web:serpr")
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    info = make_retriever("web:serper").info()
    assert (info.name, info.documents, info.contextual) == ("serper", 0, False)


def test_a_query_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for them any more, and each may be paid for."""
    ended: list[str] = []
    monkeypatch.setenv("SEARXNG_URL", "http://engine.example")

    async def run() -> list[str]:
        begun = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            if request.url.params["q"] == "refused":
                await begun.wait()
                return httpx.Response(403)
            begun.set()
            try:
                await asyncio.sleep(30)
            finally:
                ended.append(request.url.params["q"])
            return httpx.Response(200, json={"results": []})

        retriever = WebRetriever.named("searxng", transport=httpx.MockTransport(answer))
        with pytest.raises(RetrieverFault):
            await retriever.search(["refused", "slow"], 3)
        return list(ended)

    assert asyncio.run(run()) == ["slow"]
