"""Replies of servers that do not keep to the wire forms: odd counts, errors of status 200, streams, calls, surrogates."""

import asyncio
import json
import time
from typing import Any

import pytest

from agentenv.core.assistant_turns import MalformedCall, NativeCall
from agentenv.core.types import FinishReason, Message, Sampling
from agentenv.errors import ContextTooSmall, EndpointFault, EndpointRefusal
from agentenv.policies.endpoint_formats import ToolFormat
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.wires import Reply
from tests.policies.test_wires import ASK, WIRES, ask, client, scripted

STOPPED = {"finish_reason": "stop"}


def chat(message: dict[str, Any], **more: Any) -> Answer:
    """A reply of Chat Completions."""
    return Answer(raw=json.dumps({"choices": [{"message": message, **STOPPED}], **more}))


def stream(*deltas: dict[str, Any]) -> Answer:
    """A stream of Chat Completions, with characters as they are."""
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas] + [{"choices": [{"delta": {}, **STOPPED}]}]
    return Answer(raw="".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n" for chunk in chunks))


def read(answer: Answer, **options: Any) -> Reply:
    with FakeEndpoint(scripted(answer)) as server:
        return ask(client(server, retries=0, **options))


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        ('{"prompt_tokens": 1e400, "completion_tokens": 2}', (0, 2, 0)),
        ('{"prompt_tokens": "7", "completion_tokens": [1]}', (0, 0, 1)),
        ('{"prompt_tokens": -5}', (0, 0, 1)),
        ("{}", (0, 0, 1)),
        ('{"prompt_tokens": 7, "completion_tokens": 2, "completion_tokens_details": "none"}', (7, 2, 0)),
        ('{"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": NaN}}', (7, 0, 0)),
    ],
)
def test_odd_counts_cost_no_reply_and_no_budget(usage: str, counted: tuple[int, int, int]) -> None:
    raw = f'{{"choices": [{{"message": {{"content": "Ada"}}, "finish_reason": "stop"}}], "usage": {usage}}}'
    with FakeEndpoint(scripted(Answer(raw=raw))) as server:
        asked = client(server, retries=0)
        assert ask(asked).text == "Ada"
    used = asked.usage
    assert (used.prompt_tokens, used.completion_tokens, used.unmetered) == counted


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_error_of_status_200_is_what_the_service_says(wire: Any, streamed: bool) -> None:
    def failing(error: Any) -> Answer:
        said = json.dumps({"error": error})
        return Answer(raw=f"data: {said}\n\n" if streamed else said)

    with pytest.raises(EndpointFault, match="overloaded"):
        read(failing("overloaded"), wire=wire)
    with pytest.raises(EndpointRefusal, match="not that"):
        read(failing({"message": "not that", "code": "content_filter"}), wire=wire)
    with pytest.raises(ContextTooSmall, match="9 tokens"):
        read(failing({"message": "maximum context length is 9 tokens", "code": 400}), wire=wire)
    with FakeEndpoint(scripted(failing({"message": "slow", "code": 429}), Answer("Ada"))) as server:
        asked = client(server, wire=wire)
        assert ask(asked).text == "Ada"
    assert (asked.usage.retries, asked.usage.unmetered) == (1, 0)


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": ""}, "finish_reason": "error"},
        {"message": {"content": ""}, "finish_reason": "stop", "error": {"message": "upstream", "code": 502}},
    ],
    ids=["finish", "choice"],
)
def test_a_reply_that_ended_with_an_error_is_asked_for_again(choice: dict[str, Any]) -> None:
    broken = Answer(raw=json.dumps({"choices": [choice]}))
    with FakeEndpoint(scripted(broken, Answer("Ada"))) as server:
        assert ask(client(server)).text == "Ada"


@pytest.mark.parametrize("status", ["cancelled", "queued", "in_progress"])
def test_a_response_that_is_not_complete_is_no_reply(status: str) -> None:
    with pytest.raises(EndpointFault, match=status):
        read(Answer(raw=json.dumps({"status": status, "output": []})), wire="responses")


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_what_ends_a_line_of_text_ends_no_event(mark: str) -> None:
    assert read(stream({"content": f"Ada{mark}Bo"})).text == f"Ada{mark}Bo"


@pytest.mark.parametrize("first", ["retry: 3000", ": here", "id: 1", "event: chunk", "\n"])
def test_a_stream_may_begin_with_any_of_its_fields(first: str) -> None:
    assert read(Answer(raw=f"{first}\n{stream({'content': 'Ada'}).raw}")).text == "Ada"


def piece(index: Any, id_: str | None = None, name: str | None = None, arguments: Any = "") -> dict[str, Any]:
    return {"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}


A, B = NativeCall("f", {"x": 1}, "a"), NativeCall("g", {"y": 2}, "b")


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "a", "f", '{"x": 1}'), piece(0, "b", "g", '{"y": 2}')],
        [piece(None, "a", "f", '{"x"'), piece(None, None, None, ": 1}"), piece(None, "b", "g", '{"y": 2}')],
        [
            piece(0, "a", "f", '{"x"'),
            piece(1, "b", "g"),
            piece(0, "a", "f", ": 1}"),
            piece(1, "", "", '{"y": 2}'),
        ],
        [piece(0, "a", "f", '{"x"'), piece(0, "other", None, ": 1}"), piece(1, "b", "g", '{"y": 2}')],
        [piece(0, "a", "f"), piece(0, None, None, {"x": 1}), piece(1, "b", "g", {"y": 2})],
    ],
    ids=["one index", "no index", "in turns", "ids that change", "objects"],
)
def test_calls_of_a_stream_are_put_together(pieces: list[dict[str, Any]]) -> None:
    assert read(stream(*({"tool_calls": [one]} for one in pieces))).calls == (A, B)


def test_arguments_that_come_as_an_object_are_read_as_strictly_as_text() -> None:
    functions = [
        '{"name": "f", "arguments": {"x": 1}}',
        '{"name": "f", "arguments": {"x": 1e999}}',
        '{"name": "f", "arguments": ' + '{"x": ' * 99 + "1" + "}" * 99 + "}",
        '{"name": "f"}',
    ]
    calls = ", ".join(f'{{"id": "{place}", "function": {said}}}' for place, said in enumerate(functions))
    raw = f'{{"choices": [{{"message": {{"tool_calls": [{calls}]}}, "finish_reason": "tool_calls"}}]}}'
    reply = read(Answer(raw=raw))
    assert [type(call) for call in reply.calls] == [NativeCall, MalformedCall, MalformedCall, NativeCall]
    assert reply.message is not None
    sent = [json.loads(call["function"]["arguments"]) for call in reply.message["tool_calls"]]
    assert sent == [{"x": 1}, {}, {}, {}]


def test_made_ids_are_none_that_another_call_has() -> None:
    calls = [{"id": id_, "function": {"name": "f", "arguments": "{}"}} for id_ in ("", "call00200", None)]
    ids = [call.id for call in read(chat({"content": "", "tool_calls": calls})).calls]
    assert ids[1] == "call00200"
    assert len(set(ids)) == 3


@pytest.mark.parametrize("wire", WIRES)
def test_what_goes_back_holds_no_half_of_a_character(wire: Any) -> None:
    half = "x\ud800"
    function = {"name": f"f{half}", "arguments": json.dumps({"q": half})}
    if wire == "chat":
        call = {"id": half, "function": function, "extra_content": {"signature": half}}
        raw = chat({"content": half, "tool_calls": [call]}, id=half).raw
    else:
        said = {"type": "message", "content": [{"type": "output_text", "text": half}]}
        thought = {"type": "reasoning", "encrypted_content": half, "summary": []}
        raw = json.dumps({"output": [said, thought, {"type": "function_call", "call_id": half, **function}]})
    reply = read(Answer(raw=raw), wire=wire)
    assert reply.message is not None
    json.dumps(reply.message, ensure_ascii=False).encode()
    with FakeEndpoint(scripted(Answer("Ada"))) as server:
        assert ask(client(server, wire=wire, retries=0), [*ASK, reply.message])


def test_a_server_cannot_put_a_client_off_for_years() -> None:
    limited = Answer(
        status=429, raw='{"error": {"message": "slow down"}}', headers={"Retry-After": "1000000000000"}
    )
    with FakeEndpoint(scripted(limited)) as server:
        asked = client(server, deadline_s=0.5, retries=1)
        with pytest.raises(EndpointFault, match="slow down"):
            ask(asked)
    assert asked._next_start - time.monotonic() <= asked.endpoint.deadline_s


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("tools", [False, True], ids=["messages", "tools"])
def test_a_reply_of_megabytes_is_cut_where_its_bound_ends_at_the_latest(wire: Any, tools: bool) -> None:
    long = "word " * 200_000
    if wire == "chat":
        call = {"id": "a", "function": {"name": "f", "arguments": json.dumps({"x": long})}}
        raw = chat({"content": long, "reasoning": long, "tool_calls": [call]}).raw
    else:
        said = {"type": "message", "content": [{"type": "output_text", "text": long}]}
        raw = json.dumps({"output": [said, {"type": "reasoning", "summary": [{"text": long}]}]})
    with FakeEndpoint(lambda body: Answer(raw=raw)) as server:
        chat_format = ToolFormat() if tools else None
        policy = OpenAIPolicy(client(server, wire=wire, retries=0), chat_format)
        if isinstance(policy.chat, ToolFormat):
            _conversation, ids = policy.chat.open([Message("user", "Who?")], [])
        else:
            ids = policy.chat.prompt([Message("user", "Who?")])
        done = asyncio.run(policy.generate(ids, Sampling(max_tokens=10)))
        assert done.finish is FinishReason.LENGTH
        assert len(done.text) < 3_000
        if done.turn is not None:
            assert done.turn.calls == ()
            assert done.turn.as_sent is not None
            assert ask(client(server, wire=wire, retries=0), [*ASK, done.turn.as_sent])
    assert json.dumps(server.bodies[-1]).count("word") < 300


def test_a_short_turn_keeps_its_call_whatever_was_thought() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}
    answer = chat({"content": "Hm.", "reasoning": "why " * 9_999, "tool_calls": [call]})
    with FakeEndpoint(lambda body: answer) as server:
        policy = OpenAIPolicy(client(server, retries=0), ToolFormat())
        assert isinstance(policy.chat, ToolFormat)
        _conversation, ids = policy.chat.open([Message("user", "Who?")], [])
        done = asyncio.run(policy.generate(ids, Sampling(max_tokens=10)))
    assert done.turn is not None
    assert done.turn.calls == (A,)


@pytest.mark.parametrize("status", [302, 303, 403, 404, 520])
def test_a_refusal_in_the_middle_of_a_run_passes_or_costs_its_own_request(status: int) -> None:
    refused = Answer(status=status, raw="<html>maintenance</html>", headers={"Location": "http://elsewhere/"})
    with FakeEndpoint(scripted(Answer("Ada"), refused, Answer("Bo"), refused, refused)) as server:
        asked = client(server, retries=1)
        assert [ask(asked).text for _ in range(2)] == ["Ada", "Bo"]
        with pytest.raises(EndpointFault, match=f"{status}.*maintenance") as caught:
            ask(asked)
    assert ("http://elsewhere/" in str(caught.value)) == (status < 400)


def test_a_field_that_was_taken_before_is_no_mistake_of_the_configuration() -> None:
    said = json.dumps({"error": {"message": "unsupported value in stop: this conversation", "param": "stop"}})
    with FakeEndpoint(scripted(Answer("Ada"), Answer(status=400, raw=said))) as server:
        asked = client(server, retries=0)
        ask(asked, stop=("x",))
        with pytest.raises(EndpointFault, match="this conversation"):
            ask(asked, stop=("x",))


@pytest.mark.parametrize("after", ["-5", "Mon, 01 Jan 99999999999 00:00:00 GMT", "soon"])
def test_a_wait_that_cannot_be_read_is_none(after: str) -> None:
    slow = Answer(status=429, raw="slow", headers={"Retry-After": after})
    with FakeEndpoint(scripted(slow, Answer("Ada"))) as server:
        asked = client(server, backoff_s=0.01)
        assert ask(asked).text == "Ada"
    assert asked._next_start <= time.monotonic()
