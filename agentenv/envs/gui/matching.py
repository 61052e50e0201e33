"""Decides whether a predicted action matches the expert's, by rules given as data: the presets of ``MATCHERS``.

Predictions are in pixels of the screen as shown, the expert's action and boxes in pixels of the original screen. Positions
are compared in the latter, and lengths as shares of its sides. A point exactly on the edge of a box, or exactly at the
allowed distance, counts as a match; comparing rounded shares would make this arbitrary. Every mismatch has a reason, and no
text of a policy raises an exception. ``docs/gui.md`` lists what each preset accepts wrongly.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from agentenv.core.scoring.likeness import edit_distance
from agentenv.core.scoring.normalize import collapse
from agentenv.envs.gui.actions import Action, ActionKind, Direction, Point
from agentenv.envs.gui.screen import Box
from agentenv.errors import check_known

Size = tuple[int, int]
POINTED = (ActionKind.CLICK, ActionKind.DOUBLE_CLICK, ActionKind.LONG_PRESS, ActionKind.HOVER)
WORDED = (ActionKind.TYPE, ActionKind.KEY, ActionKind.ANSWER, ActionKind.OPEN, ActionKind.SELECT)
AIMED = (ActionKind.TYPE, ActionKind.SELECT)
"""Kinds of action whose text is entered into an element."""
CHOSEN = (ActionKind.SYSTEM_BUTTON, ActionKind.TERMINATE)


@dataclass(frozen=True, slots=True)
class Gold:
    """The expert's action with information about its screen."""

    action: Action
    size: Size
    """Width and height in pixels of the screen to which its coordinates refer."""
    boxes: tuple[Box, ...] = ()
    """Boxes in which a click is correct, in pixels, as the data set gives them."""
    declared: Direction | None = None
    """Direction of a swipe according to the data set, in its own semantics."""


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The result of comparing one action."""

    type_ok: bool
    exact: bool
    reason: str = ""
    """Why it does not match exactly; empty if it does."""


@dataclass(frozen=True)
class Matcher:
    """The rules of one preset."""

    box: Literal["smallest", "any"] = "smallest"
    """``smallest`` uses the smallest box that contains the expert's point, and ignores boxes above ``max_area``; the radius
    counts only if there is no such box. ``any`` uses every box, and the radius in addition."""
    max_area: float = 0.25
    """Share of the screen above which ``smallest`` ignores a box, except for scrolls."""
    enlarge: float = 1.2
    """Factor by which a box is enlarged about its centre, except for scrolls."""
    radius: float = 0.04
    """Largest distance of a click from the expert's point; see ``box``."""
    radius_of: Literal["shorter_side", "unit_square"] = "shorter_side"
    """The length that the radius is a share of; on the unit square, it is longer along the longer side."""
    words: Literal["close", "contained", "anls"] = "close"
    """The rule for texts; see ``words_match``."""
    fields: bool = True
    """Whether typing, selecting and scrolling must target the expert's position, as a click must. If the expert names none,
    every position is accepted. The published matchers compare only texts and directions, and their ``type`` has no
    position."""
    swipe: Literal["finger", "flipped", "any"] = "finger"
    """``finger`` compares the directions of the fingers. ``flipped`` compares the predicted direction with the declared one
    or, without that, with the expert's, after exchanging up and down. ``any`` accepts every direction."""
    min_swipe: float = 0.05
    """Share of a side that a finger must travel at least, or the expert's distance if that is less."""
    any_status: bool = False
    """Whether every status of terminate is accepted."""
    drops_four_boxes: bool = False
    """Whether four boxes are read as the four numbers of one box, which fails, as in the published program."""
    answers_as_type: bool = False
    """Whether the kind ``type`` is required where the expert answers or presses a key, as in the published program."""
    opened_by_click: bool = False
    """Whether a click within a box matches the expert's opening of an app by its name."""
    unmatched: frozenset[ActionKind] = frozenset()
    """Kinds of expert actions that never match, because the published program has no rule for them."""

    def __call__(self, predicted: Action, gold: Gold, display_size: Size) -> MatchResult:
        """Compares an action with the expert's.

        Args:
            predicted: The policy's action. An element id must have been converted to a point.
            gold: The expert's action.
            display_size: Width and height of the screen to which the prediction's coordinates refer.
        """
        wanted = gold.action.kind
        if self.answers_as_type and wanted in (ActionKind.ANSWER, ActionKind.KEY):
            wanted = ActionKind.TYPE
        if wanted in self.unmatched:
            return MatchResult(False, False, f"{wanted} has no rule")
        if self.opened_by_click and wanted is ActionKind.OPEN and predicted.kind is ActionKind.CLICK:
            within = predicted.point is not None and self._in_box(predicted.point, gold, display_size)
            return MatchResult(within, within, "" if within else "other place")
        if predicted.kind is not wanted:
            return MatchResult(False, False, f"{predicted.kind} for {wanted}")
        reason = self._difference(predicted, gold, display_size)
        return MatchResult(True, not reason, reason)

    def _difference(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        """Returns why two actions of one kind differ; empty if they do not."""
        if predicted.kind in POINTED:
            return self._point_mismatch(predicted, gold, display_size)
        if predicted.kind in WORDED:
            if not words_match(predicted.text, gold.action.text, self.words):
                return "other text"
            aimed = predicted.kind in AIMED
            return self._target_mismatch(predicted, gold, display_size) if aimed else ""
        if predicted.kind in CHOSEN:
            same = predicted.text.casefold() == gold.action.text.casefold()
            free = self.any_status and predicted.kind is ActionKind.TERMINATE
            return "" if same or free else "other choice"
        if predicted.kind is ActionKind.SWIPE:
            return self._direction_mismatch(predicted, gold, display_size)
        if predicted.kind is ActionKind.SCROLL:
            if predicted.direction != gold.action.direction:
                return "other direction"
            return self._target_mismatch(predicted, gold, display_size)
        if predicted.kind is ActionKind.DRAG:
            return self._point_mismatch(predicted, gold, display_size) or self._end_mismatch(
                predicted, gold, display_size
            )
        return ""

    def _target_mismatch(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        """Returns why a text or a scroll has another target than the expert's; empty if the expert names no target."""
        aimed = self.fields and gold.action.point is not None
        return self._point_mismatch(predicted, gold, display_size) if aimed else ""

    def _point_mismatch(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if predicted.point is None or gold.action.point is None:
            return "no place"
        if self.drops_four_boxes and len(gold.boxes) == 4:
            return "four boxes are read as one"
        if self._in_box(predicted.point, gold, display_size):
            return ""
        # A box shows where the element ends, so a click beyond it may hit the next element.
        if self.box == "smallest" and self._relevant_boxes(gold):
            return "other place"
        place = _on_original(predicted.point, display_size, gold.size)
        return "" if self._distance(place, gold.action.point, gold.size) <= self.radius else "other place"

    def _in_box(self, point: Point, gold: Gold, display_size: Size) -> bool:
        """Whether a point lies in a relevant box, which is enlarged except for scrolls."""
        # A box of most of the screen, enlarged by a fifth, would include neighbouring elements.
        factor = 1.0 if gold.action.kind is ActionKind.SCROLL else self.enlarge
        place = _on_original(point, display_size, gold.size)
        return any(box.enlarged(factor).holds(place) for box in self._relevant_boxes(gold))

    def _relevant_boxes(self, gold: Gold) -> list[Box]:
        if self.box == "any":
            return list(gold.boxes)
        point = gold.action.point
        holding = [box for box in gold.boxes if point is not None and box.holds(point)]
        smallest = min(holding, key=lambda box: box.area, default=None)
        # The element to scroll is often most of the screen, and the direction has to match too.
        share = 1.0 if gold.action.kind is ActionKind.SCROLL else self.max_area
        limit = share * gold.size[0] * gold.size[1]
        return [smallest] if smallest is not None and smallest.area <= limit else []

    def _distance(self, one: Point, other: Point, size: Size) -> float:
        dx, dy = one[0] - other[0], one[1] - other[1]
        if self.radius_of == "unit_square":
            return math.hypot(dx / size[0], dy / size[1])
        return math.hypot(dx, dy) / min(size)

    def _end_mismatch(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if predicted.end is None or gold.action.end is None:
            return "no place"
        end = _on_original(predicted.end, display_size, gold.size)
        return "" if self._distance(end, gold.action.end, gold.size) <= self.radius else "other place"

    def _direction_mismatch(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if self.swipe == "any":
            return ""
        wanted = finger_direction(gold.action, gold.size)
        # An expert's short swipe must still match itself, however it was rounded to pixels of the shown screen.
        least = min(self.min_swipe, 0.9 * max(map(abs, _swipe_distance(gold.action, gold.size))))
        way = finger_direction(predicted, display_size, least)
        if self.swipe == "flipped":
            wanted = _FLIPPED.get(gold.declared or wanted or "up")
        if way is None and wanted is not None:
            return "too short a swipe"
        return "" if way == wanted else "other direction"


_FLIPPED: Mapping[str, Direction] = {"up": "down", "down": "up", "left": "left", "right": "right"}


def finger_direction(action: Action, size: Size, min_length: float = 0.0) -> Direction | None:
    """Returns the direction of a swipe: along the axis on which it covers the larger share of the screen.

    Args:
        action: A swipe.
        size: Width and height of the screen to which its coordinates refer.
        min_length: Share of that side below which a swipe has no direction.
    """
    dx, dy = _swipe_distance(action, size)
    if max(abs(dx), abs(dy)) < max(min_length, 1e-9):
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _swipe_distance(action: Action, size: Size) -> Point:
    """Returns the horizontal and vertical distance of a swipe as shares of the screen; 0 without two points."""
    if action.point is None or action.end is None:
        return 0.0, 0.0
    (x1, y1), (x2, y2) = action.point, action.end
    return (x2 - x1) / size[0], (y2 - y1) / size[1]


def words_match(predicted: str, gold: str, rule: str) -> bool:
    """Whether two texts match.

    Args:
        predicted: The policy's text.
        gold: The expert's text.
        rule: ``close`` requires equal texts or a token F1 of at least 0.8, and a non-empty text unless the expert's is
            blank. ``contained`` requires that one text contains the other (UI-S1: an empty text always matches). ``anls``
            requires containment or a normalised Levenshtein similarity of at least 0.5 (GUI-Odyssey), and a non-empty text.
    """
    if rule == "contained":
        a, b = predicted.lower().strip(), gold.lower().strip()
        return a in b or b in a
    a, b = _normalised(predicted), _normalised(gold)
    if a == b:
        return True
    if not a or not b:
        return False
    if rule == "close":
        return token_f1(a, b) >= 0.8
    return a in b or b in a or 1 - edit_distance(a, b) / max(len(a), len(b)) >= 0.5


def _normalised(text: str) -> str:
    return collapse(unicodedata.normalize("NFKC", text).casefold())


def token_f1(one: str, other: str) -> float:
    """Returns the harmonic mean of precision and recall of the words, as multisets."""
    a, b = one.split(), other.split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if a or b else 1.0


def _on_original(point: Point, shown: Size, original: Size) -> Point:
    """Converts a point on the shown screen to pixels of the original one."""
    return point[0] * original[0] / shown[0], point[1] * original[1] / shown[1]


MATCHERS: Mapping[str, Matcher] = {
    "agentenv": Matcher(),
    "ui_s1": Matcher(
        box="any",
        radius_of="unit_square",
        words="contained",
        fields=False,
        swipe="flipped",
        min_swipe=0.0,
        any_status=True,
        drops_four_boxes=True,
        answers_as_type=True,
    ),
    "ui_s1_sop": Matcher(
        box="any",
        radius_of="unit_square",
        words="contained",
        fields=False,
        swipe="any",
        opened_by_click=True,
        unmatched=frozenset({ActionKind.ANSWER, ActionKind.KEY, ActionKind.TERMINATE}),
    ),
    "odyssey": Matcher(
        box="any",
        enlarge=1.0,
        radius=0.14,
        radius_of="unit_square",
        words="anls",
        fields=False,
        min_swipe=0.0,
        any_status=True,
    ),
}
"""Presets by name: that of this package; the published matchers of UI-S1 for training and for its measure SOP, with their
errors; and that of GUI-Odyssey."""


def get_matcher(name: str) -> Callable[[Action, Gold, Size], MatchResult]:
    """Returns the preset ``name``.

    Raises:
        UnknownName: there is no such preset.
    """
    check_known("matcher", name, MATCHERS)
    return MATCHERS[name]
