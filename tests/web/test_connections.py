"""Hostile peers of every server: half requests, headers without end, deaf readers, foreign pages and rebound names."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

for module in ("fastapi", "uvicorn", "httptools", "orjson", "prometheus_client", "websockets"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.core.types import Document  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.policies.chat_server import make_chat_app  # noqa: E402
from agentenv.retrievers.fakes import InMemoryRetriever  # noqa: E402
from agentenv.retrievers.service.app import make_app  # noqa: E402
from agentenv.retrievers.service.service import Service  # noqa: E402
from agentenv.serving.app import make_app as make_env_app  # noqa: E402
from agentenv.serving.service import EnvService  # noqa: E402
from agentenv.web.connections import ConnectionLimits, most_connections, network_of  # noqa: E402
from agentenv.web.gate import Gate  # noqa: E402
from agentenv.web.hosts import HostCheck, name_of  # noqa: E402
from agentenv.web.server import listen, run_app  # noqa: E402

WAIT_S = 60.0
LIMITS = ConnectionLimits(headers_s=0.4, headers_bytes=8_192, write_s=0.5, connections=40)


def retrieval() -> tuple[Any, Gate]:
    service = Service()
    service.open({"memory": InMemoryRetriever([Document("a", "Town", "a clock " * 50)])})
    return make_app(service), service


def environments() -> tuple[Any, Gate]:
    service = EnvService("agentenv/Calculator-v0")
    service.open(Calculator)
    return make_env_app(service), service


def chat() -> tuple[Any, Gate]:
    gate = Gate()
    return make_chat_app(None, "model", gate, at_once=4), gate  # type: ignore[arg-type]


@pytest.fixture
def port(servers_gate: tuple[int, Gate]) -> int:
    """The port of one of the servers, which takes the name trusted.example too."""
    return servers_gate[0]


@pytest.fixture(params=[retrieval, environments, chat], ids=["retrieval", "environments", "chat"])
def servers_gate(request: pytest.FixtureRequest) -> Iterator[tuple[int, Gate]]:
    """The port and the gate of one of the servers."""
    app, gate = request.param()
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(
            target=run_app,
            args=(app, gate, gate.ready, listening, ("trusted.example",)),
            kwargs={"connections": LIMITS, "ws": "websockets-sansio"},
            daemon=True,
        )
        thread.start()
        number = int(listening.getsockname()[1])
        while status(number) != 200:
            time.sleep(0.01)
        yield number, gate
        gate.stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def connect(port: int, address: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S, source_address=(address, 0))


def all_of(peer: socket.socket) -> bytes:
    """Everything up to the end of the connection; fails by its time-out where the server never ends it."""
    parts = []
    try:
        while part := peer.recv(2**16):
            parts.append(part)
    except (ConnectionResetError, BrokenPipeError):
        pass
    return b"".join(parts)


def status(port: int) -> int:
    """What the server says of its health; asked again where this process was too slow to send its request."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/health", timeout=WAIT_S).status_code
        time.sleep(0.05)
    pytest.fail("nobody is let in")


def alive(port: int) -> bool:
    """Whether the server answers, once connections that were closed are out of the count."""
    return status(port) == 200


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"G",
        b"\r\n",
        b"GET /health HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1",
        b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    ],
)
def test_half_a_request_is_not_waited_for(port: int, start: bytes) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(connect(port)) for _ in range(10)]
        for peer in peers:
            peer.sendall(start)
        answers = {all_of(peer).partition(b"\r\n")[0] for peer in peers}
        assert answers <= {b"", b"HTTP/1.1 408 Request Timeout"}
    assert alive(port)


def test_a_request_a_byte_at_a_time_is_late_and_so_is_the_second_one_of_a_connection(port: int) -> None:
    whole = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connect(port) as peer:
        peer.sendall(whole)
        assert peer.recv(2**16).startswith(b"HTTP/1.1 200")
        began = time.monotonic()
        try:
            for byte in whole * 3:
                peer.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - began > WAIT_S:
                    break
        except (ConnectionResetError, BrokenPipeError):
            pass
        assert b"200 OK" not in all_of(peer)
    assert alive(port)


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ", b"a" * 2**16),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"X: aaaaaaaaaaaaaaaaaaaaaa\r\n" * 2_000),
        (b"GET /", b"a" * 2**16),
        (
            b"POST /health HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
            b"X: aaaaaaaaaaaaaaaaaaaaaa\r\n" * 2_000,
        ),
        (
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1;" + b"e" * 2**16 + b"\r\na\r\n",
        ),
    ],
    ids=["one-header", "many-headers", "line", "trailers", "chunk-extensions"],
)
def test_headers_without_end_are_refused_and_not_kept(port: int, head: bytes, more: bytes) -> None:
    sent = 0
    with connect(port) as peer:
        peer.sendall(head)
        try:
            while sent < 200 * 2**20:  # what was taken before
                peer.sendall(more)
                sent += len(more)
        except (ConnectionResetError, BrokenPipeError):
            pass
        all_of(peer)
    assert sent < 20 * 2**20  # what the buffers of the system hold
    assert alive(port)


def test_who_reads_no_answers_is_let_go(port: int) -> None:
    request, sent = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 0
    with connect(port) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.settimeout(4 * LIMITS.write_s)
        try:
            while sent < 200_000:
                peer.sendall(request)
                sent += 1
        except OSError:
            pass  # the server takes no more, or has ended the connection
        peer.settimeout(WAIT_S)
        assert all_of(peer).count(b"HTTP/1.1 200") < sent
    assert alive(port)


def test_one_address_has_half_of_the_connections(port: int) -> None:
    """The other half is left to others, and what was closed can be opened again."""
    for _ in range(2):
        with ExitStack() as stack:
            peers = [stack.enter_context(connect(port)) for _ in range(25)]
            assert [all_of(peer) for peer in peers[22:]] == [b""] * 3
            other = stack.enter_context(connect(port, "127.0.0.2"))
            other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert all_of(other).startswith(b"HTTP/1.1 200")
        assert alive(port)


def test_connections_beyond_the_bound_are_closed_at_once(port: int) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(connect(port, f"127.0.0.{2 + number % 4}")) for number in range(80)]
        closed = 0
        for peer in peers[45:]:
            closed += all_of(peer) == b""
        assert closed == 35
    assert alive(port)


HOSTS = [
    ("localhost", 200),
    ("LOCALHOST:80", 200),
    ("127.0.0.1:1", 200),
    ("[::1]:80", 200),
    ("192.168.1.7", 200),
    ("trusted.example", 200),
    ("evil.example", 403),
    ("evil.example:80", 403),
    ("127.0.0.1.evil.example", 403),
    ("localhost.evil.example", 403),
    ("trusted.example.evil.example", 403),
    ("evil.example#localhost", 403),
    ("localhost@evil.example", 403),
    ("2130706433.evil.example", 403),
    ("localhost.", 200),
    ("127.0.0.1:", 200),
    ("localhost..", 403),
    ("localhost:x@evil.example", 403),
    ("localhost:80.evil.example", 403),
    ("[::1]evil.example", 403),
    ("[::1]:80@evil.example", 403),
    ("[localhost]", 403),
    ("[::1", 403),
    ("localhost, evil.example", 403),
    ("", 403),
]


@pytest.mark.parametrize("method", ["GET", "POST", "WS"])
def test_a_rebound_name_is_refused_on_every_route(port: int, method: str) -> None:
    routes = {
        "GET": ("/health", "/metrics", "/openapi.json"),
        "POST": ("/v1/search", "/mcp", "/v1/chat/completions"),
        "WS": ("/ws",),
    }
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
    upgrade += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    for route in routes[method]:
        for host, status in HOSTS:
            with connect(port) as peer:
                more = upgrade if method == "WS" else "Connection: close\r\n"
                verb = "POST" if method == "POST" else "GET"
                peer.sendall(
                    f"{verb} {route} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{more}\r\n".encode()
                )
                got = int(peer.recv(2**16).split()[1])
            if method != "WS" or status == 403:  # only one of the servers has a route for WebSockets
                assert (got == 403) == (status == 403), (route, host, got)


def test_a_request_without_or_with_two_hosts_is_refused(port: int) -> None:
    for hosts in (
        b"",
        b"Host: localhost\r\nHost: evil.example\r\n",
        b"Host: evil.example\r\nHost: localhost\r\n",
    ):
        with connect(port) as peer:
            peer.sendall(b"GET /health HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
            assert int(all_of(peer).split()[1]) in (400, 403)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "file://", "http://127.0.0.1"]
)
def test_a_page_of_another_site_is_refused(port: int, origin: str) -> None:
    url = f"http://127.0.0.1:{port}"
    for path in ("/v1/search", "/retrieve", "/access", "/mcp", "/v1/chat/completions"):
        reply = httpx.post(url + path, headers={"Origin": origin}, content=b"{}", timeout=WAIT_S)
        assert reply.status_code == 403
    own = httpx.post(f"{url}/nowhere", headers={"Origin": url}, timeout=WAIT_S)
    assert own.status_code == 404  # a page of our own, such as /docs


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "Cross-Site"}, True),
        ({"Sec-Fetch-Site": "same-origin"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "://HOST"}, True),
        ({"Origin": "file://HOST"}, True),
        ({"Origin": "http://HOST, http://evil.example"}, True),
        ({"Origin": "HTTP://HOST"}, False),
        ({"X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"}, False),
    ],
)
def test_what_a_browser_says_of_a_request_without_a_body(
    port: int, headers: dict[str, str], refused: bool
) -> None:
    own = {name: value.replace("HOST", f"127.0.0.1:{port}") for name, value in headers.items()}
    reply = httpx.get(f"http://127.0.0.1:{port}/health", headers=own, timeout=WAIT_S)
    assert reply.status_code == (403 if refused else 200)


def test_bodies_that_do_not_arrive_keep_nobody_out(port: int) -> None:
    start = b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    with ExitStack() as stack:
        for route in (b"/v1/search", b"/mcp", b"/v1/chat/completions"):
            for _ in range(6):
                stack.enter_context(connect(port)).sendall(b"POST " + route + start)
        for path in ("/v1/search", "/mcp", "/v1/chat/completions"):
            url = f"http://127.0.0.1:{port}{path}"
            assert httpx.post(url, content=b"[]", timeout=WAIT_S).status_code in (400, 404, 422)


def test_who_leaves_within_a_body_leaves_no_traceback(port: int, caplog: pytest.LogCaptureFixture) -> None:
    for route in (b"/v1/search", b"/mcp", b"/v1/chat/completions"):
        start = b"POST " + route + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        for rest in (b"5\r\nab", b"FFFFFFFFFFFFFFFFF\r\n"):
            with connect(port) as peer:
                peer.sendall(start + rest)
                peer.shutdown(socket.SHUT_WR)
                all_of(peer)
    assert alive(port)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("length", [200_000, 40_000], ids=["large", "small"])
def test_large_bodies_that_arrive_at_the_same_time_are_bounded(
    servers_gate: tuple[int, Gate], length: int
) -> None:
    port, gate = servers_gate
    gate.most_arriving = 500_000
    routes = ("/v1/search", "/mcp", "/v1/chat/completions")
    with ExitStack() as stack:
        for path in routes:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 300000\r\n\r\n"
            for _ in range(2):
                stack.enter_context(connect(port)).sendall(head.encode() + b" " * 240_000)
        deadline = time.monotonic() + WAIT_S
        while gate.arriving < 400_000:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        got = {httpx.post(f"http://127.0.0.1:{port}{r}", content=b" " * length).status_code for r in routes}
        assert (503 in got) == (length > 2**16)
    while gate.arriving:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_page_of_another_site_opens_no_websocket(port: int) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect as open_socket
    from websockets.typing import Origin

    with pytest.raises(InvalidStatus) as refused:
        open_socket(f"ws://127.0.0.1:{port}/ws", origin=Origin("https://evil.example"), proxy=None)
    assert refused.value.response.status_code == 403


def test_names_and_the_star() -> None:
    names = {
        "a:x": "",
        "[a]": "",
        "a..": "",
        "a:1": "a",
        "[::1]:8": "::1",
        "[::1]": "::1",
        "A.b.": "a.b",
        "": "",
    }
    assert {host: name_of(host) for host in names} == names
    assert HostCheck(lambda *_: None, ("*",))._wrong([(b"host", b"any.example")]) == ""  # type: ignore[arg-type]


def test_connections_fit_the_bound_on_open_files() -> None:
    assert 1 <= most_connections(100) <= 100
    assert most_connections(10**9) < 10**9


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("/run/socket", "/run/socket"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_of_ipv6_are_one_client(address: str, network: str) -> None:
    """A host has 2^64 addresses there; counted singly it would be as many clients, each with a share of its own."""
    assert network_of(address) == network
