"""The state of a simulated desktop, the interface of its apps, and a page as it was shown."""

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Protocol, Self

from agentenv.envs.domsim.widgets import Do, Row, Widget
from agentenv.envs.gui.actions import Action
from agentenv.envs.gui.screen import Screen

TRAIL = 20
"""The number of pages to which one can go back."""


class World:
    """The whole mutable state. Copies share only the immutable records."""

    __slots__ = (
        "answer", "data", "dialog", "fields", "focus", "notice", "opened", "page", "replacing", "scroll", "trail",
    )  # fmt: skip

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data: dict[str, Any] = dict(data)
        """The database: immutable values by name. Names that begin with an underscore are internal."""
        self.page: Do = ("home",)
        """The app in front, followed by what it shows."""
        self.trail: tuple[tuple[Do, dict[str, str | bool]], ...] = ()
        """Earlier pages with the content of their forms, which is not changed any more."""
        self.fields: dict[str, str | bool] = {}
        """The content of the form on the present page."""
        self.focus = ""
        """The key of the focused text field."""
        self.replacing = False
        """Whether the whole text of that field is selected, so that typing replaces it."""
        self.opened = ""
        """The key of the open drop-down list."""
        self.dialog: Do = ()
        """The dialog over the page; empty without one."""
        self.scroll = 0
        """Number of rows that are scrolled out at the top."""
        self.notice = ""
        """The app's message about the last action."""
        self.answer = ""
        """The policy's answer to the user."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = object.__new__(type(self))
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin.data, twin.fields = dict(self.data), dict(self.fields)
        return twin

    def go(self, *page: str | int, fields: Mapping[str, str | bool] | None = None) -> None:
        """Opens another page, with ``fields`` filled in."""
        self.trail = (*self.trail[1 - TRAIL :], (self.page, self.fields))
        self._show(page, fields)

    def back(self) -> None:
        """Closes the dialog or list on top, or returns to the previous page."""
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
        """Closes the dialog and removes the focus from its fields."""
        self.dialog, self.focus, self.replacing = (), "", False

    def unfold(self, key: str) -> None:
        """Opens a drop-down list over the form; no text field has the focus until one is clicked again."""
        self.opened, self.focus, self.replacing = key, "", False

    def text(self, key: str) -> str:
        """Returns the content of a text field without surrounding blanks."""
        return str(self.fields.get(key, "")).strip()

    def picked(self, key: str, default: str) -> str:
        """Returns the selected option of a drop-down list; ``default`` is its first option."""
        return str(self.fields.get(key, default))

    def facts(self) -> dict[str, Any]:
        """Returns the database without internal entries, as validators compare it."""
        return {name: value for name, value in self.data.items() if not name.startswith("_")}


class App(Protocol):
    """One app, without any state. Its handlers are methods with the world and the arguments of ``Widget.do``."""

    name: ClassVar[str]

    def start(self, rng: Random) -> dict[str, Any]:
        """Creates the app's part of a new database. Every key begins with the name of the app."""

    def view(self, world: World) -> list[Row]:
        """Draws the page that ``world.page`` names."""

    def view_dialog(self, world: World) -> list[Row]:
        """Draws the dialog that ``world.dialog`` names."""


class DesktopView:
    """A page as it was shown: the screen, the widget of each element, and the number of rows of the whole page.

    It is immutable, so copies share it.
    """

    __slots__ = ("rows", "screen", "widgets")

    def __init__(self, screen: Screen, widgets: tuple[Widget, ...], rows: int) -> None:
        self.screen, self.widgets, self.rows = screen, widgets, rows

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def target(self, action: Action, *, end: bool = False) -> Widget | None:
        """Returns the widget at which ``action`` (or the end of a drag) points."""
        id, point = (action.end_id, action.end) if end else (action.id, action.point)
        found = self.screen.at(point) if point is not None else self.screen.element(id or "")
        return self.widgets[int(found.id) - 1] if found else None

    def id_of(self, key: str) -> str | None:
        """Returns the element of the widget ``key``; None if it is not in view."""
        return next((str(i) for i, widget in enumerate(self.widgets, 1) if widget.key == key), None)
