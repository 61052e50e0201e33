"""Screens for viewers: the marks of every kind of action by hand, and drawings that are SVG whatever stands on a screen."""

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from agentenv.core.scene import Mark
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import Action, ActionKind, action_text
from agentenv.envs.gui.drawing import caption, svg
from agentenv.envs.gui.matching import Gold
from agentenv.envs.gui.recordings import RecordedStep, Recording
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Box, Element, Screen
from agentenv.envs.semi_online import SemiOnlineGUI

HOSTILE = "</text><script>alert(1)</script>&\x00\x1b\ud800\"'"
SCREEN = Screen(
    400,
    200,
    "page",
    (
        Element("1", "button", "Send", Box(100, 20, 180, 60)),
        Element("2", "textbox", "To", Box(100, 100, 300, 120), "Ann"),
        Element("3", "list", "All", Box(0, 0, 400, 200)),
    ),
)
SVG = "{http://www.w3.org/2000/svg}"


def marked(**members: Any) -> list[Mark]:
    return ScreenScene(SCREEN).marks(f"<think>so</think><action>{json.dumps(members)}</action>")


@pytest.mark.parametrize(
    ("members", "mark"),
    [
        ({"action": "click", "id": 1}, Mark("click", 'click "Send"', (140, 40), None, (100, 20, 180, 60))),
        # the smallest element there is what was hit
        (
            {"action": "double_click", "coordinate": [110, 110]},
            Mark("double_click", 'double click "To"', (110, 110), None, (100, 100, 300, 120)),
        ),
        ({"action": "hover", "id": 9}, Mark("hover", "hover on 9, which is not there")),
        (
            {"action": "type", "text": "Bob", "id": 2},
            Mark("type", 'type "Bob" on "To"', (200, 110), None, (100, 100, 300, 120)),
        ),
        ({"action": "type", "text": "Bob"}, Mark("type", 'type "Bob"')),
        ({"action": "key", "text": "Enter"}, Mark("key", "key Enter")),
        ({"action": "wait", "time": 2.5}, Mark("wait", "wait 2.5 s")),
        ({"action": "terminate", "status": "failure"}, Mark("terminate", "terminate failure")),
        # what comes into view: a quarter of the screen from its middle
        (
            {"action": "scroll", "direction": "down"},
            Mark("scroll", "scroll down", (200, 100), (200, 150)),
        ),
        (
            {"action": "scroll", "direction": "left", "id": 2},
            Mark("scroll", 'scroll left "To"', (200, 110), (100, 110), (100, 100, 300, 120)),
        ),
        (
            {"action": "drag", "id": 1, "coordinate2": [10, 190]},
            Mark("drag", 'drag "Send"', (140, 40), (10, 190), (100, 20, 180, 60)),
        ),
        (
            {"action": "swipe", "coordinate": [390, 10], "coordinate2": [10, 10]},
            Mark("swipe", 'swipe "All"', (390, 10), (10, 10), (0, 0, 400, 200)),
        ),
    ],
)
def test_an_action_as_a_mark(members: dict[str, Any], mark: Mark) -> None:
    assert marked(**members) == [mark]


def test_a_text_without_an_action_marks_nothing_and_a_long_one_is_cut() -> None:
    assert ScreenScene(SCREEN).marks("no action") == []
    (mark,) = marked(action="answer", text="word " * 50)
    assert len(mark.label) == 90
    assert mark.label.endswith("…")


def test_the_expert_of_a_recording_is_marked_in_the_size_that_is_shown() -> None:
    """A screen of 1120x2240 without pixels is shown as it is; the recorded action refers to one of half the size."""
    gold = Gold(
        Action(ActionKind.CLICK, point=(50, 100)), (560, 1120), (Box(40, 90, 60, 110), Box(0, 0, 5, 5))
    )
    recording = Recording("r", "Go.", (RecordedStep(Screen(1120, 2240), gold),))
    env = SemiOnlineGUI(tasks=[recording.task()])
    env.reset(seed=0)
    scene = env.scene()
    assert scene.size == (1120, 2240)
    assert scene.marks(action_text(Action(ActionKind.WAIT), "so")) == [
        Mark("click", "expert: click", (100, 200), expert=True),
        Mark("click", "", box=(80, 180, 120, 220), expert=True),
        Mark("click", "", box=(0, 0, 10, 10), expert=True),
        Mark("wait", "wait"),
    ]


def test_a_drawing_holds_each_element_in_its_box_with_its_words() -> None:
    root = ElementTree.fromstring(svg(SCREEN))
    assert (root.get("width"), root.get("height")) == ("400", "200")
    boxes = {"".join(part.itertext()): part for part in root.findall(f"{SVG}svg")}
    assert set(boxes) == {"Send", "To: Ann", "All"}
    send = boxes["Send"]
    assert [send.get(name) for name in ("x", "y", "width", "height")] == ["100", "20", "80", "40"]


def test_whatever_stands_on_a_screen_the_drawing_is_svg_and_nothing_else() -> None:
    states = ('"><script>',)
    element = Element("1", HOSTILE, HOSTILE, Box(0, 0, 90, 20), HOSTILE, states)
    turned = element._replace(box=Box(30, 500, 10, 0))
    for screen in (Screen(100, 100, HOSTILE, (element, turned)), Screen(100, 100, HOSTILE)):
        root = ElementTree.fromstring(svg(screen).encode())
        assert {part.tag.removeprefix(SVG) for part in root.iter()} <= {"svg", "style", "rect", "text"}
        assert "<script>alert(1)</script>&" in "".join(root.itertext())


def test_options_of_a_closed_list_are_not_drawn_over_it() -> None:
    place, below = Box(0, 0, 90, 20), Box(0, 20, 90, 40)
    elements = (
        Element("1", "combobox", "Colour", place, "red"),
        Element("2", "option", "red", place),
        Element("3", "option", "blue", below),
    )
    drawn = "".join(ElementTree.fromstring(svg(Screen(100, 50, "", elements))).itertext())
    assert "Colour: red ▾" in drawn
    assert "blue" in drawn
    assert drawn.count("red") == 1


def test_a_long_text_is_wrapped_as_far_as_there_is_room() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve"
    tall = Element("1", "text", text, Box(0, 0, 100, 50))
    flat = Element("1", "text", text, Box(0, 0, 100, 20))
    assert len(list(ElementTree.fromstring(svg(Screen(100, 50, "", (tall,)))).iter(f"{SVG}text"))) == 2
    assert text in svg(Screen(100, 50, "", (flat,)))  # one line, cut by its box


@pytest.mark.parametrize(
    ("role", "states", "shown"),
    [
        ("checkbox", ("checked",), "☑ News"),
        ("switch", (), "☐ News"),
        ("radio", ("checked",), "◉ News"),
        ("textbox", (), "News: "),
        ("button", (), "News"),
    ],
)
def test_captions(role: str, states: tuple[str, ...], shown: str) -> None:
    assert caption(Element("1", role, "News", Box(0, 0, 1, 1), "", states)) == shown


def test_the_scene_of_the_desktop_is_its_tree_and_draws_no_pixels() -> None:
    env = DomSim(pixels=True)
    env.reset(seed=0)
    assert env.scene().screen is env.state.view.screen
    assert env.scene().screen.image is None
