"""Runs a service on a socket: it answers from the first moment, loads beside, and stops without losing a request."""

import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from agentenv.core.concurrency.signals import HANGUP
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.web.connections import ConnectionLimits, bounded_protocol
from agentenv.web.gate import STOPPING, Gate
from agentenv.web.hosts import HostCheck

GRACE_S = 35.0  # for what was accepted before the stop; a request's own deadline is shorter
_KEEPALIVE_S = 30  # longer than our client keeps an idle connection
_BACKLOG = 1024
_OPTIONS: dict[str, Any] = {
    "log_config": None,
    "log_level": "warning",
    "access_log": False,
    "timeout_keep_alive": _KEEPALIVE_S,
    "timeout_graceful_shutdown": int(GRACE_S),
    "ws": "none",
    "server_header": False,
    "proxy_headers": False,  # a client is who has the connection; anybody can write a header
}
"""Options of uvicorn for every service."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

    Raises:
        ConfigurationError: the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not 0 <= port <= 65_535:
        raise ConfigurationError(f"Port {port} does not exist; give one from 0 to 65535.")
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigurationError(
            f"{host}:{port} cannot be listened on ({error}); give another --port, or 0 for a free one."
        ) from error


def address_of(listening: socket.socket) -> str:
    """Where callers find it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_app(
    app: Any,
    gate: Gate,
    begin: Callable[[], None],
    listening: socket.socket,
    hosts: Iterable[str] = (),
    *,
    connections: ConnectionLimits | None = None,
    **options: Any,
) -> None:
    """Serves ``app`` until SIGTERM, SIGINT or SIGHUP; stops once what ``gate`` had taken is answered.

    Args:
        app: an ASGI application.
        gate: what lets callers into it; not ready yet.
        begin: makes it ready, in a thread.
        listening: from `listen`.
        hosts: names that callers may use for this server, beside those that `HostCheck` knows.
        connections: bounds; None takes the defaults.
        options: of uvicorn, which go before those that every service runs with.

    Raises:
        AgentEnvError: ``begin`` failed; the server has stopped.
        MissingExtra: uvicorn is not installed.
    """
    failures: list[Exception] = []

    def open_gate() -> None:
        try:
            begin()
        except Exception as error:
            failures.append(error)

    http = bounded_protocol(connections or ConnectionLimits())
    server = _make_server(HostCheck(app, hosts), gate, failures, {**_OPTIONS, "http": http, **options})
    # A daemon: a stop does not wait for an index to be loaded.
    threading.Thread(target=open_gate, name="loading", daemon=True).start()
    with _on_hangup(server.handle_exit):
        server.run(sockets=[listening])
    if failures:
        raise failures[0]


@contextmanager
def _on_hangup(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block SIGHUP, of a terminal that closes, stops as SIGTERM does; one that is ignored stays so."""
    before = signal.getsignal(HANGUP) if HANGUP else signal.SIG_IGN
    if not HANGUP or threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(HANGUP, stop)
    try:
        yield
    finally:
        signal.signal(HANGUP, before)


def _make_server(app: Any, gate: Gate, failures: Sequence[Exception], options: Mapping[str, Any]) -> Any:
    """A server of uvicorn that runs until ``gate`` has answered what it took, or until there are ``failures``."""
    with needs_extra("serve"):
        import uvicorn

    class Server(uvicorn.Server):
        """Uvicorn, which would drop its listening socket before what comes in meanwhile got its 503."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            if gate.state == STOPPING:  # asked twice
                self.force_exit = self.should_exit = gate.hurried = True
            gate.stop()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            if (
                self.force_exit
            ):  # which uvicorn leaves out then, so that the end of its task would be logged as an error
                await self.lifespan.shutdown()

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or bool(failures) or gate.drained(GRACE_S)

    return Server(uvicorn.Config(app, **options))
