"""Rollouts in tiers: a task gets the smallest budget with which it is solved often enough (EvoCUA)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from agentenv.trainers.task_sampling.allocation import added, apportioned
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StatelessSampler,
    StepBudget,
    TaskDraw,
    require,
)


def enough_at(rates_K: Sequence[float], thresholds_K: Sequence[float]) -> int | None:
    """i* = min{i : SR(k_i) >= tau_i}, the tier that is enough; None where there is none yet (EvoCUA, Xue et al. 2026).

    The budget of a task is K* = k_i*, and the largest one where no tier is enough.

    Args:
        rates_K: Success rate of the first k_i episodes, for each tier that was played.
        thresholds_K: tau of each tier but the last, after which nothing is decided.
    """
    reached = enumerate(zip(rates_K, thresholds_K, strict=False))
    return next((tier for tier, (rate, tau) in reached if rate >= tau), None)


@dataclass(kw_only=True)
class TieredBudget(StatelessSampler):
    """Plays each task in tiers of ever more episodes, and stops where it is solved often enough.

    The dynamic budget of EvoCUA, Xue et al. 2026, arXiv:2601.15876. What easy tasks leave of the step's budget goes to the
    next tiers of hard ones, and then to fresh tasks. Every group is trained.

    Args:
        tiers: Episodes of a task after each tier, rising; empty takes G / 2, G and 2 G. The paper's were not found.
        thresholds: Success rate of each tier but the last from which no further one is played.
    """

    tiers: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = (0.5, 0.25)

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise((0, *self.tiers)))
        require("tiers", len(self.tiers), rising, "rising numbers above 0")
        fits = len(self.thresholds) == max(1, len(self.tiers) or 3) - 1
        require("thresholds", len(self.thresholds), fits, "one for each tier but the last")
        for tau in self.thresholds:
            require("thresholds", tau, 0 <= tau <= 1, "within 0 to 1")

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """The next tier of each task that is solved too rarely, and fresh tasks for what that leaves."""
        tiers = self._tiers(step_budget.group_size)
        more = apportioned(
            [self._wanted(group, tiers) for group in step_budget.groups], step_budget.remaining
        )
        left = step_budget.remaining - sum(more)
        size = min(tiers[0], step_budget.questions * step_budget.group_size)
        # The first round begins the usual number of tasks and leaves the rest of the budget to their next tiers.
        count = left // size if step_budget.rounds else min(step_budget.questions, left // size)
        if step_budget.rounds and sum(more):  # fresh tasks wait until it is known what the others need
            count = 0
        fresh = step_budget.draw_unplayed(count)
        return added(step_budget, more) + [TaskDraw(place, size) for place in fresh]

    def _tiers(self, group_size: int) -> tuple[int, ...]:
        return self.tiers or (max(1, group_size // 2), group_size, 2 * group_size)

    def _wanted(self, group: Group, tiers: Sequence[int]) -> int:
        """Episodes up to the next tier of the group; none where one is enough, or all were lost to faults."""
        played = [tier for tier in tiers if tier <= len(group.compared)]
        if not group.rewards or not played or len(played) == len(tiers):
            return 0
        rates = [_rate(group, tier) for tier in played]
        enough = enough_at(rates, self.thresholds)
        return tiers[len(played)] - len(group.compared) if enough is None else 0

    def select(self, step_budget: StepBudget) -> Selection:
        """Everything is trained."""
        largest = max((len(group.compared) for group in step_budget.groups), default=0)
        return Selection(step_budget.groups, metrics={"largest_group": largest})


def _rate(group: Group, count: int) -> float:
    """The success rate of the first ``count`` episodes of a group; 0 where all of them were lost to faults."""
    # Preference pairs stand among the members, each beside its episode, and are no episodes of the tier.
    first = Group(group.task, group.first, group.compared[:count])
    return first.successes / len(first.rewards) if first.rewards else 0.0
