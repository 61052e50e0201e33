"""Draws a view as pixels with pillow: plain boxes and text, identical in every run."""

import io
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from agentenv.envs.gui.screen import Element, Screen
from agentenv.errors import needs_extra

if TYPE_CHECKING:
    from PIL.Image import Image

PAPER, INK, DIM = "#ffffff", "#1a1a1a", "#9a9a9a"
FILLS = {
    "button": "#dfe6f5",
    "listitem": "#f3f3f3",
    "tab": "#eeeeee",
    "option": "#f3f3f3",
    "status": "#fff3c4",
}
FRAMED = ("button", "textbox", "combobox", "tab")
SELECTED = "#b7cdfa"
PAD = 6
"""Pixels between the edges of a box and its text."""


def draw(screen: Screen) -> "Image":
    """Draws ``screen`` as an image of its size.

    Raises:
        MissingExtra: pillow is not installed.
    """
    with needs_extra("gui", "pillow"):
        from PIL import Image, ImageDraw, ImageFont
    picture = Image.new("RGB", (screen.width, screen.height), PAPER)
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default()
    for element in screen.elements or ():
        _draw(pen, font, element)
    return picture


def png(screen: Screen) -> bytes:
    """Draws ``screen`` as a PNG file.

    Raises:
        MissingExtra: pillow is not installed.
    """
    held = io.BytesIO()
    draw(screen).save(held, "PNG", compress_level=1)
    return held.getvalue()


def _draw(pen: Any, font: Any, element: Element) -> None:
    x1, y1, x2, y2 = element.box
    fill = SELECTED if "selected" in element.states else FILLS.get(element.role)
    focused = "focused" in element.states
    if fill or element.role in FRAMED:
        pen.rectangle((x1, y1, x2 - 1, y2 - 1), fill=fill, outline=INK if focused else DIM, width=1 + focused)
    shown = _fitting(_caption(element), x2 - x1 - 2 * PAD, font, end=element.role == "textbox")
    pen.text((x1 + PAD, y1 + PAD), shown, fill=DIM if "disabled" in element.states else INK, font=font)


def _fitting(text: str, room: float, font: Any, *, end: bool) -> str:
    """Cuts ``text`` to a line of ``room`` pixels: to its end, as in a field with the caret, or to its beginning."""
    line = " ".join(text.splitlines())
    if font.getlength(line) <= room:
        return line
    # Every letter is at least one pixel wide, so a longer part never has to be measured.
    most = min(len(line), int(room))
    step = -1 if end else 1
    kept = bisect_right(range(1, most + 1), room, key=lambda n: font.getlength(line[::step][:n][::step]))
    return line[::step][:kept][::step]


def _caption(element: Element) -> str:
    match element.role:
        case "textbox":
            return f"{element.text}: {element.value}"
        case "combobox":
            return f"{element.text}: {element.value}  v"
        case "checkbox" | "switch":
            return f"[{'x' if 'checked' in element.states else ' '}] {element.text}"
        case _:
            return element.text
