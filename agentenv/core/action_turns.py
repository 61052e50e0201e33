"""Turns of a policy as text, and what such a text says as a turn in the native form of a model.

The turns of a model behind an endpoint stand so in the records of an evaluation, and experts write their actions in tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall, NativeCall, call_text
from agentenv.core.call_readers import json_tags
from agentenv.core.grammar import earliest_block
from agentenv.core.model_families import without_thinking
from agentenv.core.token_texts import defused

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_THOUGHT, _THOUGHT_OUT = "<think>", "</think>"
_READ_CALLS = json_tags(_OPENING, _CLOSING)


def action_text(turn: AssistantTurn) -> str:
    """A turn as a person reads it: its thinking and its calls in tags, and the content between them."""
    calls = "".join(f"{_OPENING}{_call_body(call)}{_CLOSING}" for call in turn.calls)
    if not turn.thinking:
        return f"{turn.content}{calls}"
    thinking = defused(turn.thinking, (_THOUGHT_OUT,))
    return f"{_THOUGHT}\n{thinking}\n{_THOUGHT_OUT}\n{turn.content}{calls}"


def _call_body(call: Call) -> str:
    """A call as JSON in which no tag of a call stands, so that it ends where it is meant to."""
    if isinstance(call, MalformedCall):
        return call.text
    return call_text(call).replace("tool_call>", "tool_call\\u003e")


def recorded_turn(action: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """The turn of a model behind an endpoint that ``action_text`` wrote.

    A service gives the arguments of a call as an object. Where they are something else, they were no JSON, and the call is
    malformed.

    Args:
        action: The text.
        tools: The declared ones, in OpenAI's form; without any there are no calls.
    """
    thinking, text, _ = without_thinking(action, False, _THOUGHT, _THOUGHT_OUT)
    if not (tools and _OPENING in text):
        return AssistantTurn(thinking, text.strip())
    content, calls = _READ_CALLS(text, {})
    return AssistantTurn(thinking, content.strip(), tuple(map(_with_object, calls)))


def _with_object(call: Call) -> Call:
    if isinstance(call, MalformedCall) or isinstance(call.arguments, dict):
        return call
    return MalformedCall(f"{_OPENING}{_call_body(call)}{_CLOSING}", "the arguments are no object")


def expert_turn(action: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """What an expert does, as a turn that calls ``tools``.

    Thinking stands in ``<think>`` at the beginning, and calls as JSON in ``<tool_call>``. Without those the first pair of
    tags that is named after a tool of one argument is a call of it, as in ``<search>who</search>``.

    Args:
        action: As the expert of an environment writes it.
        tools: The declared ones, in OpenAI's form.
    """
    turn = recorded_turn(action, tools)
    if turn.calls:
        return turn
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    arguments = {name: list(schema.get("properties", {})) for name, schema in schemas.items()}
    tags = [name for name, names in arguments.items() if len(names) == 1]
    block = earliest_block(turn.content, tags) if tags else None
    if block is None:
        return turn
    before = turn.content[: turn.content.rfind(f"<{block.tag}>", 0, block.end)]
    call = NativeCall(block.tag, {arguments[block.tag][0]: block.content})
    return AssistantTurn(turn.thinking, before.strip(), (call,))
