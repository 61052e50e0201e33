"""MCP servers for tests, written with the protocol's SDK: run as a program with the transport's name."""

import asyncio
import os
import sys

from mcp.server import MCPServer

server = MCPServer("notes")
notes: list[str] = []


@server.tool()  # type: ignore[untyped-decorator]
def add_note(text: str) -> str:
    """Keeps a note."""
    notes.append(text)
    return f"{len(notes)} notes"


@server.tool()  # type: ignore[untyped-decorator]
def read_notes() -> list[str]:
    """Shows all notes."""
    return notes


@server.tool()  # type: ignore[untyped-decorator]
def divide(a: int, b: int) -> float:
    """Divides a by b."""
    return a / b


@server.tool()  # type: ignore[untyped-decorator]
def variables() -> str:
    """Names the environment variables."""
    return " ".join(sorted(os.environ))


@server.tool()  # type: ignore[untyped-decorator]
def process() -> str:
    """Tells which process this is."""
    return str(os.getpid())


@server.tool()  # type: ignore[untyped-decorator]
def crash() -> str:
    """Ends the server."""
    print("out of coffee", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()  # type: ignore[untyped-decorator]
async def hang() -> str:
    """Never answers."""
    await asyncio.sleep(3600)
    return ""


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", port=int(sys.argv[2]))
