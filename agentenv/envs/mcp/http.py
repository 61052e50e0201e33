"""The HTTP client with which the SDK of the protocol connects to a server.

The SDK runs all requests of a connection in one task group, which an HTTP error ends as a whole, so the calls of all
episodes that share the connection would fail. This client returns such an error as the response to its own request.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from agentenv.envs.mcp.stderr import StderrTail
from agentenv.errors import first_line

MOST_BYTES = 2**26
"""Largest size of one response. A server that writes without end would otherwise fill the memory before the call times
out."""
_BAD_GATEWAY = 502
_SERVER_ERROR = -32000


class McpHttpClient(httpx2.AsyncClient):
    """Converts a failed request to a response that reports the error, as a server would send it.

    It sets no time limits, because each caller has one for the whole call.

    Args:
        headers: Headers of every request.
        tail: Notified of the result of the last request, for errors that mention it.
    """

    def __init__(self, headers: dict[str, str], tail: StderrTail) -> None:
        # Without the limit on connections, with which calls of many episodes would wait for each other.
        super().__init__(headers=headers, timeout=None, limits=httpx2.Limits(max_connections=None))
        self._tail = tail

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Sends a request; see ``httpx2.AsyncClient.send``."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            self._tail.note("")
            reason = f"{type(error).__name__}: {first_line(error)}"
            body = {"jsonrpc": "2.0", "id": None, "error": {"code": _SERVER_ERROR, "message": reason}}
            return httpx2.Response(_BAD_GATEWAY, json=body, request=request)
        if request.method == "POST":  # servers may refuse other methods, which carry no call
            line = f"HTTP {response.status_code} {response.reason_phrase}"
            self._tail.note(line if response.is_error else "")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = _Body(response.stream, self._tail, 0 if streams else MOST_BYTES)
        return response


class _Body(httpx2.AsyncByteStream):
    """A body that ends early if it breaks off or grows too large; its reader then sees an incomplete response.

    Args:
        body: The original body.
        tail: Notified of why the body ended.
        most: The largest number of bytes; 0 is no limit, for a stream of events, each of which is limited.
    """

    def __init__(self, body: httpx2.AsyncByteStream, tail: StderrTail, most: int) -> None:
        self._body, self._tail, self._most = body, tail, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._body:
                size += len(chunk)
                if self._most and size > self._most:
                    self._tail.note(f"an answer of more than {self._most} bytes")
                    return
                yield chunk
        except httpx2.TransportError as error:
            self._tail.note(f"{type(error).__name__}: {first_line(error)}")

    async def aclose(self) -> None:
        await self._body.aclose()
