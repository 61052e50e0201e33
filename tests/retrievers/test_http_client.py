"""A call is repeated where that can help, never for longer than its deadline, and each failure says what happened."""

import asyncio
import logging
import re
import time
from collections.abc import Callable

import httpx
import pytest

from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.retrievers.http_client import HTTPClient, Request, RetryPolicy

ASK = Request("POST", "/ask", {"q": "who?"})
QUICK = RetryPolicy(timeout_s=20.0, pause_s=0.001, tries=4)

Reply = httpx.Response | Exception | float
"""A response, an error of the connection, or seconds of silence."""


class Line(httpx.AsyncBaseTransport):
    """Answers with the given replies in turn, the last one for ever."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.calls: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply = self.replies[min(len(self.calls), len(self.replies) - 1)]
        self.calls.append(request)
        if isinstance(reply, float):
            await asyncio.sleep(reply)
            return httpx.Response(200, json="late")
        if isinstance(reply, Exception):
            raise reply
        return reply


def good() -> httpx.Response:
    return httpx.Response(200, json={"answer": "Orla"})


def call(line: Line, patience: RetryPolicy = QUICK) -> object:
    return asyncio.run(HTTPClient("http://server:8000/", retry_policy=patience, transport=line).call(ASK))


def test_a_call_sends_json_and_returns_json() -> None:
    line = Line(good())
    assert call(line) == {"answer": "Orla"}
    assert (line.calls[0].method, str(line.calls[0].url)) == ("POST", "http://server:8000/ask")
    assert line.calls[0].content == b'{"q":"who?"}'


@pytest.mark.parametrize(
    "failure",
    [
        *(lambda status=status: httpx.Response(status) for status in (429, 502, 503, 504)),
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.ReadError("reset"),
        lambda: httpx.RemoteProtocolError("closed without a response"),
        lambda: httpx.ReadTimeout("slow"),
    ],
)
def test_passing_failures_are_tried_again(failure: Callable[[], Reply]) -> None:
    line = Line(failure(), failure(), good())
    assert call(line) == {"answer": "Orla"}
    assert len(line.calls) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
def test_other_refusals_are_final_and_say_the_servers_reason(status: int) -> None:
    line = Line(httpx.Response(status, json={"error": "k is 0; ask for more."}))
    with pytest.raises(RetrieverFault, match=rf"server:8000/ask.*\b{status}\b.*k is 0; ask for more"):
        call(line)
    assert len(line.calls) == 1


def test_tries_are_bounded() -> None:
    line = Line(httpx.ConnectError("refused"))
    with pytest.raises(RetrieverFault, match=r"\b4\b.*ConnectError"):
        call(line)
    assert len(line.calls) == 4


def test_the_deadline_covers_every_try() -> None:
    began = time.monotonic()
    with pytest.raises(RetrieverFault, match=r"\b503\b"):
        call(
            Line(httpx.Response(503, text="busy", headers={"Retry-After": "600"})), RetryPolicy(timeout_s=0.2)
        )
    with pytest.raises(RetrieverFault, match=r"\b1\b"):
        call(Line(600.0), RetryPolicy(timeout_s=0.2))
    assert time.monotonic() - began < 300


def test_a_server_may_ask_for_a_longer_pause() -> None:
    client = HTTPClient("http://server", retry_policy=RetryPolicy(pause_s=0.01))
    assert client._pause(1, 7.0) == 7.0
    assert 0.005 <= client._pause(1, 0.0) <= 0.015
    assert 0.02 <= client._pause(3, 0.0) <= 0.06
    assert client._pause(99, 0.0) <= 7.5  # longest_pause_s and half of it
    assert (
        len({client._pause(1, 0.0) for _ in range(9)}) > 1
    )  # spread, so that clients do not return together


def test_no_hedging_by_default() -> None:
    assert RetryPolicy().hedge_after_s is None
    line = Line(0.1)
    assert call(line) == "late"
    assert len(line.calls) == 1


def test_hedging_takes_the_first_good_answer() -> None:
    line = Line(600.0, good())
    assert call(line, RetryPolicy(timeout_s=60.0, hedge_after_s=0.01)) == {"answer": "Orla"}
    assert len(line.calls) == 2


def test_hedging_waits_for_the_second_where_one_fails() -> None:
    hedged = RetryPolicy(timeout_s=60.0, hedge_after_s=0.01, tries=1)
    line = Line(0.2, httpx.ConnectError("refused"))
    assert call(line, hedged) == "late"
    with pytest.raises(RetrieverFault, match="refused"):
        call(Line(httpx.ConnectError("refused")), hedged)


def test_something_else_than_json_is_a_sentence() -> None:
    with pytest.raises(RetrieverFault, match="<html>oops</html>"):
        call(Line(httpx.Response(200, text="<html>oops</html>")))


@pytest.mark.parametrize("address", ["", "server:80", "ftp://server", "http://", "http://[::1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(address))):
        HTTPClient(address)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="server") as caught:
        HTTPClient("http://user:s3cret@server")
    assert "s3cret" not in str(caught.value)


def test_secrets_stand_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = HTTPClient(
        "http://server",
        retry_policy=QUICK,
        headers={"X-API-KEY": "s3cret"},
        transport=Line(httpx.Response(403, text="no")),
    )
    with pytest.raises(RetrieverFault) as caught:
        asyncio.run(client.call(ASK))
    assert "s3cret" not in f"{caught.value!r} {client!r} {caplog.text}"


def test_one_caller_serves_several_event_loops_and_code_without_one() -> None:
    client = HTTPClient("http://server", transport=Line(good()))

    async def inside() -> object:
        return client.call_sync(ASK)

    answers = [
        asyncio.run(client.call(ASK)),
        asyncio.run(client.call(ASK)),
        client.call_sync(ASK),
        asyncio.run(inside()),
    ]
    assert answers == [{"answer": "Orla"}] * 4
