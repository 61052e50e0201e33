"""What a policy sees of a graphical program: elements with boxes, pixels, or both."""

import base64
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from agentenv.core.types import MessagePart
from agentenv.envs.gui.actions import Action, ActionKind, Point
from agentenv.errors import ConfigurationError, EnvFault, needs_extra

PATCH = 28
"""Side of an image token in pixels."""
MIN_TOKENS, MAX_TOKENS = 4, 12_800


class Box(NamedTuple):
    """A rectangle in pixels, including its right and lower edges."""

    x1: float
    y1: float
    x2: float
    y2: float

    @property
    def centre(self) -> Point:
        """The centre of the box."""
        return (self.x1 + self.x2) / 2, (self.y1 + self.y2) / 2

    @property
    def area(self) -> float:
        """The area of the box in square pixels."""
        return (self.x2 - self.x1) * (self.y2 - self.y1)

    def holds(self, point: Point) -> bool:
        """Whether the box contains ``point``."""
        return self.x1 <= point[0] <= self.x2 and self.y1 <= point[1] <= self.y2

    def scaled(self, x: float, y: float) -> "Box":
        """Returns the box on a screen that is ``x`` times as wide and ``y`` times as high."""
        return Box(self.x1 * x, self.y1 * y, self.x2 * x, self.y2 * y)

    def enlarged(self, factor: float) -> "Box":
        """Returns the box with the same centre and sides ``factor`` times as long."""
        (x, y), w, h = self.centre, (self.x2 - self.x1) * factor / 2, (self.y2 - self.y1) * factor / 2
        return Box(x - w, y - h, x + w, y + h)


class Element(NamedTuple):
    """One element on a screen."""

    id: str
    """The id that actions use; unique on its screen and not valid on any other."""
    role: str
    """ARIA role: button, link, textbox, checkbox, tab, option, ..."""
    text: str
    """Accessible name."""
    box: Box
    value: str = ""
    """The content of a field."""
    states: tuple[str, ...] = ()
    """Those of checked, selected, expanded, focused and disabled that apply, in this order."""

    def line(self, *, places: bool = True) -> str:
        """``[3] textbox "Name" = "Ann" (focused) at 120,40``: id, role, text, value, states and, with ``places``, centre."""
        value = f" = {json.dumps(self.value, ensure_ascii=False)}" if self.value else ""
        states = f" ({', '.join(self.states)})" if self.states else ""
        x, y = self.box.centre
        text = json.dumps(self.text, ensure_ascii=False)
        place = f" at {x:.0f},{y:.0f}" if places else ""
        return f"[{self.id}] {self.role} {text}{value}{states}{place}"


@dataclass(frozen=True, slots=True)
class Screen:
    """A screen at one moment: a UI tree, pixels, or both."""

    width: int
    height: int
    title: str = ""
    """Title or address of the screen's content."""
    elements: tuple[Element, ...] | None = None
    """The elements in document order; None if no tree is known."""
    image: bytes | Path | None = None
    """A PNG, or the path of one; None without pixels."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Screen":
        return self

    def element(self, id: str) -> Element | None:
        """Returns the element with the given id."""
        return next((element for element in self.elements or () if element.id == id), None)

    def at(self, point: Point) -> Element | None:
        """Returns the smallest element that contains ``point``; of equally small ones the last, which is on top."""
        held = [element for element in self.elements or () if element.box.holds(point)]
        return min(reversed(held), key=lambda element: element.box.area, default=None)

    def as_text(self, *, places: bool = True) -> str:
        """Returns the UI tree with one element per line, after a line with the title."""
        lines = [element.line(places=places) for element in self.elements or ()]
        return "\n".join([f"Screen {self.width}x{self.height}: {self.title}", *lines])

    def with_image(self, image: bytes | Path | None) -> "Screen":
        """Returns the same screen with other pixels."""
        return replace(self, image=image)

    def at_size(self, width: int, height: int) -> "Screen":
        """Returns the same screen with boxes in pixels of another size."""
        if (width, height) == (self.width, self.height):
            return self
        x, y = width / self.width, height / self.height
        elements = self.elements and tuple(
            element._replace(box=element.box.scaled(x, y)) for element in self.elements
        )
        return replace(self, width=width, height=height, elements=elements)


def pointed(action: Action, screen: Screen) -> Action:
    """Replaces element ids in ``action`` by the centres of the elements; an unknown id is replaced by no point."""
    element = screen.element(action.id) if action.id is not None else None
    end = screen.element(action.end_id) if action.end_id is not None else None
    return replace(
        action,
        id=None,
        point=element.box.centre if element else action.point,
        end_id=None,
        end=end.box.centre if end else action.end,
    )


def focused(screen: Screen) -> Element | None:
    """Returns the element that receives text typed without a target; None if none is known."""
    return next((element for element in screen.elements or () if "focused" in element.states), None)


def at_caret(action: Action, screen: Screen) -> Action:
    """Adds the centre of the focused element to ``action`` if it types without a target."""
    field = focused(screen)
    if field is None or action.kind is not ActionKind.TYPE or action.point is not None:
        return action
    return replace(action, point=field.box.centre)


def resized(width: int, height: int) -> tuple[int, int]:
    """Returns the size at which a model sees an image: sides are multiples of 28, with 4 to 12,800 squares of 28x28.

    Source: UI-S1 (Lu et al. 2025) and the Qwen2-VL image processor.

    Raises:
        ConfigurationError: a side is below 1, or the sides differ by a factor of more than 200.
    """
    if min(width, height) < 1 or max(width, height) > 200 * min(width, height):
        raise ConfigurationError(f"an image of {width}x{height} pixels cannot be resized for a model")
    sides = [max(PATCH, round(side / PATCH) * PATCH) for side in (width, height)]
    tokens = sides[0] * sides[1] / PATCH**2
    if tokens > MAX_TOKENS:
        shrink = math.sqrt(width * height / (MAX_TOKENS * PATCH**2))
        sides = [max(PATCH, math.floor(side / shrink / PATCH) * PATCH) for side in (width, height)]
    elif tokens < MIN_TOKENS:
        grow = math.sqrt(MIN_TOKENS * PATCH**2 / (width * height))
        sides = [math.ceil(side * grow / PATCH) * PATCH for side in (width, height)]
    return sides[0], sides[1]


def image_part(image: bytes | Path) -> MessagePart:
    """Makes a message part of ``image``, resized by ``resized``.

    Raises:
        MissingExtra: pillow is not installed.
        EnvFault: the image cannot be read.
    """
    with needs_extra("gui", "pillow"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image) as picture:
            size = resized(*picture.size)
            if isinstance(image, bytes) and (picture.size, picture.mode, picture.format) == (
                size,
                "RGB",
                "PNG",
            ):
                return MessagePart("image", image=image)
            resized_picture = picture.convert("RGB").resize(size)
    except Exception as error:
        # Decoders raise various errors, and a model may not accept an image of this size.
        raise EnvFault(f"a screenshot cannot be read: {error}") from error
    held = io.BytesIO()
    resized_picture.save(held, "PNG")
    return MessagePart("image", image=held.getvalue())


def to_json(screen: Screen) -> dict[str, Any]:
    """Returns the JSON form of ``screen``, which ``from_json`` reads. A file of pixels is given by name, bytes as base64."""
    elements = None if screen.elements is None else [list(element) for element in screen.elements]
    record: dict[str, Any] = {"width": screen.width, "height": screen.height, "title": screen.title}
    record["elements"] = elements
    if isinstance(screen.image, Path):
        record["screenshot"] = str(screen.image)
    elif screen.image is not None:
        record["png"] = base64.b64encode(screen.image).decode()
    return record


def from_json(record: Mapping[str, Any]) -> Screen:
    """Restores a screen from its JSON form."""
    elements = record.get("elements")
    image = base64.b64decode(record["png"]) if "png" in record else None
    return Screen(
        width=int(record["width"]),
        height=int(record["height"]),
        title=str(record["title"]),
        elements=None if elements is None else tuple(map(_element, elements)),
        image=Path(record["screenshot"]) if "screenshot" in record else image,
    )


def _element(row: Any) -> Element:
    id, role, text, box, value, states = row
    return Element(id, role, text, Box(*box), value, tuple(states))
