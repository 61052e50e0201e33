"""The scene of a graphical environment: its screen, the policy's action on it and, if known, the expert's."""

from collections.abc import Iterator
from dataclasses import dataclass

from agentenv.core.scene import Edges, Mark
from agentenv.envs.gui.actions import Action, ActionKind, Direction, Point, parse_reply
from agentenv.envs.gui.drawing import svg
from agentenv.envs.gui.screen import Box, Element, Screen

_LABEL_CHARS = 90
_UNIT_VECTORS: dict[Direction | None, Point] = {
    "up": (0, -1),
    "down": (0, 1),
    "left": (-1, 0),
    "right": (1, 0),
    None: (0, 0),
}
_QUOTED_KINDS = (ActionKind.TYPE, ActionKind.SELECT, ActionKind.OPEN, ActionKind.ANSWER)
"""Kinds of action whose text is quoted."""


@dataclass(frozen=True, slots=True)
class ScreenScene:
    """A `agentenv.core.scene.TurnScene` over a `Screen`."""

    screen: Screen
    """The screen in the size that the policy saw."""
    expert: Action | None = None
    """The expert's action on it."""
    boxes: tuple[Box, ...] = ()
    """Boxes in which a point counts as the expert's."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.screen.width, self.screen.height

    def svg(self) -> str:
        """Draws the UI tree."""
        return svg(self.screen)

    def marks(self, action: str) -> list[Mark]:
        """Returns the mark of the expert's action, followed by that of the policy's action."""
        done = parse_reply(action).action
        return [*self._expert(), *([mark(done, self.screen)] if done else [])]

    def _expert(self) -> Iterator[Mark]:
        if self.expert is None:
            return
        label = "expert: " + words(self.expert, None)
        expert_mark = mark(self.expert, self.screen)
        yield Mark(expert_mark.kind, label, expert_mark.at, expert_mark.to, expert=True)
        for box in self.boxes:
            yield Mark(expert_mark.kind, "", box=edges(box), expert=True)


def mark(action: Action, screen: Screen) -> Mark:
    """Returns the mark of ``action`` on ``screen``; only text, if the screen lacks the action's element id."""
    element = _target_element(action.id, action.point, screen)
    at = action.point or (element.box.centre if element else None)
    onto = _target_element(action.end_id, action.end, screen)
    to = action.end or (onto.box.centre if onto else None)
    if action.kind is ActionKind.SCROLL:
        at = at or (screen.width / 2, screen.height / 2)
        x, y = _UNIT_VECTORS[action.direction]
        to = at[0] + x * screen.width / 4, at[1] + y * screen.height / 4
    box = edges(element.box) if element else None
    return Mark(str(action.kind), words(action, element), at, to, box)


def edges(box: Box) -> Edges:
    """Returns the edges of ``box`` as plain numbers."""
    return box.x1, box.y1, box.x2, box.y2


def _target_element(id: str | None, point: Point | None, screen: Screen) -> Element | None:
    if id is not None:
        return screen.element(id)
    return screen.at(point) if point else None


def words(action: Action, element: Element | None) -> str:
    """Describes an action in a few words, such as ``type "Ann" into "Name"``."""
    said = f'"{action.text}"' if action.kind in _QUOTED_KINDS else action.text
    parts = [str(action.kind).replace("_", " "), said, action.direction or ""]
    if action.time is not None:
        parts.append(f"{action.time:g} s")
    if element is not None:
        parts.append(f'{"on " if said else ""}"{element.text}"')
    elif action.id is not None:
        parts.append(f"on {action.id}, which is not there")
    label = " ".join(part for part in parts if part)
    return label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"
