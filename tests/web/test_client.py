"""A call is repeated where that can help, never for longer than its deadline, and each failure says what happened."""

import asyncio
import gzip
import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from agentenv.errors import ConfigurationError, EnvFault, RetrieverFault
from agentenv.web.client import HTTPClient, Request, bearer
from agentenv.web.retries import GaveUp, NotReached, RetryPolicy, TryAgain

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


def call(line: Line, retry_policy: RetryPolicy = QUICK) -> object:
    return asyncio.run(client("http://server:8000/", line, retry_policy).call(ASK))


def client(
    base: str, line: Line | None = None, retry_policy: RetryPolicy = QUICK, **options: Any
) -> HTTPClient:
    return HTTPClient(base, retry_policy=retry_policy, fault=RetrieverFault, transport=line, **options)


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
    policy = RetryPolicy(pause_s=0.01)
    assert policy.pause(1, 7.0) == 7.0
    assert policy.pause(9, 0.001) > 0.5, "and never for a shorter one"
    assert policy.pause(9, 0.0) == 0.0, "but it may say: at once"
    assert 0.005 <= policy.pause(1) <= 0.015
    assert 0.02 <= policy.pause(3) <= 0.06
    assert policy.pause(99) <= 7.5  # longest_pause_s and half of it
    assert len({policy.pause(1) for _ in range(9)}) > 1  # spread, so that clients do not return together


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
        client(address)


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="server") as caught:
        client("http://user:s3cret@server")
    assert "s3cret" not in str(caught.value)


def test_secrets_stand_in_no_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    line = Line(httpx.Response(403, text="no"))
    keyed = client("http://server", line, headers=lambda: {"X-API-KEY": "s3cret"})
    with pytest.raises(RetrieverFault) as caught:
        asyncio.run(keyed.call(ASK))
    assert line.calls[0].headers["x-api-key"] == "s3cret"
    assert "s3cret" not in f"{caught.value!r} {keyed!r} {caplog.text}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_refused_and_no_key_goes_to_the_other_host(status: int) -> None:
    line = Line(httpx.Response(status, headers={"Location": "http://elsewhere/ask"}))
    with pytest.raises(RetrieverFault, match=f"status {status}"):
        asyncio.run(client("http://server", line, headers=lambda: {"X-API-KEY": "s3cret"}).call(ASK))
    assert [request.url.host for request in line.calls] == ["server"]


def test_a_redirect_that_is_refused_says_where_it_leads() -> None:
    line = Line(httpx.Response(308, headers={"Location": "https://elsewhere:8443/ask"}))
    with pytest.raises(RetrieverFault, match="https://elsewhere:8443/ask"):
        call(line)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1"),
        ("HTTP_PROXY", "ftp://127.0.0.1:1"),
        ("NO_PROXY", "[::1"),
        ("SSL_CERT_FILE", "/nowhere/certificates.pem"),
    ],
)
def test_settings_of_the_environment_that_cannot_be_used_are_named(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=variable):
        asyncio.run(client("http://server").call(ASK))


def test_a_connection_that_fails_through_a_proxy_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://somebody:s3cret@127.0.0.1:1")
    once = RetryPolicy(timeout_s=20.0, tries=1)
    with pytest.raises(RetrieverFault, match="HTTP_PROXY") as caught:
        asyncio.run(client("http://127.0.0.1:2", retry_policy=once).call(ASK))
    assert "s3cret" not in str(caught.value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(RetrieverFault, match="ConnectError") as caught:
        asyncio.run(client("http://127.0.0.1:2", retry_policy=once).call(ASK))
    assert "PROXY" not in str(caught.value)


class Endless(httpx.AsyncByteStream):
    """A body that never ends."""

    sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            self.sent += 1
            yield b"x" * 1000


def test_an_answer_that_is_too_long_is_not_read_to_its_end() -> None:
    body = Endless()
    line = Line(httpx.Response(200, stream=body))
    with pytest.raises(RetrieverFault, match="more than 10000 bytes"):
        call(line, RetryPolicy(timeout_s=20.0, most_bytes=10_000))
    assert (body.sent, len(line.calls)) == (11, 1)
    assert call(Line(httpx.Response(200, json="x" * 98)), RetryPolicy(most_bytes=100)) == "x" * 98


def packed(times: int) -> httpx.Response:
    body = b'"Orla"'
    for _ in range(times):
        body = gzip.compress(body)
    headers = {"Content-Encoding": ", ".join(["gzip"] * times)}
    return httpx.Response(200, headers=headers, stream=httpx.ByteStream(body))


def test_only_what_was_packed_once_is_unpacked() -> None:
    line = Line(packed(1))
    assert call(line) == "Orla"
    assert line.calls[0].headers["accept-encoding"] == "gzip, deflate"
    # Packed twice, a few kilobytes hold more than the memory of the machine, and all of it in one piece.
    with pytest.raises(RetrieverFault, match="gzip, gzip"):
        call(Line(packed(2)))


def test_a_body_that_cannot_be_unpacked_is_asked_for_again() -> None:
    broken = httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=httpx.ByteStream(b"not packed"))
    assert call(Line(broken, good())) == {"answer": "Orla"}


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(403, text="no: s3cret-of-mine"),
        httpx.Response(403, json={"error": "no: s3cret-of-mine"}),
        httpx.RemoteProtocolError("illegal status line: s3cret-of-mine"),
    ],
    ids=["text", "json", "no HTTP"],
)
def test_a_key_that_a_server_repeats_is_in_no_error(reply: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "s3cret-of-mine\n")
    with pytest.raises(RetrieverFault, match=r"\*\*\*") as caught:
        call(Line(reply))
    assert "s3cret" not in str(caught.value)


def test_which_refusals_may_pass_is_told() -> None:
    line = Line(httpx.Response(500), good())
    assert call(line, RetryPolicy(pause_s=0.001, statuses=frozenset({500}))) == {"answer": "Orla"}


def test_the_fault_is_of_the_kind_that_is_told() -> None:
    asked = HTTPClient("http://server", fault=EnvFault, transport=Line(httpx.Response(404)))
    with pytest.raises(EnvFault, match="status 404: Not Found"):
        asyncio.run(asked.call(ASK))


def test_attempts_are_counted_and_end_with_the_first_result() -> None:
    async def attempt(number: int) -> int:
        if number < 3:
            raise TryAgain(f"number {number}")
        return number

    policy = RetryPolicy(pause_s=0.001, tries=3)
    assert asyncio.run(policy.run(attempt)) == 3
    with pytest.raises(GaveUp, match="number 2") as caught:
        asyncio.run(RetryPolicy(pause_s=0.001, tries=2).run(attempt))
    assert (caught.value.tries, caught.value.late) == (2, False)
    with pytest.raises(GaveUp) as caught:
        asyncio.run(RetryPolicy(timeout_s=0.01).run(lambda _: asyncio.sleep(600)))
    assert (caught.value.tries, caught.value.late) == (1, True)


@pytest.mark.parametrize(
    ("failures", "reached"),
    [((NotReached, NotReached), False), ((NotReached, TryAgain), True), ((TryAgain, NotReached), True)],
)
def test_whether_any_try_made_a_connection_is_kept(
    failures: tuple[type[TryAgain], ...], reached: bool
) -> None:
    async def attempt(number: int) -> int:
        raise failures[number - 1]("no")

    with pytest.raises(GaveUp) as caught:
        asyncio.run(RetryPolicy(pause_s=0.001, tries=2).run(attempt))
    assert caught.value.reached is reached


def test_connections_are_opened_again_after_they_were_closed() -> None:
    asked = client("http://server", Line(good()))

    async def twice() -> list[object]:
        first = await asked.call(ASK)
        await asked.close()
        await asked.close()
        return [first, await asked.call(ASK)]

    assert asyncio.run(twice()) == [{"answer": "Orla"}] * 2


def test_a_token_is_read_when_a_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bearer("AGENTENV_NO_SUCH_TOKEN") == {}
    monkeypatch.setenv("AGENTENV_NO_SUCH_TOKEN", "t")
    assert bearer("AGENTENV_NO_SUCH_TOKEN") == {"Authorization": "Bearer t"}


def test_one_caller_serves_several_event_loops_and_code_without_one() -> None:
    asked = client("http://server", Line(good()))

    async def inside() -> object:
        return asked.call_sync(ASK)

    answers = [
        asyncio.run(asked.call(ASK)),
        asyncio.run(asked.call(ASK)),
        asked.call_sync(ASK),
        asyncio.run(inside()),
    ]
    assert answers == [{"answer": "Orla"}] * 4
