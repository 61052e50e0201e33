"""Writes what `miniatures.py` found into the table of methods: the last column, how many rose, and when each ran.

    python benchmarks/miniatures_page.py

A cell has the figures of the presets of its row: before, after, and the paired difference with its 95 % interval.
Where there is none, `miniatures.toml` has the sentence that says why.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "methods.md"
RESULTS = HERE / "results" / "miniatures.json"
NOT_YET = "Not measured yet."
COUNTS = re.compile(r"\d+ miniatures ran: .*")
DAYS = re.compile(r"They ran on these days: .*")


def figure(row: Mapping[str, Any]) -> str:
    """Before and after, and the paired difference with its interval, as a cell shows them."""
    low, high = row["ci95"]
    gain = number(row["difference"])
    sign = "" if gain.startswith("-") else "+"
    return f"{number(row['before'])} → {number(row['after'])} ({sign}{gain} [{number(low)}, {number(high)}])"


def number(value: float) -> str:
    """Two decimals, without the zero before the point."""
    shown = f"{value:.2f}"
    return "0" if float(shown) == 0 else shown.replace("0.", ".", 1) if abs(value) < 0.995 else shown


def cell(method: str, presets: list[str], results: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """The last cell of the row of a method."""
    if method in said["methods"]:
        return str(said["methods"][method])
    if not presets:
        return "It has no preset."
    found = {name: _of_preset(name, results, said) for name in presets}
    if len(found) == 1:
        return next(iter(found.values()))
    several = [f"`{name}` {text}" for name, text in found.items()]
    return "; ".join([*(text.rstrip(".") for text in several[:-1]), several[-1]])


def _of_preset(name: str, results: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    if name in said["not_run"]:
        return str(said["not_run"][name])
    row = results["miniatures"].get(name)
    if row is None:
        return NOT_YET
    return figure(row) if "ci95" in row else f"It ended with an error: {row['error']}"


def counts(summary: Mapping[str, int]) -> str:
    """How many rose, and how many did not."""
    return (
        f"{summary['runs']} miniatures ran: {summary['rose']} rose and {summary['fell']} fell with an interval that "
        f"excludes zero, {summary['neither']} did neither."
    )


def days(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The presets of each day, the latest first; those of the day with the most runs are the others."""
    by_day: dict[str, list[str]] = {}
    for name, row in sorted(rows.items()):
        by_day.setdefault(row["date"], []).append(f"`{name}`")
    most = max(by_day, key=lambda day: (len(by_day[day]), day))
    named = [f"{', '.join(by_day[day])} on {day}" for day in sorted(by_day, reverse=True) if day != most]
    return f"They ran on these days: {'; '.join([*named, f'all others on {most}'])}."


def filled(page: str, results: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """``page`` with the last cell of each row, the counts and the days as ``results`` have them."""
    lines = []
    for line in page.splitlines():
        if line.startswith("| `"):
            cells = line.strip("| ").split(" | ")
            presets = [
                name.rpartition("/")[2].removesuffix(".toml") for name in re.findall(r"`([^`]+)`", cells[5])
            ]
            cells[6:] = [cell(cells[0].strip("`"), presets, results, said)]
            line = f"| {' | '.join(cells)} |"
        lines.append(line)
    text = COUNTS.sub(counts(results["summary"]), "\n".join(lines) + "\n")
    return DAYS.sub(days(results["miniatures"]), text)


def sentences() -> Mapping[str, Any]:
    """The sentences for what has no figure."""
    return tomllib.loads((HERE / "miniatures.toml").read_text(encoding="utf-8"))


if __name__ == "__main__":
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), measured, sentences()), encoding="utf-8")
