"""The address and settings of an MCP server, and the transport by which the SDK connects to it."""

import logging
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

from agentenv.envs.mcp.stderr import StderrTail
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.sandbox.labels import start_time
from agentenv.web.client import bearer

STDIO = "stdio:"


@dataclass(frozen=True)
class McpServer:
    """The address of a server, and which of this process's environment variables it gets."""

    address: str
    """``stdio:COMMAND`` or the URL of its streamable HTTP endpoint."""
    token_variable: str = ""
    """The environment variable that holds the bearer token of a URL."""
    variables: tuple[str, ...] = ()
    """Environment variables that a command gets in addition to those that every program needs, such as ``PATH``."""
    timeout_s: float = 30.0
    """Time limit of a call in seconds."""

    def __post_init__(self) -> None:
        """Checks everything that can be checked before the server is contacted.

        Raises:
            ConfigurationError: it is neither a command nor a URL, the URL contains a password, a variable is not set, the
                token is not valid in a header, or the time limit is not positive.
        """
        if not self.command and not self.address.startswith(("http://", "https://")):
            raise ConfigurationError(
                f"the MCP server is {self.address!r:.80}; write stdio:COMMAND, as in 'stdio:python3 server.py', or a URL"
            )
        # A password in the URL would be written into the files of every run.
        if not self.command and "@" in urlsplit(self.address).netloc:
            raise ConfigurationError(
                f"the URL of {self.name} holds a password; put a bearer token into an environment variable and name that as "
                "token_variable"
            )
        for name in (*self.variables, *([self.token_variable] if self.token_variable else [])):
            if name not in os.environ:
                raise ConfigurationError(f"the environment variable {name!r} for the MCP server is not set")
        bearer(self.token_variable)
        if not self.timeout_s > 0:
            raise ConfigurationError(f"timeout_s is {self.timeout_s}; it must be above 0")

    @property
    def command(self) -> list[str]:
        """The words of the command; empty for a URL.

        Raises:
            ConfigurationError: a quote is not closed.
        """
        if not self.address.startswith(STDIO):
            return []
        try:
            return shlex.split(self.address.removeprefix(STDIO))
        except ValueError as error:
            raise ConfigurationError(f"the command of the MCP server cannot be read: {error}") from None

    @property
    def name(self) -> str:
        """The name of the server for messages; of a URL without user, password and query, which may be secret."""
        shown = self.address
        if not self.command:
            there = urlsplit(self.address)
            shown = there._replace(netloc=there.netloc.rpartition("@")[2], query="", fragment="").geturl()
        return f"the MCP server {shown!r:.120}"

    @asynccontextmanager
    async def transport(self, stderr: StderrTail) -> AsyncIterator[Any]:
        """Yields the SDK's transport. ``stderr`` keeps the last lines of a command's stderr, or the last HTTP error."""
        with needs_extra("mcp"):
            from mcp.client.stdio import StdioServerParameters, stdio_client
            from mcp.client.streamable_http import streamable_http_client

            from agentenv.envs.mcp.http import MOST_BYTES, McpHttpClient
        # The SDK would print tracebacks of errors that are raised here as faults.
        logging.getLogger("mcp").setLevel(logging.CRITICAL)
        if self.command:
            given = {name: os.environ[name] for name in self.variables}
            started = StdioServerParameters(command=self.command[0], args=self.command[1:], env=given)
            with stderr.pipe() as writer:
                leader = begun = None
                try:
                    async with stdio_client(started, errlog=writer) as streams:
                        leader = _server_of(writer)
                        begun = None if leader is None else start_time(leader)
                        yield streams
                finally:
                    # The SDK ends child processes of a server only if the server itself does not exit.
                    if leader is not None:
                        _end_group(leader, begun)
            return

        async with (
            McpHttpClient(bearer(self.token_variable), stderr) as client,
            streamable_http_client(
                self.address, http_client=client, max_sse_event_size=MOST_BYTES
            ) as streams,
        ):
            yield streams


def _server_of(stderr: TextIO) -> int | None:
    """Returns the server process that was given ``stderr`` and leads its group; None if this cannot be determined.

    The SDK does not tell which process it started, but no other child process has the same pipe.
    """
    pipe = f"pipe:[{os.fstat(stderr.fileno()).st_ino}]"
    for listing in Path("/proc/self/task").glob("*/children"):
        # A thread or a child process may end meanwhile.
        with suppress(OSError):
            for child in listing.read_text(encoding="ascii").split():
                with suppress(OSError):
                    if str(Path(f"/proc/{child}/fd/2").readlink()) == pipe:
                        return int(child)
    return None


def _end_group(leader: int, begun: str | None) -> None:
    """Ends the remaining processes of a server's process group.

    Args:
        leader: The process that led the group. Its id is not reused while the group has members.
        begun: The start time of that process; a process with the same id and another start time is unrelated.
    """
    if start_time(leader) in (None, begun):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
