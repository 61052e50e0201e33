"""WebSockets with bounds that uvicorn does not have: on fragments of a message, on pings, and on peers that read nothing."""

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any

from agentenv.errors import needs_extra
from agentenv.web.connections import ConnectionLimits, UpgradedConnection

if TYPE_CHECKING:
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol as _Socket
    from websockets.frames import Frame
else:
    _Socket = asyncio.Protocol  # uvicorn is optional; its class comes behind this one

_FRAGMENTS = 4_096  # of one message; empty ones count nothing towards its length
_PINGS = 256  # answered while the peer takes no answers
_TOO_LONG, _NO_TEXT = 1009, 1007  # codes of RFC 6455, section 7.4.1
_CLOSING_S = 10.0  # uvicorn waits so long for the peer to close too


class _Bounds(_Socket, UpgradedConnection):
    """The bounds of this module, to be laid over uvicorn's WebSocket."""

    limits: ConnectionLimits
    _writing: asyncio.TimerHandle | None = None
    _pings = 0  # since the peer last took answers

    def handle_cont(self, event: "Frame") -> None:
        if len(self.frames) >= _FRAGMENTS:
            self._end(_TOO_LONG, "too many fragments")
        else:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        self._pings = 0 if self.writable.is_set() else self._pings + 1
        if self._pings > _PINGS:
            self.transport.abort()
        elif not self.transport.is_closing():
            super().handle_ping()

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:  # uvicorn would log a traceback
                self._end(_NO_TEXT, "this message is no UTF-8")
                return
        super().send_receive_event_to_app()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.on_lost is not None:
            self.on_lost()
        self._stop()
        super().connection_lost(exc)

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        # The connection is closed by now, but only once the peer has taken what was sent.
        self.loop.call_later(self.limits.write_s + _CLOSING_S, self.transport.abort)

    def _end(self, code: int, why: str) -> None:
        self.frames = []
        if not self.close_sent:
            self.conn.fail(code, why)
            self.handle_parser_exception()

    def _stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


@cache
def bounded_socket(limits: ConnectionLimits) -> type[Any]:
    """The class of WebSockets that keep ``limits``, for uvicorn's setting ``ws``.

    Raises:
        MissingExtra: uvicorn or websockets is not installed.
    """
    with needs_extra("serve"):
        from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
    return type("BoundedSocket", (_Bounds, WebSocketsSansIOProtocol), {"limits": limits})
