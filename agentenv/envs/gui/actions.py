"""The actions on a screen and their notation, one vocabulary for all graphical environments.

A reply is ``<think>...</think><action>{"action": "click", "coordinate": [40, 120]}</action>``: the grammar of UI-S1 (Lu et
al. 2025), extended by desktop and web actions and by element ids as targets. Coordinates are in pixels of the screen as the
policy sees it. The direction of a swipe is that of the finger. The direction of a scroll is that of the content that becomes
visible, so "scroll down" shows what is further down, and equals a swipe upwards.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

from agentenv.core.grammar import between, read_json

Point = tuple[float, float]
Direction = Literal["up", "down", "left", "right"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
BUTTONS = ("Back", "Home", "Menu", "Enter")
STATUSES = ("success", "failure")
STOP = ("</action>",)
"""Stop string for the engine: nothing is sampled after the action."""


class ActionKind(StrEnum):
    """The kinds of action. The value is the one in ``"action"``."""

    CLICK = "click"
    DOUBLE_CLICK = "double_click"
    LONG_PRESS = "long_press"
    HOVER = "hover"
    DRAG = "drag"
    TYPE = "type"  # into the focused field at the caret; a target is focused first, with the caret at its end
    SELECT = "select"  # an option of a drop-down list, by its text
    KEY = "key"  # a key or a combination, by its web name: Enter, Tab, Backspace, Control+a
    SCROLL = "scroll"
    SWIPE = "swipe"
    SYSTEM_BUTTON = "system_button"
    OPEN = "open"  # an application, by name
    WAIT = "wait"
    ANSWER = "answer"  # a message to the user; it does not end the episode
    TERMINATE = "terminate"


@dataclass(frozen=True, slots=True)
class Action:
    """One action. Fields that its kind does not use have their defaults."""

    kind: ActionKind
    text: str = ""
    """The text of type, select, key, open and answer; the button of system_button; the status of terminate."""
    id: str | None = None
    """The id of the target element in the UI tree."""
    point: Point | None = None
    """The target point in pixels. A target has an id or a point."""
    end_id: str | None = None
    """The id of the element at which a drag ends."""
    end: Point | None = None
    """The point at which a swipe or drag ends."""
    direction: Direction | None = None
    """The direction of a scroll: where the content lies that becomes visible."""
    time: float | None = None
    """The duration of a long press or a wait in seconds."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """The result of parsing a policy's text."""

    action: Action | None
    """None if the text contains no valid action; ``error`` says why."""
    format_ok: bool
    """Whether the whole text is exactly one non-empty think block followed by one action block."""
    thought: str = ""
    error: str = ""


MAX_ID = 80
"""Largest number of characters of an element's id."""
MAX_TEXT = 4000
"""Largest number of characters of a text: a browser types them one by one, with a deadline."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """How a JSON member is converted to a field of ``Action``."""

    field: str
    read: Callable[[Any], Any]
    """Converts the value; returns None if it is not valid."""
    expected: str


def _read_text(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_TEXT else None


def _read_id(value: Any) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    text = str(value) if whole or isinstance(value, str) else ""
    return text if 0 < len(text) <= MAX_ID else None


def _read_point(value: Any) -> Point | None:
    if not isinstance(value, list) or len(value) != 2:
        return None
    x, y = (_read_number(part) for part in value)
    return None if x is None or y is None else (x, y)


def _read_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e6:
        return None
    return float(value) if math.isfinite(value) else None


def _read_seconds(value: Any) -> float | None:
    seconds = _read_number(value)
    return None if seconds is None or seconds < 0 else seconds


def _one_of(values: Collection[str]) -> Callable[[Any], str | None]:
    """Makes a reader of one of ``values`` in any case: the published matchers of UI-S1 compare buttons in this way."""
    known = {value.casefold(): value for value in values}
    return lambda value: known.get(value.casefold()) if isinstance(value, str) else None


_ARGUMENTS = {
    "id": _Argument("id", _read_id, "the number of an element"),
    "coordinate": _Argument("point", _read_point, "[x, y] in pixels"),
    "id2": _Argument("end_id", _read_id, "the number of an element"),
    "coordinate2": _Argument("end", _read_point, "[x, y] in pixels"),
    "text": _Argument("text", _read_text, f"a string of at most {MAX_TEXT} characters"),
    "time": _Argument("time", _read_seconds, "seconds, at least 0"),
    "direction": _Argument("direction", _one_of(DIRECTIONS), "one of " + ", ".join(DIRECTIONS)),
    "button": _Argument("text", _one_of(BUTTONS), "one of " + ", ".join(BUTTONS)),
    "status": _Argument("text", _one_of(STATUSES), "one of " + ", ".join(STATUSES)),
}
_TARGET, _TARGET2 = "id|coordinate", "id2|coordinate2"

GRAMMAR: Mapping[ActionKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    ActionKind.CLICK: ((_TARGET,), ()),
    ActionKind.DOUBLE_CLICK: ((_TARGET,), ()),
    ActionKind.LONG_PRESS: ((_TARGET,), ("time",)),
    ActionKind.HOVER: ((_TARGET,), ()),
    ActionKind.DRAG: ((_TARGET, _TARGET2), ()),
    ActionKind.TYPE: (("text",), (_TARGET,)),
    ActionKind.SELECT: (("text", _TARGET), ()),
    ActionKind.KEY: (("text",), ()),
    ActionKind.SCROLL: (("direction",), (_TARGET,)),
    ActionKind.SWIPE: (("coordinate", "coordinate2"), ()),
    ActionKind.SYSTEM_BUTTON: (("button",), ()),
    ActionKind.OPEN: (("text",), ()),
    ActionKind.WAIT: ((), ("time",)),
    ActionKind.ANSWER: (("text",), ()),
    ActionKind.TERMINATE: (("status",), ()),
}
"""The required and the optional members of each kind; ``a|b`` stands for exactly one of the two."""

_FORMAT = re.compile(r"\s*<think>(.*?)</think>\s*<action>(.*?)</action>\s*", re.DOTALL)
"""Applied only to text in which each tag occurs once, because it takes quadratic time for many tags."""
_TAGS = ("<think>", "</think>", "<action>", "</action>")


class Unreadable(ValueError):
    """A JSON object is not a valid action. The message is one sentence for the policy."""


def parse_reply(text: str, kinds: Collection[ActionKind] = tuple(ActionKind)) -> ParsedAction:
    """Parses a policy's reply. A mistake never raises an exception.

    Args:
        text: The policy's text. It must contain exactly one action block.
        kinds: The kinds that the environment supports.
    """
    once = all(text.count(tag) == 1 for tag in _TAGS)
    thoughts = between(text, "<think>", "</think>")
    said = thoughts[0].strip() if thoughts else ""
    format_ok = once and _FORMAT.fullmatch(text) is not None and bool(said)
    blocks = between(text, "<action>", "</action>")
    if len(blocks) != 1 or text.count("<action>") != 1:
        return ParsedAction(None, False, said, f"Write one <action>...</action> block, not {len(blocks)}.")
    try:
        action = action_from(_json_object(blocks[0]), kinds)
    except Unreadable as error:
        return ParsedAction(None, format_ok, said, str(error))
    return ParsedAction(action, format_ok, said)


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = read_json(text)
    except ValueError:
        raise Unreadable('The action is no JSON; write {"action": ...}.') from None
    if not isinstance(value, dict):
        raise Unreadable('The action is no JSON object; write {"action": ...}.')
    return value


def action_from(members: Mapping[str, Any], kinds: Collection[ActionKind] = tuple(ActionKind)) -> Action:
    """Parses the action in a JSON object.

    Raises:
        Unreadable: the kind is unknown, or a member is missing, unknown or has the wrong type.
    """
    name = members.get("action")
    if not isinstance(name, str) or name not in kinds:
        raise Unreadable(f"No action {str(name)[:40]!r} here; there are {', '.join(kinds)}.")
    kind = ActionKind(name)
    needed, optional = GRAMMAR[kind]
    allowed = {part for group in (*needed, *optional) for part in group.split("|")}
    if unknown := members.keys() - allowed - {"action"}:
        raise Unreadable(f"The action {kind} has no {sorted(unknown)[0][:40]!r}.")
    for group in needed:
        if len(members.keys() & set(group.split("|"))) != 1:
            raise Unreadable(f"The action {kind} needs {group.replace('|', ' or ')}.")
    for group in optional:
        if len(members.keys() & set(group.split("|"))) > 1:
            raise Unreadable(f"The action {kind} takes {group.replace('|', ' or ')}, not both.")
    return Action(kind, **dict(_read(name, members[name]) for name in members if name != "action"))


def _read(name: str, value: Any) -> tuple[str, Any]:
    argument = _ARGUMENTS[name]
    read = argument.read(value)
    if read is None:
        raise Unreadable(f"{name} must be {argument.expected}.")
    return argument.field, read


def action_members(action: Action) -> dict[str, Any]:
    """Returns the JSON object of ``action``, which ``action_from`` parses."""
    needed, optional = GRAMMAR[action.kind]
    names = [part for group in (*needed, *optional) for part in group.split("|")]
    members: dict[str, Any] = {"action": str(action.kind)}
    for name in names:
        value = getattr(action, _ARGUMENTS[name].field)
        if value is not None:
            members[name] = [_plain(part) for part in value] if isinstance(value, tuple) else value
    return members


def _plain(number: float) -> int | float:
    return int(number) if number == int(number) else number


def action_text(action: Action, thought: str = "") -> str:
    """Returns the reply that ``parse_reply`` parses as ``action``. Without a thought, its format is not valid."""
    return (
        f"<think>{thought}</think><action>{json.dumps(action_members(action), ensure_ascii=False)}</action>"
    )
