"""What an app draws: rows of widgets, and the words for making them."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Do = tuple[str | int, ...]
"""A handler of the app in front, by name, with its arguments."""

LINE_CHARS = 76


class Widget(NamedTuple):
    """One thing on a page."""

    role: str
    text: str
    key: str = ""
    """What experts call it; unique on its page, empty where nobody needs it."""
    do: Do = ()
    """What a click does; empty where the role alone decides or nothing happens."""
    value: str = ""
    states: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of a combobox."""
    drop: Do = ()
    """What happens to a thing that is dragged here; its key is the last argument."""


Row = list[Widget]
Fields = Mapping[str, str | bool]


def label(text: str) -> Widget:
    """Text that does nothing."""
    return Widget("text", text)


def heading(text: str) -> Row:
    """A row with a heading."""
    return [Widget("heading", text)]


def paragraph(text: str) -> list[Row]:
    """Running text in as many rows as it takes."""
    return [[label(line)] for line in textwrap.wrap(text, LINE_CHARS)]


def button(text: str, key: str, *do: str | int, enabled: bool = True) -> Widget:
    """A button; the one with the key ``submit`` is what Enter presses."""
    return Widget("button", text, key, do, states=() if enabled else ("disabled",))


def item(text: str, key: str, *do: str | int, drop: Do = ()) -> Widget:
    """An entry of a list that opens on a click."""
    return Widget("listitem", text, key, do, drop=drop)


def tabs(names: Sequence[str], selected: str) -> Row:
    """A row of tabs; a click calls the handler ``show_tab`` with the name."""
    return [
        Widget(
            "tab", name, f"tab.{name}", ("show_tab", name), states=("selected",) if name == selected else ()
        )
        for name in names
    ]


def switch(text: str, key: str, on: bool, *do: str | int) -> Widget:
    """A switch that takes effect at once."""
    return Widget("switch", text, key, do, states=("checked",) if on else ())


def checkbox(key: str, text: str, on: bool) -> Widget:
    """A box of a form; a click puts the other mark into the field ``key``."""
    return Widget("checkbox", text, key, states=("checked",) if on else ())


def textbox(fields: Fields, key: str, text: str, *, secret: bool = False) -> Widget:
    """A field of a form; a secret one shows a dot for each character."""
    value = str(fields.get(key, ""))
    return Widget("textbox", text, key, value="•" * len(value) if secret else value)


def choice(fields: Fields, key: str, text: str, options: Sequence[str]) -> Widget:
    """A drop-down list of a form; the first option until another is chosen."""
    return Widget("combobox", text, key, value=str(fields.get(key, options[0])), options=tuple(options))
