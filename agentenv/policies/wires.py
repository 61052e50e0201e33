"""The two wire forms of OpenAI: the body of a request, and what an answer holds.

A request is asked with the messages of Chat Completions. An assistant's turn among them is the `Reply.message` of an earlier
answer in the same form, so that calls keep their ids and what a service wants back (encrypted reasoning, signatures) comes
back unchanged.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentenv.core.assistant_turns import Call
from agentenv.core.episodes import replace_surrogates
from agentenv.policies.wire_calls import read_wire_calls
from agentenv.policies.wire_streams import chat_stream, responses_stream
from agentenv.web.retries import TryAgain

ChatMessage = Mapping[str, Any]
WireName = Literal["chat", "responses"]

_REASONING_KEYS = ("reasoning_content", "reasoning")
_MOST_COUNTED = 2**40  # tokens; no reply has more
_KEPT_REASONING = (*_REASONING_KEYS, "reasoning_details")


@dataclass(frozen=True)
class ModelRequest:
    """One request, before it has a wire form."""

    messages: Sequence[ChatMessage]
    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    stop: Sequence[str] = ()
    seed: int | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    """In the form of Chat Completions."""
    template_options: Mapping[str, Any] | None = None
    """Arguments of the chat template that the server renders, which servers of open models take."""


@dataclass(frozen=True)
class RequestSettings:
    """The fields of an `Endpoint` that change the requests to its model; they are explained there."""

    model: str
    limit_field: str
    leave_out: frozenset[str]
    effort: str
    stream: bool
    send_reasoning: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered."""

    text: str
    finish: str
    """As the endpoint says it: ``stop``, ``length``, ..."""
    stop: str | None = None
    """The stop string that ended it, where the endpoint says so (vLLM)."""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    message: ChatMessage | None = field(default=None, compare=False)
    """The turn as a later request holds it; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one answer."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    """Tokens of the completion in which the model thought."""
    cached: int = 0
    """Tokens of the prompt that the service had kept."""


@dataclass(frozen=True)
class Wire:
    """A wire form: how requests are written and answers are read."""

    path: str
    body: Callable[[RequestSettings, ModelRequest], dict[str, Any]]
    read: Callable[[RequestSettings, Mapping[str, Any], int], Reply]
    """From an answer, and the number of messages that were sent, to what it holds."""
    stream: Callable[[str], dict[str, Any]]
    """From the text of a stream to the answer that it makes up."""
    count: tuple[str, str]
    """The names of the tokens of prompt and completion."""

    def used(self, answer: Mapping[str, Any]) -> TokenUsage | None:
        """What the answer says was used; None where it says nothing."""
        usage = _object(answer.get("usage"))
        prompt, completion = (_count(usage.get(name)) for name in self.count)
        if prompt is None and completion is None:
            return None
        of_prompt, of_reply = (_object(usage.get(f"{name}_details")) for name in self.count)
        details = _count(of_reply.get("reasoning_tokens")), _count(of_prompt.get("cached_tokens"))
        return TokenUsage(*(count or 0 for count in (prompt, completion, *details)))


def _count(value: Any) -> int | None:
    """A number of tokens; None where a server sent something else."""
    return value if isinstance(value, int) and 0 <= value < _MOST_COUNTED else None


def _chat_body(settings: RequestSettings, request: ModelRequest) -> dict[str, Any]:
    body = {
        "model": settings.model,
        "messages": [dict(message) for message in request.messages],
        settings.limit_field: request.max_tokens,
        "temperature": request.temperature,
    }
    body |= {"top_p": request.top_p} if request.top_p != 1.0 else {}
    body |= {"stop": list(request.stop)} if request.stop else {}
    body |= {"seed": request.seed} if request.seed is not None else {}
    body |= {"tools": [dict(tool) for tool in request.tools]} if request.tools else {}
    body |= {"reasoning_effort": settings.effort} if settings.effort else {}
    body |= {"chat_template_kwargs": dict(request.template_options)} if request.template_options else {}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if settings.stream else {}
    return {name: value for name, value in body.items() if name not in settings.leave_out}


def _read_chat(settings: RequestSettings, answer: Mapping[str, Any], sent: int) -> Reply:
    choice = answer["choices"][0]
    finish = _finish(choice.get("finish_reason"))
    if finish in _BROKEN:
        raise TryAgain(f"the reply ended with {choice['finish_reason']!r}")
    # Google leaves out the message where a filter leaves nothing of it.
    message = (choice.get("message") or {}) if finish == "content_filter" else choice["message"]
    content, thought = _parts(message.get("content", ""))
    refusal = message.get("refusal")
    text = content or (refusal if isinstance(refusal, str) else "")
    said = (message.get(key) for key in _REASONING_KEYS)
    reasoning = next((one for one in said if isinstance(one, str) and one), thought)
    wanted = [(call, call.get("id"), call.get("function")) for call in _objects(message.get("tool_calls"))]
    calls, forms = read_wire_calls([(id_, function) for _, id_, function in wanted], sent)
    sent_back = [
        {"id": form.id, "type": "function", "function": {"name": form.name, "arguments": form.arguments}}
        | _only(call, ("extra_content",))
        for form, (call, _, _) in zip(forms, wanted, strict=False)
    ]
    kept: dict[str, Any] = {"tool_calls": sent_back} if sent_back else {}
    if signed := _only(message, ("extra_content",)):  # a signature of the thinking, which has to come with it
        kept |= signed | _only(message, _REASONING_KEYS)
    if settings.send_reasoning:
        kept |= _only(message, _KEPT_REASONING)
    form = {"role": "assistant", "content": text or None, **kept} if text or sent_back else None
    # Of vLLM and SGLang; both may be the id of a token.
    stop = choice.get("stop_reason", choice.get("matched_stop"))
    return Reply(
        text,
        finish,
        stop if isinstance(stop, str) else None,
        reasoning,
        calls,
        form,
    )


_FINISHES: Mapping[str, str] = {
    **dict.fromkeys(("", "none", "eos", "eos_token", "end_turn", "stop_sequence", "complete"), "stop"),
    **dict.fromkeys(("max_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("sensitive", "safety", "refusal"), "content_filter"),
}
"""What services say in the place of OpenAI's ``stop``, ``length`` and ``content_filter``, in small letters."""
_BROKEN = frozenset({"error", "abort", "network_error", "insufficient_system_resource"})
"""What SGLang, vLLM, Z.ai and DeepSeek say where they gave up themselves."""


def _finish(reason: Any) -> str:
    """Why a reply ended, in OpenAI's words where they are known."""
    said = str(reason).lower()
    return "content_filter" if said.startswith("content_filter") else _FINISHES.get(said, said)


def _parts(content: Any) -> tuple[str, str]:
    """The text of a message and the thinking in it, which some services write as parts of the content."""
    if isinstance(content, list):
        parts = _objects(content)
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        thoughts = [_parts(part["thinking"])[0] for part in parts if isinstance(part.get("thinking"), list)]
        return "".join(texts), "\n".join(thoughts)
    if not isinstance(content, str | None):
        raise TypeError(f"a text and not {type(content).__name__}")
    return content or "", ""


def _responses_body(settings: RequestSettings, request: ModelRequest) -> dict[str, Any]:
    """The body of a request, without stop strings and seed, which this form does not know."""
    body: dict[str, Any] = {
        "model": settings.model,
        "input": [item for message in request.messages for item in _items(message)],
        "max_output_tokens": request.max_tokens,
        "temperature": request.temperature,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    body |= {"top_p": request.top_p} if request.top_p != 1.0 else {}
    tools = [{"type": "function", "strict": False, **tool["function"]} for tool in request.tools]
    body |= {"tools": tools} if tools else {}
    body |= {"reasoning": {"effort": settings.effort}} if settings.effort else {}
    body |= {"stream": True} if settings.stream else {}
    return {name: value for name, value in body.items() if name not in settings.leave_out}


def _items(message: ChatMessage) -> list[dict[str, Any]]:
    """A message in the form of Chat Completions as items of Responses."""
    if "output" in message:
        return [dict(item) for item in message["output"]]
    if message["role"] == "tool":
        output = _input_parts(message["content"])
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}]
    return [{"role": message["role"], "content": _input_parts(message["content"])}]


def _input_parts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "input_image", "image_url": part["image_url"]["url"]}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in content
    ]


def _read_responses(settings: RequestSettings, answer: Mapping[str, Any], sent: int) -> Reply:
    if answer.get("status") in _UNFINISHED:
        raise TryAgain(f"the response is {answer['status']}")
    if not isinstance(answer["output"], list):
        raise TypeError(f"an output that is a list and not {type(answer['output']).__name__}")
    items = [item for item in _objects(answer["output"]) if item.get("type") in _KEPT]
    wanted = [(item.get("call_id"), item) for item in items if item["type"] == "function_call"]
    calls, forms = read_wire_calls(wanted, sent)
    texts: list[str] = []
    thoughts: list[str] = []
    output: list[dict[str, Any]] = []
    left = iter(forms)
    for item in items:
        if item["type"] == "message":
            said = [part.get("text") or part.get("refusal") or "" for part in _objects(item.get("content"))]
            texts += said
            output += [_without_id(item)] if any(said) else []
        elif item["type"] == "reasoning":
            thoughts += [part.get("text") or "" for key in _THOUGHTS for part in _objects(item.get(key))]
            output += [_without_id(item)] if item.get("encrypted_content") else []
        elif form := next(left, None):
            named = {"call_id": form.id, "name": form.name, "arguments": form.arguments}
            output.append({"type": "function_call", **named})
    incomplete = _object(answer.get("incomplete_details")).get("reason")
    finish = {None: "stop", "max_output_tokens": "length"}.get(incomplete, incomplete)
    text = "".join(texts)
    said_something = text or calls
    message = {"role": "assistant", "output": output} if said_something else None
    return Reply(text, str(finish), None, "\n".join(thoughts), calls, message)


_UNFINISHED = ("failed", "cancelled", "queued", "in_progress")
_KEPT = ("message", "reasoning", "function_call")
_THOUGHTS = ("summary", "content")


def _without_id(item: Mapping[str, Any]) -> dict[str, Any]:
    """An item as it is sent back where nothing is stored there: its id would be looked up and not found."""
    return {name: value for name, value in item.items() if name not in ("id", "status") and value is not None}


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none of anything else, which a server may send as well."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    """An object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def _only(message: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: message[name] for name in names if message.get(name)}


_BEGINS_STREAM = ("data:", "event:", "id:", "retry:", ":")


def as_json(text: str, stream: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """An answer, sent whole or as a stream. Parts of it are sent back, so no lone surrogate stays in it.

    Raises:
        ValueError: it is neither.
        TryAgain: the stream broke off.
    """
    answer = stream(text) if text.lstrip().startswith(_BEGINS_STREAM) else json.loads(text)
    if not isinstance(answer, dict):
        raise ValueError("it is no object")
    if text.isascii() and "\\u" not in text:
        return answer
    # Half a character can be read and not be sent back, and a policy that writes one must not fail by it.
    whole: dict[str, Any] = json.loads(replace_surrogates(json.dumps(answer, ensure_ascii=False)))
    return whole


def error_in(answer: Mapping[str, Any]) -> Any:
    """What an answer of status 200 says went wrong; None where nothing did."""
    if answer.get("object") == "error":  # of vLLM and what was made after it
        return answer.get("error") or dict(answer)
    return answer.get("error") or next(
        (choice["error"] for choice in _objects(answer.get("choices")) if choice.get("error")), None
    )


WIRES: Mapping[WireName, Wire] = {
    "chat": Wire(
        "/chat/completions", _chat_body, _read_chat, chat_stream, ("prompt_tokens", "completion_tokens")
    ),
    "responses": Wire(
        "/responses", _responses_body, _read_responses, responses_stream, ("input_tokens", "output_tokens")
    ),
}
"""Chat Completions, which every server speaks, and Responses of OpenAI."""
