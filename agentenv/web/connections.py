"""HTTP connections with bounds that uvicorn does not have: on the time and the size of headers, on idle and on slow peers.

Uvicorn's parser takes headers of any length for any time, and a peer that takes no answers keeps its connection for ever. A
request here has a deadline for its headers from the first byte (or from the opening of the connection), and everything in it
that is not the body is bounded.
"""

import asyncio
import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentenv.errors import needs_extra

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as _Connection
else:
    _Connection = asyncio.Protocol  # uvicorn is optional; its class comes behind this one

_OTHER_FILES = 256  # descriptors that the process needs beside its connections: indexes, sandboxes, libraries
_LINGER_S = 5.0  # for the last bytes of an answer to leave, once a connection is being closed


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds of one connection, and of their number."""

    headers_s: float = 10.0
    """For the headers of a request to arrive, from the opening of the connection or from the request's first byte."""
    headers_bytes: int = 64 * 2**10
    """Length of a request without its body: its line, headers, framing of chunks and trailers."""
    pipelined: int = 16
    """Requests that a peer may send ahead of the answers; one that sends more is disconnected."""
    write_s: float = 30.0
    """For a peer to take something of an answer that waits to be sent."""
    connections: int = 8_192
    """Open at a time; further ones are closed at once. It is lowered to what the system's bound on open files allows."""
    per_address: int | None = None
    """Open at a time of one address (``network_of``); None is half of all, so that one client leaves the other half."""


def network_of(address: str) -> str:
    """By what clients are told apart: an IPv4 address, or the first 64 bits of an IPv6 address.

    A client with one IPv6 address usually has all addresses with these bits (RFC 6177), and could pose as many clients.
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:  # the path of a Unix socket, or nothing
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


class UpgradedConnection:
    """What a connection has become that speaks HTTP no more, such as a WebSocket."""

    on_lost: Callable[[], None] | None = None
    """It calls this once when the connection is gone."""


def most_connections(wanted: int) -> int:
    """``wanted``, or as many as the process may open files for; its soft limit is raised towards the hard one for that."""
    try:
        import resource
    except ModuleNotFoundError:  # a system without such limits
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + _OTHER_FILES
    # Raised first and lowered only where that does not do: most systems have a soft limit of 1024 and a far higher
    # hard one.
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = needed if soft == resource.RLIM_INFINITY else soft
    return max(1, min(wanted, room - _OTHER_FILES))


class _Bounds(_Connection):
    """The bounds of this module, to be laid over uvicorn's connection."""

    limits: ConnectionLimits
    most: int
    """Connections at a time."""
    most_of_one: int
    """Connections of one address at a time."""
    by_address: Counter[str]
    """Connections that each address (``network_of``) has open, WebSockets among them."""
    _address: str | None = None
    """Whose count this connection is in."""
    _waiting: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _inside = False  # between the first byte of a request and its last
    _taken = _body = 0  # bytes of this request, and of its body alone

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Of who has left already the system knows no address, by which clients are told apart.
        if (
            len(self.connections) > self.most
            or self.client is None
            or self.by_address[network_of(self.client[0])] >= self.most_of_one
        ):
            transport.abort()
        else:
            self._address = network_of(self.client[0])
            self.by_address[self._address] += 1
            self._await_headers()

    def handle_websocket_upgrade(self) -> None:
        super().handle_websocket_upgrade()
        protocol = self.transport.get_protocol()
        if isinstance(protocol, UpgradedConnection):
            protocol.on_lost = self._leave  # this object hears no more of the connection
        else:
            self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._stop("_waiting")
        self._stop("_writing")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._waiting is None and (self.cycle is None or self.cycle.response_complete):
            self._await_headers()  # of the next request, or the rest of one that was answered early
        super().data_received(data)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return  # refused, or a WebSocket by now, whose own protocol has bounds
        self._taken = self._taken + len(data) if self._inside else 0
        # An eighth of the body beside it, for the framing of its chunks.
        if self._taken - self._body > self.limits.headers_bytes + self._body // 8:
            self._refuse()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self.limits.pipelined:
            self.transport.abort()
            raise ConnectionError("too many requests ahead of the answers")  # the parser takes no more
        self._inside, self._taken, self._body = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop("_waiting")
        self._take_host_of_target()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._inside = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # once the answer has left, if the peer takes it
            self.loop.call_later(self.limits.write_s, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop("_writing")
        self._writing = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop("_writing")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_soon()

    def _take_host_of_target(self) -> None:
        """A target such as ``http://name/path`` names the host, and the header does not count (RFC 9112, section 3.2.2)."""
        scheme, mark, rest = self.url.partition(b"://")
        if not mark or not scheme.isalpha():
            return
        host = re.split(rb"[/?#]", rest, maxsplit=1)[0]
        path = rest[len(host) :]
        self.url = path if path.startswith(b"/") else b"/" + path
        self.headers[:] = [
            (b"host", host),
            *((name, value) for name, value in self.headers if name != b"host"),
        ]

    def _await_headers(self) -> None:
        self._waiting = self.loop.call_later(self.limits.headers_s, self._late)

    def _late(self) -> None:
        """The headers did not come in time. A peer that sent nothing at all is owed no answer."""
        self._waiting = None
        if self._taken or self._inside:
            self._answer(b"408 Request Timeout")
        self.transport.close()
        self._abort_soon()

    def _refuse(self) -> None:
        self._answer(b"431 Request Header Fields Too Large")
        self.transport.close()
        self._abort_soon()

    def _answer(self, status: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            )

    def _leave(self) -> None:
        """Takes the connection out of the count of its address; a second call does nothing."""
        if self._address is not None:
            self.by_address[self._address] -= 1
            if not self.by_address[self._address]:
                del self.by_address[self._address]
            # Set to None, because a WebSocket and the connection that it was may both report the end.
            self._address = None

    def _abort_soon(self) -> None:
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _stop(self, name: str) -> None:
        timer: Any = getattr(self, name)
        if timer is not None:
            timer.cancel()
            setattr(self, name, None)


def bounded_protocol(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """The class of connections that keep ``limits``, for uvicorn's setting ``http``.

    Raises:
        MissingExtra: uvicorn or httptools is not installed.
    """
    with needs_extra("serve"):
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    most = most_connections(limits.connections)
    bounds = {
        "limits": limits,
        "most": most,
        "most_of_one": max(1, most // 2) if limits.per_address is None else limits.per_address,
        "by_address": Counter[str](),
    }
    return type("BoundedProtocol", (_Bounds, HttpToolsProtocol), bounds)
