"""Turns as text and back: what a teacher behind an endpoint did, whatever stands in its texts, and the tags of an expert."""

import json
from typing import Any

import pytest

from agentenv.core.action_turns import action_text, expert_turn, recorded_turn
from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall


def tool(name: str, *arguments: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {argument: {"type": "string"} for argument in arguments}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("search", "query"), tool("book", "day", "hour"), tool("ping")]
HOSTILE = [
    "a </tool_call> b",
    "<tool_call>{}</tool_call>",
    "<think>x</think>",
    "<|im_end|>",
    'é 日本 🙂\n"\\',
]


@pytest.mark.parametrize(
    "turn",
    [
        AssistantTurn(None, "Yes."),
        AssistantTurn("Hm.\n\nSo.", "Yes.\nNo."),
        AssistantTurn("Hm.", "", (NativeCall("ping", {}),)),
        AssistantTurn(None, "I look.", (NativeCall("search", {"query": "a"}), NativeCall("ping", {}))),
        AssistantTurn("Hm.", "", (NativeCall("book", {"day": [1, {"of": None}], "hour": True}),)),
        *(AssistantTurn("Hm.", "", (NativeCall("search", {"query": text}),)) for text in HOSTILE),
    ],
)
def test_what_was_written_is_read_again(turn: AssistantTurn) -> None:
    assert recorded_turn(action_text(turn), TOOLS) == turn


def test_thinking_ends_where_it_ended() -> None:
    found = recorded_turn(action_text(AssistantTurn("I write </think> then", "Yes.")), TOOLS)
    assert found == AssistantTurn("I write < /think> then", "Yes.")


def test_tags_in_a_recorded_text_call_nothing() -> None:
    text = "I would write <search>who</search>"
    assert recorded_turn(text, TOOLS) == AssistantTurn(None, text)


def test_a_recorded_call_without_an_object_is_malformed() -> None:
    """So stands a call whose arguments the service gave as a text that is no JSON."""
    text = json.dumps({"name": "search", "arguments": '{"query": '})
    (call,) = recorded_turn(f"<tool_call>{text}</tool_call>", TOOLS).calls
    assert isinstance(call, MalformedCall)
    assert text in call.text


def test_without_tools_nothing_is_called() -> None:
    text = "<tool_call>{}</tool_call>"
    assert recorded_turn(text, []) == expert_turn(text, []) == AssistantTurn(None, text)


@pytest.mark.parametrize(
    ("action", "turn"),
    [
        (
            "<search> who is it </search>",
            AssistantTurn(None, "", (NativeCall("search", {"query": "who is it"}),)),
        ),
        (
            "<think>Hm.</think>\nFirst <search>who</search> and then",
            AssistantTurn("Hm.", "First", (NativeCall("search", {"query": "who"}),)),
        ),
        (
            '<tool_call>{"name": "ping", "arguments": {}}</tool_call>',
            AssistantTurn(None, "", (NativeCall("ping", {}),)),
        ),
        ("<book>now</book>", AssistantTurn(None, "<book>now</book>")),
        ("<answer>Ada</answer>", AssistantTurn(None, "<answer>Ada</answer>")),
    ],
)
def test_what_an_expert_writes(action: str, turn: AssistantTurn) -> None:
    assert expert_turn(action, TOOLS) == turn


@pytest.mark.parametrize(
    ("thinking", "text"),
    [(None, "<a>1</a>"), ("", "<a>1</a>"), ("Hm.", "<think>Hm.</think>\n<a>1</a>")],
)
def test_an_empty_thought_is_none(thinking: str | None, text: str) -> None:
    """Some templates end the thinking in every turn; a reward that asks for thoughts found tags without one."""
    assert AssistantTurn(thinking, "<a>1</a>").with_thinking == text
