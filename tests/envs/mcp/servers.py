"""MCP servers for tests, written with the protocol's SDK: run as a program with the transport's name."""

import asyncio
import io
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from PIL import Image as Pictures

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
def chart(color: str) -> list[str | Image]:
    """Draws a chart."""
    held = io.BytesIO()
    Pictures.new("RGB", (112, 56), color).save(held, "PNG")
    return [f"In {color}:", Image(data=held.getvalue(), format="png"), "Done."]


@server.tool()  # type: ignore[untyped-decorator]
def half_chart() -> Image:
    """Draws half a chart."""
    held = io.BytesIO()
    Pictures.effect_noise((112, 56), 90).save(held, "PNG")
    return Image(data=held.getvalue()[:2000], format="png")


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
