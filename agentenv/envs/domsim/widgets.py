"""Rows of widgets that an app draws, and functions that make them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Do = tuple[str | int, ...]
"""The name of a handler of the app in front, with its arguments."""

LINE_CHARS = 76


class Widget(NamedTuple):
    """One element of a page."""

    role: str
    text: str
    key: str = ""
    """The name that experts use; unique on its page, empty if it is not needed."""
    do: Do = ()
    """The handler of a click; empty if the role alone decides what happens, or nothing does."""
    value: str = ""
    states: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """The options of a drop-down list."""
    drop: Do = ()
    """The handler for an element that is dragged here; that element's key is its last argument."""


Row = list[Widget]
Fields = Mapping[str, str | bool]


def label(text: str) -> Widget:
    """Makes static text."""
    return Widget("text", text)


def heading(text: str) -> Row:
    """Makes a row with a heading."""
    return [Widget("heading", text)]


def paragraph(text: str) -> list[Row]:
    """Wraps text into as many rows as it needs."""
    return [[label(line)] for line in textwrap.wrap(text, LINE_CHARS)]


def button(text: str, key: str, *do: str | int, enabled: bool = True) -> Widget:
    """Makes a button. Enter presses the one with the key ``submit``."""
    return Widget("button", text, key, do, states=() if enabled else ("disabled",))


def item(text: str, key: str, *do: str | int, drop: Do = ()) -> Widget:
    """Makes an entry of a list that opens on a click."""
    return Widget("listitem", text, key, do, drop=drop)


def tabs(names: Sequence[str], selected: str) -> Row:
    """Makes a row of tabs. A click calls the handler ``show_tab`` with the name."""
    return [
        Widget(
            "tab", name, f"tab.{name}", ("show_tab", name), states=("selected",) if name == selected else ()
        )
        for name in names
    ]


def switch(text: str, key: str, on: bool, *do: str | int) -> Widget:
    """Makes a switch that takes effect at once."""
    return Widget("switch", text, key, do, states=("checked",) if on else ())


def checkbox(key: str, text: str, on: bool) -> Widget:
    """Makes a checkbox of a form. A click inverts the field ``key``."""
    return Widget("checkbox", text, key, states=("checked",) if on else ())


def textbox(fields: Fields, key: str, text: str, *, secret: bool = False) -> Widget:
    """Makes a text field of a form. A secret one shows a dot for each character."""
    value = str(fields.get(key, ""))
    return Widget("textbox", text, key, value="•" * len(value) if secret else value)


def choice(fields: Fields, key: str, text: str, options: Sequence[str]) -> Widget:
    """Makes a drop-down list of a form. The first option is the default."""
    return Widget("combobox", text, key, value=str(fields.get(key, options[0])), options=tuple(options))
