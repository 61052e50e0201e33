"""A simulated desktop as a value: how its state is drawn, and how an action changes it.

The database (``World.data``) contains only immutable records, and handlers replace the records that they change. Copying a
world is therefore copying a few small dictionaries, so a snapshot takes microseconds. A page is a pure function of the
world. An action is looked up only on the page that was shown.
"""

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from agentenv.envs.domsim.records import MissingRecord
from agentenv.envs.domsim.widgets import Do, Row, Widget, button, heading, item, label
from agentenv.envs.domsim.world import App, DesktopView, World
from agentenv.envs.gui.actions import Action, ActionKind, Direction
from agentenv.envs.gui.matching import finger_direction
from agentenv.envs.gui.screen import Box, Element, Screen

WIDTH, HEIGHT, ROW = 672, 448, 28
PAGE_ROWS = HEIGHT // ROW - 2
"""Visible rows of a page, between the bar at the top and the notice at the bottom."""
SCROLL_ROWS = 10
MARGIN, GAP, CHAR, FIELD = 8, 8, 8, 300

KINDS = (
    ActionKind.CLICK,
    ActionKind.DOUBLE_CLICK,
    ActionKind.LONG_PRESS,
    ActionKind.DRAG,
    ActionKind.TYPE,
    ActionKind.SELECT,
    ActionKind.KEY,
    ActionKind.SCROLL,
    ActionKind.SWIPE,
    ActionKind.SYSTEM_BUTTON,
    ActionKind.OPEN,
    ActionKind.WAIT,
    ActionKind.ANSWER,
    ActionKind.TERMINATE,
)
"""The actions that the desktop supports."""


class Desktop:
    """The apps of a machine, with their drawing and input handling."""

    def __init__(self, apps: Mapping[str, App]) -> None:
        self.apps = apps

    def start(self, rng: Random) -> World:
        """Creates a new world with content drawn from ``rng``."""
        data: dict[str, Any] = {}
        for app in self.apps.values():
            data |= app.start(rng)
        return World(data)

    def view(self, world: World) -> DesktopView:
        """Draws ``world``."""
        rows = self._rows(world)
        title = str(world.page[0])
        bar = [button("Home", "home", "home"), button("Back", "back", "back"), Widget("heading", title)]
        elements: list[Element] = []
        widgets: list[Widget] = []
        visible_rows = [bar, *rows[world.scroll : world.scroll + PAGE_ROWS]]
        if world.notice:
            visible_rows += [[] for _ in range(PAGE_ROWS + 1 - len(visible_rows))]
            visible_rows.append([Widget("status", world.notice)])
        for line, row in enumerate(visible_rows):
            for widget, left, right in _layout_row(row):
                id, top = str(len(widgets) + 1), line * ROW
                states = (
                    (*widget.states, "focused") if widget.key and widget.key == world.focus else widget.states
                )
                box = Box(left, top + 2, right, top + ROW - 2)
                elements.append(Element(id, widget.role, widget.text, box, widget.value, states))
                widgets.append(widget)
        return DesktopView(Screen(WIDTH, HEIGHT, title, tuple(elements)), tuple(widgets), len(rows))

    def _rows(self, world: World) -> list[Row]:
        if world.page == ("home",):
            return [
                heading("Apps"),
                *([item(app.name, f"app.{name}", "open", name)] for name, app in self.apps.items()),
            ]
        app = self.apps[str(world.page[0])]
        try:
            rows = app.view_dialog(world) if world.dialog else app.view(world)
        except MissingRecord:
            return [[label("This is no longer there.")]]
        if not world.opened:
            return rows
        opened = next(widget for row in rows for widget in row if widget.key == world.opened)
        options = [
            [Widget("option", text, f"option.{text}", ("choose", opened.key, text))]
            for text in opened.options
        ]
        return [[label(opened.text)], *options]

    def act(self, world: World, view: DesktopView, action: Action) -> str:
        """Executes ``action``, which was chosen on ``view``.

        Returns:
            Why nothing was done, as a sentence for the policy; empty if the action was executed.
        """
        world.notice = ""
        match action.kind:
            case ActionKind.CLICK | ActionKind.DOUBLE_CLICK | ActionKind.LONG_PRESS:
                return self._click(world, view.target(action))
            case ActionKind.TYPE:
                return self._type(world, view, action)
            case ActionKind.SELECT:
                return _select(world, view.target(action), action.text)
            case ActionKind.KEY:
                return self._press(world, view, action.text)
            case ActionKind.SCROLL | ActionKind.SWIPE:
                return _scroll(world, view, action)
            case ActionKind.DRAG:
                return self._drag(world, view.target(action), view.target(action, end=True))
            case ActionKind.SYSTEM_BUTTON:
                return self._system_button(world, view, action.text)
            case ActionKind.OPEN:
                return self._open(world, action.text)
            case ActionKind.ANSWER:
                world.answer = action.text
        return ""

    def _click(self, world: World, widget: Widget | None) -> str:
        if widget is None:
            return "There is nothing."
        if "disabled" in widget.states:
            return f"{widget.text!r} is disabled."
        if widget.do:
            self._do(world, widget.do)
        elif widget.role == "textbox":
            world.focus, world.replacing = widget.key, False
        elif widget.role == "checkbox":
            world.fields[widget.key] = "checked" not in widget.states
        elif widget.role == "combobox":
            world.unfold(widget.key)
        else:
            return f"{widget.text!r} does nothing."
        return ""

    def _do(self, world: World, do: Do) -> None:
        name, *arguments = do
        match name:
            case "home":
                world.go("home")
            case "back":
                world.back()
            case "open":
                world.go(arguments[0])
            case "choose":
                world.fields[str(arguments[0])] = str(arguments[1])
                world.opened = ""
            case _:
                getattr(self.apps[str(world.page[0])], str(name))(world, *arguments)

    def _type(self, world: World, view: DesktopView, action: Action) -> str:
        if action.id is not None or action.point is not None:
            widget = view.target(action)
            if widget is None or widget.role != "textbox":
                return "That is no text field."
            world.focus, world.replacing = widget.key, False
        if not world.focus:
            return "No text field has the focus; click one first."
        held = "" if world.replacing else str(world.fields.get(world.focus, ""))
        world.fields[world.focus], world.replacing = held + action.text, False
        return ""

    def _press(self, world: World, view: DesktopView, key: str) -> str:
        match _KEYS.get(key.casefold()):
            case "Enter":
                submit = view.id_of("submit")
                return self._click(world, view.widgets[int(submit) - 1] if submit else None)
            case "Escape":
                world.back()
            case "Tab":
                fields = [widget.key for widget in view.widgets if widget.role == "textbox"]
                after = fields.index(world.focus) + 1 if world.focus in fields else 0
                world.focus, world.replacing = (fields[after % len(fields)] if fields else ""), False
            case "Control+a" if world.focus:
                world.replacing = True
            case "Backspace" if world.focus:
                held = str(world.fields.get(world.focus, ""))
                world.fields[world.focus], world.replacing = "" if world.replacing else held[:-1], False
            case _:
                return f"The key {key[:20]!r} does nothing here."
        return ""

    def _drag(self, world: World, widget: Widget | None, place: Widget | None) -> str:
        if widget is None or place is None or not widget.key or not place.drop:
            return "That cannot be dragged there."
        self._do(world, (*place.drop, widget.key))
        return ""

    def _system_button(self, world: World, view: DesktopView, name: str) -> str:
        match name:
            case "Home":
                world.go("home")
            case "Back":
                world.back()
            case "Enter":
                return self._press(world, view, "Enter")
            case _:
                return f"The button {name!r} does nothing here."
        return ""

    def _open(self, world: World, name: str) -> str:
        wanted = name.strip().casefold()
        found = next((key for key, app in self.apps.items() if wanted in (key, app.name.casefold())), None)
        if found is None:
            return f"There is no app {name[:40]!r}."
        world.go(found)
        return ""


_KEYS: Mapping[str, str] = {
    **{key.casefold(): key for key in ("Enter", "Escape", "Tab", "Backspace", "Control+a")},
    "return": "Enter",
    "esc": "Escape",
    "ctrl+a": "Control+a",
}
"""Names of keys by their lower-case form, because models write them in any case."""


def _layout_row(row: Row) -> Iterator[tuple[Widget, int, int]]:
    """Yields each widget of a row with its left and right edge; widgets that do not fit are left out."""
    left = MARGIN
    for widget in row:
        room = WIDTH - MARGIN - left
        if room < ROW:
            return
        if widget.role == "listitem" and widget is row[-1]:
            width = room
        elif widget.role in ("textbox", "combobox"):
            width = min(CHAR * len(widget.text) + FIELD, room)
        else:
            width = min(CHAR * len(widget.text) + 20, room)
        yield widget, left, left + width
        left += width + GAP


def _select(world: World, widget: Widget | None, text: str) -> str:
    if widget is None or widget.role != "combobox":
        return "That is no drop-down list."
    if text not in widget.options:
        return f"{widget.text!r} has no option {text[:40]!r}."
    world.fields[widget.key], world.opened = text, ""
    return ""


_FINGER: Mapping[Direction, Direction] = {"up": "down", "down": "up", "left": "right", "right": "left"}


def _scroll(world: World, view: DesktopView, action: Action) -> str:
    way = action.direction
    if action.kind is ActionKind.SWIPE:
        finger = finger_direction(action, (WIDTH, HEIGHT), 0.05)
        way = _FINGER[finger] if finger else None
    before = world.scroll
    step = {"down": SCROLL_ROWS, "up": -SCROLL_ROWS}.get(way or "", 0)
    world.scroll = max(0, min(before + step, view.rows - PAGE_ROWS))
    return "" if world.scroll != before else "It does not scroll further that way."
