"""What a viewer of an episode draws: the screen on which an action was chosen, and the action on that screen.

An environment with a screen returns a `TurnScene` from ``Env.scene``, and the episode loop stores it in the `Turn`. The
policy never sees it, and no reward depends on it. Pixels that the policy was shown are in the messages instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

Place = tuple[float, float]
"""x and y in pixels of the screen."""
Edges = tuple[float, float, float, float]
"""x1, y1, x2 and y2 of a box in pixels of the screen."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How one action is drawn on a screen, in its pixels: a point, an arrow from ``at`` to ``to``, a box, or only text."""

    kind: str
    """The kind of the action, such as ``click``."""
    label: str
    """The action in a few words."""
    at: Place | None = None
    to: Place | None = None
    """The end of the arrow, if there is one."""
    box: Edges | None = None
    """The box of the element that the action refers to."""
    expert: bool = False
    """Whether this is the expert's action; otherwise it is the policy's."""


class TurnScene(Protocol):
    """A screen at the moment when an action was chosen."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""

    def svg(self) -> str:
        """Draws the screen in that size, for episodes whose policy was shown no pixels."""

    def marks(self, action: str) -> Sequence[Mark]:
        """Returns the marks of the policy's text ``action``; empty if no action can be parsed from it."""
