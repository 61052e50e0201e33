"""Scores under a budget of turns, searches or tokens, and the area under that curve.

HybridDeepSearcher (Ko et al. 2025, arXiv:2508.19113) compares agents in this way: an answer counts from the budget that its
episode used. An agent that answers equally well with fewer turns has a larger area.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.results import clusters_of, score_of
from agentenv.evaluation.statistics.significance import estimate


@dataclass(frozen=True, slots=True)
class Budget:
    """The range of one budget.

    Raises:
        ConfigurationError: the range is empty, or begins below 0.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise ConfigurationError(f"a budget of {self.low} to {self.high} is no range from 0 on")


BUDGETS: Mapping[str, Budget] = {
    "turns": Budget(1, 10),
    "searches": Budget(2, 16),
    "tokens": Budget(300, 1500),
}
"""The published ranges. Tokens are those that the policy wrote."""


def score_under(score: float, cost: int, budget: int) -> float:
    """Returns the score of an episode under a budget: 0 if the episode needed more than the budget."""
    return score if cost <= budget else 0.0


def area(score: float, cost: int, budget: Budget) -> float:
    """Returns the mean of `score_under` over all whole budgets of a range.

    The mean over questions is the area under their curve, divided by its width.
    """
    counted = budget.high - max(budget.low, cost) + 1
    return score * max(0, counted) / (budget.high - budget.low + 1)


def cost_of(record: EpisodeRecord, kind: str) -> int | None:
    """Returns the turns, queries or policy tokens of an episode; None if they are unknown."""
    if kind == "turns":
        return len(record["turns"]) if "turns" in record else None
    if kind == "searches":
        return record["searches"]
    return record.get("tokens", {}).get("policy")


def budget_table(
    records: Sequence[EpisodeRecord], scorer: str, budgets: Mapping[str, Budget] = BUDGETS
) -> dict[str, Any]:
    """Returns, for each kind of budget, the area with its interval over questions, and the score at each whole budget.

    Failed episodes are left out. A curve of more than twenty budgets is given at twenty-one of them.

    Args:
        records: The records of one evaluation.
        scorer: The scorer of the answers.
        budgets: The range of each kind of budget.

    Raises:
        DatasetError: no episode has a score.
        UnknownName: there is no such scorer.
    """
    scored = [record for record in records if record["valid"]]
    if not scored:
        raise DatasetError("no episode has a score")
    table: dict[str, Any] = {}
    for kind, budget in budgets.items():
        costs = [cost_of(record, kind) for record in scored]
        known = [(r, cost) for r, cost in zip(scored, costs, strict=True) if cost is not None]
        if len(known) < len(scored):
            table[kind] = {"area": None, "ci95": None, "n": len(known), "curve": []}
            continue
        values = [score_of(record, scorer) for record, _ in known]
        areas = [area(value, cost, budget) for value, (_, cost) in zip(values, known, strict=True)]
        found = estimate(areas, clusters=clusters_of(scored))
        curve = [
            [b, sum(score_under(v, cost, b) for v, (_, cost) in zip(values, known, strict=True)) / len(known)]
            for b in places(budget)
        ]
        table[kind] = {"area": found.mean, "ci95": found.ci95, "n": found.n, "curve": curve}
    return table


def places(budget: Budget) -> list[int]:
    """Returns the budgets at which a curve is given: all whole ones, or twenty-one at equal distances."""
    width = budget.high - budget.low
    return [budget.low + round(width * i / min(20, width or 1)) for i in range(min(20, width) + 1)]
