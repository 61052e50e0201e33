"""JSON answers that are sent as a whole and in parts."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

orjson = pytest.importorskip("orjson", reason="orjson is not installed")
pytest.importorskip("starlette", reason="starlette is not installed")

from agentenv.web import http  # noqa: E402


def sent_by(reply: dict[str, Any], called: list[str]) -> tuple[list[bytes], dict[bytes, bytes]]:
    """The parts of the body that are sent, and the headers."""
    messages: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def serve() -> None:
        response = http.json_response(reply, 200, sent=lambda: called.append("sent"))
        await response({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    asyncio.run(serve())
    start, *rest = messages
    return [message["body"] for message in rest if message["body"]], dict(start["headers"])


@pytest.mark.parametrize("items", [0, 1, 3, 30_000])
def test_a_list_that_is_encoded_while_it_is_sent_has_the_bytes_of_the_whole(items: int) -> None:
    called: list[str] = []
    rows = [{"id": str(number), "text": "ü\n" * 20} for number in range(items)]
    whole, headers = sent_by({"first": 1, "rows": rows, "last": None}, called)
    parts, streamed = sent_by({"first": 1, "rows": (row for row in rows), "last": None}, called)
    assert b"".join(parts) == b"".join(whole) == orjson.dumps({"first": 1, "rows": rows, "last": None})
    assert called == ["sent", "sent"]
    assert (len(parts) > 1) == (items > 1000)
    assert all(len(part) < http.PART_BYTES + 1000 for part in parts)
    assert (b"content-length" in headers, b"content-length" in streamed) == (True, False)
    assert headers[b"content-type"] == streamed[b"content-type"]
