"""A connection to a server of environments: each frame gets one answer within a time limit.

All connections belong to the background event loop of the process. So they can be used from any event loop and any thread,
with one call at a time.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import Any

import httpx

from agentenv.core.env import in_background
from agentenv.errors import AgentEnvError, ConfigurationError, EnvFault, needs_extra
from agentenv.serving.wire import CAPACITY_REACHED, TOKEN_VARIABLE, error_in, frame, read_json
from agentenv.web.client import bearer
from agentenv.web.retries import RetryPolicy
from agentenv.web.secrets import without_keys

CONNECT_S = 10.0
_CLOSE_S = 5.0
_MOST_BYTES = 100 * 2**20
_LONGEST_PAUSE_S = 10.0
_MOST_ERROR_CHARS = 200  # characters of a server's message that an error quotes


@dataclass(frozen=True)
class LinkTimeouts:
    """How long a client waits for a server."""

    call_s: float = 600.0
    """Time limit of one call, in seconds. It is longer than the server's limit, so that the server can report which call was
    late. The server's limit does not include the time that a program waits for a free processor."""
    place_s: float = 300.0
    """How long to wait for a slot of a server that is full, in seconds."""
    pause_s: float = 0.5
    """Pause before the next request for a slot, in seconds; it grows with each try."""


@dataclass(frozen=True)
class Handle:
    """A snapshot on a server."""

    link: "Link"
    id: str
    bytes: int

    def release(self) -> None:
        """Releases the snapshot on the server, unless the connection has ended and the server with it released it."""
        if self.link.standing:
            self.link.ask_now("release", id=self.id)


class Link:
    """A connection to one environment on a server; `Snapshot` uses it as a resource.

    Args:
        url: Address of the server, ``http://HOST:PORT``.
        timeouts: Time limits.
    """

    def __init__(self, url: str, timeouts: LinkTimeouts) -> None:
        self.url = url
        self._timeouts = timeouts
        self._socket: Any = None
        self._opened = False

    def __del__(self) -> None:
        """Ends the connection of an environment that was not closed, because it would occupy a slot of the server."""
        if (socket := self.__dict__.get("_socket")) is not None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended, and with it its connections
                socket.loop.call_soon_threadsafe(socket.transport.close)

    @property
    def broken(self) -> bool:
        """Whether the connection was opened and has been closed, on purpose or not."""
        return self._opened and self._socket is None

    @property
    def standing(self) -> bool:
        """Whether the connection is open as far as known; servers close idle ones, and all when they stop."""
        from websockets.protocol import State

        return self._socket is not None and self._socket.state is State.OPEN

    async def ask(self, type: str, answer: str, **data: Any) -> dict[str, Any]:
        """Sends a frame and returns the data of the answer; works on any event loop.

        Raises:
            Fault: the server or its environment failed.
            AgentEnvError: the server refused, with the error that a local environment would raise.
        """
        # The call runs on the event loop of the socket, not on that of the caller.
        return await asyncio.wrap_future(in_background(self._ask(type, answer, data)))

    def ask_now(self, verb: str, **data: Any) -> dict[str, Any]:
        """Sends a verb of ``agentenv`` frames as `ask` does, from synchronous code."""
        # Twice the time limits, so that the call itself times out first; this limit is for a blocked event loop.
        asking = in_background(self._ask("agentenv", "agentenv", {"verb": verb, **data}))
        return asking.result(2 * (self._timeouts.call_s + self._timeouts.place_s))

    def snapshot(self) -> Handle:
        """Takes a snapshot on the server."""
        taken = self.ask_now("snapshot")
        return Handle(self, taken["id"], taken["bytes"])

    def restore(self, handle: Handle) -> None:
        """Restores a snapshot that was taken over this connection."""
        self.ask_now("restore", id=handle.id)

    def fork(self) -> "Link":
        """Forks the environment and returns the connection to the fork."""
        id = self.ask_now("fork")["id"]
        twin = Link(self.url, self._timeouts)
        # It attaches at once, because the server ends a fork without a connection after a while.
        twin.ask_now("attach", id=id)
        return twin

    def close(self) -> None:
        """Closes the connection; the server then closes the environment."""
        in_background(self._drop()).result(2 * _CLOSE_S)

    async def _ask(self, type: str, answer: str, data: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise EnvFault(f"the connection to {self.url} is closed; reset() opens another one")
        text = frame(type, data)
        try:
            reply = await (self._exchange(text) if self._opened else self._open_and_exchange(text))
        except BaseException as error:
            # BaseException, because after a cancelled call an answer would arrive that nobody reads.
            # The shield keeps a second cancellation from leaving the socket open.
            await asyncio.shield(self._drop())
            if isinstance(error, AgentEnvError) or not isinstance(error, Exception):
                raise
            said = (
                f"it gave no answer within {self._timeouts.call_s:g} s"
                if isinstance(error, TimeoutError)
                else error
            )
            raise EnvFault(f"{self.url} failed during {type}: {said}") from error
        return received(reply, answer, self.url)

    async def _open_and_exchange(self, text: str) -> Any:
        """Opens the connection and exchanges its first frame; tries again while the server is full.

        Raises:
            EnvFault: the server failed or stayed full.
            ConfigurationError: the server does not admit this client.
        """
        # Each connection sends the first frame again, because a full server accepts a connection and refuses only the frame.
        policy = RetryPolicy(pause_s=self._timeouts.pause_s, longest_pause_s=_LONGEST_PAUSE_S)
        began, tries = time.monotonic(), 0
        while True:
            if await self._connect():
                reply = await self._exchange(text)
                if not _says_full(reply):
                    return reply
            await self._drop()
            if (waited := time.monotonic() - began) > self._timeouts.place_s:
                raise EnvFault(f"{self.url} had no slot within {waited:.0f} s")
            tries += 1
            await asyncio.sleep(policy.pause(tries))

    async def _connect(self) -> bool:
        """Opens the connection; returns False if the server is not ready.

        Raises:
            ConfigurationError: the server does not admit this client.
            EnvFault: the connection fails.
        """
        with needs_extra("serve"):
            from websockets.asyncio.client import connect
            from websockets.exceptions import InvalidStatus
        try:
            self._socket = await connect(
                self.url.replace("http", "ws", 1) + "/ws",
                additional_headers=headers(),
                open_timeout=CONNECT_S,
                close_timeout=_CLOSE_S,
                max_size=_MOST_BYTES,
                ping_interval=None,  # the server pings; pings from here would use the global random generator
                compression=None,
                proxy=None,
            )
        except InvalidStatus as error:
            if error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return False
            refused = error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR
            # A proxy answers 502 while the server restarts.
            kind = ConfigurationError if refused else EnvFault
            raise kind(f"{self.url}: {reason(error.response.body)}") from error
        finally:
            self._opened = True
        return True

    async def _exchange(self, text: str) -> Any:
        async with asyncio.timeout(self._timeouts.call_s):
            await self._socket.send(text)
            return read_json(await self._socket.recv())

    async def _drop(self) -> None:
        # The socket is removed before it is closed, so that nobody sends on it while it closes.
        socket, self._socket, self._opened = self._socket, None, True
        if socket is not None:
            with contextlib.suppress(Exception):
                await socket.close()


def received(reply: Any, answer: str, sender: str) -> dict[str, Any]:
    """Returns the data of a server's frame, which must have the type ``answer``.

    Raises:
        Fault: the frame is of another type, or reports a failure of the server.
        AgentEnvError: the server refused, with the error that a local environment would raise.
    """
    known = isinstance(reply, dict) and isinstance(reply.get("data"), dict)
    if not known or reply.get("type") not in (answer, "error"):
        raise EnvFault(f"{sender} is no server of environments of this version: {str(reply)[:200]}")
    if reply["type"] == "error":
        raise error_in(reply["data"], sender)
    return dict(reply["data"])


def headers() -> dict[str, str]:
    """Returns the HTTP headers of every request: the bearer token, if one is set."""
    return bearer(TOKEN_VARIABLE)


def reason(body: bytes | bytearray | None) -> str:
    """Returns the message in the JSON body of a refusal, or else the whole body."""
    text = without_keys((body or b"").decode(errors="replace"))
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(read_json(text)["error"])[:_MOST_ERROR_CHARS]
    text = text[:_MOST_ERROR_CHARS]
    return text or "refused without a reason"


def _says_full(reply: Any) -> bool:
    return (
        isinstance(reply, dict)
        and reply.get("type") == "error"
        and isinstance(data := reply.get("data"), dict)
        and data.get("code") == CAPACITY_REACHED
    )
