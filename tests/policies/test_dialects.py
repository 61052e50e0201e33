"""What servers other than OpenAI's say: where a context is full, a filter refuses, a reply ends, or the server gave up.

The sentences are those of the services, with other numbers. Each stands for an episode that would be masked as a failure of
the service if it were not known, and the longest or the most heated episodes would leave every score.
"""

import json
from typing import Any

import pytest

from agentenv.core.types import FinishReason
from agentenv.errors import ConfigurationError, ContextTooSmall, EndpointFault, EndpointRefusal
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.openai import restored
from agentenv.policies.wires import Reply
from tests.policies.test_wires import ask, client, scripted

FULL: dict[str, tuple[int, Any]] = {
    "OpenAI, responses": (400, {"error": {"message": "Your input exceeds the context window of this model."}}),
    "vLLM": (400, {"error": {"message": "You passed 9000 input tokens and requested 500 output tokens. However, the model's "
             "context length is only 8192 tokens, resulting in a maximum input length of 7692 tokens. Please reduce "
            "the length "
             "of the input prompt. (parameter=input_tokens, value=9000)", "type": "BadRequestError", "code": 400}}),
    "vLLM, engine": (400, {"error": {"message": "The decoder prompt (length 9000) is longer than the maximum model "
            "length of "
                     "8192. Make sure that `max_model_len` is no smaller than the number of text tokens.", "code": 400}}),
    "vLLM, old": (400, {"object": "error", "message": "This model's maximum context length is 8192 tokens.", "code": 400}),
    "SGLang": (400, {"object": "error", "message": "The input (9000 tokens) is longer than the model's context length "
               "(8192 tokens).", "type": "BadRequestError", "code": 400}),
    "SGLang, scheduler": (400, {"object": "error", "message": "Input length (9000 tokens) exceeds the maximum allowed "
            "length "
                          "(8186 tokens). Use a shorter input or enable --allow-auto-truncate.", "code": 400}),
    "llama.cpp": (400, {"error": {"code": 400, "message": "the request exceeds the available context size. try "
            "increasing the "
                  "context size or enable context shift", "type": "exceed_context_size_error", "n_ctx": 8192}}),
    "llama.cpp, 500": (500, {"error": {"code": 500, "message": "request too large", "type": "exceed_context_size_error"}}),
    "llama-cpp-python": (400, {"error": {"message": "Requested tokens (9000) exceed context window of 8192"}}),
    "TGI": (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 "
            "`inputs` "
            "tokens and 500 `max_new_tokens`", "error_type": "validation"}),
    "TGI, inputs": (422, {"error": "Input validation error: `inputs` must have less than 8191 tokens. Given: 9000"}),
    "Anthropic": (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "input length and "
            "`max_tokens` "
                  "exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens`"}}),
    "xAI": (400, {"code": "invalid-argument", "error": "This model's maximum prompt length is 8192 but the request contains "
            "9000 tokens."}),
    "Google": (400, [{"error": {"code": 400, "message": "The input token count (9000) exceeds the maximum number of tokens "
               "allowed (8192).", "status": "INVALID_ARGUMENT"}}]),
    "Groq": (400, {"error": {"message": "Please reduce the length of the messages or completion.", "type": "x"}}),
    "FastAPI": (400, {"detail": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."}),
    "a gateway": (400, {"error": {"message": "gateway.BadRequestError: " + "upstream says: " * 30 + "This model's maximum "
                  "context length is 8192 tokens. However, your messages resulted in 9000 tokens.", "code": "400"}}),
}  # fmt: skip
FILTERED: dict[str, tuple[int, Any]] = {
    "Azure": (400, {"error": {"message": "The response was filtered", "code": None, "status": 400,
              "innererror": {"code": "ResponsibleAIPolicyViolation"}}}),
    "Azure behind a gateway": (400, {"error": {"message": "gateway: The response was filtered due to the prompt triggering "
                               "Azure OpenAI's content management policy. Please modify your prompt", "code": "400"}}),
    "Moonshot": (400, {"error": {"message": "The request was rejected because it was considered high risk",
                 "type": "content_filter"}}),
    "Alibaba": (400, {"error": {"message": "Input data may contain inappropriate content.", "type": "data_inspection_failed",
                "code": "data_inspection_failed"}}),
    "DeepSeek": (400, {"error": {"message": "Content Exists Risk", "type": "invalid_request_error"}}),
}  # fmt: skip
OTHER: dict[str, tuple[int, Any]] = {
    "too long a reply": (
        400,
        {"error": {"message": "max_tokens is too large: 99999. This model supports at most 16384"}},
    ),
    "throttled": (400, {"error": {"message": "Too many tokens, please wait before trying again."}}),
    "a field": (422, {"detail": [{"loc": ["body", "messages"], "msg": "field required", "type": "missing"}]}),
    "a field, with what was sent": (
        422,
        {
            "detail": [
                {
                    "loc": ["body", "messages"],
                    "msg": "field required",
                    "input": [{"content": "GPT-2 has a maximum context length of 1024; Content Exists Risk"}],
                }
            ]
        },
    ),
    "a limit of tokens": (
        429,
        {"error": {"message": "Please wait: 60000 is the maximum number of tokens allowed per minute"}},
    ),
    "a model that is not there": (
        503,
        {"error": {"message": "Please wait: a KV cache of the model's context length cannot be had"}},
    ),
}


def failing(status: int, body: Any) -> Answer:
    return Answer(status=status, raw=json.dumps(body))


def refused(answer: Answer, **options: Any) -> str:
    """What is said of a request that is refused at once."""
    with FakeEndpoint(scripted(answer)) as server:
        asked = client(server, retries=0, **options)
        with pytest.raises((ContextTooSmall, EndpointRefusal, EndpointFault)) as found:
            ask(asked)
    assert asked.usage.requests == 1
    return f"{type(found.value).__name__}: {found.value}"


@pytest.mark.parametrize("name", FULL)
def test_a_full_context_is_known_in_every_dialect(name: str) -> None:
    assert refused(failing(*FULL[name])).startswith("ContextTooSmall")


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_context_is_known_in_an_answer_of_status_200(stream: bool) -> None:
    said = json.dumps(FULL["SGLang"][1])
    assert refused(Answer(raw=f"data: {said}\n\n" if stream else said), stream=stream).startswith(
        "ContextTooSmall"
    )


@pytest.mark.parametrize("name", FILTERED)
def test_a_filter_is_known_in_every_dialect(name: str) -> None:
    assert refused(failing(*FILTERED[name])).startswith("EndpointRefusal")


@pytest.mark.parametrize("name", OTHER)
def test_what_is_wrong_with_the_request_is_neither(name: str) -> None:
    said = refused(failing(*OTHER[name]))
    assert said.startswith("EndpointFault")
    assert any(word in said for word in ("16384", "wait", "field required"))


def test_what_a_gateway_says_is_shown_in_short() -> None:
    assert len(refused(failing(*FULL["a gateway"]))) < 400


def ended(reason: Any, **choice: Any) -> Answer:
    message = {} if "message" in choice else {"message": {"role": "assistant", "content": "<search>who"}}
    whole = {"index": 0, "finish_reason": reason} | message | choice
    return Answer(raw=json.dumps({"choices": [{k: v for k, v in whole.items() if v is not ...}]}))


def reply_to(answer: Answer) -> Reply:
    with FakeEndpoint(scripted(answer)) as server:
        return ask(client(server, retries=0))


@pytest.mark.parametrize(
    "reason", ["stop", "eos", "eos_token", "stop_sequence", "end_turn", "STOP", None, ""]
)
def test_a_turn_that_ended_at_a_stop_string_gets_it_back(reason: Any) -> None:
    reply = reply_to(ended(reason))
    assert reply.finish == "stop"
    assert restored(reply, ("</search>",)) == ("<search>who</search>", FinishReason.STOP)


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length"])
def test_a_turn_that_was_cut_gets_nothing_back(reason: str) -> None:
    assert restored(reply_to(ended(reason)), ("</search>",)) == ("<search>who", FinishReason.LENGTH)


def test_the_stop_string_that_sglang_names_comes_back() -> None:
    reply = reply_to(ended("stop", message={"content": "who"}, matched_stop="</answer>"))
    assert restored(reply, ("</search>", "</answer>")) == ("who</answer>", FinishReason.STOP)
    assert reply_to(ended("stop", matched_stop=128009)).stop is None


@pytest.mark.parametrize(
    "reason", ["content_filter", "content_filter: PROHIBITED_CONTENT", "sensitive", "SAFETY"]
)
@pytest.mark.parametrize("message", [..., None, {"content": None}])
def test_a_reply_of_which_a_filter_leaves_nothing_is_an_empty_turn(reason: str, message: Any) -> None:
    reply = reply_to(ended(reason, message=message))
    assert (reply.text, reply.finish) == ("", "content_filter")


@pytest.mark.parametrize("reason", ["error", "abort", "network_error", "insufficient_system_resource"])
def test_a_reply_that_the_server_gave_up_is_asked_for_again(reason: str) -> None:
    with FakeEndpoint(scripted(ended(reason), Answer("Ada"))) as server:
        asked = client(server)
        assert ask(asked).text == "Ada"
    assert asked.usage.retries == 1


def test_more_stop_strings_than_a_service_takes_are_cut_here_where_it_is_told_so() -> None:
    # OpenAI takes four, and AgentSearch-v0 has six.
    said = "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 6 instead."
    error = {"message": said, "param": "stop", "code": "array_above_max_length"}
    stop = tuple(f"</{letter}>" for letter in "abcdef")
    with FakeEndpoint(
        lambda body: failing(400, {"error": error}) if "stop" in body else Answer("<f>x</f> y")
    ) as server:
        with pytest.raises(ConfigurationError, match="leave_out=stop"):
            ask(client(server), stop=stop)
        reply = ask(client(server, leave_out="stop"), stop=stop)
    assert restored(reply, stop) == ("<f>x</f>", FinishReason.STOP)
