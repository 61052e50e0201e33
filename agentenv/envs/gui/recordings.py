"""Recorded episodes of an expert, the data of semi-online training, one JSON object per line.

The format is that of UI-S1's AndroidControl files (Lu et al. 2025)::

    {"goal", "is_successful", "episode_id", "steps": [{"action_content": {"action": ...}, "screenshot"?, "screen"?,
     "thought"?, "step_instruction"?, "annotation"?, "check_options"?: {"candidate_bbox": [[x1, y1, x2, y2]],
     "direction"?}}]}

``screen`` is an extension: the UI tree and size of the screen, as recorded from DomSim or a browser.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from agentenv.core.io.files import replacing
from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow, find_file, read_records
from agentenv.envs.gui.actions import (
    Action,
    ActionKind,
    Direction,
    Point,
    Unreadable,
    action_from,
    action_members,
)
from agentenv.envs.gui.matching import Gold, Size, finger_direction
from agentenv.envs.gui.screen import Box, Element, Screen, at_caret, focused, from_json, resized, to_json
from agentenv.errors import DatasetError, MissingExtra

Annotation = Literal["GOOD", "HARMFUL", "NEUTRAL"]
Semantics = Literal["finger", "scroll", "ui_s1"]
"""What a declared direction means: the direction of the finger, that of the content that comes into view, or (in UI-S1's
evaluation file) the latter vertically and the former horizontally."""

_OPPOSITE: Mapping[Direction, Direction] = {"up": "down", "down": "up", "left": "right", "right": "left"}
_ANDROID_CONTROL_SIZES: tuple[Size, ...] = ((1080, 2400), (1440, 3120), (2400, 1080), (3120, 1440))
"""Screen sizes of AndroidControl, for files without their screenshots."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One screen and the expert's action on it."""

    screen: Screen
    gold: Gold
    instruction: str = ""
    """The purpose of the step, in words."""
    thought: str = ""
    """The reasoning recorded with the step."""
    annotation: Annotation = "GOOD"

    @property
    def display_size(self) -> Size:
        """Width and height at which the screen is shown to a policy."""
        return display_size_of(self.screen)

    @property
    def gold_at_caret(self) -> Gold:
        """The expert's action; if it types without a target and the focused field is known, that field is its target."""
        aimed = at_caret(self.gold.action, self.screen)
        field = focused(self.screen)
        if aimed == self.gold.action or field is None:
            return self.gold
        return replace(self.gold, action=aimed, boxes=(field.box,))


class Recording:
    """One task with the expert's steps. It is immutable, so copies of an episode share it."""

    __slots__ = ("goal", "id", "steps", "successful")

    def __init__(self, id: str, goal: str, steps: tuple[RecordedStep, ...], successful: bool = True) -> None:
        self.id, self.goal, self.steps, self.successful = id, goal, steps, successful

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recording) and recording_members(self) == recording_members(other)

    __hash__ = object.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def digest_members(self) -> dict[str, Any]:
        """Returns the content of the recording without its id, for `agentenv.core.io.digests.value_digest`."""
        return {name: value for name, value in recording_members(self).items() if name != "episode_id"}

    def task(self, split: str = "") -> Task:
        """Returns the task of doing the same; ``data["recording"]`` is this recording."""
        return Task(self.id, self.goal, ("",), split, {"recording": self})


def display_size_of(screen: Screen) -> Size:
    """Returns the size to which a policy's coordinates refer: that of the resized image, or of a screen without pixels."""
    return (screen.width, screen.height) if screen.image is None else resized(screen.width, screen.height)


def load_recordings(
    path: Path | None = None, *, semantics: Semantics = "ui_s1", screenshots: Path | None = None
) -> tuple[Recording, ...]:
    """Reads the recordings of a file.

    Args:
        path: The file, or a folder with one ``*.jsonl`` or ``*.jsonl.gz``; None uses ``android_control`` under
            ``AGENTENV_DATA``.
        semantics: What a declared ``direction`` of a swipe means; it must agree with the swipe's coordinates.
        screenshots: The folder of the screenshots, which are found by file name; None loads none. The size of a screen is
            then the recorded one or, without that, guessed from the coordinates of its episode.

    Raises:
        DatasetError: the file does not exist, a line is malformed, an id is repeated, or a direction contradicts its
            coordinates.
        MissingExtra: ``screenshots`` is given, and pillow is not installed.
    """
    file = find_file("the recordings", "android_control", "*.jsonl*", path)
    recordings = tuple(
        _checked_recording(record, semantics, screenshots) for record in read_records(file, lines=True)
    )
    ids = [recording.id for recording in recordings]
    if twice := next((id for id in ids if ids.count(id) > 1), None) if len(set(ids)) < len(ids) else None:
        raise DatasetError(f"{file} has the episode id {twice!r} twice.")
    return recordings


def _checked_recording(record: RawRow, semantics: Semantics, screenshots: Path | None) -> Recording:
    """Does what `_recording` does, for records in which any value may have a wrong type."""
    try:
        return _recording(record, semantics, screenshots)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        if isinstance(error, DatasetError):
            raise
        said = f"{type(error).__name__}: {str(error)[:100]}"
        raise DatasetError(f"{record.place} is no recording of this format ({said}).") from error


def _recording(record: RawRow, semantics: Semantics, screenshots: Path | None) -> Recording:
    rows = list(record.items("steps"))
    if not rows:
        raise DatasetError(f"{record.place} has no steps.")
    size = _guessed_size(rows)
    return Recording(
        id=record.id("episode_id") if "episode_id" in record.fields else record.place,
        goal=record.text("goal"),
        steps=tuple(_step(row, size, semantics, screenshots) for row in rows),
        successful=record.fields.get("is_successful") is not False,
    )


def _guessed_size(rows: Sequence[RawRow]) -> Size:
    contents = [row.fields.get("action_content") for row in rows]
    points = [
        content[name]
        for content in contents
        if isinstance(content, dict)
        for name in ("coordinate", "coordinate2")
        if isinstance(content.get(name), list) and len(content[name]) == 2
    ]
    held = [size for size in _ANDROID_CONTROL_SIZES if all(x <= size[0] and y <= size[1] for x, y in points)]
    return held[0] if held else (max(round(p[0]) for p in points), max(round(p[1]) for p in points))


def _step(row: RawRow, size: Size, semantics: Semantics, screenshots: Path | None) -> RecordedStep:
    members = row.value("action_content")
    if not isinstance(members, dict):
        raise DatasetError(f"{row.place}: action_content must be an object.")
    options = row.fields.get("check_options") or members
    try:
        action = action_from({name: members[name] for name in members if name not in _BOX_FIELDS})
    except Unreadable as error:
        raise DatasetError(f"{row.place}: {error}") from error
    screen = _screen(row, size, screenshots)
    boxes = _boxes(options.get("candidate_bbox", members.get("bbox", [])), row.place)
    declared = options.get("direction", members.get("direction")) if action.kind is ActionKind.SWIPE else None
    if declared is not None and declared not in get_args(Direction):
        raise DatasetError(
            f"{row.place}: {declared!r:.60} is no direction; there are {', '.join(_OPPOSITE)}."
        )
    gold = Gold(action, (screen.width, screen.height), boxes, declared)
    _check_direction(gold, semantics, row.place)
    annotation = row.fields.get("annotation", "GOOD")
    if annotation not in get_args(Annotation):
        raise DatasetError(f"{row.place}: annotation must be one of {', '.join(get_args(Annotation))}.")
    thought = row.fields.get("thought") or row.fields.get("motivation") or ""
    instruction = row.fields.get("step_instruction") or ""
    if not (isinstance(thought, str) and isinstance(instruction, str)):
        raise DatasetError(f"{row.place}: thought and step_instruction are texts")
    return RecordedStep(screen, gold, instruction, thought, annotation)


_BOX_FIELDS = ("bbox", "candidate_bbox")


def _boxes(value: Any, place: str) -> tuple[Box, ...]:
    """Parses boxes: a flat list of four numbers is one box; a list of lists (even four) is one box per entry."""
    if isinstance(value, list) and len(value) == 4 and not any(isinstance(part, list) for part in value):
        value = [value]
    try:
        return tuple(Box(*map(float, box)) for box in value)
    except TypeError as error:
        raise DatasetError(f"{place}: a box must be [x1, y1, x2, y2].") from error


def _screen(row: RawRow, size: Size, screenshots: Path | None) -> Screen:
    if "screen" in row.fields:
        return _recorded(row.fields["screen"], row.place)
    if screenshots is None:
        return Screen(*size)
    file = screenshots / Path(row.text("screenshot")).name
    try:
        from PIL import Image

        with Image.open(file) as picture:
            return Screen(*picture.size, image=file)
    except ModuleNotFoundError as error:
        raise MissingExtra.of("pillow", "gui") from error
    except Exception as error:  # decoders raise various errors
        raise DatasetError(f"{row.place}: the screenshot {file.name} cannot be read: {error}.") from error


def _recorded(form: Any, place: str) -> Screen:
    """Parses the recorded screen. One that names a file is refused, because it could name any file of this machine."""
    if "screenshot" in form:
        raise DatasetError(f"{place}: a recorded screen holds its image itself and names no file")
    return from_json(form)


def _check_direction(gold: Gold, semantics: Semantics, place: str) -> None:
    if gold.declared is None:
        return
    flips = semantics == "scroll" or (semantics == "ui_s1" and gold.declared in ("up", "down"))
    finger = _OPPOSITE.get(gold.declared) if flips else gold.declared
    seen = finger_direction(gold.action, gold.size)
    if finger != seen:
        raise DatasetError(
            f"{place}: by the semantics {semantics!r} the finger of the direction {gold.declared!r} moves {finger}, but "
            f"the coordinates move {seen}; pass the semantics that the file was written with."
        )


def write_recordings(recordings: Iterable[Recording], path: Path) -> None:
    """Writes a file that ``load_recordings(path, semantics="finger")`` can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for recording in recordings:
            file.write(json.dumps(recording_members(recording), ensure_ascii=False) + "\n")


def recording_members(recording: Recording) -> dict[str, Any]:
    """Returns the JSON object of a recording."""
    return {
        "goal": recording.goal,
        "is_successful": recording.successful,
        "episode_id": recording.id,
        "steps": [dict(_step_members(step)) for step in recording.steps],
    }


def _step_members(step: RecordedStep) -> Iterator[tuple[str, Any]]:
    yield "action_content", action_members(step.gold.action)
    yield "screen", to_json(step.screen)
    options: dict[str, Any] = {"candidate_bbox": [list(box) for box in step.gold.boxes]}
    if step.gold.declared is not None:
        options["direction"] = step.gold.declared
    yield "check_options", options
    for name, value in (("step_instruction", step.instruction), ("thought", step.thought)):
        if value:
            yield name, value
    if step.annotation != "GOOD":
        yield "annotation", step.annotation


def expert_action(step: RecordedStep, *, by_id: bool = False) -> Action:
    """Returns the expert's action as a policy would write it: with points in pixels of the shown screen, or element ids.

    Args:
        step: The expert's step.
        by_id: Whether to name the element with the expert's box, or else the smallest one at the point, if the screen has a
            tree with such an element. Points are kept if a drag does not end at the centre of an element.
    """
    action = step.gold.action
    if by_id and action.kind is not ActionKind.SWIPE:
        at = _intended_element(step, action.point) if action.point else None
        to = _centred(step.screen.elements or (), action.end)
        known = (at is not None or action.point is None) and (to is not None or action.end is None)
        if known:
            return replace(
                action, point=None, end=None, id=at.id if at else None, end_id=to.id if to else None
            )
    return rescaled(action, step.gold.size, step.display_size)


def _intended_element(step: RecordedStep, place: Point) -> Element | None:
    """Returns the element at ``place`` with the expert's box, or else the smallest one, which may cover the intended one."""
    boxed = [element for element in step.screen.elements or () if element.box in step.gold.boxes]
    return _centred(boxed, place) or step.screen.at(place)


def _centred(elements: Iterable[Element], place: Point | None) -> Element | None:
    """Returns the first element whose centre is ``place``."""
    return next((element for element in elements if element.box.centre == place), None)


def rescaled(action: Action, original: Size, display_size: Size) -> Action:
    """Returns ``action`` with its coordinates in whole pixels of another size of the same screen."""

    def place(point: tuple[float, float] | None) -> tuple[float, float] | None:
        if point is None:
            return None
        return round(point[0] * display_size[0] / original[0]), round(
            point[1] * display_size[1] / original[1]
        )

    return replace(action, point=place(action.point), end=place(action.end))
