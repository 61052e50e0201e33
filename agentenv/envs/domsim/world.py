"""What a miniature desktop remembers, what its apps are, and a page as it was shown."""

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Protocol, Self

from agentenv.envs.domsim.widgets import Do, Row, Widget
from agentenv.envs.gui.actions import Action
from agentenv.envs.gui.screen import Screen

TRAIL = 20
"""Pages that can be gone back to."""


class World:
    """Everything that changes. Copies share the records and nothing else."""

    __slots__ = (
        "answer", "data", "dialog", "fields", "focus", "notice", "opened", "page", "replacing", "scroll", "trail",
    )  # fmt: skip

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data: dict[str, Any] = dict(data)
        """The database: immutable values by name; a name that begins with an underscore is bookkeeping."""
        self.page: Do = ("home",)
        """The app in front, then what it shows."""
        self.trail: tuple[tuple[Do, dict[str, str | bool]], ...] = ()
        """Pages to go back to, with what stood in their forms; nothing in them is changed any more."""
        self.fields: dict[str, str | bool] = {}
        """What stands in the form of the present page."""
        self.focus = ""
        """Key of the field that takes text."""
        self.replacing = False
        """Whether all of that field is selected, so that text replaces it."""
        self.opened = ""
        """Key of the drop-down list that is open."""
        self.dialog: Do = ()
        """The dialog over the page; empty where there is none."""
        self.scroll = 0
        """Rows that are scrolled out at the top."""
        self.notice = ""
        """What the app says about the last action."""
        self.answer = ""
        """What was said to the user."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.data, twin.fields = dict(self.data), dict(self.fields)
        return twin

    def go(self, *page: str | int, fields: Mapping[str, str | bool] | None = None) -> None:
        """Shows another page, with ``fields`` filled in."""
        self.trail = (*self.trail[1 - TRAIL :], (self.page, self.fields))
        self._show(page, fields)

    def back(self) -> None:
        """Closes what lies on top, or shows the page before."""
        if self.opened:
            self.opened = ""
        elif self.dialog:
            self.close()
        elif self.trail:
            (page, fields), self.trail = self.trail[-1], self.trail[:-1]
            self._show(page, fields)
        else:
            self.notice = "There is no page to go back to."

    def _show(self, page: Do, fields: Mapping[str, str | bool] | None) -> None:
        self.page, self.fields = page, dict(fields or {})
        self.focus, self.replacing, self.opened, self.dialog, self.scroll = "", False, "", (), 0

    def ask(self, *dialog: str | int, fields: Mapping[str, str | bool] | None = None) -> None:
        """Opens a dialog over the page."""
        self.dialog, self.focus, self.scroll = dialog, "", 0
        self.fields |= fields or {}

    def close(self) -> None:
        """Closes the dialog; its fields take no more text."""
        self.dialog, self.focus, self.replacing = (), "", False

    def unfold(self, key: str) -> None:
        """Opens a drop-down list, which lies over the form: no field of it takes text until it is clicked again."""
        self.opened, self.focus, self.replacing = key, "", False

    def text(self, key: str) -> str:
        """What stands in a text field, without blanks around it."""
        return str(self.fields.get(key, "")).strip()

    def picked(self, key: str, default: str) -> str:
        """What is chosen in a drop-down list; ``default`` is its first option."""
        return str(self.fields.get(key, default))

    def facts(self) -> dict[str, Any]:
        """The database without bookkeeping: what a validator compares."""
        return {name: value for name, value in self.data.items() if not name.startswith("_")}


class App(Protocol):
    """One program: no state of its own. Its handlers are methods that take the world and the arguments of ``Widget.do``."""

    name: ClassVar[str]

    def start(self, rng: Random) -> dict[str, Any]:
        """The app's part of a new database; every name begins with the name of the app."""

    def view(self, world: World) -> list[Row]:
        """The page that ``world.page`` names."""

    def view_dialog(self, world: World) -> list[Row]:
        """The dialog that ``world.dialog`` names."""


class DesktopView:
    """A page as it was shown: the screen, the widget behind each element, and how many rows the whole page has.

    Nothing in it changes, so copies share it.
    """

    __slots__ = ("rows", "screen", "widgets")

    def __init__(self, screen: Screen, widgets: tuple[Widget, ...], rows: int) -> None:
        self.screen, self.widgets, self.rows = screen, widgets, rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def target(self, action: Action, *, end: bool = False) -> Widget | None:
        """The widget at which ``action`` (or the end of a drag) points."""
        id, point = (action.end_id, action.end) if end else (action.id, action.point)
        found = self.screen.at(point) if point is not None else self.screen.element(id or "")
        return self.widgets[int(found.id) - 1] if found else None

    def id_of(self, key: str) -> str | None:
        """The element behind which the widget ``key`` stands; None where it is not in view."""
        return next((str(i) for i, widget in enumerate(self.widgets, 1) if widget.key == key), None)
