"""What a fake endpoint sends: an answer written beforehand, in each wire form and as a stream of it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from agentenv.policies.endpoint_formats import PieceTokenizer

Body = Mapping[str, Any]


def chat_completion(body: Body, answer: Any) -> str:
    """The response of Chat Completions."""
    text, finish, reason = _sampled(body, answer, body.get("max_tokens"))
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if answer.calls else "")}
    message |= {answer.reasoning_key: answer.reasoning} if answer.reasoning else {}
    message |= {"content": None, "refusal": answer.refusal} if answer.refusal else {}
    if answer.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in answer.calls
        ]
        finish = "tool_calls" if finish == "stop" else finish
    choice = {"index": 0, "message": message, "finish_reason": answer.finish or finish}
    choice |= {"stop_reason": reason} if answer.says_stop else {}
    reply: dict[str, Any] = {"choices": [choice]}
    if answer.usage:
        asked, said = _counts(body["messages"], text, answer.reasoning)
        details = {"completion_tokens_details": {"reasoning_tokens": _count(answer.reasoning)}}
        reply["usage"] = {"prompt_tokens": asked, "completion_tokens": said, **details}
    return _chat_chunks(reply) if body.get("stream") else json.dumps(reply)


def response(body: Body, answer: Any) -> str:
    """The response of Responses."""
    text, finish, _ = _sampled(body, answer, body["max_output_tokens"])
    output: list[dict[str, Any]] = []
    if answer.reasoning:
        thought = {"type": "summary_text", "text": answer.reasoning}
        secret = f"sealed({answer.reasoning})"
        output.append(
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [thought],
                "encrypted_content": secret,
                "status": None,
            }
        )
    if text or answer.refusal:
        said = {"type": "output_text", "text": text, "annotations": []}
        said = {"type": "refusal", "refusal": answer.refusal} if answer.refusal else said
        output.append(
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said]}
        )
    for place, (id_, name, arguments) in enumerate(answer.calls):
        item = {"type": "function_call", "id": f"fc_{place}", "call_id": id_, "name": name}
        output.append(item | {"arguments": arguments, "status": "completed"})
    reason = {"stop": None, "length": "max_output_tokens"}.get(answer.finish or finish, answer.finish)
    reply: dict[str, Any] = {
        "id": "resp_1",
        "status": "incomplete" if reason else "completed",
        "output": output,
    }
    reply["incomplete_details"] = {"reason": reason} if reason else None
    if answer.usage:
        asked, said_tokens = _counts(body["input"], text, answer.reasoning)
        details = {"output_tokens_details": {"reasoning_tokens": _count(answer.reasoning)}}
        reply["usage"] = {"input_tokens": asked, "output_tokens": said_tokens, **details}
    return _response_events(reply) if body.get("stream") else json.dumps(reply)


FORMS: Mapping[str, Callable[[Body, Any], str]] = {
    "/chat/completions": chat_completion,
    "/responses": response,
}
"""By the path of requests."""


def _sampled(body: Body, answer: Any, limit: int | None) -> tuple[str, str, str | None]:
    """The text up to a stop string or the bound, why it ended, and the stop string."""
    tokenizer = PieceTokenizer()
    text, finish = answer.text, "stop"
    stops = [(text.index(stop), stop) for stop in body.get("stop", ()) if stop in text]
    text, reason = (text[: min(stops)[0]], min(stops)[1]) if stops else (text, None)
    pieces = tokenizer.encode(text)
    if limit is not None and len(pieces) > limit:
        text, finish, reason = tokenizer.decode(pieces[:limit]), "length", None
    return text, finish, reason


def _count(text: str) -> int:
    return len(PieceTokenizer().encode(text))


def _counts(messages: Any, text: str, reasoning: str) -> tuple[int, int]:
    asked = sum(_count(content) for message in messages if isinstance(content := message.get("content"), str))
    return asked, _count(text) + _count(reasoning)


def _chat_chunks(reply: dict[str, Any]) -> str:
    """The chunks of a stream: every text in halves, the usage last."""
    choice = reply["choices"][0]
    whole = choice["message"]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
    for name in (name for name in whole if isinstance(whole[name], str) and name != "role"):
        deltas += [{name: half} for half in _halves(whole[name])]
    for index, call in enumerate(whole.get("tool_calls", ())):
        head, tail = _halves(call["function"]["arguments"])
        first = call | {"index": index, "function": call["function"] | {"arguments": head}}
        deltas += [
            {"tool_calls": [part]} for part in (first, {"index": index, "function": {"arguments": tail}})
        ]
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    last = {name: choice[name] for name in ("finish_reason", "stop_reason") if name in choice}
    chunks += [{"choices": [{"index": 0, "delta": {}, **last}]}, {"choices": [], "usage": reply.get("usage")}]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def _response_events(reply: dict[str, Any]) -> str:
    ending = f"response.{reply['status']}"
    events: list[dict[str, Any]] = [{"type": "response.created"}]
    events.append({"type": "response.output_text.delta", "delta": "half"})
    events.append({"type": ending, "response": reply})
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]
