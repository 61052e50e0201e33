"""A connection to an MCP server over stdio or streamable HTTP, using the SDK of the protocol.

Connections run on an event loop of their own, because a session is bound to one loop, while episodes step on several.
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
"""Time limit for a server to start and list its tools, in seconds."""
_CLOSE_S = 15.0
_POLL_S = 0.05  # interval of checks whether calls are still running
_INVALID_PARAMS = -32602
_CONNECTION_CLOSED = (-32000, "Connection closed")
"""The SDK's error for a closed connection. The code alone may also mean any failure of a server."""
_loop = BackgroundLoop("agentenv-mcp")
_sessions: "WeakSet[McpSession]" = WeakSet()


@dataclass(frozen=True)
class Called:
    """A completed call with its result."""

    name: str
    arguments: dict[str, Any]
    result: ToolResult


class McpSession:
    """One connection with its calls so far, as a resource of an episode's state.

    MCP cannot capture a server. To restore a state, a new connection is opened (for a command, a new process), and the calls
    are repeated. If the server's results differ from the recorded ones, the state cannot be restored.

    Args:
        server: The server.
        replays: Whether calls may be repeated; otherwise a snapshot is refused after the first call.
        pixels: Whether images in results are decoded; otherwise a text replaces each.
    """

    def __init__(self, server: McpServer, *, replays: bool = True, pixels: bool = False) -> None:
        self.server = server
        self.calls: list[Called] = []
        """The calls so far; only the last one if calls may not be repeated."""
        self.listed: tuple[Any, ...] = ()
        """The tools, once the connection is open: ``name``, ``description`` and ``input_schema`` of each."""
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
        """Closes the connection of an environment that was never closed."""
        # An incompletely copied object lacks both attributes.
        stop, owner = (
            self.__dict__.get("_stop"),
            self.__dict__.get("_owner"),
        )
        if stop is not None and owner is not None:
            with suppress(RuntimeError):  # the loop and its connections have ended
                owner.get_loop().call_soon_threadsafe(stop.set)

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        running = self._owner is not None and not self._owner.done()
        return running and self._client is not None and not self._ended

    @property
    def is_sound(self) -> bool:
        """Whether the connection is open and no request over it has failed."""
        return self.is_open and not self._failed

    async def open(self) -> None:
        """Opens the connection.

        Raises:
            EnvFault: the server does not start, does not speak MCP, or takes too long.
            MissingExtra: the SDK is not installed.
        """
        await _loop.join(self._open())

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Calls a tool.

        Returns:
            ``ok`` with the text of the result, ``error`` if the tool reports a failure, and ``format_error`` if the server
            rejects the arguments.

        Raises:
            EnvFault: the server failed, has ended, or did not answer in time.
        """
        return await _loop.join(self._call(name, arguments))

    def snapshot(self) -> tuple[Called, ...]:
        """Returns the calls so far.

        Raises:
            SnapshotRefused: calls must not be repeated, and one was made.
        """
        if self.calls and not self._replays:
            raise SnapshotRefused(
                f"{self.server.name} was called and may have changed its state; set server_state='replayed' to go back "
                "by making the calls again, or server_state='none' if the server keeps no state"
            )
        return tuple(self.calls)

    def restore(self, handle: Sequence[Called]) -> None:
        """Returns to ``handle``.

        Raises:
            SnapshotError: the server's results differ from the recorded ones, or it fails.
        """
        # A failed call may have changed the state of the server, and so may an abandoned call that is still running.
        if [*handle] != self.calls or not self.is_sound or self._running:
            _run(self._replay(handle), self._seconds(handle))

    def fork(self) -> "McpSession":
        """Opens a second connection to a server in the same state.

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
        """Closes the connection, and ends the process of a command.

        Called on a running event loop, it does not wait for the end, because a server may take seconds to stop.
        """
        if asyncio._get_running_loop() is not None:
            _loop.submit(self._end())
            return
        _run(self._end(), _CLOSE_S)

    def _seconds(self, calls: Sequence[Called]) -> float:
        return _CLOSE_S + OPEN_S + self.server.timeout_s * len(calls)

    async def _replay(self, calls: Sequence[Called]) -> None:
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
        """Connects and lists the tools. The SDK would otherwise list them during the first call, as a part of it."""
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
        # A separate task, because the SDK requires that the task that opens a connection also closes it.
        self._owner = asyncio.create_task(_keep_open(self.server, self._stderr, self._stop, ready))
        try:
            async with asyncio.timeout(OPEN_S):
                self._client = await asyncio.shield(ready)
        except TimeoutError:
            await self._close()
            raise self._fault(f"did not answer within {OPEN_S:g} s") from None
        except Exception as error:
            await self._close()
            if isinstance(error, AgentEnvError):  # its message already says what is missing
                raise
            raise self._fault(f"cannot be used: {_first_cause(error)}") from error

    async def _tools(self) -> list[Any]:
        from mcp import MCPError

        found: list[Any] = []
        cursor = None
        while True:
            try:
                page = await self._response(self._client.list_tools(cursor=cursor), "list its tools")
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
            result = await self._response(self._result(name, arguments), f"answer a call of {name!r}")
        except MCPError as error:  # the server rejects the policy's arguments
            result = ToolResult(name, ToolStatus.FORMAT_ERROR, encodable(error.message), "InvalidParams")
        if not self._replays:
            self.calls.clear()
        self.calls.append(Called(name, arguments, result))
        return result

    async def _result(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        answer = await self._client.call_tool(name, arguments)
        # In a thread, because decoding large images takes up to a second, which would block all other connections.
        return await asyncio.to_thread(read_result, name, answer, pixels=self._pixels)

    async def _response(self, request: Coroutine[Any, Any, T], what: str) -> T:
        """Waits for the response to a request; ``what`` describes it in errors.

        Raises:
            MCPError: the server rejects the parameters.
            EnvFault: any other failure.
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
            raise self._fault(f"did not {what}: {_first_cause(error)}") from error
        finally:
            self._running -= 1

    async def _close(self) -> None:
        owner, ready, self._client = self._owner, self._ready, None
        if owner is None or self._stop is None or ready is None:
            return
        self._stop.set()
        # Only a task that waits for the server's first answer is cancelled. An open connection is not, even by a second
        # close, because that would interrupt the SDK while it ends the process.
        if not ready.done() and not owner.cancelling():
            owner.cancel()
        await asyncio.wait([owner], timeout=_CLOSE_S / 2)
        if not owner.done():
            owner.cancel()
            await asyncio.wait([owner], timeout=_CLOSE_S / 4)
        # Reset at the end only, so that after a cancelled close the next one repeats everything.
        if self._owner is owner:
            self._owner = None

    async def _end(self) -> None:
        try:
            await self._close()
        finally:
            _sessions.discard(self)

    def forget(self) -> None:
        """Drops the connection in a forked process, because it belongs to the parent process."""
        self._client = self._owner = self._stop = self._ready = None

    async def retire(self) -> None:
        """Closes the connection once the calls that are running over it have ended."""
        while self._running:
            await asyncio.sleep(_POLL_S)
        await self._end()

    def _fault(self, what: str) -> EnvFault:
        """Records and returns a failure of the server, with the last line that its process wrote to stderr."""
        self._failed = True
        line = self._stderr.last_line
        said = f" (the last that came from it: {shortened(line, 200)!r})" if line else ""
        return EnvFault(f"{self.server.name} {what}{said}")


async def _keep_open(
    server: McpServer, stderr: StderrTail, stop: asyncio.Event, ready: "asyncio.Future[Any]"
) -> None:
    """Keeps a connection open until ``stop``. It has no reference to the session, so an unused session can be collected."""
    try:
        with needs_extra("mcp"):
            from mcp import Client
            from pydantic import ValidationError

        async def note(message: Any) -> None:
            # The SDK ignores such a line, and the call that it was meant to answer times out.
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


def _first_cause(error: BaseException) -> str:
    """Returns the first cause of an error that the SDK's task groups wrap in exception groups."""
    from mcp import MCPError

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):  # its message contains the server's answer
        return first_line(error)
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no program {Path(error.filename).name!r}"
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, Exception) else repr(error)


def _run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    return _loop.run(work, seconds)


_listings: "dict[McpServer, asyncio.Task[tuple[Any, ...]]]" = {}


def listed_tools(server: McpServer) -> tuple[Any, ...]:
    """Returns the tools of a server, which are listed only once per process, even for concurrently made environments.

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
_shared_lock = asyncio.Lock()  # belongs to the event loop of the connections
_retiring: set[asyncio.Task[None]] = set()


async def shared_session(server: McpServer, *, pixels: bool = False) -> McpSession:
    """Returns the connection that all episodes of this process share; reopened if it has ended or a request failed.

    Args:
        server: The server.
        pixels: As in `McpSession`.

    Raises:
        EnvFault: the server cannot be used.
    """

    async def ready() -> McpSession:
        async with _shared_lock:  # other callers wait until the first one has connected
            session = _shared.get((server, pixels))
            if session is None or not session.is_sound:
                if session is not None:  # calls of other episodes may still be running over it
                    retiring = asyncio.create_task(session.retire())
                    _retiring.add(retiring)
                    retiring.add_done_callback(_retiring.discard)
                session = McpSession(server, replays=False, pixels=pixels)
                _shared[server, pixels] = session
                await session._open()
            return session

    return await _loop.join(ready())


def _forget_all() -> None:
    """Makes a forked process open its own connections, because its writes would mix with those of the parent."""
    global _shared_lock
    for session in [*_sessions]:
        session.forget()
    for kept in (_sessions, _shared, _listings, _retiring):
        kept.clear()
    _shared_lock = asyncio.Lock()


in_forked_processes(_forget_all)


@atexit.register
def _close_all() -> None:
    async def ended() -> None:
        await asyncio.gather(*(session._end() for session in [*_sessions]), return_exceptions=True)

    if _sessions:
        _run(ended(), _CLOSE_S)
