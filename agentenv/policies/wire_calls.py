"""Tool calls as a service gives them, and as they are sent back to it.

A service refuses a request whose calls are not in order, even where its own model wrote them. So a call goes back under a
name of allowed characters, with arguments that are a JSON object, and with an id of its own; the policy is told what was
wrong with it as the result of the call.
"""

import json
import re
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from agentenv.core.assistant_turns import Call, MalformedCall, NativeCall
from agentenv.core.grammar import breaks_off, encodable, read_json, shortened
from agentenv.core.model_families import MOST_CALLS

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What a tool may be called."""
_COMPLAINT_CHARS = 400
_SHOWN_CHARS = 120


class CallForm(NamedTuple):
    """A call as it is sent back."""

    id: str
    name: str
    arguments: str


def read_wire_calls(given: Sequence[tuple[Any, Any]], sent: int) -> tuple[tuple[Call, ...], list[CallForm]]:
    """The calls of one turn, and as many of them as are sent back.

    Args:
        given: For each call its id, and the object with its name and arguments.
        sent: Messages that the request held, which makes ids that a service left out unique.
    """
    calls: list[Call] = []
    forms: list[CallForm] = []
    named = {id_ for id_, _ in given if isinstance(id_, str)}
    made = (id_ for n in count() if (id_ := f"call{sent:03d}{n:02d}") not in named)
    for id_, function in given[:MOST_CALLS]:
        known = isinstance(id_, str) and id_ and all(id_ != form.id for form in forms)
        call = _read(id_ if known else next(made), function)
        calls.append(call)
        forms.append(_form(call, function))
    if len(given) > MOST_CALLS:
        said = f"{len(given)} calls in one turn; only the first {MOST_CALLS} were run"
        calls.append(MalformedCall("", said))
    return tuple(calls), forms


def _read(id_: str, function: Any) -> Call:
    name = function.get("name") if isinstance(function, dict) else None
    if not (isinstance(name, str) and name):
        return MalformedCall(_as_text(function), "the tool call names no tool", id_)
    arguments = function.get("arguments")
    written = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    try:
        arguments = read_json(written.strip() or "{}")
    except ValueError as error:
        said = f"the arguments of {name} are not JSON: {error}: {written!r:.{_SHOWN_CHARS}}"
        told = encodable(shortened(said, _COMPLAINT_CHARS))
        return MalformedCall(_as_text(function), told, id_, unfinished=breaks_off(written))
    if not isinstance(arguments, dict):
        said = f"the arguments of {name} are {arguments!r:.{_SHOWN_CHARS}} and not an object"
        return MalformedCall(_as_text(function), encodable(shortened(said, _COMPLAINT_CHARS)), id_)
    return NativeCall(encodable(name), arguments, id_)


def _form(call: Call, function: Any) -> CallForm:
    name = function.get("name") if isinstance(function, dict) else None
    allowed = re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] if isinstance(name, str) else ""
    arguments = json.dumps(call.arguments, ensure_ascii=False) if isinstance(call, NativeCall) else "{}"
    return CallForm(call.id, allowed or "unknown", arguments)


def _as_text(function: Any) -> str:
    return encodable(json.dumps(function, ensure_ascii=False)) if isinstance(function, dict) else ""
