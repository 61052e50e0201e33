"""A connection to a server of the Model Context Protocol (MCP), over stdio or streamable HTTP, by the protocol's own SDK.

Connections live on an event loop of their own: a session belongs to one loop, while episodes are stepped from several.
"""

import asyncio
import atexit
import json
import logging
import os
import shlex
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.grammar import encodable, shortened
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.errors import (
    ConfigurationError,
    EnvFault,
    SnapshotError,
    SnapshotRefused,
    first_line,
    needs_extra,
)

T = TypeVar("T")

STDIO = "stdio:"
OPEN_S = 60.0
"""Seconds that a server may take to start and to list its tools."""
_CLOSE_S = 15.0
_INVALID_PARAMS = -32602
_CONNECTION_CLOSED = (
    -32000,
    "Connection closed",
)  # of the SDK; the number alone may be any failure of a server
_TAIL = 4096  # bytes of what a process has written to stderr that are looked at
_loop = BackgroundLoop("agentenv-mcp")
_sessions: "WeakSet[McpSession]" = WeakSet()


@dataclass(frozen=True)
class McpServer:
    """Where a server is found, and what it gets from the environment variables of this process."""

    address: str
    """``stdio:COMMAND`` or the URL of its streamable HTTP endpoint."""
    token_variable: str = ""
    """The environment variable that holds the bearer token of a URL."""
    variables: tuple[str, ...] = ()
    """Environment variables that a command gets, beside the few that every program needs, such as ``PATH``."""
    timeout_s: float = 30.0
    """Seconds that a call may take."""

    def __post_init__(self) -> None:
        """Checks what can be known before the server is contacted.

        Raises:
            ConfigurationError: neither a command nor a URL, a variable that is not set, or no positive time limit.
        """
        if not self.command and not self.address.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"the MCP server is {self.address!r:.80}; write stdio:COMMAND, as in 'stdio:python3 server.py', or a URL"
            )
        for name in (*self.variables, *([self.token_variable] if self.token_variable else [])):
            if name not in os.environ:
                raise ConfigurationError(f"the environment variable {name!r} for the MCP server is not set")
        if not self.timeout_s > 0:
            raise ConfigurationError(f"timeout_s is {self.timeout_s}; a call needs some time")

    @property
    def command(self) -> list[str]:
        """The words of the command; empty for a URL.

        Raises:
            ConfigurationError: a quote does not end.
        """
        if not self.address.startswith(STDIO):
            return []
        try:
            return shlex.split(self.address.removeprefix(STDIO))
        except ValueError as error:
            raise ConfigurationError(f"the command of the MCP server cannot be read: {error}") from None

    @property
    def name(self) -> str:
        """The server in sentences."""
        return f"the MCP server {self.address!r:.120}"

    @asynccontextmanager
    async def transport(self, complaints: Any) -> AsyncIterator[Any]:
        """What the SDK connects by; what a command writes to stderr goes to the file ``complaints``."""
        with needs_extra("mcp"):
            from mcp.client.stdio import StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client
        logging.getLogger("mcp").setLevel(
            logging.CRITICAL
        )  # it prints tracebacks of what is raised as a fault here
        if self.command:
            given = {name: os.environ[name] for name in self.variables}
            started = StdioServerParameters(command=self.command[0], args=self.command[1:], env=given)
            async with stdio_client(started, errlog=complaints) as streams:
                yield streams
            return
        token = os.environ.get(self.token_variable, "") if self.token_variable else ""
        headers = {"Authorization": f"Bearer {token}"} if token else None
        async with (
            create_mcp_http_client(headers) as client,
            streamable_http_client(self.address, http_client=client) as streams,
        ):
            yield streams


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
    """

    def __init__(self, server: McpServer, *, replays: bool = True) -> None:
        self.server = server
        self.calls: list[Called] = []
        self._replays = replays
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._owner: asyncio.Task[None] | None = None
        self._ended = False
        self._failed = False
        self._complaints = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the session
        _sessions.add(self)

    @property
    def is_open(self) -> bool:
        """Whether the connection stands, as far as is known."""
        return (
            self._client is not None
            and self._owner is not None
            and not self._owner.done()
            and not self._ended
        )

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

    async def tools(self) -> list[Any]:
        """What the server lists: ``name``, ``description`` and ``input_schema`` of each tool.

        Raises:
            EnvFault: it cannot be listed.
        """
        return await _loop.join(self._tools())

    def snapshot(self) -> tuple[Called, ...]:
        """The calls so far.

        Raises:
            SnapshotRefused: calls must not be made again, and one was made.
        """
        if self.calls and not self._replays:
            raise SnapshotRefused(
                f"{self.server.name} was called and may remember it; server_state='replayed' goes back by making the calls "
                "again, and 'none' says that it remembers nothing"
            )
        return tuple(self.calls)

    def restore(self, handle: Sequence[Called]) -> None:
        """Goes back to ``handle``.

        Raises:
            SnapshotError: the server answers otherwise than before, or fails.
        """
        if [*handle] != self.calls or self._failed:  # a call that failed may have changed something
            _run(self._repeat(handle), self._seconds(handle))

    def fork(self) -> "McpSession":
        """A connection of its own to a server in the same state.

        Raises:
            SnapshotRefused: as in ``snapshot``.
            SnapshotError: as in ``restore``.
        """
        twin = McpSession(self.server, replays=self._replays)
        try:
            twin.restore(self.snapshot())
        except BaseException:
            twin.close()
            raise
        return twin

    def close(self) -> None:
        """Ends the connection, and the process of a command."""
        _run(self._end(), _CLOSE_S)

    async def aclose(self) -> None:
        """Does what ``close`` does."""
        await _loop.join(self._end())

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
        self._stop, self._ended, self._failed = asyncio.Event(), False, False
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # A task of its own, because the SDK wants a connection to be closed by the task that has opened it.
        self._owner = asyncio.create_task(self._hold(self._stop, ready))
        try:
            async with asyncio.timeout(OPEN_S):
                self._client = await asyncio.shield(ready)
        except TimeoutError:
            await self._close()
            raise self._fault(f"did not answer within {OPEN_S:g} s") from None
        except Exception as error:
            await self._close()
            if isinstance(error, ConfigurationError | EnvFault):
                raise
            raise self._fault(f"cannot be used: {_reason(error)}") from error

    async def _hold(self, stop: asyncio.Event, ready: "asyncio.Future[Any]") -> None:
        try:
            with needs_extra("mcp"):
                from mcp import Client
            async with Client(self.server.transport(self._complaints), cache=None) as client:
                ready.set_result(client)
                await stop.wait()
        except Exception as error:
            if not ready.done():
                ready.set_exception(error)
        finally:
            if not ready.done():
                ready.cancel()

    async def _tools(self) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while True:
            page = await self._asked(self._client.list_tools(cursor=cursor), "list its tools")
            found += page.tools
            if not (cursor := page.next_cursor):
                return found

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        from mcp import MCPError

        if self._client is None or not self.is_open:
            raise self._fault("has ended its connection")
        try:
            answer = await self._asked(self._client.call_tool(name, arguments), f"answer a call of {name!r}")
        except MCPError as error:  # the server refuses what the policy wrote
            result = ToolResult(name, ToolStatus.FORMAT_ERROR, encodable(error.message), "InvalidParams")
        else:
            status = ToolStatus.ERROR if answer.is_error else ToolStatus.OK
            result = ToolResult(name, status, shown(answer), "ToolError" if answer.is_error else "")
        self.calls.append(Called(name, arguments, result))
        return result

    async def _asked(self, request: Coroutine[Any, Any, T], what: str) -> T:
        """The answer to a request; ``what`` it was to do, for a fault.

        Raises:
            MCPError: the server refuses the parameters.
            EnvFault: anything else but an answer.
        """
        from mcp import MCPError

        try:
            async with asyncio.timeout(self.server.timeout_s):
                return await request
        except TimeoutError:
            raise self._fault(f"did not {what} within {self.server.timeout_s:g} s") from None
        except MCPError as error:
            if error.code == _INVALID_PARAMS:
                raise
            self._ended = self._ended or (error.code, error.message) == _CONNECTION_CLOSED
            raise self._fault(f"did not {what}: {first_line(error)}") from error
        except Exception as error:
            raise self._fault(f"did not {what}: {_reason(error)}") from error

    async def _close(self) -> None:
        owner, self._owner, self._client = self._owner, None, None
        if owner is None or self._stop is None:
            return
        self._stop.set()
        await asyncio.wait([owner], timeout=_CLOSE_S / 2)
        owner.cancel()
        await asyncio.wait([owner], timeout=_CLOSE_S / 4)

    async def _end(self) -> None:
        try:
            await self._close()
        finally:
            self._complaints.close()
            _sessions.discard(self)

    def _fault(self, what: str) -> EnvFault:
        """A failure of the server, which is noted, with the last line that its process has written to stderr."""
        self._failed = True
        written = b""
        if (
            not self._complaints.closed
        ):  # read at a place, because the process writes at the place that the file is at
            descriptor = self._complaints.fileno()
            written = os.pread(descriptor, _TAIL, max(0, os.fstat(descriptor).st_size - _TAIL))
        lines = written.decode(errors="replace").strip().splitlines()
        said = f" (it wrote {shortened(lines[-1], 200)!r})" if lines else ""
        return EnvFault(f"{self.server.name} {what}{said}")


def shown(answer: Any) -> str:
    """What a policy sees of the result of a call: its texts, and of other content what it is.

    The structured form stands for a result without content.
    """
    parts = [_block_text(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    return encodable("\n".join(parts))


def _block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    kind = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
    return f"[{block.type} of type {kind}, which is not shown]"


def _reason(error: BaseException) -> str:
    """The first cause in an error, which the SDK's task groups wrap in groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"there is no program {Path(error.filename).name!r}"
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, Exception) else repr(error)


def _run(work: Coroutine[Any, Any, T], seconds: float) -> T:
    return _loop.run(work, seconds)


@cache
def listed_tools(server: McpServer) -> tuple[Any, ...]:
    """The tools of a server, listed once in a process.

    Raises:
        EnvFault: the server cannot be used.
    """

    async def listed(session: McpSession) -> tuple[Any, ...]:
        await session._open()
        return tuple(await session._tools())

    session = McpSession(server)
    try:
        return _run(listed(session), OPEN_S + server.timeout_s)
    finally:
        session.close()


_shared: dict[McpServer, McpSession] = {}
_sharing = asyncio.Lock()  # of the loop of connections


async def shared_session(server: McpServer) -> McpSession:
    """The connection that all episodes of this process share, opened again where it has ended.

    Raises:
        EnvFault: the server cannot be used.
    """

    async def ready() -> McpSession:
        async with _sharing:  # the others wait until the first of them has connected
            session = _shared.get(server)
            if session is None or not session.is_open:
                if session is not None:
                    await session._end()
                session = _shared[server] = McpSession(server)
                await session._open()
            return session

    return await _loop.join(ready())


@atexit.register
def _close_all() -> None:
    for session in [*_sessions]:
        session.close()
