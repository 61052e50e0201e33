"""The numbers of an experiment's page: every run's, means with intervals over seeds, the tests, and what they could find.

The page and the table of results are made from these figures alone, so that they can be made again without the runs.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev, variance

import numpy as np

from agentenv.evaluation.records import read_json
from agentenv.evaluation.statistics.intervals import all_equal
from agentenv.evaluation.statistics.power import detectable_difference, detectable_margin
from agentenv.evaluation.statistics.sequential import Decision
from agentenv.trainers.lab.lab import Equivalence, Experiment, rollouts_of
from agentenv.trainers.lab.measures import Json, cost_per_right, curve, pareto_front, reached, with_strategy
from agentenv.trainers.lab.provenance import SOURCE
from agentenv.trainers.lab.trials import (
    STARTS,
    Scores,
    decide,
    finished,
    foundations,
    pending_runs,
    scores_of,
    show_equivalence,
)
from agentenv.trainers.task_sampling.uncertainty import half_width

COSTS = ("turns", "searches", "tokens")
"""What an evaluation counts for each question."""


def figures_of(name: str, experiment: Experiment, out: Path) -> Json:
    """The figures of an experiment whose runs lie in ``out``."""
    found = page_data(name, experiment, finished(experiment, out))
    starts = read_json(out / STARTS) if (out / STARTS).is_file() else {}
    for arm, start in starts.items():
        found["arms"][arm]["start"] |= start
        found["arms"][arm]["start"]["measure"] = _measure_of_start(experiment, found["arms"][arm]["start"])
    held = [one or {} for one in foundations(out).values()]
    merged = {key: value for one in held for key, value in sorted(one.items()) if key != SOURCE}
    return found | {"stands_on": merged, "sources": sorted({one[SOURCE] for one in held if SOURCE in one})}


def page_data(name: str, experiment: Experiment, runs: Mapping[str, Sequence[Json]]) -> Json:
    """The figures that follow from the finished runs of each arm."""
    scores = scores_of(experiment, runs)
    said = {
        key: getattr(experiment, key)
        for key in ("title", "method", "paper", "claim", "setup", "measure", "level")
    }
    return {
        "name": name,
        **said,
        "claim_measure": experiment.measure,
        "better": experiment.claimed.better,
        "expects": [list(pair) for pair in experiment.expects],
        "plan": plan_of(experiment),
        "arms": {arm: _arm(experiment, arm, runs[arm], scores[arm]) for arm in experiment.arms},
        "families": [
            _family(decision) | _power(experiment, family, scores)
            for family, decision in zip(experiment.compared, decide(experiment, scores), strict=True)
        ],
        "equivalences": [_equivalence(experiment, one, runs) for one in experiment.equivalences],
        "front": _front(experiment, runs),
        "missing_runs": len(pending_runs(experiment, runs)),
    }


def plan_of(experiment: Experiment) -> Json:
    """What was fixed before the first run."""
    return {
        "per_interim": experiment.per_interim,
        "interims": experiment.interims,
        "alpha": experiment.alpha,
        "level_of_one": experiment.level_of_one,
    }


def _arm(experiment: Experiment, arm: str, runs: Sequence[Json], scores: Sequence[float]) -> Json:
    every = [run["after"] for run in runs]
    figures = {
        "rollouts": rollouts_of(experiment.run_of(arm, 0)),
        "measure": over_seeds(scores),
        "start": _start(runs),
        "before": over_seeds([run["before"]["mean"] for run in runs]),
        "after": over_seeds([one["mean"] for one in every]),
        "after_with_strategy": _strategy_scores(runs),
        "dev_mean": over_seeds([fmean(value for _, _, value in curve(run)) for run in runs]),
        "sampled_tokens": over_seeds([float(curve(run)[-1][1]) for run in runs]),
        **{cost: over_seeds([one[cost] for one in every if one.get(cost) is not None]) for cost in COSTS},
        **{
            f"{cost}_per_right": over_seeds(
                [cost_per_right(one, cost) for one in every if one.get(cost) is not None]
            )
            for cost in COSTS
        },
        "tests": {test: over_seeds([run["tests"][test] for run in runs]) for test in experiment.tests},
        "played": _over_runs([run.get("played", {}) for run in runs]),
        "faults": sum(run["faults"] for run in runs),
        "stopped": sum("stopped" in run for run in runs),
    }
    if experiment.claimed.every_step and experiment.measure in ("steps_to", "tokens_to"):
        figures["reached"] = sum(reached(run, experiment.level) is not None for run in runs)
    return figures


def _strategy_scores(runs: Sequence[Json]) -> Json:
    """Scores with ``evaluation.strategy``; none where no run has one, as they would be those of the plain evaluation."""
    played = [with_strategy(run, "after") for run in runs]
    differ = any(one is not run["after"] for one, run in zip(played, runs, strict=True))
    return over_seeds([one["mean"] for one in played if differ])


def _start(runs: Sequence[Json]) -> Json:
    """What the arm's policy does before it is trained, in the columns of its results."""
    if not runs:
        return {}
    before = runs[0]["before"]
    counted = {cost: before[cost] for cost in COSTS if before.get(cost) is not None}
    each = {f"{cost}_per_right": cost_per_right(before, cost) for cost in counted}
    scores = {"after": before["mean"], "after_with_strategy": with_strategy(runs[0], "before")["mean"]}
    return scores | {"sampled_tokens": 0.0} | counted | each


def _measure_of_start(experiment: Experiment, start: Json) -> float | None:
    """The measure of the experiment for a start; None where only a training has it, such as steps to a score."""
    name = "dev_mean" if experiment.measure == "dev_at_tokens" else experiment.measure
    if name == "tested":
        return float(next(iter(start["tests"].values())))
    found = (start | start["played"]).get(name)
    return None if found is None else float(found)


def _over_runs(played: Sequence[Json]) -> Json:
    names = dict.fromkeys(name for one in played for name in one)
    return {name: over_seeds([one[name] for one in played if name in one]) for name in names}


def over_seeds(values: Sequence[float]) -> Json:
    """Mean over seeds with Student's interval; null where there are too few, or where all score the same."""
    # Seeds that do not differ, of which there are few, do not say how far further ones would spread.
    spread = len(values) > 1 and not all_equal(np.array(values))
    half = half_width(stdev(values), len(values)) if spread else None
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
            "interim": p.interim,
            "verdict": str(p.verdict),
        }
        for p in decision.pairs
    ]
    return {"interims": decision.interims, "enough": decision.enough, "pairs": pairs}


def _power(experiment: Experiment, family: Sequence[str], scores: Scores) -> Json:
    """What the test of a family finds with 80 % probability, in deviations between seeds and in the unit of the measure."""
    smallest = detectable_difference(
        systems=len(family),
        per_interim=experiment.per_interim,
        interims=experiment.interims,
        alpha=experiment.level_of_one,
    )
    deviation = pooled_deviation([scores[arm] for arm in family])
    # A deviation of 0 would say that the test finds a difference of any size.
    detectable = smallest * deviation if smallest is not None and deviation else None
    return {"detectable_deviations": smallest, "deviation": deviation, "detectable": detectable}


def pooled_deviation(scores: Sequence[Sequence[float]]) -> float | None:
    """The deviation between seeds, pooled over arms; None where no arm has two seeds."""
    several = [mine for mine in scores if len(mine) > 1]
    if not several:
        return None
    squares = sum(variance(mine) * (len(mine) - 1) for mine in several)
    return sqrt(squares / sum(len(mine) - 1 for mine in several))


def _equivalence(experiment: Experiment, one: Equivalence, runs: Mapping[str, Sequence[Json]]) -> Json:
    scores = scores_of(experiment, runs, one.measure)
    equivalence = show_equivalence(experiment, one, scores)
    both = [scores[arm] for arm in one.arms]
    seeds = min(map(len, both))
    if equivalence.interims:  # the verdict is about these; an arm may have run more for other comparisons
        seeds = min(seeds, equivalence.interims * experiment.per_interim)
    first, second = (mine[:seeds] for mine in both)
    smallest = detectable_margin(
        per_interim=experiment.per_interim, interims=experiment.interims, alpha=experiment.level_of_one
    )
    deviation = pooled_deviation([first, second])
    return {
        "first": one.arms[0],
        "second": one.arms[1],
        "measure": one.measure,
        "margin": one.margin,
        "difference": fmean(first) - fmean(second) if first and second else None,
        "seeds": seeds,
        "p": equivalence.p,
        "interim": equivalence.interims,
        "verdict": equivalence.verdict,
        "detectable": smallest * deviation if smallest is not None and deviation else None,
    }


def _front(experiment: Experiment, runs: Mapping[str, Sequence[Json]]) -> Json | None:
    """Mean cost and benefit of each arm with finished runs, and the names on the front."""
    if experiment.front is None:
        return None
    cost, benefit = (scores_of(experiment, runs, name) for name in experiment.front)
    points = {arm: (fmean(cost[arm]), fmean(benefit[arm])) for arm in experiment.arms if cost[arm]}
    return {
        "cost": experiment.front[0],
        "benefit": experiment.front[1],
        "points": {arm: list(point) for arm, point in points.items()},
        "on_front": pareto_front(points),
    }
