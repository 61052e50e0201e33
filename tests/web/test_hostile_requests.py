"""Requests in forms that no client of ours sends: targets with a host, many ahead of the answers, tokens in other spellings.

Every row is tried against every server of the package.
"""

import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

for module in ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client", "websockets"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.core.types import Document  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.errors import ConfigurationError  # noqa: E402
from agentenv.policies.chat_server import make_chat_app  # noqa: E402
from agentenv.retrievers.fakes import InMemoryRetriever  # noqa: E402
from agentenv.retrievers.service.app import make_app  # noqa: E402
from agentenv.retrievers.service.service import Service  # noqa: E402
from agentenv.serving.app import make_app as make_env_app  # noqa: E402
from agentenv.serving.service import EnvService  # noqa: E402
from agentenv.web.client import bearer  # noqa: E402
from agentenv.web.connections import ConnectionLimits  # noqa: E402
from agentenv.web.gate import Gate, token_in  # noqa: E402
from agentenv.web.server import listen, run_app  # noqa: E402
from agentenv.web.sockets import bounded_socket  # noqa: E402

WAIT_S = 60.0
LIMITS = ConnectionLimits(headers_s=2.0, headers_bytes=8_192, write_s=0.5, pipelined=8)
TOKEN = "s3cret-Token"


def retrieval() -> tuple[Any, Gate, str]:
    service = Service(token=TOKEN)
    service.open({"memory": InMemoryRetriever([Document("a", "Town", "a clock " * 50)])})
    return make_app(service), service, "/v1/search"


def environments() -> tuple[Any, Gate, str]:
    service = EnvService("agentenv/Calculator-v0", token=TOKEN)
    service.open(Calculator)
    return make_env_app(service), service, "/mcp"


def chat() -> tuple[Any, Gate, str]:
    gate = Gate(TOKEN)
    return make_chat_app(None, "model", gate, at_once=4), gate, "/v1/chat/completions"  # type: ignore[arg-type]


@pytest.fixture(
    params=[retrieval, environments, chat], ids=["retrieval", "environments", "chat"], scope="module"
)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """The port of one of the servers, and a route of it that wants the token."""
    app, gate, route = request.param()
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(
            target=run_app,
            args=(app, gate, gate.ready, listening, ("trusted.example",)),
            kwargs={"connections": LIMITS, "ws": bounded_socket(LIMITS)},
            daemon=True,
        )
        thread.start()
        number = int(listening.getsockname()[1])
        while httpx.get(f"http://127.0.0.1:{number}/health", timeout=WAIT_S).status_code != 200:
            time.sleep(0.01)
        yield number, route
        gate.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def answer_of(port: int, request: bytes) -> bytes:
    """Everything that the server says, up to the end of the connection."""
    parts = []
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as peer:
        try:
            peer.sendall(request)
            while part := peer.recv(2**16):
                parts.append(part)
        except (ConnectionResetError, BrokenPipeError):
            pass
    return b"".join(parts)


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


TARGETS = {
    "http://evil.example/health": 403,
    "http://evil.example:80/health": 403,
    "HTTP://evil.example/health": 403,
    "https://evil.example/health": 403,
    "ftp://evil.example/health": 403,
    "http://evil.example?x=http://localhost/health": 403,
    "http://localhost@evil.example/health": 403,
    "http://evil.example#@localhost/health": 403,
    "http://127.0.0.1.evil.example/health": 403,
    "http:///health": 403,
    "http://localhost/health": 200,
    "http://localhost:80/health": 200,
    "http://127.0.0.1/health?x=1": 200,
    "http://trusted.example/health": 200,
    "/health?x=http://evil.example/": 200,
    "//evil.example/health": 404,
    "/http://evil.example/health": 404,
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_host_of_a_target_counts_and_not_the_header(server: tuple[int, str], target: str) -> None:
    """A target with a host is what a proxy gets; a server has to go by it (RFC 9112, section 3.2.2)."""
    head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = answer_of(server[0], head.encode())
    assert statuses(answer) == [TARGETS[target]] or (TARGETS[target] != 200 and statuses(answer) == [400])
    if TARGETS[target] == 200:  # what the header says does not count
        other = head.replace("localhost\r\n", "evil.example\r\n")
        assert statuses(answer_of(server[0], other.encode())) == [403 if target.startswith("/") else 200]


@pytest.mark.parametrize(
    "request_line", ["CONNECT evil.example:80", "OPTIONS *", "GET evil.example", "CONNECT /"]
)
def test_targets_of_no_resource_are_refused(server: tuple[int, str], request_line: str) -> None:
    answer = answer_of(
        server[0], f"{request_line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    )
    assert all(400 <= code < 500 for code in statuses(answer))
    assert statuses(
        answer_of(server[0], b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    ) == [200]


def test_a_websocket_with_a_host_in_its_target_is_checked_too(server: tuple[int, str]) -> None:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    upgrade += "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    answer = answer_of(
        server[0], f"GET http://evil.example/ws HTTP/1.1\r\nHost: localhost\r\n{upgrade}".encode()
    )
    assert statuses(answer) in ([403], [400])


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("count", [100, 6_000])
def test_requests_far_ahead_of_the_answers_end_the_connection(server: tuple[int, str], count: int) -> None:
    """Each takes a thousand times the memory of its bytes until it is answered."""
    answer = answer_of(
        server[0], GET * (count - 1) + GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )
    assert len(statuses(answer)) < 50
    assert statuses(answer_of(server[0], GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) == [200]


def test_a_few_requests_ahead_of_the_answers_are_answered_in_order(server: tuple[int, str]) -> None:
    paths = [b"/health", b"/nowhere", b"/openapi.json", b"/health", b"/nothing"]
    request = b"".join(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path for path in paths)
    last = b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert statuses(answer_of(server[0], request + last)) == [200, 404, 200, 200, 404, 404]


SMUGGLED = {
    "two lengths": b"Content-Length: 5\r\nContent-Length: 60\r\n\r\n",
    "a length and chunks": b"Content-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks of another spelling": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a length with a sign": b"Content-Length: +5\r\n\r\nabcde",
    "a folded header": b"X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a header without a name": b": x\r\n\r\n",
    "a bare return": b"X: a\rTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("form", SMUGGLED)
def test_no_request_hides_behind_another(server: tuple[int, str], form: str) -> None:
    """Of two readings of one message a proxy might take the other one."""
    port, route = server
    head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\n".encode() + SMUGGLED[form]
    answer = answer_of(
        port, head + b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert set(statuses(answer)) <= {400}
    assert b"openapi" not in answer


LETS_IN = (
    f"Bearer {TOKEN}",
    f"bearer {TOKEN}",
    f"BEARER {TOKEN}",
    f"Bearer   {TOKEN}",
    f"  Bearer {TOKEN}  ",
    f"\tBearer {TOKEN}\t",
)
KEEPS_OUT = (
    "",
    "Bearer",
    "Bearer ",
    TOKEN,
    f"Bearer{TOKEN}",
    f"Bearer\t{TOKEN}",
    f"Bearer {TOKEN.lower()}",
    f"Bearer {TOKEN.upper()}",
    f"Bearer {TOKEN} x",
    f"Bearer x {TOKEN}",
    f"Bearer {TOKEN}, Bearer {TOKEN}",
    f"Bearer {TOKEN}\xa0",
    f"Bearer \xe4{TOKEN}",
    f"Bearer '{TOKEN}'",
    f"Basic {TOKEN}",
    f"Bearer {TOKEN[:-1]}",
    f"Bearer {TOKEN}{TOKEN}",
)


def asked(server: tuple[int, str], *headers: str) -> list[int]:
    port, route = server
    lines = "".join(f"{header}\r\n" for header in headers)
    head = (
        f"POST {route} HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: 2\r\nConnection: close\r\n\r\n[]"
    )
    return statuses(answer_of(port, head.encode("latin-1")))


def test_a_token_is_known_in_every_spelling_of_the_header_and_in_no_other(server: tuple[int, str]) -> None:
    for spelling in LETS_IN:
        for name in ("Authorization", "authorization", "AUTHORIZATION"):
            assert asked(server, f"{name}: {spelling}")[0] in (400, 422), spelling
    for spelling in KEEPS_OUT:
        assert asked(server, f"Authorization: {spelling}") == [401], spelling
    assert asked(server) == [401]
    assert asked(server, f"Authorization : Bearer {TOKEN}") == [400]
    assert asked(server, f"X-Authorization: Bearer {TOKEN}", f"Proxy-Authorization: Bearer {TOKEN}") == [401]
    assert asked(server, "Authorization: Bearer x", f"Authorization: Bearer {TOKEN}") == [401]


@pytest.mark.parametrize("token", ["", " ", "\n", "two words", "t\tb", "\xe4", "\u4e2d", "a\nb"])
def test_no_server_starts_with_a_token_that_nobody_can_send(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("AGENTENV_TEST_TOKEN", token)
    with pytest.raises(ConfigurationError, match="AGENTENV_TEST_TOKEN"):
        token_in("AGENTENV_TEST_TOKEN")


def test_white_space_around_a_token_is_none_of_it_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTENV_TEST_TOKEN", raising=False)
    assert (token_in("AGENTENV_TEST_TOKEN"), bearer("AGENTENV_TEST_TOKEN")) == (None, {})
    monkeypatch.setenv("AGENTENV_TEST_TOKEN", f" {TOKEN}\r\n")
    gate = Gate(token_in("AGENTENV_TEST_TOKEN"))
    gate.ready()
    gate.admit(bearer("AGENTENV_TEST_TOKEN")["Authorization"])


def test_nobody_chooses_the_address_that_a_server_sees() -> None:
    from agentenv.serving.conversation import host_of

    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            from starlette.requests import Request

            seen.append(host_of(Request(scope)) + scope["scheme"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    gate = Gate()
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=run_app, args=(app, gate, gate.ready, listening), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        for headers in (
            {"X-Forwarded-For": "10.9.8.7", "X-Forwarded-Proto": "https"},
            {"Forwarded": "for=10.9.8.7"},
        ):
            httpx.get(url, headers=headers, timeout=WAIT_S)
        gate.stop()
        thread.join(WAIT_S)
    assert seen == ["127.0.0.1http"] * 2
