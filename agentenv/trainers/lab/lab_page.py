"""The page of an experiment: what was claimed, how it was tried, what came out, with curves; and its figures as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agentenv.core.io.files import write_text
from agentenv.evaluation.records import read_json
from agentenv.evaluation.report.charts import Curve, comparison_chart
from agentenv.evaluation.statistics.sequential import Decision, Verdict
from agentenv.trainers.lab.lab import (
    TESTS,
    Experiment,
    Json,
    curve,
    decide,
    finished,
    pending_runs,
    rollouts_of,
    score,
)
from agentenv.trainers.task_sampling.allocation import half_width

MEASURES = {
    "after": "score on the test tasks afterwards",
    "tested": "score on the test tasks afterwards under the first test",
    "dev_mean": "mean of the dev scores over the run",
    "steps_to": "steps until a dev score reaches {level:g}",
    "tokens_to": "sampled tokens until a dev score reaches {level:g}",
    "dev_at_tokens": "dev score after {level:,.0f} sampled tokens",
}


def write_page(name: str, experiment: Experiment, out: Path, pages: Path) -> Json:
    """Writes ``NAME.md``, ``NAME.svg`` and ``NAME.json`` into ``pages``, as far as the experiment has got.

    Returns:
        The content of ``NAME.json``.
    """
    runs = finished(experiment, out)
    figures = page_data(name, experiment, runs)
    if (out / TESTS).is_file():
        figures["start"] = read_json(out / TESTS)
    pages.mkdir(parents=True, exist_ok=True)
    curves = [mean_curve(arm, of_arm) for arm, of_arm in runs.items() if of_arm]
    if curves:
        write_text(pages / f"{name}.svg", comparison_chart(curves, "sampled tokens; dev score") + "\n")
    write_text(pages / f"{name}.json", json.dumps(figures, indent=1) + "\n")
    write_text(pages / f"{name}.md", page(name, experiment, figures, drawn=bool(curves)))
    return figures


def page_data(name: str, experiment: Experiment, runs: dict[str, list[Json]]) -> Json:
    """The numbers of the page: every run's, means with intervals over seeds, and the verdicts."""
    scores = {arm: [score(experiment, run) for run in of_arm] for arm, of_arm in runs.items()}
    decisions = decide(experiment, scores)
    return {
        "name": name,
        "measure": experiment.measure,
        "level": experiment.level,
        "arms": {arm: _arm(experiment, arm, runs[arm], scores[arm]) for arm in experiment.arms},
        "families": [_family(decision) for decision in decisions],
        "missing_runs": len(pending_runs(experiment, scores)),
    }


def _arm(experiment: Experiment, arm: str, runs: Sequence[Json], scores: Sequence[float]) -> Json:
    return {
        "rollouts": rollouts_of(experiment.run_of(arm, 0)),
        "measure": _over_seeds(scores),
        "before": _over_seeds([run["before"]["mean"] for run in runs]),
        "after": _over_seeds([run["after"]["mean"] for run in runs]),
        "dev_mean": _over_seeds([fmean(value for _, _, value in curve(run)) for run in runs]),
        "sampled_tokens": _over_seeds([float(curve(run)[-1][1]) for run in runs]),
        "turns": _over_seeds([run["after"]["turns"] for run in runs if "turns" in run["after"]]),
        "searches_per_right": _over_seeds([cost for run in runs if (cost := _price(run)) is not None]),
        "tests": {test: _over_seeds([run["tests"][test] for run in runs]) for test in experiment.tests},
        "faults": sum(run["faults"] for run in runs),
        "stopped": sum("stopped" in run for run in runs),
    }


def _price(run: Json) -> float | None:
    """Searches for each right answer afterwards; None where nothing was searched or nothing right."""
    after = run["after"]
    return after["searches"] / after["mean"] if after.get("searches") and after["mean"] else None


def _over_seeds(values: Sequence[float]) -> Json:
    """Mean over seeds with Student's interval; null where there are too few."""
    half = half_width(stdev(values), len(values)) if len(values) > 1 else None
    mean = fmean(values) if values else None
    return {
        "values": list(values),
        "mean": mean,
        "ci95": None if mean is None or half is None else [mean - half, mean + half],
    }


def _family(decision: Decision) -> Json:
    pairs = [
        {
            "first": p.first,
            "second": p.second,
            "difference": p.difference,
            "ci95": p.ci95 and list(p.ci95),
            "seeds": p.seeds,
            "verdict": str(p.verdict),
        }
        for p in decision.pairs
    ]
    return {"interims": decision.interims, "enough": decision.enough, "pairs": pairs}


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


def page(name: str, experiment: Experiment, figures: Json, *, drawn: bool) -> str:
    """The page as Markdown."""
    measure = MEASURES[experiment.measure].format(level=experiment.level)
    most = experiment.per_interim * experiment.interims
    missing = figures["missing_runs"]
    state = f"{missing} runs are still missing before the next interim analysis." if missing else "Complete."
    lines = [
        f"# {experiment.title}",
        f"*Claim.* {experiment.claim}",
        *([experiment.setup] if experiment.setup else []),
        f"Compared: {measure}. Up to {most} seeds an arm, with an interim analysis every {experiment.per_interim} "
        f"(AdaStop, error level {experiment.alpha:g} over all comparisons). "
        f"Intervals are Student's over seeds. {state} Made by "
        f"`agentenv lab run {name}`; arms: `agentenv/trainers/experiments/{name}.toml`, all numbers: "
        f"[{name}.json]({name}.json).",
        *([f"![dev scores by sampled tokens]({name}.svg)"] if drawn else []),
        _table(figures),
        *([_tests(figures)] if experiment.tests else []),
        _verdicts(figures),
    ]
    return "\n\n".join(lines) + "\n"


def _table(figures: Json) -> str:
    columns = {
        "compared": "measure", "before": "before", "after": "after", "mean of dev": "dev_mean",
        "sampled tokens": "sampled_tokens", "turns": "turns", "searches a right answer": "searches_per_right",
    }  # fmt: skip
    arms = figures["arms"]
    told = {title: key for title, key in columns.items() if any(row[key]["values"] for row in arms.values())}
    rows = [
        " | ".join([arm, str(len(row["measure"]["values"])), *(_cell(row[key]) for key in told.values())])
        for arm, row in arms.items()
    ]
    head = " | ".join(["arm", "seeds", *told])
    rule = "---|" * (2 + len(told))
    return "\n".join([f"| {head} |", f"|{rule}", *(f"| {row} |" for row in rows)])


def _tests(figures: Json) -> str:
    """What every result scores under every condition."""
    arms = figures["arms"]
    names = list(next(iter(arms.values()))["tests"])
    head = "| trained in, tested with | " + " | ".join(names) + " |\n|" + "---|" * (1 + len(names))
    start = figures.get("start")
    rows = [f"| nothing | {' | '.join(f'{start[name]:.3f}' for name in names)} |"] if start else []
    rows += [
        f"| {arm} | {' | '.join(_cell(row['tests'][name]) for name in names)} |" for arm, row in arms.items()
    ]
    return "\n".join([head, *rows])


def _cell(found: Json) -> str:
    if found["mean"] is None:
        return ""
    form = ",.0f" if abs(found["mean"]) >= 100 else ".3f"
    interval = "" if found["ci95"] is None else f" [{found['ci95'][0]:{form}}, {found['ci95'][1]:{form}}]"
    return f"{found['mean']:{form}}{interval}"


def _verdicts(figures: Json) -> str:
    sentences = {
        Verdict.FIRST_BETTER: "{first} is higher than {second}",
        Verdict.SECOND_BETTER: "{second} is higher than {first}",
        Verdict.NO_DIFFERENCE: "no difference found between {first} and {second}",
        Verdict.UNDECIDED: "{first} and {second} are not decided yet",
    }
    rows: list[tuple[Any, Json]] = [(f["interims"], pair) for f in figures["families"] for pair in f["pairs"]]
    return "\n".join(
        f"- {sentences[Verdict(pair['verdict'])].format(**pair)} ({_difference(pair)}, interim analysis {interim})"
        for interim, pair in rows
    )


def _difference(pair: Json) -> str:
    """The difference that a verdict is about, with its interval and the seeds that it was seen in."""
    form = "+,.0f" if abs(pair["difference"]) >= 100 else "+.3f"
    ends = pair["ci95"]
    interval = "" if ends is None else f" [{ends[0]:{form}}, {ends[1]:{form}}]"
    return f"difference {pair['difference']:{form}}{interval} over {pair['seeds']} seeds of each"
