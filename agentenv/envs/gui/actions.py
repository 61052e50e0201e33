"""What a policy can do to a screen, and how it writes that down: one vocabulary for every graphical environment.

A reply is ``<think>...</think><action>{"action": "click", "coordinate": [40, 120]}</action>``: the grammar of UI-S1 (Lu et
al. 2025), to which desktop and web kinds and targets by element id are added. Coordinates are pixels of the screen as it
is shown to the policy. A swipe is what the finger does; a scroll names what comes into view, so that "scroll down" shows
what is further down and is a swipe upwards.
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
"""Stop string for the engine: nothing after the action is sampled."""


class ActionKind(StrEnum):
    """The kinds of action. The value is what stands in ``"action"``."""

    CLICK = "click"
    DOUBLE_CLICK = "double_click"
    LONG_PRESS = "long_press"
    HOVER = "hover"
    DRAG = "drag"
    TYPE = "type"  # at the caret of the focused field; with a target, that field is focused first, caret at its end
    SELECT = "select"  # an option of a drop-down list, by its text
    KEY = "key"  # a key or a chord in the names of the web: Enter, Tab, Backspace, Control+a
    SCROLL = "scroll"
    SWIPE = "swipe"
    SYSTEM_BUTTON = "system_button"
    OPEN = "open"  # an application, by name
    WAIT = "wait"
    ANSWER = "answer"  # says something to the user; ends nothing
    TERMINATE = "terminate"


@dataclass(frozen=True, slots=True)
class Action:
    """One action; fields that its kind does not have keep their defaults."""

    kind: ActionKind
    text: str = ""
    """Of type, select, key, open and answer; the button of system_button; the status of terminate."""
    id: str | None = None
    """Element acted on, as the UI tree numbers it."""
    point: Point | None = None
    """Place acted on, in pixels; a target has an id or a point."""
    end_id: str | None = None
    """Element where a drag ends."""
    end: Point | None = None
    """Place where a swipe or drag ends."""
    direction: Direction | None = None
    """Of a scroll: what comes into view."""
    time: float | None = None
    """Seconds of a long press or a wait."""


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """What was read out of a policy's text."""

    action: Action | None
    """None where the text holds no action that can be carried out; ``error`` says why."""
    format_ok: bool
    """Whether the whole text is one think block that says something, then one action block, and nothing else."""
    thought: str = ""
    error: str = ""


MAX_ID = 80
"""Characters of the number of an element."""
MAX_TEXT = 4000
"""Characters of a text: a browser types them one by one and has a deadline."""


@dataclass(frozen=True, slots=True)
class _Argument:
    """How one JSON member becomes a field of ``Action``."""

    field: str
    read: Callable[[Any], Any]
    """Gives None for a value that cannot be used."""
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
    """A name of ``values`` in any case: the released matchers of UI-S1 compare buttons so."""
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
"""Members that each kind needs and may have besides; ``a|b`` is exactly one of the two."""

_FORMAT = re.compile(r"\s*<think>(.*?)</think>\s*<action>(.*?)</action>\s*", re.DOTALL)
"""Asked only of text that has each tag once: of many it would take the square of their number."""
_TAGS = ("<think>", "</think>", "<action>", "</action>")


class Unreadable(ValueError):
    """A JSON object is no action; one sentence for the policy says why."""


def parse_reply(text: str, kinds: Collection[ActionKind] = tuple(ActionKind)) -> ParsedAction:
    """Reads a policy's reply; a mistake is never an exception.

    Args:
        text: What the policy wrote. An action is read from exactly one action block: none or two are a mistake.
        kinds: The kinds that the environment knows.
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
    """The action that a JSON object describes.

    Raises:
        Unreadable: the kind is unknown, or a member is missing, unknown or of another type.
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
    """The JSON object of ``action``; ``action_from`` reads it back."""
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
    """The reply that ``parse_reply`` reads as ``action``; without a thought its format is not in order."""
    return (
        f"<think>{thought}</think><action>{json.dumps(action_members(action), ensure_ascii=False)}</action>"
    )
