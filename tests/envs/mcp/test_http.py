"""Servers over HTTP whose connections break: what fails is the call itself, and no other call over the same connection."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the mcp extra")

from agentenv.envs.mcp import http
from agentenv.envs.mcp.tools_env import McpTools
from agentenv.errors import EnvFault

LONG = 2_000_000


class Breaking(BaseHTTPRequestHandler):
    """Answers calls of ``wait`` once another call was made, and breaks off the others, each in the way of its name."""

    protocol_version = "HTTP/1.1"
    waiting, broken = threading.Event(), threading.Event()

    def do_GET(self) -> None:
        self.answer(b"", status=405)

    def do_DELETE(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in request:
            self.answer(b"", status=202)
            return
        about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "breaking", "version": "1"}}
        names = ("wait", "drop", "half", "endless", "event")
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
        results: dict[str, dict[str, Any]] = {
            "initialize": {"protocolVersion": "2025-06-18", **about},
            "tools/list": {"tools": tools},
            "tools/call": {"content": [{"type": "text", "text": "x" * LONG}]},
        }
        if request["method"] not in results:
            self.answer(b"", status=400)
            return
        reply = {"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}
        name = request["params"].get("name", "") if request["method"] == "tools/call" else ""
        with suppress(OSError):
            getattr(self, name or "answer")(json.dumps(reply).encode())

    def wait(self, body: bytes) -> None:
        self.waiting.set()
        assert self.broken.wait(20)
        self.answer(body)

    def drop(self, body: bytes) -> None:
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def half(self, body: bytes) -> None:
        self.begin(200, "application/json", len(body))
        self.wfile.write(body[:1000])
        self.drop(body)

    def endless(self, body: bytes) -> None:
        self.begin(200, "application/json", 10**15)
        while True:
            self.wfile.write(body)

    def event(self, body: bytes) -> None:
        self.answer(b"data: " + body + b"\n\n", "text/event-stream")

    def answer(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.begin(status, kind, len(body))
        self.wfile.write(body)

    def begin(self, status: int, kind: str, length: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Breaking.waiting.clear()
    Breaking.broken.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Breaking)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}/mcp"
    httpd.shutdown()
    httpd.server_close()


def call(env: McpTools, name: str) -> str:
    step = env.step(f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>")
    text: str = step.info["tool_results"][0].text
    return text


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("drop", "call of 'drop': RemoteProtocolError: Server disconnected"),
        ("half", "the last that came from it: 'RemoteProtocolError: peer closed"),
        ("endless", "the last that came from it: 'an answer of more than 4000000 bytes"),
    ],
)
def test_a_connection_that_breaks_fails_its_own_call_and_no_other_over_the_same(
    address: str, fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 4_000_000)
    env, other = (McpTools(server=address, server_state="none") for _ in range(2))
    env.reset(seed=0)
    other.reset(seed=0)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(call(other, "wait")))
    thread.start()
    assert Breaking.waiting.wait(20)
    with pytest.raises(EnvFault, match=said):
        call(env, fault)
    Breaking.broken.set()
    thread.join(30)
    assert len(found) == 1
    assert len(call(env, "event")) > 1000


def test_a_large_event_is_read_whole(address: str) -> None:
    env = McpTools(server=address, server_state="none", result_chars=2 * LONG)
    env.reset(seed=0)
    assert len(call(env, "event")) == LONG
