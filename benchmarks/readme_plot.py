"""Draws the picture of the README from the published results of the main training run.

    python benchmarks/readme_plot.py

reads ``benchmarks/results/make_train.json`` and writes ``docs/images/make_train.svg``.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentenv.evaluation.report.charts import Level, level_chart

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "make_train.json"
PICTURE = ROOT / "docs" / "images" / "make_train.svg"
_STYLE = (
    "<style>text{font:12px sans-serif;fill:#222}.tick{fill:#666;font-size:10px}.grid{stroke:#ddd}"
    ".mark{fill:#0072b2}.whisker{stroke:#0072b2;stroke-width:3;stroke-linecap:round;opacity:.45}"
    ".bound .mark{fill:#999}.bound .whisker{stroke:#999}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)


def levels(results: Mapping[str, Any]) -> list[Level]:
    """The score before training, and the score after training with each seed."""
    seeds = results["seeds"]
    first = next(iter(seeds.values()))["before"]
    before = Level("before training", first["mean"], tuple(first["ci95"]), kind="bound")
    after = [
        Level(f"after, seed {seed}", run["after"]["mean"], tuple(run["after"]["ci95"]))
        for seed, run in seeds.items()
    ]
    return [before, *after]


def picture(results: Mapping[str, Any]) -> str:
    """A whole SVG file with colours of its own, which any page can show."""
    chart = level_chart(levels(results), width=640)
    head, _, body = chart.partition(">")
    return f'{head} xmlns="http://www.w3.org/2000/svg">{_STYLE}{body}\n'


if __name__ == "__main__":
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_text(picture(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    print(PICTURE)
