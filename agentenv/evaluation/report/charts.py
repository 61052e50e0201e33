"""Charts as inline SVG, in the colours of the page (CSS classes instead of fixed colours), and one as a whole SVG file.

Lengths are in SVG user units; the page scales a chart to the width of its column.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log10

LEFT, RIGHT, TOP, BOTTOM = 42.0, 8.0, 8.0, 20.0  # margins around the plot
_SMALLEST = 1e-300  # smallest range that is drawn; logarithms and quotients of smaller ones underflow
_LONG = 1e7  # larger numbers are shown with a power of ten
_LABEL = 20  # number of characters that fit beside a row of a chart
_LEGEND = 20  # number of characters of a name that fit into a comparison of default width


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over the steps of a run."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    band: tuple[tuple[float, float], ...] = ()  # an interval for each value, or none at all


@dataclass(frozen=True, slots=True)
class Level:
    """One score, usually between 0 and 1; a reward may be any number."""

    label: str
    mean: float
    ci95: tuple[float, float] | None = None
    n: int | None = None
    kind: str = "run"  # "run" or "bound"
    scorer: str = ""  # name of the scorer, if known


@dataclass(frozen=True, slots=True)
class _Axis:
    """A linear map from [low, high] to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float) -> list[float]:
    """Returns about four round numbers within [low, high], with a distance of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 4
    power = 10.0 ** floor(log10(rough))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda m: abs(log10(m / rough)))
    first = -int(-low / step // 1)
    found = []
    while first * step <= high + step * 1e-9:
        found.append(round(first * step, 12))
        first += 1
    return found


def line_chart(curve: Curve, *, width: float = 340, height: float = 150) -> str:
    """Draws one curve with its band, axes with round numbers, and the points for the page's hover display."""
    extremes = [*curve.values, *(end for pair in curve.band for end in pair)]
    x = _Axis(*_widened(curve.steps[0], curve.steps[-1], 0), LEFT, width - RIGHT)
    y = _Axis(*_widened(min(extremes), max(extremes), 0.06), height - BOTTOM, TOP)
    places = [(x(step), y(value)) for step, value in zip(curve.steps, curve.values, strict=True)]
    parts = [_grid(x, y, width, height)]
    if curve.band:
        upper = [(x(step), y(pair[1])) for step, pair in zip(curve.steps, curve.band, strict=True)]
        lower = [(x(step), y(pair[0])) for step, pair in zip(curve.steps, curve.band, strict=True)]
        parts.append(f'<polygon class="band" points="{_points([*upper, *reversed(lower)])}"/>')
    parts.append(f'<polyline class="line" points="{_points(places)}"/>')
    if len(places) <= 40:
        parts += [f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="2"/>' for px, py in places]
    rows = [
        [round(px, 1), round(py, 1), step, value_text(value)]
        for (px, py), step, value in zip(places, curve.steps, curve.values, strict=True)
    ]
    data = escape(json.dumps(rows, separators=(",", ":")))
    said = (
        f"{curve.name} by step: {value_text(curve.values[0])} at step {curve.steps[0]:g}, "
        f"{value_text(curve.values[-1])} at step {curve.steps[-1]:g}, "
        f"between {value_text(min(curve.values))} and {value_text(max(curve.values))}"
    )
    return _svg(width, height, parts, said, f' data-points="{data}"')


def level_chart(levels: Sequence[Level], *, width: float = 860) -> str:
    """Draws scores on a common scale, one per row, with their intervals as whiskers.

    The scale is [0, 1], and is widened if a mean or an interval lies outside, as those of rewards may.
    """
    label_width, row = 150.0, 26.0
    height = row * len(levels) + 26
    places = [end for level in levels for end in (level.mean, *(level.ci95 or ()))]
    low, high = min(0.0, *places), max(1.0, *places)
    x = _Axis(low, high, label_width, width - 60)
    marked = (0, 0.25, 0.5, 0.75, 1) if (low, high) == (0, 1) else ticks(low, high)
    parts = [
        f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="4" y2="{height - 20:.1f}"/>'
        f'<text class="tick" x="{x(t):.1f}" y="{height - 6:.1f}" text-anchor="middle">{t:g}</text>'
        for t in marked
    ]
    for index, level in enumerate(levels):
        y = row * index + row / 2 + 4
        parts.append(f'<g class="{escape(level.kind)}">')
        parts.append(
            f'<text class="label" x="{label_width - 12:.0f}" y="{y + 4:.1f}" text-anchor="end">'
            f"{_label_of(level.label)}</text>"
        )
        if level.ci95:
            left, right = map(x, level.ci95)
            parts.append(
                f'<line class="whisker" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
            )
        parts.append(f'<circle class="mark" cx="{x(level.mean):.1f}" cy="{y:.1f}" r="5"/>')
        parts.append(
            f'<text class="value" x="{width - 48:.0f}" y="{y + 4:.1f}">{score_text(level.mean)}</text></g>'
        )
    return _svg(width, height, parts, "scores with 95 % intervals")


def comparison_chart(curves: Sequence[Curve], label: str) -> str:
    """Draws several curves with bands and a legend in one pair of axes, as a whole SVG file with its own colours.

    Args:
        curves: At least one curve with at least one point. Colours and dashes repeat after eight curves.
        label: The label of the x axis.
    """
    longest = max(len(curve.name) for curve in curves)
    width, height = 720.0 + 6.5 * max(0, longest - _LEGEND), max(320.0, 18.0 * len(curves) + 2 * BOTTOM)
    xs = [step for curve in curves for step in curve.steps]
    ys = [
        value for curve in curves for value in (*curve.values, *(end for pair in curve.band for end in pair))
    ]
    bottom, right = height - BOTTOM - 14, 720.0 - 170
    x = _Axis(*_widened(min(xs), max(xs), 0), LEFT, right)
    y = _Axis(*_widened(min(ys), max(ys), 0.06), bottom, TOP)
    parts = [
        _STYLE,
        '<rect width="100%" height="100%" fill="#fff"/>',
        _grid(x, y, right + RIGHT, bottom + BOTTOM),
    ]
    parts.append(
        f'<text class="tick" x="{(LEFT + right) / 2:.0f}" y="{height - 4:.0f}">{escape(label)}</text>'
    )
    for index, curve in enumerate(curves):
        colour, dash = _COLOURS[index % len(_COLOURS)], "" if index < 4 else ' stroke-dasharray="5 3"'
        parts.append(f'<g stroke="{colour}" fill="{colour}">{_curve_svg(curve, x, y, dash)}')
        at = TOP + 12 + 18 * index
        parts.append(
            f'<line x1="{right + 14}" x2="{right + 34}" y1="{at - 4}" y2="{at - 4}" stroke-width="2"{dash}/>'
        )
        parts.append(f'<text class="name" x="{right + 40}" y="{at}">{escape(curve.name)}</text></g>')
    return _svg(width, height, parts, label, ' xmlns="http://www.w3.org/2000/svg"')


_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#444444", "#7a5195")
_STYLE = (
    "<style>text{font:11px sans-serif}.tick{fill:#555}.name{stroke:none;fill:#222}"
    ".grid{stroke:#ddd}.line{fill:none;stroke-width:2}.band{stroke:none;opacity:.13}</style>"
)


def _curve_svg(curve: Curve, x: _Axis, y: _Axis, dash: str) -> str:
    """Draws band and line of a curve."""
    line = [(x(step), y(value)) for step, value in zip(curve.steps, curve.values, strict=True)]
    band = [(x(step), y(high)) for step, (_, high) in zip(curve.steps, curve.band, strict=False)]
    band += [(x(step), y(low)) for step, (low, _) in zip(curve.steps, curve.band, strict=False)][::-1]
    area = f'<polygon class="band" points="{_points(band)}"/>' if band else ""
    if len(line) == 1:
        return f'<circle cx="{line[0][0]:.1f}" cy="{line[0][1]:.1f}" r="4"/>'
    return f'{area}<polyline class="line" points="{_points(line)}"{dash}/>'


def _grid(x: _Axis, y: _Axis, width: float, height: float) -> str:
    parts = []
    for tick in ticks(y.low, y.high):
        at = y(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{LEFT - 5}" y="{at + 3:.1f}" text-anchor="end">{tick:g}</text>'
        )
    for tick in filter(float.is_integer, ticks(x.low, x.high)):  # steps and tokens are whole numbers
        parts.append(
            f'<text class="tick" x="{x(tick):.1f}" y="{height - 5}" text-anchor="middle">{tick:g}</text>'
        )
    return "".join(parts)


def _widened(low: float, high: float, share: float) -> tuple[float, float]:
    """Returns the range with a margin, and wide enough that floats can resolve it, even for a constant."""
    if high - low > max(1e-12 * max(abs(low), abs(high)), _SMALLEST):
        return low - share * (high - low), high + share * (high - low)
    half = abs(low) / 2 or 0.5
    return low - half, high + half


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def value_text(value: float) -> str:
    """Formats a value for the page: three significant digits, or all digits before the point if there are more."""
    return f"{value:.0f}" if 1000 <= abs(value) < _LONG else f"{value:.3g}"


def score_text(value: float) -> str:
    """Formats a score with three decimals, unless that is long."""
    return f"{value:.3f}" if abs(value) < _LONG else f"{value:.3g}"


def _label_of(name: str) -> str:
    """Shortens a name to fit beside its row; the title has the whole name, because names often differ only at their ends."""
    if len(name) <= _LABEL:
        return escape(name)
    short = f"{name[: _LABEL // 2 - 1]}\u2026{name[-_LABEL // 2 :]}"
    return f"{escape(short)}<title>{escape(name)}</title>"


def _svg(width: float, height: float, parts: Sequence[str], label: str, attributes: str = "") -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}"'
        f"{attributes}>{''.join(parts)}</svg>"
    )
