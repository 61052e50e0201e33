"""A connection to a server of environments: one frame, one answer, each within its time.

Every connection lives on the process's background event loop, so that it may be used from any loop and any thread, one call
at a time.
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
_SHOWN = 200  # characters of a server's own words in an error


@dataclass(frozen=True)
class LinkTimeouts:
    """How long a server is waited for."""

    call_s: float = 600.0
    """For one call; longer than the server's own bound, so that the server says what was late. The server does not count the
    time that a program waits for a free processor."""
    place_s: float = 300.0
    """For a server whose slots are all taken."""
    pause_s: float = 0.5
    """Before it is asked again for a slot; doubles from time to time."""


@dataclass(frozen=True)
class Handle:
    """A snapshot that a server holds."""

    link: "Link"
    id: str
    bytes: int

    def release(self) -> None:
        """Lets the server forget it; where the connection is gone the server has done so already."""
        if self.link.standing:
            self.link.ask_now("release", id=self.id)


class Link:
    """One connection and the environment at its other end; to `Snapshot` it is a resource.

    Args:
        url: address of the server, ``http://HOST:PORT``.
        timeouts: bounds.
    """

    def __init__(self, url: str, timeouts: LinkTimeouts) -> None:
        self.url = url
        self._timeouts = timeouts
        self._socket: Any = None
        self._opened = False

    def __del__(self) -> None:
        """Ends the connection of an environment that nobody closed, which would keep a slot of the server."""
        if (socket := self.__dict__.get("_socket")) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and its connections with it
                socket.loop.call_soon_threadsafe(socket.transport.close)

    @property
    def broken(self) -> bool:
        """Whether it was closed, by us or by accident."""
        return self._opened and self._socket is None

    @property
    def standing(self) -> bool:
        """Whether it is open, as far as is known: a server closes one that is idle for long, and all when it stops."""
        from websockets.protocol import State

        return self._socket is not None and self._socket.state is State.OPEN

    async def ask(self, type: str, answer: str, **data: Any) -> dict[str, Any]:
        """Sends a frame and returns the data of the answer; from any event loop.

        Raises:
            Fault: the server, or what is behind it, failed.
            AgentEnvError: the server refused, with the error that a local environment would raise.
        """
        # On the loop of the process, to which the socket belongs, whatever loop the caller is on.
        return await asyncio.wrap_future(in_background(self._ask(type, answer, data)))

    def ask_now(self, verb: str, **data: Any) -> dict[str, Any]:
        """Asks one of our own verbs as `ask` does, from code that is not asynchronous."""
        # Twice the bounds of the call itself, which are told first: this one is for a loop that is blocked.
        asking = in_background(self._ask("agentenv", "agentenv", {"verb": verb, **data}))
        return asking.result(2 * (self._timeouts.call_s + self._timeouts.place_s))

    def snapshot(self) -> Handle:
        """Takes a snapshot that stays at the server."""
        taken = self.ask_now("snapshot")
        return Handle(self, taken["id"], taken["bytes"])

    def restore(self, handle: Handle) -> None:
        """Goes back to a snapshot of this connection."""
        self.ask_now("restore", id=handle.id)

    def fork(self) -> "Link":
        """A connection of its own to a twin of the environment."""
        id = self.ask_now("fork")["id"]
        twin = Link(self.url, self._timeouts)
        # At once: a fork that nobody has attached to is ended by the server after a while.
        twin.ask_now("attach", id=id)
        return twin

    def close(self) -> None:
        """Closes the connection, and with it the environment."""
        in_background(self._drop()).result(2 * _CLOSE_S)

    async def _ask(self, type: str, answer: str, data: dict[str, Any]) -> dict[str, Any]:
        if self.broken:
            raise EnvFault(f"the connection to {self.url} is closed; reset() opens another one")
        text = frame(type, data)
        try:
            reply = await (self._exchange(text) if self._opened else self._first(text))
        except BaseException as error:
            # BaseException, because the caller may have given up: an answer would come then that nobody reads.
            # Shielded, because a second cancellation must not leave the socket open.
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

    async def _first(self, text: str) -> Any:
        """Opens the connection and exchanges its first frame; waits where all slots are taken."""
        # The first frame is sent anew with each connection: a full server accepts the connection and says so only then.
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
        """Opens the connection; False where the server is not ready.

        Raises:
            ConfigurationError: the server does not let us in.
            EnvFault: it fails.
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
                ping_interval=None,  # the server pings; pings of ours would draw from the global random generator
                compression=None,
                proxy=None,
            )
        except InvalidStatus as error:
            if error.response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                return False
            refused = error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR
            # A proxy says 502 while the server starts again.
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
        # Taken out before it is closed: closing waits, and nobody may send on it meanwhile.
        socket, self._socket, self._opened = self._socket, None, True
        if socket is not None:
            with contextlib.suppress(Exception):
                await socket.close()


def received(reply: Any, answer: str, sender: str) -> dict[str, Any]:
    """The data of a frame from a server, which is of the type ``answer``.

    Raises:
        Fault: it is no such frame, or says that the server failed.
        AgentEnvError: the server refused, with the error that a local environment would raise.
    """
    known = isinstance(reply, dict) and isinstance(reply.get("data"), dict)
    if not known or reply.get("type") not in (answer, "error"):
        raise EnvFault(f"{sender} is no server of environments of this version: {str(reply)[:200]}")
    if reply["type"] == "error":
        raise error_in(reply["data"], sender)
    return dict(reply["data"])


def headers() -> dict[str, str]:
    """What every request carries: the token, where there is one."""
    return bearer(TOKEN_VARIABLE)


def reason(body: bytes | bytearray | None) -> str:
    """The sentence in a refusal's body, or the body."""
    text = without_keys((body or b"").decode(errors="replace"))
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(read_json(text)["error"])[:_SHOWN]
    text = text[:_SHOWN]
    return text or "refused without a reason"


def _says_full(reply: Any) -> bool:
    return (
        isinstance(reply, dict)
        and reply.get("type") == "error"
        and isinstance(data := reply.get("data"), dict)
        and data.get("code") == CAPACITY_REACHED
    )
