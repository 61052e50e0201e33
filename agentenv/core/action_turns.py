"""Converts between assistant turns and plain text: recorded turns of endpoint models, and actions of experts.

The records of an evaluation store the turns of a model behind an endpoint as text, and experts write their actions in tags.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall, NativeCall, call_text
from agentenv.core.call_readers import json_tags
from agentenv.core.grammar import earliest_block
from agentenv.core.model_families import without_thinking
from agentenv.core.token_texts import defused

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_THOUGHT, _THOUGHT_END = "<think>", "</think>"
_READ_CALLS = json_tags(_OPENING, _CLOSING)


def action_text(turn: AssistantTurn) -> str:
    """Writes a turn as readable text: thinking and calls in tags, and the content between them."""
    calls = "".join(f"{_OPENING}{_call_body(call)}{_CLOSING}" for call in turn.calls)
    if not turn.thinking:
        return f"{turn.content}{calls}"
    thinking = defused(turn.thinking, (_THOUGHT_END,))
    return f"{_THOUGHT}\n{thinking}\n{_THOUGHT_END}\n{turn.content}{calls}"


def _call_body(call: Call) -> str:
    """Writes a call as JSON in which the tags of a call are escaped, so that the call cannot end too early."""
    if isinstance(call, MalformedCall):
        return call.text
    return call_text(call).replace("tool_call>", "tool_call\\u003e")


def recorded_turn(action: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """Parses a turn of a model behind an endpoint from the text that ``action_text`` wrote.

    A service gives the arguments of a call as an object. Any other value means that the model wrote invalid JSON, so the
    call is malformed.

    Args:
        action: The recorded text.
        tools: The declared tools in OpenAI's form. Without tools, nothing in the text is read as a call.
    """
    thinking, text, _ = without_thinking(action, False, _THOUGHT, _THOUGHT_END)
    if not (tools and _OPENING in text):
        return AssistantTurn(thinking, text.strip())
    content, calls = _READ_CALLS(text, {})
    return AssistantTurn(thinking, content.strip(), tuple(map(_require_object, calls)))


def _require_object(call: Call) -> Call:
    if isinstance(call, MalformedCall) or isinstance(call.arguments, dict):
        return call
    return MalformedCall(f"{_OPENING}{_call_body(call)}{_CLOSING}", "the arguments are no object")


def expert_turn(action: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """Parses an action of an expert as a turn that calls ``tools``.

    Thinking is written in ``<think>`` at the beginning, and calls as JSON in ``<tool_call>``. Without these, the first pair
    of tags named after a tool with one argument is a call of that tool, such as ``<search>who</search>``.

    Args:
        action: The action as the environment's expert writes it.
        tools: The declared tools in OpenAI's form.
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
