"""The wire forms of endpoints through a socket: what is sent and read in each, streams, refusals, malformed calls."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentenv.core.assistant_turns import MalformedCall, NativeCall
from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, EndpointRefusal, UnknownName
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.wires import Reply

ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
SEARCH = {"name": "search", "description": "Searches.", "parameters": {"type": "object", "properties": {}}}
TOOLS = ({"type": "function", "function": SEARCH},)
CALLS = (("a", "search", '{"query": "x"}'), ("b", "read", "{}"))
READ = (NativeCall("search", {"query": "x"}, "a"), NativeCall("read", {}, "b"))
WIRES = ("chat", "responses")
FORMS = [(wire, stream) for wire in WIRES for stream in (False, True)]


def client(server: FakeEndpoint, **options: Any) -> ChatClient:
    return ChatClient(Endpoint("any", server.url, **{"backoff_s": 0.001, "deadline_s": 30.0, **options}))


def ask(asked: ChatClient, messages: Any = ASK, **options: Any) -> Reply:
    return asyncio.run(asked.complete(messages, **{"max_tokens": 99, **options}))


def scripted(*answers: Answer) -> Callable[[Body], Answer]:
    left: Iterator[Answer] = iter(answers)
    return lambda body: next(left, Answer(status=418, raw="the script is over"))


@pytest.mark.parametrize(("wire", "stream"), FORMS)
def test_text_thinking_calls_and_usage_are_read(wire: Any, stream: bool) -> None:
    answer = Answer("I look it up.", calls=CALLS, reasoning="who is it")
    with FakeEndpoint(lambda body: answer) as server:
        asked = client(server, wire=wire, stream=stream)
        reply = ask(asked, tools=TOOLS)
    assert (reply.text, reply.reasoning, reply.calls) == ("I look it up.", "who is it", READ)
    usage = asked.usage
    # "Be brief." is 3 pieces and "Who?" 2; "I look it up." is 5 and "who is it" 3.
    assert (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens) == (5, 8, 3)


@pytest.mark.parametrize(("wire", "stream"), FORMS)
def test_a_turn_goes_back_in_the_form_in_which_it_came(wire: Any, stream: bool) -> None:
    with FakeEndpoint(lambda body: Answer("Hm.", calls=CALLS, reasoning="why")) as server:
        asked = client(server, wire=wire, stream=stream)
        turn = ask(asked).message
        results = [{"role": "tool", "tool_call_id": id_, "content": f"of {id_}"} for id_ in "ab"]
        ask(asked, [*ASK, turn, *results])
        sent = server.bodies[1]["messages" if wire == "chat" else "input"][len(ASK) :]
    if wire == "chat":
        calls = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in CALLS
        ]
        assert sent == [{"role": "assistant", "content": "Hm.", "tool_calls": calls}, *results]
        return
    said = {"type": "output_text", "text": "Hm.", "annotations": []}
    summary = [{"type": "summary_text", "text": "why"}]
    assert sent == [
        {"type": "reasoning", "summary": summary, "encrypted_content": "sealed(why)"},
        {"type": "message", "role": "assistant", "content": [said]},
        *(
            {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}
            for id_, name, arguments in CALLS
        ),
        *({"type": "function_call_output", "call_id": id_, "output": f"of {id_}"} for id_ in "ab"),
    ]


def test_thinking_goes_back_only_where_that_is_asked_for() -> None:
    with FakeEndpoint(lambda body: Answer("Hm.", reasoning="why", reasoning_key="reasoning")) as server:
        for options, thought in ((dict[str, Any](), {}), ({"send_reasoning": True}, {"reasoning": "why"})):
            reply = ask(client(server, **options))
            assert reply.reasoning == "why"
            assert reply.message == {"role": "assistant", "content": "Hm.", **thought}


def test_a_signature_goes_back_with_its_thinking() -> None:
    signed = {"content": "", "reasoning": "why", "extra_content": {"anthropic": {"signature": "s"}}}
    call = {"id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"google": "g"}}
    raw = json.dumps(
        {"choices": [{"message": signed | {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    )
    with FakeEndpoint(lambda body: Answer(raw=raw)) as server:
        sent = ask(client(server)).message
    assert sent == signed | {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", **call}],
    }


def test_what_each_form_sends() -> None:
    options: dict[str, Any] = {"temperature": 0.5, "top_p": 0.9, "stop": ("x",), "seed": 3, "tools": TOOLS}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    shown = [{"role": "user", "content": [{"type": "text", "text": "See"}, picture]}]
    with FakeEndpoint(lambda body: Answer("Ada")) as server:
        ask(client(server, effort="low"), shown, template_options={"enable_thinking": False}, **options)
        ask(client(server, effort="low", wire="responses"), shown, **options)
        chat, responses = server.bodies
    shared = {"model": "any", "temperature": 0.5, "top_p": 0.9}
    assert chat == shared | {
        "messages": shown, "max_tokens": 99, "stop": ["x"], "seed": 3, "tools": list(TOOLS),
        "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False},
    }  # fmt: skip
    content = [
        {"type": "input_text", "text": "See"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
    ]
    assert responses == shared | {
        "input": [{"role": "user", "content": content}], "max_output_tokens": 99, "store": False,
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "strict": False, **SEARCH}],
    }  # fmt: skip


def test_fields_that_a_model_refuses_are_left_out() -> None:
    with FakeEndpoint(lambda body: Answer("Ada")) as server:
        options: dict[str, Any] = {"stop": ("x",), "seed": 3, "top_p": 0.5}
        ask(client(server, leave_out="temperature, top_p,stop,seed", stream=True), **options)
        ask(client(server, leave_out="temperature,include", wire="responses"))
        chat, responses = server.bodies
    assert set(chat) == {"model", "messages", "max_tokens", "stream", "stream_options"}
    assert set(responses) == {"model", "input", "max_output_tokens", "store"}
    with pytest.raises(UnknownName, match="'temprature'"):
        Endpoint("any", "http://localhost", leave_out="temprature")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ({"param": "temperature", "code": "unsupported_value", "message": "m"}, "leave_out=temperature"),
        ({"message": "Unsupported parameter: 'temperature'"}, "leave_out=temperature"),
        (
            {"param": "max_tokens", "code": "unsupported_parameter", "message": "m"},
            "limit_field=max_completion_tokens",
        ),
    ],
)
def test_a_refused_field_names_the_option_that_helps(error: dict[str, str], advice: str) -> None:
    with FakeEndpoint(lambda body: Answer(status=400, raw=json.dumps({"error": error}))) as server:
        asked = client(server)
        with pytest.raises(ConfigurationError, match=advice):
            ask(asked)
        assert len(server.bodies) == 1


@pytest.mark.parametrize(("wire", "stream"), FORMS)
def test_a_refusal_of_the_model_is_its_text(wire: Any, stream: bool) -> None:
    with FakeEndpoint(lambda body: Answer(refusal="I will not.")) as server:
        reply = ask(client(server, wire=wire, stream=stream))
    assert (reply.text, reply.calls) == ("I will not.", ())
    assert reply.message is not None


@pytest.mark.parametrize(("wire", "stream"), FORMS)
def test_a_reply_that_was_cut_says_why(wire: Any, stream: bool) -> None:
    with FakeEndpoint(scripted(Answer("one two three"), Answer("one", finish="content_filter"))) as server:
        asked = client(server, wire=wire, stream=stream)
        long, filtered = ask(asked, max_tokens=2), ask(asked)
    assert (long.text, long.finish) == ("one two", "length")
    assert (filtered.text, filtered.finish) == ("one", "content_filter")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"code": "content_filter", "message": "bad words"}),
        (400, {"code": "invalid_prompt", "message": "bad words"}),
        (403, {"code": 403, "message": "bad words", "metadata": {"flagged_input": "x"}}),
    ],
    ids=["azure", "openai", "openrouter"],
)
def test_a_content_filter_has_its_own_error(status: int, error: dict[str, Any]) -> None:
    with FakeEndpoint(lambda body: Answer(status=status, raw=json.dumps({"error": error}))) as server:
        asked = client(server)
        with pytest.raises(EndpointRefusal, match="bad words"):
            ask(asked)
    assert (asked.usage.requests, asked.usage.refusals, asked.usage.failures) == (1, 1, 0)


def test_a_prompt_that_is_too_long_is_known_in_other_words() -> None:
    raw = json.dumps({"error": {"message": "prompt is too long: 9 tokens > 8 maximum"}})
    with FakeEndpoint(lambda body: Answer(status=400, raw=raw)) as server, pytest.raises(ContextTooSmall):
        ask(client(server))


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("cut", [0, 40, 150])
def test_a_stream_that_breaks_off_is_asked_for_again(wire: Any, cut: int) -> None:
    with FakeEndpoint(scripted(Answer("Ada wrote it", cut=cut), Answer("Ada wrote it"))) as server:
        asked = client(server, wire=wire, stream=True)
        assert ask(asked).text == "Ada wrote it"
    assert (asked.usage.requests, asked.usage.retries) == (2, 1)


@pytest.mark.parametrize(
    ("wire", "raw"),
    [
        ("chat", 'data: {"choices": [{"delta": {"content": "Ad"}}]}\n\n'),
        ("chat", 'data: {"choices": [{"delta": {"content": "Ad"}}]}\n\ndata: [DONE]\n\n'),
        ("chat", 'data: {"error": {"message": "overloaded"}}\n\n'),
        ("chat", "data: {half\n\n"),
        ("responses", 'data: {"type": "response.output_text.delta", "delta": "Ad"}\n\n'),
        ("responses", 'data: {"type": "error", "message": "overloaded"}\n\n'),
        ("responses", '{"status": "failed", "error": {"message": "overloaded"}, "output": []}'),
        ("responses", '{"output": 3}'),
    ],
)
def test_an_answer_without_its_end_is_a_fault_after_the_last_try(wire: Any, raw: str) -> None:
    """A server that closes its stream in good order may still not have finished."""
    with FakeEndpoint(lambda body: Answer(raw=raw)) as server:
        asked = client(server, wire=wire, stream=True, retries=1)
        with pytest.raises(EndpointFault, match=r"\b2\b"):
            ask(asked)
    assert asked.usage.requests == 2


def test_a_rate_limit_in_the_other_form_is_waited_for() -> None:
    limited = Answer(status=429, raw="{}", headers={"Retry-After": "0.2"})
    with FakeEndpoint(scripted(limited, Answer("Ada"))) as server:
        asked = client(server, wire="responses", stream=True)
        assert ask(asked).text == "Ada"
    assert asked.usage.retries == 1


@pytest.mark.parametrize(
    ("call", "complaint", "goes_back"),
    [
        (("a", "search", '{"query": '), "search.*JSON", ("a", "search", "{}")),
        (("a", "search", "[1]"), "search.*object", ("a", "search", "{}")),
        (("a", "", "{}"), "names no tool", ("a", "unknown", "{}")),
    ],
    ids=["cut", "list", "no name"],
)
@pytest.mark.parametrize("wire", WIRES)
def test_a_malformed_call_is_told_what_is_wrong_and_goes_back_in_order(
    wire: Any, call: tuple[str, str, str], complaint: str, goes_back: tuple[str, str, str]
) -> None:
    import re

    with FakeEndpoint(lambda body: Answer(calls=(call,))) as server:
        reply = ask(client(server, wire=wire))
    (read,) = reply.calls
    assert isinstance(read, MalformedCall)
    assert read.id == "a"
    assert re.search(complaint, read.complaint)
    assert sent_calls(wire, reply) == [goes_back]


@pytest.mark.parametrize("wire", WIRES)
def test_ids_that_are_missing_or_doubled_are_made(wire: Any) -> None:
    calls = (("", "f", "{}"), ("a", "f", "{}"), ("a", "f o!", "{}"))
    with FakeEndpoint(lambda body: Answer(calls=calls)) as server:
        reply = ask(client(server, wire=wire))
    ids = [call.id for call in reply.calls]
    assert len(set(ids)) == 3
    assert ids[1] == "a"
    assert [call.name for call in reply.calls if isinstance(call, NativeCall)] == ["f", "f", "f o!"]
    assert sent_calls(wire, reply) == [(ids[0], "f", "{}"), ("a", "f", "{}"), (ids[2], "f_o_", "{}")]


@pytest.mark.parametrize("wire", WIRES)
def test_calls_beyond_the_bound_are_neither_run_nor_sent_back(wire: Any) -> None:
    calls = tuple((f"c{i}", "f", "{}") for i in range(40))
    with FakeEndpoint(lambda body: Answer(calls=calls)) as server:
        reply = ask(client(server, wire=wire))
    *run, last = reply.calls
    assert [call.id for call in run] == [f"c{i}" for i in range(32)]
    assert isinstance(last, MalformedCall)
    assert "40" in last.complaint
    assert len(sent_calls(wire, reply)) == 32


def sent_calls(wire: str, reply: Reply) -> list[tuple[str, str, str]]:
    assert reply.message is not None
    if wire == "chat":
        found = [(call["id"], call["function"]) for call in reply.message["tool_calls"]]
    else:
        found = [
            (item["call_id"], item) for item in reply.message["output"] if item["type"] == "function_call"
        ]
    return [(id_, function["name"], function["arguments"]) for id_, function in found]


def test_a_reply_that_says_nothing_does_not_go_back() -> None:
    with FakeEndpoint(lambda body: Answer("")) as server:
        for wire in WIRES:
            assert ask(client(server, wire=wire)).message is None


HALF = "a\\ud83d"  # half a character, which no request can hold


@pytest.mark.parametrize(
    ("wire", "raw"),
    [
        ("chat", f'{{"choices": [{{"message": {{"content": "{HALF}", "reasoning": "{HALF}"}}}}]}}'),
        ("chat", f'{{"choices": [{{"message": {{"content": "t", "extra_content": {{"x": "{HALF}"}}}}}}]}}'),
        ("responses", f'{{"output": [{{"type": "message", "content": [{{"text": "{HALF}"}}]}}]}}'),
    ],
)
def test_half_characters_do_not_break_the_next_request(wire: Any, raw: str) -> None:
    with FakeEndpoint(scripted(Answer(raw=raw), Answer("Ada"))) as server:
        asked = client(server, wire=wire, send_reasoning=True)
        assert ask(asked, [*ASK, ask(asked).message]).text == "Ada"


def test_content_in_parts_is_read() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
        {"type": "text", "text": "Ada"},
    ]
    raw = json.dumps({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]})
    with FakeEndpoint(lambda body: Answer(raw=raw)) as server:
        reply = ask(client(server))
    assert (reply.text, reply.reasoning) == ("Ada", "why")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("openai:gpt@https://host/v1#wire=soap", "'soap'"),
        ("openai:gpt@https://host/v1#stream=maybe", "stream.*'maybe'"),
        ("openai:gpt@https://host/v1#leave_out=model", "'model'"),
        ("anyllm:anthropic", "'anthropic'"),
        ("anyllm:anthropic/x#wire=responses", "'anthropic'"),
    ],
)
def test_a_name_that_is_none_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Endpoint.of(text)


def test_names_of_both_kinds() -> None:
    found = Endpoint.of("openai:org/m@http://localhost:1/v1#wire=responses&stream=1&images=0")
    assert (found.request_url, found.stream, found.images) == ("http://localhost:1/v1/responses", True, False)
    found = Endpoint.of("anyllm:bedrock/eu.anthropic.claude-v1:0#max_cost=1&prompt_price=1")
    assert (found.provider, found.model, found.url) == ("bedrock", "eu.anthropic.claude-v1:0", "")
    found = Endpoint.of("anyllm:anthropic/claude@http://localhost:1#concurrency=2")
    assert (found.provider, found.url, found.name) == (
        "anthropic", "http://localhost:1", "anthropic/claude@http://localhost:1",
    )  # fmt: skip
