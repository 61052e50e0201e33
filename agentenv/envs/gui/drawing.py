"""Draws a screen without pixels as SVG: its elements as boxes with their names. Every text is escaped."""

import re
import textwrap
from collections.abc import Iterator
from html import escape

from agentenv.envs.gui.screen import Box, Element, Screen

SHAPES = {
    "button": "press",
    "tab": "press",
    "textbox": "field",
    "searchbox": "field",
    "spinbutton": "field",
    "combobox": "field",
    "slider": "field",
    "listitem": "item",
    "option": "item",
    "menuitem": "item",
    "status": "told",
    "link": "link",
    "heading": "head",
    "img": "graphic",
    "graphic": "graphic",
}
"""The styles by role; any other role is drawn as plain text."""
STYLE = """
rect{fill:none}
text{font-family:system-ui,"Segoe UI",sans-serif;fill:#1d2126}
.press rect{fill:#e4eaf4;stroke:#aab6c8;rx:4}
.field rect{fill:#fff;stroke:#9aa3ae}
.item rect{fill:#f4f5f6;stroke:#e3e5e8}
.told rect{fill:#fff3c4}
.graphic rect{fill:#f1eef7;stroke:#b9b0cf;stroke-dasharray:3 2}
.link text{fill:#2563a8}
.head text{font-weight:600}
.graphic text,.disabled text{fill:#8b929b}
.selected rect{fill:#cfdffb;stroke:#6f93d6}
.focused rect{stroke:#1d2126;stroke-width:2}
"""
_INVALID_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PAD, _ADVANCE, _LEADING = 5, 0.54, 1.25
"""Padding of a text in pixels; mean width of a character and line height, both relative to the font size."""


def svg(screen: Screen) -> str:
    """Draws ``screen`` as an SVG document of its size; its pixels, if any, are not used."""
    width, height = screen.width, screen.height
    body = "".join(map(_element, _visible(screen)))
    if not screen.elements:
        body = f'<text x="{_PAD}" y="22" font-size="15">{_escaped(screen.title)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<style>{STYLE}</style><rect width="{width}" height="{height}" style="fill:#fff"/>{body}</svg>'
    )


def _visible(screen: Screen) -> Iterator[Element]:
    """Yields the elements without the options of closed lists, which have the same position as their list."""
    lists: set[Box] = set()
    for element in screen.elements or ():
        if element.role == "combobox":
            lists.add(element.box)
        if element.role != "option" or element.box not in lists:
            yield element


def _element(element: Element) -> str:
    x1, y1, x2, y2 = element.box
    wide, high = max(0.0, x2 - x1), max(0.0, y2 - y1)
    look = " ".join([SHAPES.get(element.role, "text"), *element.states])
    # A nested SVG element clips whatever extends beyond its box.
    return (
        f'<svg class="{_escaped(look)}" x="{x1:g}" y="{y1:g}" width="{wide:g}" height="{high:g}">'
        f'<rect width="{wide:g}" height="{high:g}"/>{_lines(caption(element), element.role, wide, high)}</svg>'
    )


def _lines(text: str, role: str, wide: float, high: float) -> str:
    """Wraps ``text`` into as many lines as fit into the box."""
    font = min(14.0, max(7.0, high - 4))
    fitting, room = max(1, int((wide - 2 * _PAD) / (font * _ADVANCE))), int(high / (font * _LEADING))
    lines = textwrap.wrap(text, fitting, max_lines=room, placeholder="…") if room > 1 else [text]
    middle = role in ("button", "tab") and len(text) <= fitting
    anchor, x = ("middle", wide / 2) if middle else ("start", _PAD)
    top = (high - len(lines) * font * _LEADING) / 2 + font * 0.97
    style = f'x="{x:g}" font-size="{font:g}" text-anchor="{anchor}"'
    return "".join(
        f'<text {style} y="{top + i * font * _LEADING:.4g}">{_escaped(line)}</text>'
        for i, line in enumerate(lines)
    )


def caption(element: Element) -> str:
    """Returns the text in an element's box: its name with its value or state."""
    match element.role:
        case "checkbox" | "switch":
            return f"{'☑' if 'checked' in element.states else '☐'} {element.text}"
        case "radio":
            return f"{'◉' if 'checked' in element.states else '○'} {element.text}"
        case "combobox":
            return f"{element.text}: {element.value} ▾"
    return f"{element.text}: {element.value}" if element.value or element.role == "textbox" else element.text


def _escaped(text: str) -> str:
    return escape(_INVALID_IN_XML.sub("\ufffd", text))
