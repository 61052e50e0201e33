"""Whether a predicted action is the expert's: rules as data, with the presets of ``MATCHERS``.

Predictions are in pixels of the screen as it was shown, the expert's action and boxes in pixels of the original. Places are
compared in the latter, and lengths as shares of its sides: what lies on the very edge of a box or just as far away as is
allowed counts, which shares that are rounded before they are compared would leave to chance. A mismatch has a reason, and
nothing that a policy writes is an exception. ``docs/gui.md`` lists what each preset lets pass that it should not.
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
"""Kinds whose text goes to an element."""
CHOSEN = (ActionKind.SYSTEM_BUTTON, ActionKind.TERMINATE)


@dataclass(frozen=True, slots=True)
class Gold:
    """The expert's action with what is known of its screen."""

    action: Action
    size: Size
    """Width and height in pixels of the screen that its coordinates refer to."""
    boxes: tuple[Box, ...] = ()
    """Boxes in which a click counts, in pixels, as the data set gives them."""
    declared: Direction | None = None
    """Direction of a swipe as the data set names it, in the data set's own semantics."""


@dataclass(frozen=True, slots=True)
class MatchResult:
    """The verdict on one action."""

    type_ok: bool
    exact: bool
    reason: str = ""
    """Why it is not exact; empty where it is."""


@dataclass(frozen=True)
class Matcher:
    """The rules of one preset."""

    box: Literal["smallest", "any"] = "smallest"
    """``smallest`` takes the smallest box that holds the expert's point, and none above ``max_area``; the radius counts only
    where there is no such box. ``any`` takes each box, and the radius besides."""
    max_area: float = 0.25
    """Share of the screen above which ``smallest`` does not trust a box, but for what is scrolled."""
    enlarge: float = 1.2
    """Factor of a box's sides, about its centre, but for what is scrolled."""
    radius: float = 0.04
    """How far from the expert's point a click may lie; see ``box``."""
    radius_of: Literal["shorter_side", "unit_square"] = "shorter_side"
    """What the radius is a share of; on the unit square it is longer along the longer side."""
    words: Literal["close", "contained", "anls"] = "close"
    """Rule for text; see ``words_match``."""
    fields: bool = True
    """Whether what is typed, selected or scrolled must be at the place that the expert names, as a click must; where the
    expert names none, every place is right. The released matchers compare texts and directions alone, and their ``type`` has
    no place."""
    swipe: Literal["finger", "flipped", "any"] = "finger"
    """``finger`` compares the ways of the fingers; ``flipped`` the predicted way with the declared or, where none is
    declared, the expert's own way, after exchanging up and down; ``any`` compares nothing."""
    min_swipe: float = 0.05
    """Share of a side that a finger must travel, or as far as the expert's did where that is less; shorter is no swipe."""
    any_status: bool = False
    """Whether every status of terminate is as good as the expert's."""
    drops_four_boxes: bool = False
    """Reads four boxes as the four numbers of one, which fails, as released."""
    answers_as_type: bool = False
    """Wants the kind ``type`` where the expert answers or presses a key, as released."""
    opened_by_click: bool = False
    """Whether a click within a box opens what the expert has opened by its name."""
    unmatched: frozenset[ActionKind] = frozenset()
    """Kinds of the expert's actions that nothing matches, because the released program has no rule for them."""

    def __call__(self, predicted: Action, gold: Gold, display_size: Size) -> MatchResult:
        """Compares an action with the expert's.

        Args:
            predicted: The policy's action; an element id must have been made a point.
            gold: The expert's.
            display_size: Width and height of the screen that the prediction's coordinates refer to.
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
        """Why two actions of one kind differ; empty where they do not."""
        if predicted.kind in POINTED:
            return self._misses(predicted, gold, display_size)
        if predicted.kind in WORDED:
            if not words_match(predicted.text, gold.action.text, self.words):
                return "other text"
            aimed = predicted.kind in AIMED
            return self._aims_elsewhere(predicted, gold, display_size) if aimed else ""
        if predicted.kind in CHOSEN:
            same = predicted.text.casefold() == gold.action.text.casefold()
            free = self.any_status and predicted.kind is ActionKind.TERMINATE
            return "" if same or free else "other choice"
        if predicted.kind is ActionKind.SWIPE:
            return self._other_way(predicted, gold, display_size)
        if predicted.kind is ActionKind.SCROLL:
            if predicted.direction != gold.action.direction:
                return "other direction"
            return self._aims_elsewhere(predicted, gold, display_size)
        if predicted.kind is ActionKind.DRAG:
            return self._misses(predicted, gold, display_size) or self._drops_elsewhere(
                predicted, gold, display_size
            )
        return ""

    def _aims_elsewhere(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        """Why the target of a text or a scroll is not the expert's; empty where the expert names none."""
        aimed = self.fields and gold.action.point is not None
        return self._misses(predicted, gold, display_size) if aimed else ""

    def _misses(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if predicted.point is None or gold.action.point is None:
            return "no place"
        if self.drops_four_boxes and len(gold.boxes) == 4:
            return "four boxes are read as one"
        if self._in_box(predicted.point, gold, display_size):
            return ""
        # A box says where the element ends, and a click beyond it may be on the next one.
        if self.box == "smallest" and self._trusted(gold):
            return "other place"
        place = _on_original(predicted.point, display_size, gold.size)
        return "" if self._distance(place, gold.action.point, gold.size) <= self.radius else "other place"

    def _in_box(self, point: Point, gold: Gold, display_size: Size) -> bool:
        """Whether a point lies in a box that counts, enlarged unless it is of what is scrolled."""
        # A fifth of most of the screen would reach over what stands beside it.
        factor = 1.0 if gold.action.kind is ActionKind.SCROLL else self.enlarge
        place = _on_original(point, display_size, gold.size)
        return any(box.enlarged(factor).holds(place) for box in self._trusted(gold))

    def _trusted(self, gold: Gold) -> list[Box]:
        if self.box == "any":
            return list(gold.boxes)
        point = gold.action.point
        holding = [box for box in gold.boxes if point is not None and box.holds(point)]
        smallest = min(holding, key=lambda box: box.area, default=None)
        # What is scrolled is often most of the screen, and the direction has to be right besides.
        share = 1.0 if gold.action.kind is ActionKind.SCROLL else self.max_area
        limit = share * gold.size[0] * gold.size[1]
        return [smallest] if smallest is not None and smallest.area <= limit else []

    def _distance(self, one: Point, other: Point, size: Size) -> float:
        dx, dy = one[0] - other[0], one[1] - other[1]
        if self.radius_of == "unit_square":
            return math.hypot(dx / size[0], dy / size[1])
        return math.hypot(dx, dy) / min(size)

    def _drops_elsewhere(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if predicted.end is None or gold.action.end is None:
            return "no place"
        end = _on_original(predicted.end, display_size, gold.size)
        return "" if self._distance(end, gold.action.end, gold.size) <= self.radius else "other place"

    def _other_way(self, predicted: Action, gold: Gold, display_size: Size) -> str:
        if self.swipe == "any":
            return ""
        wanted = finger_direction(gold.action, gold.size)
        # An expert's short swipe must still be its own match, however it was rounded to pixels of the shown screen.
        least = min(self.min_swipe, 0.9 * max(map(abs, _swept(gold.action, gold.size))))
        way = finger_direction(predicted, display_size, least)
        if self.swipe == "flipped":
            wanted = _FLIPPED.get(gold.declared or wanted or "up")
        if way is None and wanted is not None:
            return "too short a swipe"
        return "" if way == wanted else "other direction"


_FLIPPED: Mapping[str, Direction] = {"up": "down", "down": "up", "left": "left", "right": "right"}


def finger_direction(action: Action, size: Size, min_length: float = 0.0) -> Direction | None:
    """Where the finger of a swipe goes: along the axis on which it covers the larger share of the screen.

    Args:
        action: A swipe.
        size: Width and height of the screen that its coordinates refer to.
        min_length: Share of that side below which there is no direction.
    """
    dx, dy = _swept(action, size)
    if max(abs(dx), abs(dy)) < max(min_length, 1e-9):
        return None
    if abs(dx) > abs(dy):
        return "right" if dx > 0 else "left"
    return "down" if dy > 0 else "up"


def _swept(action: Action, size: Size) -> Point:
    """How far the finger of a swipe goes, across and down, in shares of the screen; nowhere without two places."""
    if action.point is None or action.end is None:
        return 0.0, 0.0
    (x1, y1), (x2, y2) = action.point, action.end
    return (x2 - x1) / size[0], (y2 - y1) / size[1]


def words_match(predicted: str, gold: str, rule: str) -> bool:
    """Whether two texts say the same.

    Args:
        predicted: The policy's.
        gold: The expert's.
        rule: ``close`` needs equal texts or a token F1 of at least 0.8, and a text at all unless the expert's is blank;
            ``contained`` one text inside the other (UI-S1: an empty text passes everywhere); ``anls`` containment or
            a normalised Levenshtein similarity of at least 0.5 (GUI-Odyssey), and a text at all.
    """
    if rule == "contained":
        a, b = predicted.lower().strip(), gold.lower().strip()
        return a in b or b in a
    a, b = _folded(predicted), _folded(gold)
    if a == b:
        return True
    if not a or not b:
        return False
    if rule == "close":
        return token_f1(a, b) >= 0.8
    return a in b or b in a or 1 - edit_distance(a, b) / max(len(a), len(b)) >= 0.5


def _folded(text: str) -> str:
    return collapse(unicodedata.normalize("NFKC", text).casefold())


def token_f1(one: str, other: str) -> float:
    """Harmonic mean of precision and recall of the words, as multisets."""
    a, b = one.split(), other.split()
    common = sum((Counter(a) & Counter(b)).values())
    return 2 * common / (len(a) + len(b)) if a or b else 1.0


def _on_original(point: Point, shown: Size, original: Size) -> Point:
    """A place on the shown screen in pixels of the original one."""
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
"""Presets by name: ours; the released matchers of UI-S1, of its training and of its measure SOP, mistakes included;
GUI-Odyssey's."""


def get_matcher(name: str) -> Callable[[Action, Gold, Size], MatchResult]:
    """The preset ``name``.

    Raises:
        UnknownName: no such preset.
    """
    check_known("matcher", name, MATCHERS)
    return MATCHERS[name]
