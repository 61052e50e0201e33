"""Screens: sizes for models by hand, what lies at a place, JSON and back, images as message parts."""

import io
import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.envs.gui.actions import Action, ActionKind
from agentenv.envs.gui.observation import ScreenFormat, opening, usage
from agentenv.envs.gui.recordings import load_recordings
from agentenv.envs.gui.screen import (
    Box,
    Element,
    Screen,
    at_caret,
    from_json,
    image_part,
    pointed,
    resized,
    to_json,
)
from agentenv.errors import ConfigurationError, DatasetError, EnvFault

FIELD = Element("1", "textbox", "Name", Box(0, 0, 100, 20), 'Ann "A"', ("focused",))
PANEL = Element("2", "group", "Form", Box(0, 0, 200, 100))
SCREEN = Screen(200, 100, "demo", (FIELD, PANEL))


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((1080, 2400), (1092, 2408)),  # 38.57 and 85.7 squares, rounded
        ((28, 28), (56, 56)),  # 1 square, grown to 4
        ((672, 448), (672, 448)),
        ((10_000, 10_000), (3164, 3164)),  # 113 x 113 = 12,769 squares; 114 x 114 would be 12,996
    ],
)
def test_sizes_for_models(size: tuple[int, int], shown: tuple[int, int]) -> None:
    assert resized(*size) == shown


@given(st.integers(1, 9000), st.integers(1, 9000))
def test_resized_images_hold_4_to_12800_squares(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(ConfigurationError):
            resized(width, height)
        return
    w, h = resized(width, height)
    assert w % 28 == 0
    assert h % 28 == 0
    assert 4 <= w * h / 784 <= 12_800


def test_the_smallest_element_lies_at_a_place() -> None:
    assert SCREEN.at((50, 10)) == FIELD
    assert SCREEN.at((150, 50)) == PANEL
    assert SCREEN.at((500, 50)) is None
    assert pointed(Action(ActionKind.CLICK, id="1"), SCREEN).point == (50, 10)
    assert pointed(Action(ActionKind.CLICK, id="9"), SCREEN).point is None


def test_a_text_without_a_target_is_typed_where_the_caret_is() -> None:
    field = Element("1", "textbox", "Name", Box(0, 0, 100, 20), states=("focused",))
    screen, typed = Screen(200, 100, elements=(field,)), Action(ActionKind.TYPE, text="Ann")
    assert at_caret(typed, screen).point == (50, 10)
    assert at_caret(Action(ActionKind.TYPE, text="Ann", point=(9, 9)), screen).point == (9, 9)
    assert at_caret(typed, Screen(200, 100)) == typed
    assert at_caret(Action(ActionKind.WAIT), screen).point is None


def test_the_tree_as_text() -> None:
    assert SCREEN.as_text() == (
        "Screen 200x100: demo\n"
        '[1] textbox "Name" = "Ann \\"A\\"" (focused) at 50,10\n'
        '[2] group "Form" at 100,50'
    )
    assert SCREEN.at_size(400, 100).element("1") == FIELD._replace(box=Box(0, 0, 200, 20))


@pytest.mark.parametrize(
    "screen", [SCREEN, Screen(5, 6), SCREEN.with_image(b"abc"), SCREEN.with_image(Path("a.png"))]
)
def test_json_and_back(screen: Screen) -> None:
    assert from_json(to_json(screen)) == screen


def test_an_image_becomes_a_resized_part(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    held = io.BytesIO()
    image.new("RGB", (100, 50), "red").save(held, "PNG")
    part = image_part(held.getvalue())
    assert image.open(io.BytesIO(part.image)).size == (112, 56)
    message = ScreenFormat(tree=False, pixels=True).message(SCREEN.with_image(held.getvalue()), "look")
    assert message.text == "look\n"
    (tmp_path / "bad.png").write_bytes(b"no image")
    for bad in (tmp_path / "bad.png", tmp_path / "none.png", b"no image"):
        with pytest.raises(EnvFault, match="screenshot"):
            image_part(bad)


def test_a_picture_that_is_damaged_or_as_large_as_memory_is_one_sentence(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    held = io.BytesIO()
    image.new("RGB", (100, 50), "red").save(held, "PNG")
    good = held.getvalue()
    header = b"IHDR" + (60_000).to_bytes(4, "big") * 2 + good[24:29]
    large = good[:12] + header + zlib.crc32(header).to_bytes(4, "big") + good[33:]
    damaged = good[:37] + b"\x01\x02\x03\x04" + good[41:]  # the name of a part that is none
    (tmp_path / "large.png").write_bytes(large)
    for bad in (large, damaged, tmp_path / "large.png"):
        with pytest.raises(EnvFault, match="screenshot"):
            image_part(bad)
    row = {
        "goal": "g",
        "steps": [{"action_content": {"action": "wait", "time": 1}, "screenshot": "large.png"}],
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(row))
    with pytest.raises(DatasetError, match=r"large\.png"):
        load_recordings(tmp_path / "runs.jsonl", screenshots=tmp_path)


def test_the_opening_says_what_can_be_done() -> None:
    assert usage(ActionKind.TYPE) == "type(text, [id|coordinate])"
    assert opening("Win.", [ActionKind.WAIT], "id", "{goal} {actions} {example}") == (
        'Win. wait([time]) {"action": "click", "id": 3}'
    )
