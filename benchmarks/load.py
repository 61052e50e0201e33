"""Clients that ask a retrieval server as fast as it answers, over connections that they keep, and the servers to ask.

The clients speak just enough HTTP: a heavier client would take from the server the cores that both share.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

START_S = 600.0  # for a server to load a large index
ANSWER_S = 120.0  # after which an answer counts as lost


class Ask(NamedTuple):
    """One request: what it is about, and its body."""

    key: Any
    path: str
    body: bytes


class Answer(NamedTuple):
    """What came back."""

    key: Any
    status: int
    body: bytes
    seconds: float
    at: float


class Connection(asyncio.Protocol):
    """One connection that carries one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._waiter: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio hands over the wire."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Part of an answer."""
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(rest) >= length and self._waiter is not None:
            self._received = rest[length:]
            self._waiter.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, error: Exception | None) -> None:
        """The server went away."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError("the connection was closed"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        async with asyncio.timeout(ANSWER_S):
            return await self._waiter

    def close(self) -> None:
        """Hangs up."""
        self._transport.close()


def drive(
    address: str, asks: Iterator[Ask], clients: int, seconds: float, seen: Callable[[Answer], float]
) -> None:
    """Has so many clients ask one request after the other for so long; what was asked is waited for.

    ``seen`` gets every answer and returns the seconds that its client pauses.
    """
    split = urlsplit(address)
    host, port = split.hostname or "", split.port or 80

    async def client(deadline: float) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
        for ask in asks:
            head = f"POST {ask.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            request = f"{head}Content-Length: {len(ask.body)}\r\n\r\n".encode() + ask.body
            began = time.perf_counter()
            status, body = await connection.ask(request)
            now = time.perf_counter()
            pause = seen(Answer(ask.key, status, body, now - began, now))
            if now > deadline:
                break
            if pause:
                await asyncio.sleep(pause)
        connection.close()

    async def run_clients() -> None:
        deadline = time.perf_counter() + seconds
        await asyncio.gather(*(client(deadline) for _ in range(clients)))

    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(run_clients())


def _loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@contextmanager
def server(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Runs a server that says ``... at ADDRESS`` on stderr; yields address and process id once it is ready."""
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
    child = subprocess.Popen(
        [sys.executable, *words],
        text=True,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert child.stderr is not None
        line = child.stderr.readline()
        address = line.split()[-1] if line else ""
        if not address.startswith("http"):
            raise SystemExit(f"The server did not start: {line}{child.stderr.read()}")
        deadline = time.monotonic() + START_S
        while not _is_ready(address):
            if child.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"The server did not become ready: {child.stderr.read()}")
            time.sleep(0.1)
        yield address, child.pid
    finally:
        child.terminate()
        try:
            child.wait(60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        assert child.stderr is not None
        child.stderr.close()


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/readyz", timeout=30):
            return True
    except OSError:
        return False


def ours(folder: Path, threads: int, *flags: str) -> list[str]:
    """The command line of our server, after Python."""
    serve = ["-m", "agentenv.cli.main", "retriever", "serve", str(folder), "--port", "0"]
    return [*serve, "--threads", str(threads), *flags]


def reference(folder: Path, threads: int, *flags: str) -> list[str]:
    """The command line of the reference server, after Python."""
    script = Path(__file__).with_name("reference_server.py")
    return [str(script), str(folder), "--threads", str(threads), *flags]


def retrieve(query: str, k: int) -> Ask:
    """One query in Search-R1's format."""
    body = json.dumps({"queries": [query], "topk": k, "return_scores": True})
    return Ask(query, "/retrieve", body.encode())


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1e6) * len(ordered) // 1_000_000) - 1))]
