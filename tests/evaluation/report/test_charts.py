"""Covers where ticks, lines and whiskers stand, and that names cannot become markup."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from agentenv.evaluation.report.charts import Curve, Level, comparison_chart, level_chart, line_chart, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),  # 1/4 lies nearer to .2 than to .5 as a ratio
        (1, 100, [20, 40, 60, 80, 100]),
        (-0.1, 0.1, [-0.1, -0.05, 0, 0.05, 0.1]),
        (0.6, 0.87, [0.6, 0.65, 0.7, 0.75, 0.8, 0.85]),
    ],
)
def test_ticks_are_round_and_inside(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_line_runs_from_edge_to_edge_and_up() -> None:
    svg = line_chart(Curve("em", (0, 5, 10), (0.0, 0.5, 1.0)), width=150, height=128)
    line = ET.fromstring(svg).find("polyline")
    assert line is not None
    # x from 42 to 150 - 8 = 142. y over [-.06, 1.06] from 108 up to 8: 0 at 108 - 100 * .06/1.12 = 102.64.
    assert line.get("points") == "42.0,102.6 92.0,58.0 142.0,13.4"


def test_a_band_goes_up_one_side_and_back_the_other() -> None:
    svg = line_chart(Curve("em", (0, 10), (0.5, 0.5), ((0.0, 1.0), (0.0, 1.0))), width=150, height=128)
    band = ET.fromstring(svg).find("polygon")
    assert band is not None
    assert band.get("points") == "42.0,13.4 142.0,13.4 142.0,102.6 42.0,102.6"


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0])
def test_a_constant_has_a_place_to_stand(value: float) -> None:
    svg = line_chart(Curve("loss", (1, 2), (value, value)), height=128)
    line = ET.fromstring(svg).find("polyline")
    assert line is not None
    assert re.findall(r",([\d.]+)", line.get("points", "")) == ["58.0", "58.0"]  # the middle of 8..108


def test_levels_stand_on_a_scale_from_zero_to_one() -> None:
    svg = level_chart([Level("before", 0.5, (0.25, 1.0)), Level("expert", 1.0, kind="bound")], width=410)
    root = ET.fromstring(svg)
    # The scale runs from 150 to 410 - 60 = 350.
    assert [mark.get("cx") for mark in root.iter("circle")] == ["250.0", "350.0"]
    whisker = next(line for line in root.iter("line") if line.get("class") == "whisker")
    assert (whisker.get("x1"), whisker.get("x2")) == ("200.0", "350.0")


def test_rewards_beyond_zero_and_one_stand_where_they_are() -> None:
    """The scale runs from -3 at 150 to 7 at 350, so a unit is 20 long."""
    levels = [Level("run", 2.0, (-3.0, 7.0)), Level("expert", 6.5, kind="bound"), Level("worst", -2.0)]
    root = ET.fromstring(level_chart(levels, width=410))
    assert [mark.get("cx") for mark in root.iter("circle")] == ["250.0", "340.0", "170.0"]
    whisker = next(line for line in root.iter("line") if line.get("class") == "whisker")
    assert (whisker.get("x1"), whisker.get("x2")) == ("150.0", "350.0")
    assert [text.text for text in root.iter("text") if text.get("class") == "tick"] == [
        "-2",
        "0",
        "2",
        "4",
        "6",
    ]


def test_a_long_name_is_cut_in_the_middle_and_kept_whole_as_a_title() -> None:
    name = "laptop-search-with-a-longer-name-seed-3"
    root = ET.fromstring(level_chart([Level(name, 0.5)]))
    label = next(text for text in root.iter("text") if text.get("class") == "label")
    assert label.text == "laptop-se\u2026ame-seed-3"
    assert label.findtext("title") == name


@pytest.mark.parametrize(
    "values",
    [
        (0.0, 5e-324),
        (1.0, 1.0 + 2e-16),
        (1e300, 1.1e300),
        (-1e300, 1e300),
        (1e-310, 2e-310),
        (1e15, 1e15 + 1),
    ],
)
def test_extreme_values_have_short_labels(values: tuple[float, float]) -> None:
    root = ET.fromstring(line_chart(Curve("loss", (1, 2), values)))
    assert all(len(text.text or "") <= 12 for text in root.iter("text"))
    assert all(len(row[3]) <= 12 for row in json.loads(root.get("data-points", "")))


def test_neighbouring_ticks_have_different_labels_and_steps_are_whole() -> None:
    root = ET.fromstring(line_chart(Curve("entropy", (1, 2, 3), (0.6931, 0.6934, 0.6939))))
    texts = list(root.iter("text"))
    across = [text.text or "" for text in texts if text.get("text-anchor") == "middle"]
    up = [text.text or "" for text in texts if text.get("text-anchor") == "end"]
    assert across == ["1", "2", "3"]
    assert len(set(up)) == len(up) > 2


def test_what_a_curve_shows_is_also_said() -> None:
    said = ET.fromstring(line_chart(Curve("kl", (1, 5, 9), (0.25, 4.0, 0.5)))).get("aria-label")
    assert said == "kl by step: 0.25 at step 1, 0.5 at step 9, between 0.25 and 4"


def test_a_comparison_shows_a_single_point_and_whole_names() -> None:
    name = "a strategy with a long name, and a colder policy (12)"
    curves = [
        Curve(name, (10.0,), (0.5,), ((0.5, 0.5),)),
        *(Curve(str(i), (5, 20), (0, i)) for i in range(20)),
    ]
    root = ET.fromstring(comparison_chart(curves, "tokens"))
    svg = "{http://www.w3.org/2000/svg}"
    width, height = map(float, root.get("viewBox", "").split()[2:])
    names = [text for text in root.iter(f"{svg}text") if text.get("class") == "name"]
    assert all(float(text.get("x", "")) + 6.5 * len(text.text or "") < width + 5 for text in names)
    assert all(float(text.get("y", "")) < height - 20 for text in names)
    (point,) = root.iter(f"{svg}circle")
    assert 42 < float(point.get("cx", "")) < 550  # between 5 and 20


def test_names_are_escaped() -> None:
    name = '"><script>alert(1)</script>'
    for svg in (line_chart(Curve(name, (1, 2), (0, 1))), level_chart([Level(name, 0.5)])):
        assert "<script>" not in svg
        ET.fromstring(svg)
