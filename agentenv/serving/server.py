"""Runs a service of environments on a socket."""

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from agentenv.core.env import Env
from agentenv.errors import needs_extra
from agentenv.serving.app import make_app
from agentenv.serving.service import THREADS, EnvService
from agentenv.web.connections import ConnectionLimits
from agentenv.web.server import run_app
from agentenv.web.sockets import bounded_socket

_PING_INTERVAL_S = 20.0  # seconds between pings; a dead peer is noticed after two of them
_THREAD_END_S = 2.0


def run(
    service: EnvService,
    make: Callable[[], Env[Any]],
    listening: socket.socket,
    hosts: Iterable[str] = (),
    connections: ConnectionLimits | None = None,
) -> None:
    """Serves environments until SIGTERM or SIGINT; then each session ends after its current answer.

    Args:
        service: A service that is not open yet.
        make: Makes an environment, each time the same; the first call runs in a thread.
        listening: A socket from `agentenv.web.server.listen`.
        hosts: Further host names that callers may use for this server, beside those that `HostCheck` knows.
        connections: Limits on connections; None uses the defaults.

    Raises:
        AgentEnvError: the first environment could not be made; the server has stopped.
        MissingExtra: FastAPI, uvicorn or websockets is not installed.
    """
    with needs_extra("serve"):
        import websockets  # noqa: F401  # uvicorn speaks WebSocket through it
    run_app(
        make_app(service),
        service,
        lambda: service.open(make),
        listening,
        hosts,
        connections=connections,
        ws=bounded_socket(connections or ConnectionLimits()),
        ws_max_size=service.limits.message_bytes,
        ws_ping_interval=_PING_INTERVAL_S,
        ws_ping_timeout=_PING_INTERVAL_S,
        ws_per_message_deflate=False,  # keeps a small frame from unpacking into a large one
        lifespan="on",
    )


def left_behind() -> bool:
    """Tells whether a thread is stuck in an environment's call; it first waits a moment for idle threads to end."""
    deadline = time.monotonic() + _THREAD_END_S
    while any(thread.name.startswith(THREADS) for thread in threading.enumerate()):
        if time.monotonic() > deadline:
            return True
        time.sleep(0.01)
    return False
