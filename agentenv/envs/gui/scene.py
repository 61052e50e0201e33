"""The scene of a graphical environment: its screen, the policy's action on it and, where one is known, the expert's."""

from collections.abc import Iterator
from dataclasses import dataclass

from agentenv.core.scene import Edges, Mark
from agentenv.envs.gui.actions import Action, ActionKind, Direction, Point, parse_reply
from agentenv.envs.gui.drawing import svg
from agentenv.envs.gui.screen import Box, Element, Screen

_LABEL_CHARS = 90
_TOWARDS: dict[Direction | None, Point] = {
    "up": (0, -1),
    "down": (0, 1),
    "left": (-1, 0),
    "right": (1, 0),
    None: (0, 0),
}
_SAID = (ActionKind.TYPE, ActionKind.SELECT, ActionKind.OPEN, ActionKind.ANSWER)
"""Kinds whose text is quoted."""


@dataclass(frozen=True, slots=True)
class ScreenScene:
    """A `agentenv.core.scene.TurnScene` over a `Screen`."""

    screen: Screen
    """In the size in which the policy saw it."""
    expert: Action | None = None
    """What the expert does there."""
    boxes: tuple[Box, ...] = ()
    """Boxes in which a place counts as the expert's."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return self.screen.width, self.screen.height

    def svg(self) -> str:
        """The UI tree, drawn."""
        return svg(self.screen)

    def marks(self, action: str) -> list[Mark]:
        """The expert's action, then the one that is read from the policy's text."""
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
    """``action`` on ``screen``; of an id that the screen does not have, words alone."""
    element = _meant(action.id, action.point, screen)
    at = action.point or (element.box.centre if element else None)
    onto = _meant(action.end_id, action.end, screen)
    to = action.end or (onto.box.centre if onto else None)
    if action.kind is ActionKind.SCROLL:
        at = at or (screen.width / 2, screen.height / 2)
        x, y = _TOWARDS[action.direction]
        to = at[0] + x * screen.width / 4, at[1] + y * screen.height / 4
    box = edges(element.box) if element else None
    return Mark(str(action.kind), words(action, element), at, to, box)


def edges(box: Box) -> Edges:
    """``box`` as plain numbers."""
    return box.x1, box.y1, box.x2, box.y2


def _meant(id: str | None, point: Point | None, screen: Screen) -> Element | None:
    if id is not None:
        return screen.element(id)
    return screen.at(point) if point else None


def words(action: Action, element: Element | None) -> str:
    """An action in a few words: ``type "Ann" into "Name"``."""
    said = f'"{action.text}"' if action.kind in _SAID else action.text
    parts = [str(action.kind).replace("_", " "), said, action.direction or ""]
    if action.time is not None:
        parts.append(f"{action.time:g} s")
    if element is not None:
        parts.append(f'{"on " if said else ""}"{element.text}"')
    elif action.id is not None:
        parts.append(f"on {action.id}, which is not there")
    label = " ".join(part for part in parts if part)
    return label if len(label) <= _LABEL_CHARS else label[: _LABEL_CHARS - 1] + "…"
