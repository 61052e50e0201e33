"""An action written as text, as a turn in the native form of a model.

Experts write actions as text, and so stand the turns of a model behind an endpoint in the records of an evaluation.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall, call_text
from agentenv.core.call_readers import json_tags
from agentenv.core.grammar import earliest_block
from agentenv.core.model_families import without_thinking

_READ_CALLS = json_tags("<tool_call>", "</tool_call>")


def action_text(turn: AssistantTurn) -> str:
    """A turn as a person reads it: its thinking and its calls in tags, and the content between them."""
    calls = "".join(f"<tool_call>{call_text(call)}</tool_call>" for call in turn.calls)
    thought = f"<think>\n{turn.thinking}\n</think>\n" if turn.thinking else ""
    return f"{thought}{turn.content}{calls}"


def turn_of(action: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """What ``action`` says, as a turn that calls ``tools``.

    Thinking stands in ``<think>`` at the beginning, and calls as JSON in ``<tool_call>``. Without those the first pair of
    tags that is named after a tool of one argument is a call of it, as in ``<search>who</search>``.

    Args:
        action: As `action_text` or an expert writes it.
        tools: The declared ones, in OpenAI's form.
    """
    thinking, text, _ = without_thinking(action, False, "<think>", "</think>")
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    if schemas and "<tool_call>" in text:
        content, calls = _READ_CALLS(text, schemas)
        return AssistantTurn(thinking, content.strip(), tuple(calls))
    arguments = {name: list(schema.get("properties", {})) for name, schema in schemas.items()}
    tags = [name for name, names in arguments.items() if len(names) == 1]
    block = earliest_block(text, tags) if tags else None
    if block is None:
        return AssistantTurn(thinking, text.strip())
    call = NativeCall(block.tag, {arguments[block.tag][0]: block.content})
    return AssistantTurn(thinking, text[: text.rfind(f"<{block.tag}>", 0, block.end)].strip(), (call,))
