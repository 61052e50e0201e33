"""What goes wrong around a service: nothing hangs, nothing is silently wrong, and the next request is served.

Malformed bodies, k = 0, k beyond the corpus, empty queries and odd characters stand in `test_service.py`.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentenv.core.types import Document, Passage, Query, RetrieverInfo
from agentenv.errors import RetrieverFault
from agentenv.retrievers.encoder import HashEncoder, Vectors
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.service.query_queue import ReplyCache
from agentenv.retrievers.service.sharded import ShardedRetriever
from agentenv.web.retries import RetryPolicy

for module in ("fastapi", "uvicorn", "orjson", "prometheus_client", "faiss"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.retrievers.faiss import FaissRetriever  # noqa: E402
from agentenv.retrievers.service.app import run_service  # noqa: E402
from agentenv.retrievers.service.service import Service, ServiceLimits  # noqa: E402
from agentenv.web.server import address_of, listen  # noqa: E402

WAIT_S = 120.0
DOCUMENTS = [Document(f"d{n}", f"Town {n}", f"herring wool clock{n % 9} bridge{n}") for n in range(90)]
QUERIES = [f"clock{n % 9} bridge{n}" for n in range(90)]


class Echo:
    """Each query finds itself; held up until `opened` where a gate is wanted."""

    def __init__(self) -> None:
        self.opened, self.asked = threading.Event(), threading.Event()
        self.opened.set()

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        self.asked.set()
        await asyncio.to_thread(self.opened.wait, WAIT_S)
        return [[Passage(str(query), "", "", 1.0)] for query in queries]

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("echo", 1, "echo")


class Fragile(HashEncoder):
    """Breaks on one word."""

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        if "poison" in texts:
            raise ValueError("tensor of the wrong shape")
        return super().encode_queries(texts)


def post(url: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/search", json=body, timeout=WAIT_S)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved retriever over `DOCUMENTS`."""
    folder = tmp_path_factory.mktemp("served") / "index"
    FaissRetriever.build(DOCUMENTS, HashEncoder()).save(folder)
    return folder


@pytest.fixture
def process(index: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`agentenv retriever serve` and its address; killed in the end."""
    command = [
        sys.executable,
        "-m",
        "agentenv.cli.main",
        "retriever",
        "serve",
        str(index),
        "--port",
        "0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr is not None
            line = child.stderr.readline()
            assert line.startswith("serving index at http://127.0.0.1:"), line + child.stderr.read()
            yield child, line.split()[-1]
        finally:
            child.kill()


def until_ready(url: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while httpx.get(f"{url}/readyz", timeout=WAIT_S).status_code != 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)


async def load(
    retriever: Any, rounds: int, after: int, event: Any
) -> list[tuple[str, list[Passage] | RetrieverFault]]:
    """Eight clients ask all queries ``rounds`` times; ``event`` happens once, after ``after`` answers."""
    outcomes: list[tuple[str, list[Passage] | RetrieverFault]] = []
    queries = iter(QUERIES * rounds)

    async def one_client() -> None:
        for query in queries:
            try:
                outcomes.append((query, (await retriever.search([query], 3))[0]))
            except RetrieverFault as fault:
                outcomes.append((query, fault))
            if len(outcomes) == after:
                event()

    await asyncio.wait_for(asyncio.gather(*(one_client() for _ in range(8))), WAIT_S)
    return outcomes


def check(outcomes: list[tuple[str, list[Passage] | RetrieverFault]]) -> tuple[int, int]:
    """Every answer is the one of its own query; how many there are, and how many faults."""
    alone = FaissRetriever.build(DOCUMENTS, HashEncoder())
    expected = dict(zip(QUERIES, asyncio.run(alone.search(QUERIES, 3)), strict=True))
    faults = sum(isinstance(outcome, RetrieverFault) for _, outcome in outcomes)
    for query, outcome in outcomes:
        if isinstance(outcome, list):
            assert [passage.id for passage in outcome] == [passage.id for passage in expected[query]]
    return len(outcomes) - faults, faults


def test_a_server_killed_under_load(process: tuple[subprocess.Popen[str], str], serving: Any) -> None:
    child, url = process
    until_ready(url)
    hasty = RemoteRetriever(url, timeouts=RetryPolicy(timeout_s=5.0, pause_s=0.001, tries=2))
    outcomes = asyncio.run(load(hasty, 2, 40, child.kill))
    answers, faults = check(outcomes)
    assert len(outcomes) == 180
    assert answers >= 40
    assert faults >= 1
    # A client that repeats requests does not notice that the server is away for a while.
    patient = RemoteRetriever(url, timeouts=RetryPolicy(timeout_s=WAIT_S, tries=1000, longest_pause_s=0.2))
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: asyncio.run(patient.search(["clock3 bridge12"], 1)))
        time.sleep(0.1)
        assert not waiting.done()
        same = FaissRetriever.build(DOCUMENTS, HashEncoder())
        with serving({"index": same}, port=int(url.rpartition(":")[2])):
            assert waiting.result(WAIT_S)[0][0].id == "d12"


def test_a_shard_killed_under_load(process: tuple[subprocess.Popen[str], str], serving: Any) -> None:
    child, url = process
    until_ready(url)
    retry_policy = RetryPolicy(timeout_s=5.0, pause_s=0.001, tries=2)
    other = [Document(f"e{n}", "Elsewhere", "nothing alike") for n in range(3)]
    with serving({"rows": FaissRetriever.build(other, HashEncoder())}) as second:
        shards = ShardedRetriever([RemoteRetriever(one, timeouts=retry_policy) for one in (url, second)])
        with serving({"all": shards}, cache=0) as front:
            outcomes = asyncio.run(load(RemoteRetriever(front, timeouts=retry_policy), 1, 30, child.kill))
            answers, faults = check(outcomes)
            assert answers >= 30
            assert faults >= 1  # never an answer out of the living shard alone
            partial = post(front, queries=["clock3 bridge12"], k=3, partial=True).json()
    assert (partial["complete"], partial["missing"]) == (False, [url])
    assert {passage["id"] for passage in partial["results"][0]} <= {"e0", "e1", "e2"}


@pytest.fixture
def _hears_hangups() -> Iterator[None]:
    """SIGHUP is not ignored, as it would be where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_server_well(
    number: signal.Signals, process: tuple[subprocess.Popen[str], str]
) -> None:
    child, url = process
    until_ready(url)
    assert post(url, queries=["clock3 bridge12"], k=1).json()["results"][0][0]["id"] == "d12"
    child.send_signal(number)
    out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, err) == (0, "")
    assert json.loads(out)["corpora"] == ["index"]
    assert json.loads(out)["requests"] == 1


def test_a_stop_answers_what_was_accepted_and_refuses_the_rest() -> None:
    echo, service = Echo(), Service()
    service.open({"echo": echo})
    echo.opened.clear()
    with listen("127.0.0.1", 0) as listening, ThreadPoolExecutor(2) as threads:
        url = address_of(listening)
        running = threads.submit(run_service, service, lambda: {}, listening)
        accepted = threads.submit(post, url, queries=["mine"])
        assert echo.asked.wait(WAIT_S)  # a request that is still being read may be refused
        service.stop()
        late = post(url, queries=["late"])
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        assert not accepted.done()
        echo.opened.set()
        assert accepted.result(WAIT_S).json()["results"][0][0]["id"] == "mine"
        running.result(WAIT_S)
    with pytest.raises(httpx.ConnectError):
        post(url, queries=["too late"])


def test_an_encoder_that_raises_fails_its_batch_and_no_other(serving: Any) -> None:
    retriever = FaissRetriever.build(DOCUMENTS, Fragile())
    with serving({"index": retriever}) as url:
        broken = post(url, queries=["poison"], k=1)
        assert broken.status_code == 500
        assert broken.json() == {
            "error": "faiss: ValueError: tensor of the wrong shape",
            "kind": "RetrieverFault",
        }
        assert post(url, queries=["clock3 bridge12"], k=1).json()["results"][0][0]["id"] == "d12"
        # The failure is not remembered as an answer.
        assert post(url, queries=["poison"], k=1).status_code == 500


def test_a_deadline_is_status_504_and_frees_the_queue(serving: Any) -> None:
    echo = Echo()
    echo.opened.clear()
    with serving({"echo": echo}, timeout_s=0.1, queue=1) as url:
        for _ in range(2):  # the second finds the place of the first free
            assert post(url, queries=["slow"]).status_code == 504
        echo.opened.set()
        assert post(url, queries=["quick"], timeout_s=WAIT_S).status_code in (200, 504)


def test_a_full_queue_is_status_429_with_retry_after(serving: Any) -> None:
    echo = Echo()
    echo.opened.clear()
    with serving({"echo": echo}, queue=1) as url, ThreadPoolExecutor(1) as thread:
        first = thread.submit(post, url, queries=["first"])
        deadline = time.monotonic() + WAIT_S
        while 'agentenv_queue{corpus="echo"} 1.0' not in httpx.get(f"{url}/metrics", timeout=WAIT_S).text:
            assert time.monotonic() < deadline
        full = post(url, queries=["second"])
        assert (full.status_code, full.headers["retry-after"], full.json()["kind"]) == (429, "1", "QueueFull")
        echo.opened.set()
        assert first.result(WAIT_S).json()["results"][0][0]["id"] == "first"


def test_a_slow_client_holds_nobody_up(serving: Any) -> None:
    with serving({"echo": Echo()}, body_s=0.5) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as slow:
            slow.sendall(
                b'POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"queries"'
            )
            assert post(url, queries=["quick"]).json()["results"][0][0]["id"] == "quick"
            answer = b""
            while chunk := slow.recv(4096):
                answer += chunk
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"The body did not arrive within 0.5 s." in answer


def test_a_client_that_leaves_or_never_reads_holds_nobody_up(serving: Any) -> None:
    with serving({"echo": Echo()}) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps({"queries": ["x" * 1000 + str(n) for n in range(3000)]}).encode()
        head = f"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as deaf:
            deaf.sendall(head + body)
            with socket.create_connection((host, int(port)), timeout=WAIT_S) as leaver:
                leaver.sendall(head + body[:100])
            assert post(url, queries=["quick"]).json()["results"][0][0]["id"] == "quick"


def test_a_query_of_ten_megabytes_is_refused_and_the_next_one_served(serving: Any) -> None:
    with serving({"echo": Echo()}) as url:
        refused = post(url, queries=["x" * 10 * 2**20])
        assert (refused.status_code, refused.json()["kind"]) == (413, "TooLarge")
        assert str(8 * 2**20) in refused.json()["error"]
        assert post(url, queries=["quick"]).status_code == 200
        found = asyncio.run(RemoteRetriever(url).search(["x" * 10 * 2**20], 3))
        assert len(found[0][0].id) == 32_768  # the client cuts what the server would refuse


def test_ten_thousand_queries_in_one_request_come_back_in_order(serving: Any) -> None:
    queries = [f"query {n}" for n in range(10_000)]
    with serving({"echo": Echo()}, timeout_s=WAIT_S) as url:
        answers = asyncio.run(RemoteRetriever(url, timeouts=RetryPolicy(timeout_s=WAIT_S)).search(queries, 3))
        assert [found[0].id for found in answers] == queries
        assert post(url, queries=["q"] * 20_000).status_code == 413


class Plenty(Echo):
    """A large corpus of long passages."""

    def info(self) -> RetrieverInfo:
        return RetrieverInfo("plenty", 10**6, "plenty")


@pytest.mark.parametrize("route", ["/retrieve", "/v1/search"])
@pytest.mark.parametrize(("queries", "k"), [(16_384, 500), (66, 1_000), (16_384, 5), (700, 100)])
def test_the_work_of_one_request_is_bounded(serving: Any, route: str, queries: int, k: int) -> None:
    with serving({"plenty": Plenty()}) as url:
        name = "topk" if route == "/retrieve" else "k"
        body = {"queries": ["q"] * queries, name: k}
        refused = httpx.post(url + route, json=body, timeout=WAIT_S)
        assert (refused.status_code, refused.json()["kind"]) == (413, "TooLarge")
        assert f"{queries} queries with k = {k}" in refused.json()["error"]
        body["queries"] = ["q"] * (65_536 // k)
        assert httpx.post(url + route, json=body, timeout=WAIT_S).status_code == 200


def test_the_work_of_all_requests_together_is_bounded_and_given_back(serving: Any) -> None:
    plenty = Plenty()
    plenty.opened.clear()
    with serving({"plenty": plenty}, passages_at_once=100) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(post, url, queries=["a", "b"], k=45)
        deadline = time.monotonic() + WAIT_S
        while 'agentenv_queue{corpus="plenty"} 2.0' not in httpx.get(f"{url}/metrics", timeout=WAIT_S).text:
            assert time.monotonic() < deadline
        refused = post(url, queries=["c"], k=11)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        with pytest.raises(httpx.TimeoutException):  # a client that leaves
            httpx.post(f"{url}/v1/search", json={"queries": ["d"], "k": 10}, timeout=0.2)
        plenty.opened.set()
        assert first.result(WAIT_S).status_code == 200
        for bad in (
            {"queries": ["e"], "k": 101},
            {"queries": ["f"], "k": 0},
            {"queries": ["g"], "corpus": "x"},
        ):
            assert post(url, **bad).status_code in (404, 422, 429)
        # All is given back, whoever left or was refused.
        while post(url, queries=["h"], k=100).status_code != 200:
            assert time.monotonic() < deadline


def test_what_is_remembered_is_bounded_in_characters() -> None:
    memory = ReplyCache(10)
    for n in range(200):
        memory.put(("index", 3, f"{n}"), ([Passage(f"{n}", "t", "x" * 9_000, 1.0)], ()))
        memory.put(("index", 3, "again"), ([Passage(f"{n}", "t", "x" * (n % 7), 1.0)], ()))
        memory.put(("index", 3, f"{n}" + "q" * 3_000), ([], ()))
        assert 0 < memory.chars <= 10 * 4_096
        assert 0 < len(memory) <= 10
    memory.put(("index", 1_000, "huge"), ([Passage("p", "t", "x" * 10**6, 1.0)], ()))
    assert (len(memory), memory.chars) == (0, 0)


def test_opening_documents_is_bounded(serving: Any) -> None:
    chunks = [Document(f"d{n}", "One page", "x" * 1_000) for n in range(100)]
    with serving({"memory": InMemoryRetriever(chunks)}, documents=50, text_chars=250_000) as url:

        def access(**body: Any) -> int:
            return httpx.post(f"{url}/access", json=body, timeout=WAIT_S).status_code

        assert access(ids=["d1"] * 50) == 200
        assert access(ids=["d1"] * 51) == access(ids=["d1"] * 26, urls=["d1"] * 25) == 413
        page = "http://x/wiki/One_page"
        assert access(urls=[page] * 2) == 200
        assert access(urls=[page] * 3) == access(ids=["d1"] * 40, urls=[page, page, page]) == 413


def test_a_client_asks_for_much_in_several_requests() -> None:
    asked: list[int] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/info":
            return httpx.Response(200, json={"fingerprint": "f"})
        queries = json.loads(request.content)["queries"]
        asked.append(len(queries))
        found = [[{"id": query, "title": "", "text": "", "score": 1.0}] for query in queries]
        return httpx.Response(200, json={"index": "f", "results": found, "missing": []})

    retriever = RemoteRetriever("http://x", transport=httpx.MockTransport(answer))
    queries = [f"q{n}" for n in range(1_000)]
    found = asyncio.run(retriever.search(queries, 100))
    assert [passages[0].id for passages in found] == queries
    assert asked == [327, 327, 327, 19]


def test_odd_http_is_refused(serving: Any) -> None:
    with serving({"memory": InMemoryRetriever(DOCUMENTS)}) as url:
        wrong_method = httpx.get(f"{url}/v1/search", timeout=WAIT_S)
        assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")
        nowhere = httpx.post(f"{url}/nowhere", timeout=WAIT_S)
        assert nowhere.status_code == 404
        assert [sorted(one.json()) for one in (wrong_method, nowhere)] == [["error", "kind"]] * 2
        assert "/nowhere" in nowhere.json()["error"]
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw:
            raw.sendall(b"\x16\x03\x01\x00 no HTTP at all\r\n\r\n")
            assert raw.recv(4096).startswith(b"HTTP/1.1 400")
        assert post(url, queries=["clock3"]).status_code == 200


def test_limits_have_sane_defaults() -> None:
    limits = ServiceLimits()
    assert limits.queue >= 10_000
    assert limits.timeout_s < 35  # GRACE_S of the server covers it
