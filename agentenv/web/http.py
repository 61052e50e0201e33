"""What every HTTP server of ours does alike: health routes, bodies within bounds, JSON replies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from agentenv.web.gate import READY, Gate, Refusal
from agentenv.web.memory import LARGE_BYTES, trim_soon
from agentenv.web.telemetry import Meter

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

T = TypeVar("T")

PART_BYTES = 1 << 18
"""Of an answer that is sent in parts."""
SMALL_BODY = 1 << 16
"""Bytes of a body that has room however many large ones arrive at the same time."""
_GLANCE_S = 0.5  # between two looks at whether a client still waits
_SHOWN = 200  # characters of a path that a refusal repeats
_DRAINED = 8  # a body this many times too long is still read to its end, so that the caller gets our reason


def add_health_routes(app: Any, gate: Gate, meter: Meter, health: Callable[[], dict[str, Any]]) -> None:
    """Adds ``/healthz`` (also ``/health``), ``/readyz`` and ``/metrics`` to a FastAPI application.

    Args:
        app: the application.
        gate: whose state ``/readyz`` tells.
        meter: what ``/metrics`` shows.
        health: what ``/healthz`` says.
    """
    from starlette.responses import PlainTextResponse, Response

    async def healthz() -> Response:
        return json_response(health(), 200)

    async def readyz() -> Response:
        return json_response({"status": gate.state}, 200 if gate.state == READY else 503)

    async def metrics() -> Response:
        return PlainTextResponse(meter.text(), media_type="text/plain; version=0.0.4")

    for path, answer in {
        "/healthz": healthz,
        "/health": healthz,
        "/readyz": readyz,
        "/metrics": metrics,
    }.items():
        app.add_api_route(path, answer)


def refuse_unknown_routes(app: Any) -> None:
    """Gives a request to a path or by a method that a FastAPI application has not the form of every other refusal."""
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

    async def refused(request: "Request", error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request.url.path[:_SHOWN]
        said = f"This server has no route {request.method} {path!r}."
        return json_response({"error": said, "kind": "NoRoute"}, error.status_code, headers=error.headers)

    for status in (404, 405):
        app.add_exception_handler(status, refused)


async def body_within(request: "Request", gate: Gate, most_bytes: int, seconds: float) -> bytes:
    """The request's body.

    Raises:
        Refusal: it is longer than ``most_bytes`` or takes longer than ``seconds``, its caller leaves before its end, or the
            large bodies that arrive at the same time leave no room for it.
    """
    from starlette.requests import ClientDisconnect

    try:
        async with asyncio.timeout(seconds):
            return await _read(request, gate, most_bytes)
    except TimeoutError as error:
        raise Refusal(408, f"The body did not arrive within {seconds:g} s.", "TooSlow") from error
    except ClientDisconnect as error:  # nobody reads this answer
        raise Refusal(400, "The connection ended before the body did.", "Gone") from error


async def unless_gone(answer: "asyncio.Future[T]", request: "Request") -> T:
    """``answer``, which may take as long as a batch of a model does; cancelled once nobody waits for it.

    Args:
        answer: is waited for.
        request: what it answers; its body has been read.

    Raises:
        Refusal: the client has closed the connection.
    """
    try:
        while not (await asyncio.wait([answer], timeout=_GLANCE_S))[0]:
            if await request.is_disconnected():
                raise Refusal(410, "The connection was closed.", "gone")
        return answer.result()
    finally:
        answer.cancel()


async def _read(request: "Request", gate: Gate, limit: int) -> bytes:
    chunks, length, counted = [], 0, 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length <= limit:
                chunks.append(chunk)
                if length > SMALL_BODY:
                    # From its first byte on once it is large, so that a body that was small for long counts with all
                    # that it holds.
                    gate.arriving, counted = gate.arriving + length - counted, length
                if counted and gate.arriving > gate.most_arriving:
                    raise Refusal(503, "Many large bodies arrive at the moment; try again later.", "Full")
            elif length > _DRAINED * limit:
                break
    finally:
        # However it ended, or the room would be lost until the server is started again.
        gate.arriving -= counted
    if length > limit:
        raise Refusal(413, f"The body is longer than {limit} bytes; send several requests.", "TooLarge")
    return b"".join(chunks)


def json_response(
    reply: Any,
    status: int,
    *,
    closing: bool = False,
    headers: Mapping[str, str] | None = None,
    sent: Callable[[], None] | None = None,
) -> "Response":
    """``reply`` as JSON; ``closing`` ends the connection, and a refusal for want of room says when to come back.

    ``sent`` is called once the answer has been handed to the system, or the caller has left. A list that a generator gives
    is encoded item by item while it is sent, so that a large answer is never in memory as a whole.
    """
    headers = dict(headers or {})
    if closing:
        headers["Connection"] = "close"
    if status in (429, 503):
        headers["Retry-After"] = "1"
    whole, streamed = _answer_classes()
    answer: Response
    if isinstance(reply, dict) and any(isinstance(value, Generator) for value in reply.values()):
        answer = streamed(_encoded(reply), status, headers, "application/json")
    else:
        answer = whole(_whole(reply), status, headers, "application/json")
    answer.sent = sent  # type: ignore[attr-defined]
    return answer


def _whole(reply: Any) -> bytes:
    """``reply`` as JSON. Callers send integers of any size and halves of surrogate pairs, which orjson does not encode."""
    import orjson

    try:
        return orjson.dumps(reply)
    except TypeError:
        # Not a number is no JSON, which callers in other languages refuse.
        return json.dumps(reply, allow_nan=False).encode()


async def _encoded(reply: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The bytes that ``orjson.dumps`` would give, in parts of at least ``PART_BYTES``; each waits until the last is sent."""
    part = bytearray()
    for piece in _pieces(reply):
        part += piece
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    yield bytes(part)


def _pieces(reply: Mapping[str, Any]) -> Iterator[bytes]:
    import orjson

    for number, (name, value) in enumerate(reply.items()):
        yield (b"," if number else b"{") + orjson.dumps(name) + b":"
        if isinstance(value, Generator):
            yield b"["
            for index, item in enumerate(value):
                yield (b"," if index else b"") + orjson.dumps(item)
            yield b"]"
        else:
            yield orjson.dumps(value)
    yield b"}"


@cache
def _answer_classes() -> tuple[Any, Any]:
    """Answers that say when they have been sent: one that is sent at once, and one that is sent in parts."""
    from starlette.responses import Response, StreamingResponse

    class Answer(Response):
        sent: Callable[[], None] | None = None

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                if self.sent is not None:
                    self.sent()
                if len(self.body) >= LARGE_BYTES:
                    trim_soon()

    class StreamedAnswer(StreamingResponse):
        sent: Callable[[], None] | None = None

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                await super().__call__(scope, receive, send)
            finally:
                if self.sent is not None:
                    self.sent()

    return Answer, StreamedAnswer
