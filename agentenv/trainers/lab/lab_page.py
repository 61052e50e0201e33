"""The page of an experiment as Markdown, made of its figures alone: claim, measure, what came out, and with what power.

Figures of earlier versions lack parts; a page is made of what is there and says what is not.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from agentenv.core.io.files import write_text
from agentenv.evaluation.report.charts import Curve, comparison_chart
from agentenv.evaluation.statistics.intervals import welch_interval
from agentenv.evaluation.statistics.sequential import Verdict
from agentenv.trainers.lab.figures import figures_of
from agentenv.trainers.lab.lab import Experiment
from agentenv.trainers.lab.measures import MEASURES, Json, curve
from agentenv.trainers.lab.trials import finished

COLUMNS = {
    "after": "after", "after, with the strategy": "after_with_strategy", "mean of dev": "dev_mean",
    "sampled tokens": "sampled_tokens",
    "turns": "turns", "searches": "searches", "turns a right answer": "turns_per_right",
    "searches a right answer": "searches_per_right", "tokens a right answer": "tokens_per_right",
}  # fmt: skip
"""Columns of the table of arms after ``compared``, by their titles."""


def write_page(name: str, experiment: Experiment, out: Path) -> Json:
    """Writes ``NAME.md``, ``NAME.svg`` and ``NAME.json`` into the folder of its runs, as far as the experiment has got.

    Returns:
        The content of ``NAME.json``.
    """
    runs = finished(experiment, out)
    figures = figures_of(name, experiment, out)
    out.mkdir(parents=True, exist_ok=True)
    curves = [mean_curve(arm, of_arm) for arm, of_arm in runs.items() if of_arm]
    if curves:
        write_text(out / f"{name}.svg", comparison_chart(curves, "sampled tokens; dev score") + "\n")
    figures["drawn"] = bool(curves)
    write_text(out / f"{name}.json", json.dumps(figures, indent=1) + "\n")
    write_text(out / f"{name}.md", page(figures))
    return figures


def mean_curve(arm: str, runs: Sequence[Json]) -> Curve:
    """Mean dev score over mean sampled tokens at each evaluation, with the lowest and highest seed as the band."""
    shortest = min((curve(run) for run in runs), key=len)
    points = [[curve(run)[i] for run in runs] for i in range(len(shortest))]
    values = [[value for _, _, value in seeds] for seeds in points]
    return Curve(
        f"{arm} ({len(runs)})",
        tuple(fmean(used for _, used, _ in seeds) for seeds in points),
        tuple(map(fmean, values)),
        tuple((min(mine), max(mine)) for mine in values),
    )


def measure_title(figures: Json, key: str = "claim_measure") -> str:
    """What tests the claim, or what the runs compared (``measure``), for people."""
    return MEASURES[figures[key]].title.format(level=figures["level"])


def page(figures: Json) -> str:
    """The page of an experiment in Markdown."""
    name = figures["name"]
    lines = [
        f"# {figures['title']}",
        f"*Claim.* {figures['claim']}" + (f" ({figures['paper']})" if figures["paper"] else ""),
        f"*Measure.* The claim is tested by the {measure_title(figures)}; {figures['better']} is better."
        f"{_expected(figures)}",
        *([figures["setup"]] if figures["setup"] else []),
        _plan(figures),
        *figures.get("remarks", ()),
        *([f"![dev scores by sampled tokens]({name}.svg)"] if figures["drawn"] else []),
        _table(figures),
        *filter(None, [_tests(figures), _front(figures)]),
        _verdicts(figures),
        _foundations(figures),
    ]
    return "\n\n".join(lines) + "\n"


def _expected(figures: Json) -> str:
    """Which differences and which equivalences the claim is about."""
    pairs = ", ".join(f"{first} above {second}" for first, second in figures["expects"])
    if figures["better"] == "lower":
        pairs = pairs.replace(" above ", " below ")
    same = ", ".join(
        f"{one['first']} and {one['second']} within {one['margin']:g} of each other "
        f"({MEASURES[one['measure']].title.format(level=figures['level'])})"
        for one in figures["equivalences"]
    )
    said = " and ".join(filter(None, [pairs, same]))
    expected = f" It expects {said}." if said else ""
    if figures["claim_measure"] == figures["measure"]:
        return expected
    return (
        f"{expected} The test of these runs compared something else: the {measure_title(figures, 'measure')}."
    )


def _plan(figures: Json) -> str:
    plan, name, missing = figures["plan"], figures["name"], figures["missing_runs"]
    state = (
        f"{missing} runs are still missing before the next interim analysis."
        if missing
        else "All runs are complete."
    )
    return (
        f"Each arm has up to {plan['per_interim'] * plan['interims']} seeds, with an interim analysis after every "
        f"{plan['per_interim']} (AdaStop, and two one-sided tests where arms are expected to be alike; error level "
        f"{plan['alpha']:g} over all comparisons). Tests and intervals (Student's, 95 %) are over seeds alone: the start "
        "and the test tasks are the same in every run. An arm whose seeds all score the same has no interval. "
        f"{state} `agentenv lab run {name}` made this page; the arms are in "
        f"`agentenv/trainers/experiments/{name}.toml`, and all numbers in [{name}.json]({name}.json)."
    )


def _table(figures: Json) -> str:
    arms = figures["arms"]
    measured = {
        title: key
        for title, key in {"compared": "measure", **COLUMNS}.items()
        if any(row.get(key, {}).get("values") for row in arms.values())
    }
    played = list(dict.fromkeys(name for row in arms.values() for name in row.get("played", {})))
    head = " | ".join(["arm", "seeds", *measured, *(name.replace("_", " ") for name in played)])
    rows = [*_start_rows(arms, [*measured.values()], played)]
    for arm, row in arms.items():
        cells = [
            *(cell(row.get(key)) for key in measured.values()),
            *(cell(row.get("played", {}).get(name)) for name in played),
        ]
        rows.append(" | ".join([arm, str(len(row["measure"]["values"])), *cells]))
    rule = "---|" * (2 + len(measured) + len(played))
    return "\n".join([f"| {head} |", f"|{rule}", *(f"| {row} |" for row in rows)])


def _start_rows(arms: Mapping[str, Json], keys: Sequence[str], played: Sequence[str]) -> list[str]:
    """One row for each start that differs from the others, in the columns in which the arms are."""
    alike: dict[str, list[str]] = {}
    for arm, row in arms.items():
        if start := row.get("start"):
            entries = [_number(start.get(key)) for key in keys]
            entries += [_number(start.get("played", {}).get(name)) for name in played]
            alike.setdefault(" | ".join(["", *entries]), []).append(arm)
    if len(alike) == 1:
        return [f"start |{cells}" for cells in alike]
    return [f"start of {', '.join(names)} |{cells}" for cells, names in alike.items()]


def _tests(figures: Json) -> str:
    """What every start and every result scores under every condition."""
    arms = figures["arms"]
    names = list(next(iter(arms.values())).get("tests", ()))
    if not names:
        return ""
    head = "| trained in, tested with | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names))
    starts: dict[str, list[str]] = {}
    for arm, row in arms.items():
        if tests := row.get("start", {}).get("tests"):
            starts.setdefault(" | ".join(_number(tests[name]) for name in names), []).append(arm)
    rows = [
        f"| nothing{'' if len(starts) == 1 else ' (start of ' + ', '.join(alike) + ')'} | {cells} |"
        for cells, alike in starts.items()
    ]
    rows += [
        f"| {arm} | {' | '.join(cell(row['tests'][name]) for name in names)} |" for arm, row in arms.items()
    ]
    return "\n".join([head, *rows])


def _front(figures: Json) -> str:
    """Which arms no other arm beats in cost and benefit."""
    front = figures.get("front")
    if not front or not front["points"]:
        return ""
    cost, benefit = (MEASURES[front[key]].title.format(level=figures["level"]) for key in ("cost", "benefit"))
    beaten = [arm for arm in front["points"] if arm not in front["on_front"]]
    points = ", ".join(
        f"{arm} ({front['points'][arm][0]:.3f}, {front['points'][arm][1]:.3f})" for arm in front["on_front"]
    )
    off = f" Not on it: {', '.join(beaten)}." if beaten else ""
    return f"Pareto front of {cost} against {benefit}: {points}.{off}"


def _verdicts(figures: Json) -> str:
    lines = []
    for family in figures["families"]:
        lines += [f"- {pair_verdict(pair, family['interims'])}" for pair in family["pairs"]]
        lines.append(f"- {power_of(family)}")
    for one in figures["equivalences"]:
        lines.append(f"- {equivalence_verdict(figures, one)}")
    return "\n".join(lines)


def pair_verdict(pair: Json, interim: int) -> str:
    """What the sequential test says of a pair, with the difference that it is about."""
    said = {
        Verdict.FIRST_BETTER: "{first} is higher than {second}",
        Verdict.SECOND_BETTER: "{second} is higher than {first}",
        Verdict.NO_DIFFERENCE: "no difference found between {first} and {second}",
        Verdict.UNDECIDED: "{first} and {second} are not decided yet",
    }[Verdict(pair["verdict"])].format(**pair)
    return (
        f"{said} (difference {difference(pair)} over {pair['seeds']} seeds of each, "
        f"interim analysis {pair.get('interim', interim)})"
    )


def difference(pair: Json) -> str:
    """The difference of a pair with its interval."""
    form = "+,.0f" if abs(pair["difference"]) >= 100 else "+.3f"
    ends = pair["ci95"]
    interval = "" if ends is None else f" [{ends[0]:{form}}, {ends[1]:{form}}]"
    return f"{pair['difference']:{form}}{interval}"


def power_of(family: Json) -> str:
    """Which difference the test of a family would have found."""
    smallest = family["detectable_deviations"]
    if smallest is None:
        return "with these seeds and error levels the test could not have found any difference with 80 % probability"
    said = f"with 80 % probability the test finds a difference of {smallest:.2f} standard deviations between seeds"
    if family["deviation"] == 0:
        return (
            f"{said}; how large that is in the unit of the measure cannot be said, because all seeds of an arm score the "
            "same and so do not tell how far others would spread"
        )
    return said if family["detectable"] is None else f"{said}, here of {_number(family['detectable'])}"


def with_interval(figures: Json, one: Json) -> Json:
    """A pair of an equivalence with Welch's 95 % interval of its difference, as ``ci95``; None where nothing tells of it."""
    key = "measure" if one["measure"] == figures["measure"] else one["measure"]
    first, second = (
        np.array(figures["arms"][one[place]][key]["values"][: one["seeds"]]) for place in ("first", "second")
    )
    ends = welch_interval(first, second)
    return one | {"ci95": ends and [*ends]}


def equivalence_verdict(figures: Json, one: Json) -> str:
    """What the two one-sided tests say of a pair."""
    said = {
        "equivalent": "{first} and {second} differ by less than {margin:g}",
        "not shown": "that {first} and {second} differ by less than {margin:g} is not shown",
        "undecided": "whether {first} and {second} differ by less than {margin:g} is not decided yet",
    }[one["verdict"]].format(**one)
    found = (
        ""
        if one["p"] is None
        else f", p = {one['p']:.4f}, difference {difference(with_interval(figures, one))}"
    )
    power = (
        ""
        if one["detectable"] is None
        else f"; for equal arms this is shown with 80 % probability at a margin of {_number(one['detectable'])}"
    )
    return f"{said} ({one['measure']}, two one-sided tests, {one['seeds']} seeds of each{found}){power}"


def _foundations(figures: Json) -> str:
    """Which weights, files and versions the runs stand on."""
    held = figures.get("stands_on")
    if held is None:
        return (
            "*What the runs depend on* was not recorded when they were made: neither the digest of the starting weights nor "
            "those of simulators, files and code. The runs cannot be continued, only made anew."
        )
    if not held:
        return "*What the runs depend on* will be written here with the first run."
    weights = [
        f"{name} `{digest[:12]}`" for name, digest in held.items() if name.startswith(("weights", "content"))
    ]
    versions = [
        f"{name.removeprefix('version of ')} {number}"
        for name, number in held.items()
        if name.startswith("version")
    ]
    source = figures["sources"]
    mixed = (
        f" The source of agentenv changed between the runs ({len(source)} states)." if len(source) > 1 else ""
    )
    return f"*What the runs depend on:* {', '.join([*weights, *versions])}.{mixed}"


def cell(found: Json | None) -> str:
    """A mean with its interval as a cell of a table; empty where there is none."""
    if found is None or found["mean"] is None:
        return ""
    form = ",.0f" if abs(found["mean"]) >= 100 else ".3f"
    interval = "" if found["ci95"] is None else f" [{found['ci95'][0]:{form}}, {found['ci95'][1]:{form}}]"
    return f"{found['mean']:{form}}{interval}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:{',.0f' if abs(value) >= 100 else '.3f'}}"
