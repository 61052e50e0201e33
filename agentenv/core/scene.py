"""What a viewer of an episode draws: the screen on which an action was chosen, and the action on it.

An environment with a screen gives a `TurnScene` from ``Env.scene``; the episode loop keeps it in the `Turn`, and nothing
that a policy sees or earns depends on it. Pixels that the policy was shown stand in the messages and not here.
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
    """How a screen shows one action, in its pixels: a place, an arrow from ``at`` to ``to``, a box, or only words."""

    kind: str
    """The kind of the action, such as ``click``."""
    label: str
    """The action in a few words."""
    at: Place | None = None
    to: Place | None = None
    """The end of the arrow, if there is one."""
    box: Edges | None = None
    """The box of the element that the action is about."""
    expert: bool = False
    """Whether an expert would have done this; otherwise the policy did it."""


class TurnScene(Protocol):
    """A screen at the moment when an action was chosen."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""

    def svg(self) -> str:
        """A drawing of the screen in that size, for episodes whose policy was shown no pixels."""

    def marks(self, action: str) -> Sequence[Mark]:
        """What the policy's text ``action`` did there; empty where nothing can be read from it."""
