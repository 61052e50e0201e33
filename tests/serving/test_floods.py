"""One client that asks without end, by another address than the others: who else comes is served."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentenv.core.types import Task
from agentenv.web.connections import ConnectionLimits

pytest.importorskip("websockets", reason="websockets is not installed")

WAIT_S = 60.0
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
OTHER = "127.0.0.2"


def begins_and_reads(url: str, _: int) -> None:
    httpx.post(f"{url}/mcp", json=ASKED, timeout=WAIT_S)


def begins_and_drops(url: str, number: int) -> None:
    """Leaves before the answer, by the end of the connection or by a reset."""
    body = json.dumps(ASKED).encode()
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=WAIT_S) as peer:
        if number % 2:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.sendall(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )


def begins_many_ahead(url: str, _: int) -> None:
    """Several on one connection, before the first answer."""
    body = json.dumps(ASKED).encode()
    one = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=WAIT_S) as peer:
        peer.sendall(one * 8)
        peer.recv(1 << 16)


FLOODS = {flood.__name__: flood for flood in (begins_and_reads, begins_and_drops, begins_many_ahead)}


@contextlib.contextmanager
def flooded(url: str, flood: Any) -> Iterator[None]:
    """Eight threads that go on until the end of the block."""
    over = threading.Event()

    def go_on() -> None:
        number = 0
        while not over.is_set():
            number += 1
            with contextlib.suppress(OSError, httpx.HTTPError):
                flood(url, number)

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(WAIT_S)


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_sessions_that_nobody_uses_keeps_nobody_else_out(
    serving: Any, house: Any, flood: str
) -> None:
    with serving(lambda: house, sessions=8, wait_s=WAIT_S, unused=8) as served:
        with (
            flooded(served.url, FLOODS[flood]),
            httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), timeout=WAIT_S) as client,
        ):
            for _ in range(3):
                begun = client.post(f"{served.url}/mcp", json=ASKED)
                assert begun.status_code == 200, begun.text
                time.sleep(0.3)  # in which many others begin
                call = {"name": "act", "arguments": {"text": "a"}}
                asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
                session = {"mcp-session-id": begun.headers["mcp-session-id"]}
                played = client.post(f"{served.url}/mcp", json=asked, headers=session)
                assert "a after 0" in played.text, played.text
                assert client.delete(f"{served.url}/mcp", headers=session).status_code == 200
            with served.call(source_address=(OTHER, 0)) as line:
                assert line.ask("reset")["type"] == "observation"
        assert len(served.service.mcp._sessions) <= 9
        assert house.shared.most <= 8


@pytest.mark.parametrize(("sessions", "others"), [(3, 1), (8, 4)])
def test_one_client_that_holds_all_it_can_leaves_places_to_others(
    serving: Any, house: Any, sessions: int, others: int
) -> None:
    """By connections that stay, and by sessions of MCP that are used all the time."""
    with serving(lambda: house, sessions=sessions, wait_s=0.2) as served, contextlib.ExitStack() as stack:
        answers = []
        for _ in range(sessions):
            line = stack.enter_context(served.call())
            line.socket.send('{"type": "reset"}')
            answers.append(line.answer()["type"])
        assert answers == ["observation"] * (sessions - others) + ["error"] * others
        for _ in range(others):
            line = stack.enter_context(served.call(source_address=(OTHER, 0)))
            assert line.ask("reset")["type"] == "observation"


def test_one_client_that_uses_all_sessions_it_can_leaves_sessions_to_others(serving: Any, house: Any) -> None:
    def played(client: httpx.Client) -> bool:
        begun = client.post(f"{served.url}/mcp", json=ASKED)
        call = {"name": "act", "arguments": {"text": "a"}}
        asked = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call}
        session = {"mcp-session-id": begun.headers["mcp-session-id"]}
        return "a after 0" in client.post(f"{served.url}/mcp", json=asked, headers=session).text

    with serving(lambda: house, sessions=8, wait_s=2.0) as served:
        with httpx.Client(timeout=WAIT_S) as client:
            assert [played(client) for _ in range(4)] == [True, True, False, False]
        with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), timeout=WAIT_S) as client:
            assert played(client)


class Slowly:
    """Makes tasks as long as nobody lets it go."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.lock = threading.Lock()
        self.running = self.most = 0

    def make(self, n: int, *, seed: int = 0, split: str = "train") -> list[Task]:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        self.opened.wait(WAIT_S)
        with self.lock:
            self.running -= 1
        return [Task(f"{split}-{seed}-{number}", "q", ("a",), split) for number in range(n)]


def test_requests_for_tasks_leave_the_threads_to_those_who_play(
    serving: Any, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly()
    monkeypatch.setattr(type(house), "make_tasks", slowly.make)
    with serving(lambda: house, sessions=4, making_tasks=2) as served:
        codes: list[int] = []
        threads = [
            threading.Thread(
                target=lambda n=n: codes.append(
                    httpx.get(f"{served.url}/tasks?n=1&seed={n}", timeout=WAIT_S).status_code
                )
            )
            for n in range(40)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + WAIT_S
        while len(codes) < 38 and time.monotonic() < deadline:
            time.sleep(0.02)
        with served.call() as line:
            assert line.ask("reset")["type"] == "observation"
            assert line.ask("step", text="a")["type"] == "observation"
        slowly.opened.set()
        for thread in threads:
            thread.join(WAIT_S)
        assert (slowly.most, sorted(codes)) == (2, [200] * 2 + [503] * 38)
        assert httpx.get(f"{served.url}/tasks?n=1&seed=99", timeout=WAIT_S).status_code == 200


def test_a_call_for_tasks_that_was_given_up_counts_until_it_ends(
    serving: Any, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = Slowly()
    monkeypatch.setattr(type(house), "make_tasks", slowly.make)
    with serving(lambda: house, sessions=4, making_tasks=1, call_s=0.2) as served:
        got = [httpx.get(f"{served.url}/tasks?n=1&seed={n}", timeout=WAIT_S).status_code for n in range(2)]
        assert got == [500, 503]
        slowly.opened.set()
        deadline = time.monotonic() + WAIT_S
        while httpx.get(f"{served.url}/tasks?n=1&seed=2", timeout=WAIT_S).status_code != 200:
            assert time.monotonic() < deadline


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def frame(text: str) -> bytes:
    """A masked frame of a short text (RFC 6455, section 5.2)."""
    payload = text.encode()
    return bytes([0x81, 0x80 | len(payload)]) + bytes(4) + payload


@pytest.mark.parametrize("takes", ["nothing", "a little"])
def test_who_takes_no_answers_is_disconnected_after_a_while(serving: Any, house: Any, takes: str) -> None:
    """Its environment is closed and its place given back, though the peer keeps the connection and answers pings."""
    with (
        serving(lambda: house, connections=ConnectionLimits(write_s=0.5), send_s=WAIT_S) as served,
        socket.socket() as peer,
    ):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        peer.settimeout(WAIT_S)
        peer.connect(("127.0.0.1", int(served.url.rpartition(":")[2])))
        peer.sendall(UPGRADE)
        assert b" 101 " in peer.recv(4_096)
        peer.sendall(frame('{"type":"reset","data":{}}') + frame('{"type":"step","data":{"text":"long"}}'))
        served.until_open(1)
        deadline = time.monotonic() + 30.0  # before pings would find out
        while served.service.active and time.monotonic() < deadline:
            if takes == "a little":
                with contextlib.suppress(OSError):
                    peer.recv(1)
            time.sleep(0.05)
        assert served.service.active == 0
