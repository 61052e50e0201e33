"""Answers that come as a stream of server-sent events, put together once the stream has ended.

Streams are asked for where something between here and the model closes connections that are silent for long. One that breaks
off is no answer: the request is made again.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from agentenv.web.retries import TryAgain

_BROKE_OFF = "the stream broke off before the reply had ended"
_LINE_END = re.compile("\r\n|\n|\r")  # no others: JSON may hold what else ends a line of text
_ENDINGS = ("response.completed", "response.incomplete", "response.failed")


def chat_stream(text: str) -> dict[str, Any]:
    """The answer that the chunks of Chat Completions make up, or the error that ended them.

    Raises:
        TryAgain: the stream broke off.
    """
    message: dict[str, Any] = {"content": None}
    calls = _Calls()
    choice: dict[str, Any] = {"message": message, "finish_reason": None}
    usage = None
    for event in _events(text):
        if error := event.get("error") or (event if event.get("object") == "error" else None):
            return {"error": error, "usage": usage}
        usage = event.get("usage") or usage
        for part in event.get("choices") or ():
            delta = part.get("delta") or part.get("message") or {}
            for call in delta.pop("tool_calls", None) or ():
                calls.add(call)
            _add(message, delta)
            choice |= {
                name: part[name]
                for name in ("finish_reason", "stop_reason", "matched_stop", "error")
                if part.get(name)
            }
    if choice["finish_reason"] is None:
        raise TryAgain(_BROKE_OFF)
    message |= {"tool_calls": calls.whole} if calls.whole else {}
    return {"choices": [choice], "usage": usage}


class _Calls:
    """The tool calls of a stream, in the order in which they begin."""

    def __init__(self) -> None:
        self.whole: list[dict[str, Any]] = []
        self._places: dict[int, dict[str, Any]] = {}

    def add(self, piece: dict[str, Any]) -> None:
        """Appends a piece to its call.

        Servers leave out the index, or give it to several calls. A piece that names a tool begins a call where the one
        that it would go on with has its name already, unless both have the same id.
        """
        index = piece.pop("index", None)
        known = isinstance(index, int)
        held = self._places.get(index) if known else next(reversed(self.whole), None)
        if held is None or (_named(piece) and _named(held) and not _same_id(piece, held, known)):
            held = {}
            self.whole.append(held)
        if known:
            self._places[index] = held
        _add(held, piece)


def _named(call: dict[str, Any]) -> bool:
    function = call.get("function")
    return isinstance(function, dict) and bool(function.get("name"))


def _same_id(piece: dict[str, Any], held: dict[str, Any], known: bool) -> bool:
    """Whether ids say that ``piece`` belongs to ``held``; without an id the index says so."""
    return piece["id"] == held.get("id") if piece.get("id") else known


def responses_stream(text: str) -> dict[str, Any]:
    """The answer that the last event of Responses holds, or the error that ended the stream.

    Raises:
        TryAgain: the stream broke off.
    """
    for event in _events(text):
        if event.get("type") == "error" or event.get("error"):
            return {"error": event.get("error") or event}
        if event.get("type") in _ENDINGS:
            response: dict[str, Any] = event["response"]
            return response
    raise TryAgain(_BROKE_OFF)


def _events(text: str) -> Iterator[dict[str, Any]]:
    for line in _LINE_END.split(text):
        name, _, data = line.partition(":")
        if name != "data" or data.strip() in ("", "[DONE]"):
            continue
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


def _add(whole: dict[str, Any], delta: dict[str, Any]) -> None:
    """Appends the texts of ``delta`` to those of ``whole``, in objects within it too."""
    for name, value in delta.items():
        if isinstance(value, dict):
            if not isinstance(whole.get(name), dict):
                whole[name] = {}
            _add(whole[name], value)
        elif isinstance(value, list):
            whole[name] = [*(whole.get(name) or ()), *value]
        elif isinstance(value, str) and name in ("id", "type", "role", "name"):
            # Services send these once, or again in every piece.
            whole[name] = whole.get(name) or value
        elif isinstance(value, str):
            whole[name] = (whole.get(name) or "") + value
        elif value is not None:
            whole[name] = value
