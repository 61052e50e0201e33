"""A connection to a server of the Model Context Protocol (MCP), over stdio or streamable HTTP, by the protocol's own SDK.

Connections live on an event loop of their own: a session belongs to one loop, while episodes are stepped from several.
"""

import asyncio
import atexit
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.forks import in_forked_processes
from agentenv.core.grammar import encodable, shortened
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.envs.mcp.results import read_result
from agentenv.envs.mcp.server import McpServer
from agentenv.envs.mcp.stderr import StderrTail
from agentenv.errors import AgentEnvError, EnvFault, SnapshotError, SnapshotRefused, first_line, needs_extra

T = TypeVar("T")

OPEN_S = 60.0
"""Seconds that a server may take to start and to list its tools."""
_CLOSE_S = 15.0
_GLANCE_S = 0.05  # between two looks at whether calls still run
_INVALID_PARAMS = -32602
_CONNECTION_CLOSED = (-32000, "Connection closed")
"""What the SDK raises for it; the number alone may be any failure of a server."""
_loop = BackgroundLoop("agentenv-mcp")
_sessions: "WeakSet[McpSession]" = WeakSet()


@dataclass(frozen=True)
class Called:
    """A call that was made, and what came back."""

    name: str
    arguments: dict[str, Any]
    result: ToolResult


class McpSession:
    """One connection, and the calls that were made over it: a resource of an episode's state.

    MCP has no way to capture a server. To go back, a new connection is opened, for a command a new process, and the calls
    are made once more; a server that answers otherwise than the first time cannot go back.

    Args:
        server: Where it is.
        replays: Whether calls may be made again; otherwise a snapshot is refused after the first call.
        pixels: Whether images of results are read; otherwise a text stands for each.
    """

    def __init__(self, server: McpServer, *, replays: bool = True, pixels: bool = False) -> None:
        self.server = server
        self.calls: list[Called] = []
        """Those made so far; of calls that are not made again only the last."""
        self.listed: tuple[Any, ...] = ()
        """The tools, once it is open: ``name``, ``description`` and ``input_schema`` of each."""
        self._replays = replays
        self._pixels = pixels
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Any] | None = None
        self._ended = False
        self._failed = False
        self._stderr = StderrTail()
        self._running = 0

    def __del__(self) -> None:
        """Ends the connection of an environment that was never closed."""
        # A copy that failed has neither.
        stop, owner = (
            self.__dict__.get("_stop"),
            self.__dict__.get("_owner"),
        )
        if stop is not None and owner is not None:
            with suppress(RuntimeError):  # the loop has ended, and its connections with it
                owner.get_loop().call_soon_threadsafe(stop.set)

    @property
    def is_open(self) -> bool:
        """Whether the connection stands, as far as is known."""
        running = self._owner is not None and not self._owner.done()
        return running and self._client is not None and not self._ended

    @property
    def is_sound(self) -> bool:
        """Whether the connection stands and no request over it has failed."""
        return self.is_open and not self._failed

    async def open(self) -> None:
        """Connects.

        Raises:
            EnvFault: the server does not start, does not speak MCP or takes too long.
            MissingExtra: the SDK is not installed.
        """
        await _loop.join(self._open())

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Calls a tool.

        Returns:
            ``ok`` with the text of the result, ``error`` where the tool says that it failed, and ``format_error`` where the
            server refuses the arguments.

        Raises:
            EnvFault: the server failed, is gone, or did not answer in time.
        """
        return await _loop.join(self._call(name, arguments))

    def snapshot(self) -> tuple[Called, ...]:
        """The calls so far.

        Raises:
            SnapshotRefused: calls must not be made again, and one was made.
        """
        if self.calls and not self._replays:
            raise SnapshotRefused(
                f"{self.server.name} was called and may have changed its state; set server_state='replayed' to go back "
                "by making the calls again, or server_state='none' if the server keeps no state"
            )
        return tuple(self.calls)

    def restore(self, handle: Sequence[Called]) -> None:
        """Goes back to ``handle``.

        Raises:
            SnapshotError: the server answers otherwise than before, or fails.
        """
        # A call that failed may have changed something, and so may one that was given up and runs for a moment yet.
        if [*handle] != self.calls or not self.is_sound or self._running:
            _run(self._repeat(handle), self._seconds(handle))

    def fork(self) -> "McpSession":
        """A connection of its own to a server in the same state.

        Raises:
            SnapshotRefused: as in ``snapshot``.
            SnapshotError: as in ``restore``.
        """
        twin = McpSession(self.server, replays=self._replays, pixels=self._pixels)
        try:
            twin.restore(self.snapshot())
        except BaseException:
            twin.close()
            raise
        return twin

    def close(self) -> None:
        """Ends the connection, and the process of a command.

        On an event loop that runs, it does not wait for the end: a server may take seconds, in which the loop stood still.
        """
        if asyncio._get_running_loop() is not None:
            _loop.submit(self._end())
            return
        _run(self._end(), _CLOSE_S)

    def _seconds(self, calls: Sequence[Called]) -> float:
        return _CLOSE_S + OPEN_S + self.server.timeout_s * len(calls)

    async def _repeat(self, calls: Sequence[Called]) -> None:
        await self._close()
        self.calls = []
        try:
            await self._open()
            for place, made in enumerate(calls, 1):
                if (found := await self._call(made.name, made.arguments)) != made.result:
                    raise SnapshotError(
                        f"{self.server.name} answers call {place}, of {made.name!r}, otherwise than before, so it cannot go "
                        f"back: {shortened(found.text, 80)!r} in place of {shortened(made.result.text, 80)!r}"
                    )
        except EnvFault as fault:
            raise SnapshotError(str(fault)) from fault

    async def _open(self) -> None:
        """Connects and lists the tools, which the SDK would do otherwise within the first call, as part of its answer."""
        try:
            async with asyncio.timeout(OPEN_S):
                await self._connect()
                self.listed = tuple(await self._tools())
        except TimeoutError:
            await self._close()
            raise self._fault(f"did not list its tools within {OPEN_S:g} s") from None

    async def _connect(self) -> None:
        _sessions.add(self)
        self._stop, self._stderr = asyncio.Event(), StderrTail()
        self._ended = self._failed = False
        self._ready = ready = asyncio.get_running_loop().create_future()
        # A task of its own, because the SDK wants a connection to be closed by the task that has opened it.
        self._owner = asyncio.create_task(_hold(self.server, self._stderr, self._stop, ready))
        try:
            async with asyncio.timeout(OPEN_S):
                self._client = await asyncio.shield(ready)
        except TimeoutError:
            await self._close()
            raise self._fault(f"did not answer within {OPEN_S:g} s") from None
        except Exception as error:
            await self._close()
            if isinstance(error, AgentEnvError):  # which says by itself what is missing
                raise
            raise self._fault(f"cannot be used: {_reason(error)}") from error

    async def _tools(self) -> list[Any]:
        from mcp import MCPError

        found: list[Any] = []
        cursor = None
        while True:
            try:
                page = await self._asked(self._client.list_tools(cursor=cursor), "list its tools")
            except MCPError as error:
                raise self._fault(f"did not list its tools: {first_line(error)}") from error
            found += page.tools
            if not page.next_cursor:
                return found
            if page.next_cursor == cursor:
                raise self._fault(f"lists its tools without end: page {cursor!r:.80} follows itself")
            cursor = page.next_cursor

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp import MCPError

        if not self.is_open:
            raise self._fault("has ended its connection")
        try:
            result = await self._asked(self._result(name, arguments), f"answer a call of {name!r}")
        except MCPError as error:  # the server refuses what the policy wrote
            result = ToolResult(name, ToolStatus.FORMAT_ERROR, encodable(error.message), "InvalidParams")
        if not self._replays:
            self.calls.clear()
        self.calls.append(Called(name, arguments, result))
        return result

    async def _result(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        answer = await self._client.call_tool(name, arguments)
        # In a thread, as large images take a second, in which no other connection would be served.
        return await asyncio.to_thread(read_result, name, answer, pixels=self._pixels)

    async def _asked(self, request: Coroutine[Any, Any, T], what: str) -> T:
        """The answer to a request; ``what`` it was to do, for a fault.

        Raises:
            MCPError: the server refuses the parameters.
            EnvFault: anything else but an answer.
        """
        from mcp import MCPError

        self._running += 1
        try:
            async with asyncio.timeout(self.server.timeout_s):
                return await request
        except asyncio.CancelledError:
            self._failed = True
            raise
        except TimeoutError:
            raise self._fault(f"did not {what} within {self.server.timeout_s:g} s") from None
        except MCPError as error:
            if error.code == _INVALID_PARAMS:
                raise
            self._ended = self._ended or (error.code, error.message) == _CONNECTION_CLOSED
            raise self._fault(f"did not {what}: {first_line(error)}") from error
        except Exception as error:
            raise self._fault(f"did not {what}: {_reason(error)}") from error
        finally:
            self._running -= 1

    async def _close(self) -> None:
        owner, ready, self._client = self._owner, self._ready, None
        if owner is None or self._stop is None or ready is None:
            return
        self._stop.set()
        # It waits for a server that may never answer. One that is open is not cancelled, also by a second close: the SDK
        # would break off the end of the process.
        if not ready.done() and not owner.cancelling():
            owner.cancel()
        await asyncio.wait([owner], timeout=_CLOSE_S / 2)
        if not owner.done():
            owner.cancel()
            await asyncio.wait([owner], timeout=_CLOSE_S / 4)
        # Only now, so that after a cancelled close the next one does it all again.
        if self._owner is owner:
            self._owner = None

    async def _end(self) -> None:
        try:
            await self._close()
        finally:
            _sessions.discard(self)

    def forget(self) -> None:
        """Leaves the connection to the process that has opened it."""
        self._client = self._owner = self._stop = self._ready = None

    async def retire(self) -> None:
        """Ends the connection when the calls that run over it have ended."""
        while self._running:
            await asyncio.sleep(_GLANCE_S)
        await self._end()

    def _fault(self, what: str) -> EnvFault:
        """A failure of the server, which is noted, with the last line that its process has written to stderr."""
        self._failed = True
        line = self._stderr.last_line
        said = f" (the last that came from it: {shortened(line, 200)!r})" if line else ""
        return EnvFault(f"{self.server.name} {what}{said}")


async def _hold(
    server: McpServer, stderr: StderrTail, stop: asyncio.Event, ready: "asyncio.Future[Any]"
) -> None:
    """Holds a connection until ``stop``. It knows nothing of the session, so that one that nobody needs can go."""
    try:
        with needs_extra("mcp"):
            from mcp import Client
            from pydantic import ValidationError

        async def note(message: Any) -> None:
            # The SDK passes over such a line, and the call that it was to answer is given up in time.
            if isinstance(message, ValidationError):
                written = str(message.errors()[0]["input"])
                stderr.note(f"{written[:80]}, which is no message of MCP")

        async with Client(server.transport(stderr), cache=None, message_handler=note) as client:
            ready.set_result(client)
            await stop.wait()
    except Exception as error:
        if not ready.done():
            ready.set_exception(error)
    finally:
        if not ready.done():
            ready.cancel()


def _reason(error: BaseException) -> str:
    """The first cause in an error, which the SDK's task groups wrap in groups of errors."""
    from mcp import MCPError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):  # which says what the server answered
        return first_line(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no program {Path(error.filename).name!r}"
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, Exception) else repr(error)


def _run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    return _loop.run(work, seconds)


_listings: "dict[McpServer, asyncio.Task[tuple[Any, ...]]]" = {}


def listed_tools(server: McpServer) -> tuple[Any, ...]:
    """The tools of a server, listed once in a process, also where several environments are made at the same time.

    Raises:
        EnvFault: the server cannot be used.
    """

    async def listed() -> tuple[Any, ...]:
        listing = _listings.get(server)
        if listing is None or (listing.done() and (listing.cancelled() or listing.exception())):
            listing = _listings[server] = asyncio.create_task(_list_tools(server))
        return await asyncio.shield(listing)

    return _run(listed(), OPEN_S + 2 * _CLOSE_S)


async def _list_tools(server: McpServer) -> tuple[Any, ...]:
    session = McpSession(server)
    try:
        await session._open()
        return session.listed
    finally:
        await session._end()


_shared: dict[tuple[McpServer, bool], McpSession] = {}
_sharing = asyncio.Lock()  # of the loop of connections
_retiring: set[asyncio.Task[None]] = set()


async def shared_session(server: McpServer, *, pixels: bool = False) -> McpSession:
    """The connection that all episodes of this process share, opened again where it has ended or a request has failed.

    Args:
        server: Where it is.
        pixels: As in `McpSession`.

    Raises:
        EnvFault: the server cannot be used.
    """

    async def ready() -> McpSession:
        async with _sharing:  # the others wait until the first of them has connected
            session = _shared.get((server, pixels))
            if session is None or not session.is_sound:
                if session is not None:  # calls of other episodes may still be answered over it
                    retiring = asyncio.create_task(session.retire())
                    _retiring.add(retiring)
                    retiring.add_done_callback(_retiring.discard)
                session = McpSession(server, replays=False, pixels=pixels)
                _shared[server, pixels] = session
                await session._open()
            return session

    return await _loop.join(ready())


def _forget_all() -> None:
    """A process that was forked opens connections of its own: what it wrote would mix with what the other one writes."""
    global _sharing
    for session in [*_sessions]:
        session.forget()
    for kept in (_sessions, _shared, _listings, _retiring):
        kept.clear()
    _sharing = asyncio.Lock()


in_forked_processes(_forget_all)


@atexit.register
def _close_all() -> None:
    async def ended() -> None:
        await asyncio.gather(*(session._end() for session in [*_sessions]), return_exceptions=True)

    if _sessions:
        _run(ended(), _CLOSE_S)
