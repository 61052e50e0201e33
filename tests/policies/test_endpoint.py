"""The endpoint client against a real server on the loopback: retries, limits, budgets, refusals, secrets."""

import asyncio
import email.utils
import itertools
import json
import socket
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar

import pytest

from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, UnknownName
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import KEY_VARIABLE, Endpoint
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.wires import Reply

T = TypeVar("T")
ASK = [{"role": "user", "content": "Who?"}]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


def client(server: FakeEndpoint, **options: Any) -> ChatClient:
    return ChatClient(Endpoint("any", server.url, **{"backoff_s": 0.001, "deadline_s": 30.0, **options}))


def ask(asked: ChatClient, **options: Any) -> Reply:
    return run(asked.complete(ASK, **{"max_tokens": 9, **options}))


def scripted(*answers: Answer) -> Callable[[Body], Answer]:
    """The answers in order, then an error that a test would notice."""
    left: Iterator[Answer] = iter(answers)
    return lambda body: next(left, Answer(status=418, raw="the script is over"))


def test_a_request_holds_what_was_asked_and_usage_is_counted() -> None:
    with FakeEndpoint(lambda body: Answer("Ada")) as server:
        asked = client(server)
        assert ask(asked, temperature=0.5, top_p=0.9, stop=("x",), seed=3) == Reply("Ada", "stop")
        assert server.bodies == [
            {
                "model": "any",
                "messages": ASK,
                "max_tokens": 9,
                "temperature": 0.5,
                "top_p": 0.9,
                "stop": ["x"],
                "seed": 3,
            }
        ]
        ask(asked)
        assert set(server.bodies[1]) == {"model", "messages", "max_tokens", "temperature"}
    # "Who?" is cut into "Who" and "?", "Ada" is one piece.
    assert asked.usage_report() == {
        "requests": 2,
        "retries": 0,
        "failures": 0,
        "refusals": 0,
        "prompt_tokens": 4,
        "completion_tokens": 2,
        "reasoning_tokens": 0,
        "cached_tokens": 0,
        "unmetered": 0,
        "cost": 0.0,
    }


def test_the_field_of_the_limit_can_be_named_and_missing_usage_is_said() -> None:
    with FakeEndpoint(lambda body: Answer("Ada", usage=False)) as server:
        asked = client(server, limit_field="max_completion_tokens")
        ask(asked)
        assert server.bodies[0]["max_completion_tokens"] == 9
        assert "max_tokens" not in server.bodies[0]
    assert asked.usage.unmetered == 1


@pytest.mark.parametrize(
    "bad",
    [
        Answer(status=500, raw="oops"),
        Answer(status=503, raw='{"error": {"message": "busy"}}'),
        Answer(status=429, raw="{}"),
        Answer(raw="<html>not json"),
        Answer(raw='{"choices": []}'),
        Answer(raw='{"choices": [{"message": {"content": 3}}]}'),
    ],
    ids=["500", "503", "429", "html", "no choice", "no text"],
)
def test_what_may_pass_is_tried_again(bad: Answer) -> None:
    with FakeEndpoint(scripted(bad, bad, Answer("Ada"))) as server:
        asked = client(server)
        assert ask(asked).text == "Ada"
    assert (asked.usage.requests, asked.usage.retries, asked.usage.failures) == (3, 2, 0)


def test_after_the_last_try_the_reason_is_said() -> None:
    with FakeEndpoint(
        lambda body: Answer(status=502, raw='{"error": {"message": "no  upstream"}}')
    ) as server:
        asked = client(server, retries=2)
        with pytest.raises(EndpointFault, match=r"\b3\b.*\b502\b"):
            ask(asked)
    assert (asked.usage.requests, asked.usage.failures) == (3, 1)


def test_half_a_surrogate_pair_is_replaced() -> None:
    with FakeEndpoint(
        lambda body: Answer(raw='{"choices": [{"message": {"content": "a\\ud83d"}}]}')
    ) as server:
        assert ask(client(server)).text == "a?"


def test_an_address_that_was_never_reached_is_a_configuration_error() -> None:
    with FakeEndpoint(lambda body: Answer()) as server:
        url = server.url
    asked = ChatClient(Endpoint("any", url, retries=1, backoff_s=0.001))
    with pytest.raises(ConfigurationError, match=r"\b2\b.*ConnectError") as caught:
        ask(asked)
    assert url in str(caught.value)
    assert asked.usage.failures == 1


@pytest.mark.parametrize("status", [200, 503])
def test_a_server_that_has_said_anything_before_and_is_gone_is_a_fault(status: int) -> None:
    """One that is started again, as a busy gateway may be, was given by its right address."""
    with FakeEndpoint(lambda body: Answer("Ada", status=status)) as server:
        asked = client(server, retries=1)
        with nullcontext() if status == 200 else pytest.raises(EndpointFault, match="503"):
            ask(asked)
    with pytest.raises(EndpointFault, match=r"\b2\b"):
        ask(asked)


@pytest.mark.parametrize(
    ("status", "sentence"), [(401, "bad key"), (403, "bad key"), (404, "bad key"), (307, "bad key")]
)
def test_what_is_wrong_for_every_request_is_a_configuration_error(status: int, sentence: str) -> None:
    raw = json.dumps({"error": {"message": sentence}})
    with FakeEndpoint(lambda body: Answer(status=status, raw=raw, headers={"Location": "/x"})) as server:
        asked = client(server)
        with pytest.raises(ConfigurationError, match=f"{status} bad key.*OPENAI_API_KEY"):
            ask(asked)
    assert asked.usage.requests == 1


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, {"message": "bad request"}), (429, {"message": "pay first", "code": "insufficient_quota"})],
)
def test_what_will_not_pass_is_not_tried_again(status: int, error: dict[str, str]) -> None:
    with FakeEndpoint(lambda body: Answer(status=status, raw=json.dumps({"error": error}))) as server:
        asked = client(server)
        with pytest.raises(EndpointFault, match=error["message"]):
            ask(asked)
    assert asked.usage.requests == 1


@pytest.mark.parametrize(
    "error",
    [
        {"message": "too long", "code": "context_length_exceeded"},
        {"message": "the maximum context length is 8"},
    ],
)
def test_a_full_context_has_its_own_error(error: dict[str, str]) -> None:
    with (
        FakeEndpoint(lambda body: Answer(status=400, raw=json.dumps({"error": error}))) as server,
        pytest.raises(ContextTooSmall, match=error["message"]),
    ):
        ask(client(server))


def test_the_server_s_own_wait_is_kept_by_all_requests() -> None:
    wait = {"Retry-After": "0.3"}
    with FakeEndpoint(
        scripted(Answer(status=429, raw="{}", headers=wait), Answer("a"), Answer("b"))
    ) as server:
        asked = client(server, concurrency=1)
        began = time.monotonic()

        async def both() -> list[Reply]:
            return await asyncio.gather(*(asked.complete(ASK, max_tokens=9) for _ in range(2)))

        assert [reply.text for reply in run(both())] == ["a", "b"]
    assert time.monotonic() - began >= 0.3


def test_a_date_to_wait_for_is_understood() -> None:
    past = email.utils.formatdate(time.time() - 100, usegmt=True)
    with FakeEndpoint(
        scripted(Answer(status=503, raw="", headers={"Retry-After": past}), Answer("a"))
    ) as server:
        assert ask(client(server, backoff_s=1e9)).text == "a"


def test_at_most_so_many_requests_are_under_way() -> None:
    with FakeEndpoint(lambda body: Answer("a", delay_s=0.05)) as server:
        asked = client(server, concurrency=2)

        async def many() -> None:
            await asyncio.gather(*(asked.complete(ASK, max_tokens=9) for _ in range(6)))

        run(many())
        assert server.most_at_once == 2


def test_the_rate_limit_spaces_requests() -> None:
    with FakeEndpoint(lambda body: Answer("a")) as server:
        asked = client(server, per_minute=600.0)  # one in 0.1 s
        began = time.monotonic()
        for _ in range(4):
            ask(asked)
        assert time.monotonic() - began >= 0.3


def test_a_budget_ends_requests_and_retries() -> None:
    with FakeEndpoint(lambda body: Answer(status=500, raw="")) as server:
        asked = client(server, max_requests=3)
        with pytest.raises(EndpointFault, match=r"\b3\b"):
            ask(asked)
        assert len(server.bodies) == 3
    with FakeEndpoint(lambda body: Answer("one two three")) as server:
        asked = client(server, max_total_tokens=5)  # a reply costs 2 + 3
        ask(asked)
        with pytest.raises(EndpointFault, match=r"\b5\b"):
            ask(asked)
        assert len(server.bodies) == 1


def test_tokens_that_a_reply_used_delay_the_next_request() -> None:
    with FakeEndpoint(lambda body: Answer("one two three")) as server:
        asked = client(server, tokens_per_minute=1500.0)  # a reply costs 2 + 3: 0.2 s
        began = time.monotonic()
        for _ in range(3):
            ask(asked)
        assert time.monotonic() - began >= 0.4


def test_a_budget_of_money() -> None:
    """2 tokens at 1 and 3 at 10 a token are 32, which a budget of 40 lets through twice and no more."""
    prices = {"prompt_price": 1e6, "reply_price": 1e7, "max_cost": 40.0}
    with FakeEndpoint(lambda body: Answer("one two three")) as server:
        asked = client(server, **prices)
        for cost in (32.0, 64.0):
            ask(asked)
            assert asked.usage.cost == pytest.approx(cost)
        with pytest.raises(EndpointFault, match=r"\b40\b"):
            ask(asked)
        with pytest.raises(ConfigurationError, match=r"prompt_price.*reply_price"):
            client(server, max_cost=1.0)


def test_a_slow_reply_ends_at_the_deadline() -> None:
    with FakeEndpoint(lambda body: Answer("a", delay_s=0.5)) as server:
        asked = client(server, deadline_s=0.1)
        with pytest.raises(EndpointFault, match=r"\b0\.1\b"):
            ask(asked)


def ask_many(asked: ChatClient, count: int) -> list[str | BaseException]:
    """The text or the error of each of ``count`` requests that are made at once."""

    async def each() -> list[Reply | BaseException]:
        requests = (asked.complete(ASK, max_tokens=9) for _ in range(count))
        return await asyncio.gather(*requests, return_exceptions=True)

    return [found.text if isinstance(found, Reply) else found for found in run(each())]


def test_a_server_that_hangs_from_the_start_is_not_asked_further() -> None:
    """The whole must not take as many deadlines as there are requests: an evaluation has thousands."""
    with FakeEndpoint(lambda body: Answer("a", delay_s=30.0)) as server:
        asked = client(server, deadline_s=1.0, concurrency=2)
        found = ask_many(asked, 100)
        assert len(server.bodies) < 12
    assert [type(error) for error in found[:3]] == [EndpointFault] * 3
    assert {type(error) for error in found[6:]} == {ConfigurationError}
    assert all(word in str(found[-1]) for word in (server.url, "none of", "1 s", "deadline_s"))


def test_an_address_at_which_nobody_listens_is_never_said_to_take_requests() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/v1"
        asked = ChatClient(Endpoint("any", url, retries=0, concurrency=2))
        found = ask_many(asked, 10)
    assert {type(error) for error in found} == {ConfigurationError}
    assert all("cannot be reached" in str(error) for error in found)


DROPPED = Answer("a", cut=0)
"""The connection is closed without an answer."""


def test_why_a_service_answers_nothing_is_told() -> None:
    with FakeEndpoint(lambda body: DROPPED) as server:
        found = ask_many(client(server, retries=0, concurrency=1, deadline_s=60.0), 8)
    assert {type(error) for error in found[3:]} == {ConfigurationError}
    for error in found:
        assert "Error" in str(error)  # of the connection
        assert "60 s" not in str(error)


def test_the_next_request_finds_out_that_a_silent_server_is_there_again() -> None:
    answers = [DROPPED] * 6
    with FakeEndpoint(lambda body: answers.pop() if answers else Answer("a")) as server:
        asked = client(server, retries=0, concurrency=1)
        found = [type(error) for error in ask_many(asked, 6)]
        assert found == [EndpointFault] * 3 + [ConfigurationError] * 3
        assert len(answers) == 2
        assert [type(error) for error in ask_many(asked, 1) + ask_many(asked, 1)] == [ConfigurationError] * 2
        assert ask_many(asked, 20) == ["a"] * 20


def test_a_server_that_fails_sometimes_is_not_given_up() -> None:
    answers = itertools.cycle([*[DROPPED] * 3, Answer(status=503, raw="busy"), *[DROPPED] * 3, Answer("a")])
    with FakeEndpoint(lambda body: next(answers)) as server:
        found = ask_many(client(server, concurrency=1, retries=0), 32)
        assert len(server.bodies) == 32
    assert found.count("a") == 4
    assert {type(error) for error in found if error != "a"} == {EndpointFault}


def test_a_server_that_answered_before_may_be_silent_while_it_is_started_again() -> None:
    answers = [Answer("a"), *[DROPPED] * 40]
    with FakeEndpoint(lambda body: answers.pop(0) if answers else Answer("b")) as server:
        asked = client(server, retries=0)
        found = [*ask_many(asked, 1), *ask_many(asked, 50)]
    assert (found.count("a"), found.count("b")) == (1, 10)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_server_that_answered_before_and_stays_silent_is_not_asked_further(concurrency: int) -> None:
    """Its requests are faults, which end no run."""
    answers = [Answer("a")]
    with FakeEndpoint(lambda body: answers.pop() if answers else Answer("a", delay_s=30.0)) as server:
        asked = client(server, deadline_s=2.0, concurrency=concurrency)
        assert ask(asked).text == "a"
        found = ask_many(asked, 60)
        assert len(server.bodies) < 15
    assert {type(error) for error in found} == {EndpointFault}
    assert "was not asked" in str(found[-1])


def test_requests_that_wait_under_a_rate_limit_say_nothing_of_the_server() -> None:
    with FakeEndpoint(lambda body: DROPPED) as server:
        asked = client(server, deadline_s=0.5, per_minute=1, retries=0)
        found = ask_many(asked, 8)
    assert [type(error) for error in found] == [EndpointFault] * 8


@pytest.mark.parametrize("around", ["", "\n"])
def test_the_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch, around: str) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f"sk-secret-7{around}")
    refusal = Answer(status=401, raw=json.dumps({"error": {"message": "wrong key sk-secret-7"}}))
    with FakeEndpoint(scripted(Answer("a"), refusal)) as server:
        asked = client(server)
        ask(asked)
        assert server.headers[0]["authorization"] == "Bearer sk-secret-7"
        with pytest.raises(ConfigurationError) as error:
            ask(asked)
    assert "wrong key ***" in str(error.value)
    assert "sk-secret-7" not in f"{error.value}{asked!r}{asked.model}{json.dumps(server.bodies)}"


def test_one_client_serves_several_event_loops() -> None:
    with FakeEndpoint(lambda body: Answer("a")) as server:
        asked = client(server, concurrency=1)
        assert [ask(asked).text for _ in range(3)] == ["a"] * 3


def test_a_name_is_parsed() -> None:
    found = Endpoint.parse("org/model@v2@https://host:8000/v1?api-version=1#per_minute=30&concurrency=2")
    assert (found.model, found.url) == ("org/model@v2", "https://host:8000/v1?api-version=1")
    assert found.request_url == "https://host:8000/v1/chat/completions?api-version=1"
    assert (found.per_minute, found.concurrency) == (30.0, 2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gpt", "'gpt'"),
        ("@https://host/v1", "'@https://host/v1'"),
        ("gpt@ftp://host/v1", "'gpt@ftp://host/v1'"),
        ("gpt@https://me:secret@host/v1", "OPENAI_API_KEY"),
        ("gpt@https://host/v1?api_key=secret", "OPENAI_API_KEY"),
        ("gpt@https://host/v1#concurrency=many", "concurrency.*'many'"),
        ("gpt@https://host/v1#concurrency=0", "concurrency"),
        ("gpt@https://host:99999/v1", "host:99999"),
        ("gpt@http://[::1", "::1"),
        ("gpt@https://host/v1#prompt_price=nan", "prompt_price.*nan"),
        ("gpt@https://host/v1#per_minute=inf", "per_minute.*inf"),
        ("gpt@https://host/v1#deadline_s=-1", "deadline_s.*-1"),
    ],
)
def test_a_name_that_is_none_is_refused_without_its_secrets(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as error:
        Endpoint.parse(text)
    assert "secret" not in str(error.value)


def test_an_unknown_option_shows_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'concurrency'"):
        Endpoint.parse("gpt@https://host/v1#concurency=3")
