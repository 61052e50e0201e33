"""The client of HTTP over which the protocol's SDK speaks to a server.

The SDK keeps all requests of a connection in one group of tasks, which an error of HTTP ends as a whole: with it the calls
of all episodes that share the connection would fail. Here such an error is the answer to its own request.
"""

from collections.abc import AsyncIterator
from typing import Any

import httpx2

from agentenv.envs.mcp.stderr import StderrTail
from agentenv.errors import first_line

MOST_BYTES = 2**26
"""Of one answer of a server. A server that writes without end would fill the memory before the call is given up."""
_BAD_GATEWAY = 502
_FAILED = -32000


class McpHttpClient(httpx2.AsyncClient):
    """Answers a request that failed as a server does that reports an error.

    Nothing has a time limit here: whoever asks has one for all of it.

    Args:
        headers: Of every request.
        tail: Is told how the last request went, for errors that name it.
    """

    def __init__(self, headers: dict[str, str], tail: StderrTail) -> None:
        # Without the limit on connections, over which calls of many episodes would wait for each other.
        super().__init__(headers=headers, timeout=None, limits=httpx2.Limits(max_connections=None))
        self._tail = tail

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Sends a request; see ``httpx2.AsyncClient.send``."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            self._tail.note("")
            reason = f"{type(error).__name__}: {first_line(error)}"
            body = {"jsonrpc": "2.0", "id": None, "error": {"code": _FAILED, "message": reason}}
            return httpx2.Response(_BAD_GATEWAY, json=body, request=request)
        if request.method == "POST":  # a server may refuse the others, which carry no request of ours
            line = f"HTTP {response.status_code} {response.reason_phrase}"
            self._tail.note(line if response.is_error else "")
        if isinstance(response.stream, httpx2.AsyncByteStream):
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            response.stream = _Body(response.stream, self._tail, 0 if streams else MOST_BYTES)
        return response


class _Body(httpx2.AsyncByteStream):
    """A body that ends where it breaks off or grows too large, which its reader notices as an answer that is incomplete.

    Args:
        body: As it comes in.
        tail: Is told why it ended.
        most: Bytes that it may have; 0 is no limit, for a stream of events, each of which has one.
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
