"""What the recorded steps of a run say of its sampler: what it played by class, and what its sizes do to the variance."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from agentenv.core.io.tables import open_text
from agentenv.core.trajectory import Trajectory, from_record
from agentenv.core.types import Task
from agentenv.trainers.task_sampling.difficulty_games import RolloutGame, variance_allocation
from agentenv.trainers.task_sampling.step_budget import Group

Json = dict[str, Any]
Step = list[list[Trajectory]]
"""The groups of a step, in the order in which they were opened."""


def hops_of(questions: Path) -> dict[str, int]:
    """The class of each task in a file of questions, by its id."""
    rows = map(json.loads, questions.read_text(encoding="utf-8").splitlines())
    return {row["id"]: row["hops"] for row in rows}


def steps_of(path: Path) -> list[Step]:
    """The groups of every step of a run, also of those that were not trained."""
    steps: list[Step] = []
    for file in sorted((path / "trajectories").glob("step-*.jsonl.gz")):
        groups: dict[str, list[Trajectory]] = {}
        with open_text(file) as lines:
            for record in map(json.loads, lines):
                task = Task(record["task"]["id"], record["task"]["question"])
                groups.setdefault(record["group_id"], []).append(from_record(record, task))
        steps.append([*groups.values()])
    return steps


def played_figures(steps: Sequence[Step], classes: Mapping[str, int]) -> Json:
    """What an arm played: steps, episodes, groups and those of unequal rewards, in all and by class."""
    groups = [Group(0, 0, group) for step in steps for group in step]

    def counts(mine: Sequence[Group]) -> dict[str, int]:
        return {
            "episodes": sum(len(group.members) for group in mine),
            "groups": len(mine),
            "unequal": sum(not group.zero_variance for group in mine),
        }

    return counts(groups) | {
        "steps": len(steps),
        "reward": [fmean(t.reward for group in step for t in group) for step in steps],
        "by_class": {
            str(hops): counts([group for group in groups if classes[group.members[0].task.id] == hops])
            for hops in sorted({*classes.values()})
        },
    }


def variance_check(runs: Sequence[Sequence[Step]], options: Json, group_size: int) -> Json:
    """The variance of a step's mean reward with the sizes of ``rollout_gdro``, as a share of that with groups of one size.

    n rollouts of a task leave its mean reward a variance of v / n. The game is played once more over the recorded groups of
    runs that draw tasks uniformly, so that v is known as the sampler would know it before each step. ``formula`` is GDRO's
    n_b = mean n sqrt(v_b) / sum q_j sqrt(v_j) put into sum q v / n, in real numbers and without bounds:
    (sum sqrt v)^2 / (G sum v) over G groups. ``sizes`` is the same for the sizes that the sampler chooses, in its own runs
    those that were played. ``measured`` takes the unbiased variances s^2 of the groups themselves, which are not known when
    the sizes are chosen. Steps in which nothing is known yet count as well, with a share of 1.
    """
    totals = dict.fromkeys(("formula", "sizes", "even", "measured", "measured_even"), 0.0)
    of_runs = []
    for steps in runs:
        mine = _summed(steps, RolloutGame(**options), group_size)
        totals = {key: value + mine[key] for key, value in totals.items()}
        of_runs.append(mine["measured"] / mine["measured_even"])
    return {
        "formula": totals["formula"] / totals["even"],
        "sizes": totals["sizes"] / totals["even"],
        "measured": totals["measured"] / totals["measured_even"],
        "of_runs": of_runs,
    }


def _summed(steps: Sequence[Step], game: RolloutGame, group_size: int) -> dict[str, float]:
    """The variances of all steps of a run, added."""
    sums = dict.fromkeys(("formula", "sizes", "even", "measured", "measured_even"), 0.0)
    places: dict[str, int] = {}
    for step in steps:
        groups = [Group(places.setdefault(one[0].task.id, len(places)), 0, one) for one in step]
        known = [game.variance_of(group.task) for group in groups]
        total = group_size * len(groups)
        sizes = variance_allocation(known, total, low=game.fewest, high=game.most or 2 * group_size)
        found = [variance(group.rewards) for group in groups]
        sums["formula"] += sum(map(math.sqrt, known)) ** 2 / total
        sums["sizes"] += sum(v / n for v, n in zip(known, sizes, strict=True))
        sums["even"] += sum(known) / group_size
        sums["measured"] += sum(v / n for v, n in zip(found, sizes, strict=True))
        sums["measured_even"] += sum(found) / group_size
        game.learn(groups)
    return sums
