"""Actions: every kind is written and read back, mistakes are sentences, the format counts only where it is whole."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.gui.actions import (
    GRAMMAR,
    Action,
    ActionKind,
    action_from,
    action_members,
    action_text,
    parse_reply,
)

SAMPLES = {
    "id": "7",
    "coordinate": [3, 4.5],
    "id2": "8",
    "coordinate2": [5, 6],
    "text": 'a "quoted" ü',
    "time": 2,
    "direction": "down",
    "button": "Back",
    "status": "success",
}


@pytest.mark.parametrize("kind", ActionKind)
@pytest.mark.parametrize("second", [False, True], ids=["first form", "second form"])
def test_every_kind_is_read_as_it_is_written(kind: ActionKind, second: bool) -> None:
    needed, optional = GRAMMAR[kind]
    names = [group.split("|")[-second] for group in (*needed, *optional)]
    members = {"action": str(kind), **{name: SAMPLES[name] for name in names}}
    action = action_from(members)
    assert action_members(action) == members
    reply = parse_reply(action_text(action, "because"))
    assert (reply.action, reply.format_ok, reply.thought, reply.error) == (action, True, "because", "")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "JSON"),
        ("[1]", "JSON object"),
        ("[" * 100_000, "JSON"),
        ('{"action": "fly"}', "'fly'"),
        ('{"action": ["click"]}', r"\['click'\]"),
        ("{}", "'None'"),
        ('{"action": "click"}', "click.*coordinate"),
        ('{"action": "click", "id": 1, "coordinate": [1, 2]}', "click.*coordinate"),
        ('{"action": "click", "id": 1, "text": "x"}', "click.*'text'"),
        ('{"action": "click", "id": true}', r"\bid\b"),
        ('{"action": "click", "coordinate": [1]}', "coordinate"),
        ('{"action": "click", "coordinate": [NaN, 1]}', "JSON"),
        ('{"action": "click", "coordinate": [1e400, 1]}', "JSON"),
        ('{"action": "click", "coordinate": ["1", "2"]}', "coordinate"),
        ('{"action": "click", "coordinate": [1, 2, 3, 4]}', "coordinate"),
        ('{"action": "type", "text": 5}', "text.*4000"),
        ('{"action": "type", "text": "x", "id": 1, "coordinate": [1, 2]}', "id.*coordinate"),
        ('{"action": "wait", "time": -1}', "time"),
        ('{"action": "scroll", "direction": "in"}', "direction.*up, down, left, right"),
        ('{"action": "terminate", "status": "done"}', "status.*success, failure"),
        ('{"action": "system_button", "button": "Power"}', "button.*Back, Home"),
    ],
)
def test_a_mistake_is_one_sentence(content: str, named: str) -> None:
    reply = parse_reply(f"<think>t</think><action>{content}</action>")
    assert reply.action is None
    with pytest.raises(AssertionError, match=named):
        raise AssertionError(reply.error)
    assert len(reply.error) < 300


WAIT = '<action>{"action": "wait"}</action>'


@pytest.mark.parametrize(
    ("text", "acts", "format_ok"),
    [
        (f"<think>a</think>{WAIT}", True, True),
        (f" <think>a</think>\n{WAIT}\n", True, True),
        (WAIT, True, False),
        (f"<think> </think>{WAIT}", True, False),
        (f"<think>a</think> so {WAIT}", True, False),
        (f"<think>a</think>{WAIT} done", True, False),
        (f"<think>a</think><think>b</think>{WAIT}", True, False),
        (f"{WAIT}<think>a</think>", True, False),
        (f"<think>a</think>{WAIT}{WAIT}", False, False),
        (f"<think>a <action></think>{WAIT}", False, False),
        (f"<think>{WAIT}</think>", True, False),
        ('<think>a</think><action>{"action": "type", "text": "</action>"}</action>', False, False),
        ("", False, False),
    ],
)
def test_the_format_is_one_thought_and_one_action(text: str, acts: bool, format_ok: bool) -> None:
    reply = parse_reply(text)
    assert (reply.action is not None, reply.format_ok) == (acts, format_ok)


def test_an_environment_knows_only_its_kinds() -> None:
    reply = parse_reply(
        action_text(Action(ActionKind.OPEN, text="mail")), (ActionKind.CLICK, ActionKind.WAIT)
    )
    assert all(name in reply.error for name in ("'open'", "click", "wait"))


@given(st.text())
def test_no_text_is_an_exception(text: str) -> None:
    parse_reply(text)
    parse_reply(f"<action>{text}</action>")


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner)
    )
)
def test_no_value_is_an_exception(value: object) -> None:
    for name in SAMPLES:
        for kind in (ActionKind.CLICK, ActionKind.TYPE, ActionKind.SWIPE, ActionKind.SCROLL):
            parse_reply(f"<action>{json.dumps({'action': kind, 'text': 'a', name: value})}</action>")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('{"action": "system_button", "button": "BACK"}', "text", "Back"),
        ('{"action": "terminate", "status": "Success"}', "text", "success"),
        ('{"action": "scroll", "direction": "Down"}', "direction", "down"),
    ],
)
def test_a_choice_may_be_written_in_any_case(text: str, field: str, value: str) -> None:
    parsed = parse_reply(f"<think>t</think><action>{text}</action>")
    assert getattr(parsed.action, field) == value
