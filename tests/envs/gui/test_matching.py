"""Matchers: each rule of each preset by hand, the published mistakes of ``ui_s1`` included."""

import pytest

from agentenv.envs.gui.actions import Action, ActionKind, Direction
from agentenv.envs.gui.matching import (
    MATCHERS,
    Gold,
    finger_direction,
    get_matcher,
    token_f1,
    words_match,
)
from agentenv.envs.gui.screen import Box
from agentenv.errors import UnknownName

SIZE = (1000, 2000)


def click(x: float, y: float) -> Action:
    return Action(ActionKind.CLICK, point=(x, y))


def swipe(x1: float, y1: float, x2: float, y2: float) -> Action:
    return Action(ActionKind.SWIPE, point=(x1, y1), end=(x2, y2))


def exact(preset: str, predicted: Action, gold: Gold) -> bool:
    return get_matcher(preset)(predicted, gold, SIZE).exact


def test_a_click_counts_within_radius_or_box() -> None:
    gold = Gold(click(500, 1000), SIZE)
    # agentenv: 0.04 of the shorter side, 40 px, both ways
    assert exact("agentenv", click(539, 1000), gold)
    assert not exact("agentenv", click(541, 1000), gold)
    assert not exact("agentenv", click(500, 1041), gold)
    # ui_s1: 0.04 of each side, 40 px across and 80 px down
    assert exact("ui_s1", click(500, 1079), gold)
    assert not exact("ui_s1", click(541, 1000), gold)
    # odyssey: 0.14 of each side
    assert exact("odyssey", click(500, 1279), gold)
    assert not exact("odyssey", click(641, 1000), gold)


def test_the_smallest_box_counts_and_a_large_one_does_not() -> None:
    small, large = Box(400, 900, 600, 1100), Box(0, 0, 1000, 2000)
    gold = Gold(click(500, 1000), SIZE, (large, small))
    # enlarged 1.2 times: 380 to 620
    assert exact("agentenv", click(381, 1000), gold)
    assert not exact("agentenv", click(379, 1000), gold)
    assert exact("ui_s1", click(1, 1), gold)  # any box, the whole screen too
    assert not exact("agentenv", click(300, 1000), Gold(click(500, 1000), SIZE, (large,)))
    elsewhere = Gold(click(500, 1000), SIZE, (Box(0, 0, 100, 100),))
    assert not exact("agentenv", click(50, 50), elsewhere)  # a box without the expert's point
    assert exact("odyssey", click(50, 50), elsewhere)


def test_the_radius_counts_only_where_no_box_can_be_trusted() -> None:
    gold = Gold(click(500, 1000), SIZE, (Box(490, 990, 510, 1010),))
    # enlarged 1.2 times: 488 to 512; the radius of 40 px would reach the next element
    assert exact("agentenv", click(512, 1000), gold)
    assert not exact("agentenv", click(513, 1000), gold)
    assert exact("ui_s1", click(539, 1000), gold)  # as released: in a box or near the point
    large = Gold(click(500, 1000), SIZE, (Box(0, 0, 1000, 501), Box(0, 499, 1000, 1001)))
    assert exact("agentenv", click(539, 1000), large)  # the box is .251 of the screen
    assert not exact("agentenv", click(541, 1000), large)


@pytest.mark.parametrize("x", [37, 113, 359, 540])
def test_a_click_on_the_edge_of_a_box_is_in_it(x: int) -> None:
    """Edges belong to a box; the screen is one on which shares of its sides are no round numbers."""
    size = (1080, 2400)
    box = Box(x - 35, 473, x + 35, 2337)
    inside = [click(x, 473), click(x, 2337), click(x - 35, 1405), click(x + 35, 1405)]
    gold = Gold(click(x, 1405), size, (box,))
    assert all(MATCHERS["odyssey"](one, gold, size).exact for one in inside)
    assert not MATCHERS["odyssey"](click(x, 472), gold, size).exact
    # agentenv enlarges it 1.2 times: 42 pixels to either side
    edges = [click(x - 42, 1405), click(x + 42, 1405)]
    assert all(MATCHERS["agentenv"](one, gold, size).exact for one in edges)
    assert not MATCHERS["agentenv"](click(x + 43, 1405), gold, size).exact


def test_what_is_just_as_far_or_as_long_as_allowed_counts() -> None:
    size = (1080, 2400)
    gold = Gold(click(540, 1296), size)
    assert MATCHERS["ui_s1"](click(540, 1200), gold, size).exact  # .04 of the height is 96 pixels
    assert not MATCHERS["ui_s1"](click(540, 1199), gold, size).exact
    across = Gold(swipe(270, 1200, 810, 1200), size)
    assert MATCHERS["agentenv"](
        swipe(270, 1200, 324, 1200), across, size
    ).exact  # .05 of the width is 54 pixels
    assert MATCHERS["agentenv"](swipe(270, 1200, 323, 1200), across, size).reason == "too short a swipe"


def test_four_boxes_are_four_boxes_except_as_released() -> None:
    boxes = tuple(Box(i * 10, 0, i * 10 + 10, 10) for i in range(4))
    gold = Gold(click(5, 5), SIZE, boxes)
    assert exact("agentenv", click(5, 5), gold)
    assert MATCHERS["ui_s1"](click(5, 5), gold, SIZE).reason == "four boxes are read as one"


def test_predictions_are_in_pixels_of_the_shown_screen() -> None:
    gold = Gold(click(500, 1000), SIZE)
    assert MATCHERS["agentenv"](click(250, 500), gold, (500, 1000)).exact
    assert not MATCHERS["agentenv"](click(500, 1000), gold, (500, 1000)).exact


@pytest.mark.parametrize(
    ("predicted", "gold", "close", "contained", "anls"),
    [
        ("Teapot", "  teapot ", True, True, True),
        ("", "teapot", False, True, False),  # nothing is contained in everything
        ("t", "teapot", False, True, True),
        ("a b c d e", "a b c d f", True, False, True),  # F1 4/5
        ("a b c", "a b d", False, False, True),  # F1 2/3; one of five characters differs
        ("ﬁle", "file", True, False, True),  # NFKC
        ("abcd", "wxyz", False, False, False),
    ],
)
def test_words(predicted: str, gold: str, close: bool, contained: bool, anls: bool) -> None:
    assert words_match(predicted, gold, "close") is close
    assert words_match(predicted, gold, "contained") is contained
    assert words_match(predicted, gold, "anls") is anls


@pytest.mark.parametrize("kind", [ActionKind.TYPE, ActionKind.SELECT])
def test_a_text_goes_to_the_field_that_the_expert_names(kind: ActionKind) -> None:
    name, town = Box(100, 100, 300, 140), Box(100, 200, 300, 240)
    gold = Gold(Action(kind, text="Ann", point=name.centre), SIZE, (name,))
    right, wrong = (Action(kind, text="Ann", point=box.centre) for box in (name, town))
    assert exact("agentenv", right, gold)
    assert MATCHERS["agentenv"](wrong, gold, SIZE).reason == "other place"
    assert (
        MATCHERS["agentenv"](Action(kind, text="Bob", point=name.centre), gold, SIZE).reason == "other text"
    )
    assert MATCHERS["agentenv"](Action(kind, text="Ann"), gold, SIZE).reason == "no place"
    assert exact("agentenv", wrong, Gold(Action(kind, text="Ann"), SIZE))  # recordings of UI-S1 name no field
    assert all(exact(preset, wrong, gold) for preset in ("ui_s1", "ui_s1_sop", "odyssey"))  # as released


def test_measures_of_words_by_hand() -> None:
    assert token_f1("a a b", "a b b") == pytest.approx(2 / 3)
    assert token_f1("", "") == 1


def test_a_swipe_is_what_the_finger_does() -> None:
    up, down = swipe(500, 1500, 500, 500), swipe(500, 500, 500, 1500)
    assert (finger_direction(up, SIZE), finger_direction(down, SIZE)) == ("up", "down")
    assert finger_direction(swipe(100, 100, 300, 400), SIZE) == "right"  # a fifth across, 0.15 down
    assert finger_direction(swipe(5, 5, 5, 5), SIZE) is None
    assert exact("agentenv", up, Gold(up, SIZE, declared="down"))
    assert not exact("agentenv", down, Gold(up, SIZE, declared="down"))
    short = swipe(500, 1000, 500, 950)
    assert MATCHERS["agentenv"](short, Gold(up, SIZE), SIZE).reason == "too short a swipe"


def test_a_short_swipe_of_the_expert_is_matched_by_itself_and_by_longer_ones() -> None:
    short = swipe(500, 1000, 500, 940)  # .03 of the height, where .05 is asked of a swipe otherwise
    gold = Gold(short, SIZE)
    assert exact("agentenv", short, gold)
    shown = (336, 672)
    assert MATCHERS["agentenv"](swipe(168, 336, 168, 316), gold, shown).exact  # in whole pixels of that size
    assert exact("agentenv", swipe(500, 1500, 500, 500), gold)
    assert exact("agentenv", swipe(5, 5, 5, 5), Gold(swipe(9, 9, 9, 9), SIZE))  # a recording may hold one
    assert MATCHERS["agentenv"](swipe(500, 1000, 500, 990), gold, SIZE).reason == "too short a swipe"
    assert MATCHERS["agentenv"](swipe(500, 500, 500, 1500), gold, SIZE).reason == "other direction"


def test_ui_s1_fails_its_own_vertical_swipes_where_no_direction_is_declared() -> None:
    up, right = swipe(500, 1500, 500, 500), swipe(100, 500, 900, 500)
    assert exact("ui_s1", up, Gold(up, SIZE, declared="down"))
    assert MATCHERS["ui_s1"](up, Gold(up, SIZE), SIZE).reason == "other direction"
    assert exact("ui_s1", right, Gold(right, SIZE))


def test_the_released_measure_of_ui_s1_takes_any_swipe_and_a_click_that_opens() -> None:
    up, right = swipe(500, 1600, 500, 400), swipe(100, 1000, 900, 1000)
    assert exact("ui_s1_sop", right, Gold(up, SIZE))
    assert not exact("ui_s1_sop", click(500, 1000), Gold(up, SIZE))
    opened = Gold(Action(ActionKind.OPEN, text="Mail"), SIZE, (Box(400, 900, 600, 1100),))
    assert exact("ui_s1_sop", Action(ActionKind.OPEN, text="mail app"), opened)
    verdicts = [
        MATCHERS["ui_s1_sop"](click(x, 1000), opened, SIZE) for x in (381, 379)
    ]  # enlarged: 380 to 620
    assert [(v.type_ok, v.exact, v.reason) for v in verdicts] == [
        (True, True, ""),
        (False, False, "other place"),
    ]
    assert not exact("ui_s1", click(500, 1000), opened)
    assert not exact(
        "ui_s1_sop", click(500, 1000), Gold(opened.action, SIZE)
    )  # without an icon that is known


@pytest.mark.parametrize("kind", [ActionKind.ANSWER, ActionKind.KEY, ActionKind.TERMINATE])
def test_the_released_measure_of_ui_s1_has_no_rule_for_some_kinds(kind: ActionKind) -> None:
    said = Action(kind, text="success")
    assert MATCHERS["ui_s1_sop"](said, Gold(said, SIZE), SIZE).reason == f"{kind} has no rule"


def test_ui_s1_fails_its_own_answers_and_keys() -> None:
    for kind in (ActionKind.ANSWER, ActionKind.KEY):
        said = Action(kind, text="12")
        assert exact("agentenv", said, Gold(said, SIZE))
        assert MATCHERS["ui_s1"](said, Gold(said, SIZE), SIZE).reason == f"{kind} for type"


def test_choices_and_kinds() -> None:
    done, failed = Action(ActionKind.TERMINATE, text="success"), Action(ActionKind.TERMINATE, text="failure")
    assert not exact("agentenv", failed, Gold(done, SIZE))
    assert exact("ui_s1", failed, Gold(done, SIZE))
    back = Gold(Action(ActionKind.SYSTEM_BUTTON, text="Back"), SIZE)
    assert exact("agentenv", Action(ActionKind.SYSTEM_BUTTON, text="back"), back)
    assert not exact("ui_s1", Action(ActionKind.SYSTEM_BUTTON, text="Home"), back)
    assert exact("agentenv", Action(ActionKind.WAIT, time=9), Gold(Action(ActionKind.WAIT, time=2), SIZE))
    verdict = MATCHERS["agentenv"](click(1, 1), back, SIZE)
    assert (verdict.type_ok, verdict.exact, verdict.reason) == (False, False, "click for system_button")


def test_scrolls_drags_and_missing_places() -> None:
    down = Action(ActionKind.SCROLL, direction="down")
    assert exact("agentenv", down, Gold(down, SIZE))
    assert not exact("agentenv", Action(ActionKind.SCROLL, direction="up"), Gold(down, SIZE))
    drag = Action(ActionKind.DRAG, point=(100, 100), end=(900, 900))
    assert exact("agentenv", drag, Gold(drag, SIZE))
    assert not exact("agentenv", Action(ActionKind.DRAG, point=(100, 100), end=(500, 900)), Gold(drag, SIZE))
    assert (
        MATCHERS["agentenv"](Action(ActionKind.CLICK, id="4"), Gold(click(1, 1), SIZE), SIZE).reason
        == "no place"
    )


def scroll(direction: Direction, x: float | None = None, y: float = 500) -> Action:
    return Action(ActionKind.SCROLL, direction=direction, point=None if x is None else (x, y))


@pytest.mark.parametrize(
    ("predicted", "reason"),
    [
        (scroll("down", 300), ""),  # elsewhere in the list
        (scroll("up", 300), "other direction"),
        (scroll("down", 820), "other place"),  # another list, right beside it
        (scroll("down"), "no place"),
    ],
    ids=str,
)
def test_a_scroll_has_to_be_of_what_the_expert_scrolls(predicted: Action, reason: str) -> None:
    """The list of the expert takes two fifths of the screen; released matchers have no such target."""
    gold = Gold(scroll("down", 400), SIZE, boxes=(Box(0, 0, 800, 1000),))
    assert MATCHERS["agentenv"](predicted, gold, SIZE).reason == reason
    assert exact("odyssey", predicted, gold) == (reason != "other direction")
    free = Gold(scroll("down"), SIZE)
    assert exact("agentenv", predicted, free) == (reason != "other direction")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="ui_s1"):
        get_matcher("ui_s2")
