"""Answers that come as a stream of server-sent events, put together once the stream has ended.

Streams are asked for where something between here and the model closes connections that are silent for long. One that breaks
off is no answer: the request is made again.
"""

import json
from collections.abc import Iterator
from typing import Any

from agentenv.web.retries import TryAgain

_BROKE_OFF = "the stream broke off before the reply had ended"
_ENDINGS = ("response.completed", "response.incomplete", "response.failed")


def chat_stream(text: str) -> dict[str, Any]:
    """The answer that the chunks of Chat Completions make up.

    Raises:
        TryAgain: the stream broke off, or holds an error.
    """
    message: dict[str, Any] = {"content": None}
    calls: dict[int, dict[str, Any]] = {}
    choice: dict[str, Any] = {"message": message, "finish_reason": None}
    usage = None
    for event in _events(text):
        usage = event.get("usage") or usage
        for part in event.get("choices") or ():
            delta = part.get("delta") or {}
            for call in delta.pop("tool_calls", None) or ():
                _add(calls.setdefault(call.get("index", len(calls)), {}), call)
            _add(message, delta)
            choice |= {name: part[name] for name in ("finish_reason", "stop_reason") if part.get(name)}
    if choice["finish_reason"] is None:
        raise TryAgain(_BROKE_OFF)
    message |= {"tool_calls": [calls[place] for place in sorted(calls)]} if calls else {}
    return {"choices": [choice], "usage": usage}


def responses_stream(text: str) -> dict[str, Any]:
    """The answer that the last event of Responses holds.

    Raises:
        TryAgain: the stream broke off, or holds an error.
    """
    for event in _events(text):
        if event.get("type") in _ENDINGS:
            response: dict[str, Any] = event["response"]
            return response
    raise TryAgain(_BROKE_OFF)


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        name, _, data = line.partition(":")
        if name != "data" or data.strip() in ("", "[DONE]"):
            continue
        event = json.loads(data)
        if error := event.get("error") or (event if event.get("type") == "error" else None):
            raise TryAgain(f"the stream ended with an error: {error.get('message', error)}")
        yield event


def _add(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Appends the texts of ``delta`` to those of ``whole``, in objects within it too."""
    for name, value in delta.items():
        if isinstance(value, dict):
            _add(whole.setdefault(name, {}), value)
        elif isinstance(value, list):
            whole[name] = [*(whole.get(name) or ()), *value]
        elif isinstance(value, str) and name not in ("id", "type", "role", "name"):
            whole[name] = (whole.get(name) or "") + value
        elif value is not None:
            whole[name] = value
