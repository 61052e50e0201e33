"""Covers where ticks, lines and whiskers stand, and that names cannot become markup."""

import re
import xml.etree.ElementTree as ET

import pytest

from agentenv.evaluation.report.charts import Curve, Level, level_chart, line_chart, ticks


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
    svg = level_chart([Level("before", 0.5, (0.25, 1.2)), Level("expert", 1.0, kind="bound")], width=410)
    root = ET.fromstring(svg)
    # The scale runs from 150 to 410 - 60 = 350; an end past 1 is cut there.
    assert [mark.get("cx") for mark in root.iter("circle")] == ["250.0", "350.0"]
    whisker = next(line for line in root.iter("line") if line.get("class") == "whisker")
    assert (whisker.get("x1"), whisker.get("x2")) == ("200.0", "350.0")


def test_names_are_escaped() -> None:
    name = '"><script>alert(1)</script>'
    for svg in (line_chart(Curve(name, (1, 2), (0, 1))), level_chart([Level(name, 0.5)])):
        assert "<script>" not in svg
        ET.fromstring(svg)
