"""How many rollouts a task gets: samplers that look at the first outcomes of a step before they spend the rest of it.

Shapes: G groups of one step. The formulas are pure functions; ``docs/sampling.md`` has them in one table.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Literal

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import Scale, turn_rewards
from agentenv.trainers.credit.turn import SegmentEnd, segment_returns
from agentenv.trainers.task_sampling.step_budget import (
    Group,
    Selection,
    StatelessSampler,
    StepBudget,
    TaskDraw,
    require,
    whole_groups,
)

Weighting = Literal["equal", "hardness"]
_CAPS: Mapping[Weighting, int] = {"equal": 32, "hardness": 64}


@dataclass(kw_only=True)
class Uniform(StatelessSampler):
    """Draws ``questions`` tasks, all equally likely, and plays ``group_size`` episodes of each in one round.

    GRPO, Shao et al. 2024, arXiv:2402.03300.
    """

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Draws the whole budget at once."""
        return whole_groups(step_budget, step_budget.draw_unplayed(step_budget.questions))


@dataclass(kw_only=True)
class DynamicSampling(StatelessSampler):
    """Drops groups whose outcomes are all equal and plays fresh tasks in their place.

    DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 11. Each round plays as many groups as are missing. Dropped groups count in
    the budget, because they were played. As in the paper, whose filter is the accuracy and whose penalty on overlong
    episodes is apart from it, outcomes are those that the environment pays: what ``reward_shaping`` adds keeps no group.

    Args:
        keep: The step ends when the groups that are kept are this share of ``questions``; the rest of the budget is then
            not spent.
        max_rounds: The step ends after so many rounds in any case; 0 plays until the budget is spent.
        keep_last: Whether all groups of the last round are trained where fewer groups differ than ``questions`` times
            ``keep``, as in the dynamic sampling of GiGPO (Feng et al. 2025, arXiv:2505.10978), whose credit of turns is not
            0 in a group of equal outcomes.
    """

    keep: float = 0.5
    max_rounds: int = 10
    keep_last: bool = False

    def __post_init__(self) -> None:
        require("keep", self.keep, 0 < self.keep <= 1, "within (0, 1]")
        require("max_rounds", self.max_rounds, self.max_rounds >= 0, "at least 0")

    def keeps(self, group: Group) -> bool:
        """Whether the group is trained."""
        return not group.zero_variance

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Draws as many fresh groups as are missing, within the budget."""
        # Only what is missing, so that a step of good groups ends early and its cost follows the difficulty of the tasks.
        missing = self._missing(step_budget)
        if missing <= 0 or step_budget.rounds == self.max_rounds > 0:
            return []
        count = min(missing, step_budget.remaining // step_budget.group_size)
        return [TaskDraw(place, step_budget.group_size) for place in step_budget.draw_unplayed(count)]

    def select(self, step_budget: StepBudget) -> Selection:
        """Groups of outcomes that differ are trained; with ``keep_last`` those of the last round too where they are few."""
        short = self.keep_last and self._missing(step_budget) > 0
        last = step_budget.last_round if short else len(step_budget.groups)
        return Selection([g for at, g in enumerate(step_budget.groups) if at >= last or self.keeps(g)])

    def _missing(self, step_budget: StepBudget) -> int:
        """How many groups are missing to what the step aims at; negative where there are more."""
        target = max(1, round(self.keep * step_budget.questions))
        return target - sum(map(self.keeps, step_budget.groups))


def is_diverse(returns_G: Sequence[float], eta: float) -> bool:
    """Whether the population deviation of returns is above ``eta``; a single return counts as diverse (UI-S1)."""
    return len(returns_G) == 1 or (len(returns_G) > 1 and pstdev(returns_G) > eta)


@dataclass(kw_only=True)
class DiversityFilter(DynamicSampling):
    """Keeps only groups whose returns, from their first turns on, are spread widely enough.

    The dynamic sampling of UI-S1, Lu et al. 2025, arXiv:2509.11543.

    Args:
        eta: A group is kept if the standard deviation of its returns is above this.
        gamma: Discount per turn.
        segment_end: How far a return reaches; see ``segment_returns``.
    """

    eta: float = 0.3
    gamma: float = 0.5
    segment_end: SegmentEnd = "include"

    def __post_init__(self) -> None:
        super().__post_init__()
        require("eta", self.eta, self.eta >= 0, "at least 0")

    def keeps(self, group: Group) -> bool:
        """Whether the returns of its credited episodes from their first turns on are diverse."""
        return is_diverse([self._first(member) for member in group.credited], self.eta)

    def _first(self, member: Trajectory) -> float:
        matched = [turn.valid for turn in member.turns] or [True]
        return segment_returns(turn_rewards(member), matched, self.gamma, self.segment_end)[0]


def hardness_allocation(
    accuracy: float, size: int, *, cap: int, weighting: Weighting = "equal", scale: Scale = "none"
) -> int:
    """Rollouts that DARS adds to a group.

    S is the size of one rollout's advantage on average, 2 a (1 - a), or 2 sqrt(a (1 - a)) of standardised ones; size * S is
    what the group weighs, size times the largest S (at a = 1/2) what it should: ceil((peak - size S) / S), with
    2 (1 - a) peak in place of the peak where hard tasks are to weigh more. Easy groups (a >= 1/2) get none.

    Args:
        accuracy: Share of successes a; 0 counts as half a success.
        size: Rollouts so far.
        cap: Most rollouts of one group.
        weighting: ``equal`` lifts every hard group to the same weight, ``hardness`` harder ones further.
        scale: ``std`` where the estimator divides by the deviation of the group.
    """
    # No success in n tries does not mean a rate of 0, whose weight would ask for rollouts without end.
    share = accuracy if accuracy > 0 else 0.5 / size
    if share >= 0.5:
        return 0
    spread = share * (1 - share)
    weight, peak = (2 * spread, size / 2) if scale == "none" else (2 * math.sqrt(spread), float(size))
    goal = peak if weighting == "equal" else 2 * (1 - share) * peak
    wanted = math.ceil((goal - size * weight) / weight - 1e-9)  # float noise must not buy a rollout
    return max(0, min(wanted, cap - size))


def apportioned(wants_G: Sequence[int], total: int) -> list[int]:
    """``wants_G`` where they fit into ``total``, else shares of it in proportion to them, by largest remainder."""
    asked = sum(wants_G)
    if asked <= total:
        return list(wants_G)
    whole = [want * total // asked for want in wants_G]
    # Ties go to the earlier group, so that the shares repeat.
    rest = sorted(range(len(wants_G)), key=lambda i: (-(wants_G[i] * total % asked), i))
    for place in rest[: total - sum(whole)]:
        whole[place] += 1
    return whole


@dataclass(kw_only=True)
class DifficultyAdaptive(StatelessSampler):
    """Plays each task a few times first, and then gives more rollouts to tasks that are rarely solved.

    DARS, Yang et al. 2025, arXiv:2508.13755. If the formulas ask for more rollouts than are left, all tasks get less in
    proportion; if they ask for fewer, the rest is spent on fresh tasks. Groups of constant outcome are dropped, whatever
    ``reward_shaping`` would add to it.

    Args:
        first: Rollouts of each task in the first round; 0 takes half of ``group_size``, at least 2.
        weighting: See ``hardness_allocation``.
        scale: See ``hardness_allocation``; ``none`` is the published choice.
        cap: Most rollouts of one group; 0 takes the published 32 (``equal``) or 64 (``hardness``).
    """

    first: int = 0
    weighting: Weighting = "equal"
    scale: Scale = "none"
    cap: int = 0

    def __post_init__(self) -> None:
        require("first", self.first, self.first == 0 or self.first >= 2, "0 or at least 2")
        require("cap", self.cap, self.cap >= 0, "at least 0")

    def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
        """Draws the first episodes of each task; then more for some of them, and fresh tasks for the rest of the budget."""
        if step_budget.rounds == 0:
            return first_look(step_budget, self.first)
        # One look and one answer to it, as published: a second look would pay tasks for their luck in the first.
        if step_budget.rounds > 1:
            return []
        wants = [self._wanted(group.successes, len(group.rewards)) for group in step_budget.groups]
        more = apportioned(wants, step_budget.remaining)
        size = first_size(step_budget, self.first)
        # What nobody needs goes to fresh tasks: every sampler spends the same budget, or their runs could not be compared.
        fresh = step_budget.draw_unplayed((step_budget.remaining - sum(more)) // size)
        return added(step_budget, more) + [TaskDraw(place, size) for place in fresh]

    def _wanted(self, successes: float, size: int) -> int:
        if size == 0:  # lost to faults
            return 0
        cap = self.cap or _CAPS[self.weighting]
        return hardness_allocation(
            successes / size, size, cap=cap, weighting=self.weighting, scale=self.scale
        )

    def select(self, step_budget: StepBudget) -> Selection:
        """Groups of outcomes that differ are trained."""
        largest = max(len(group.compared) for group in step_budget.groups)
        return Selection(
            [g for g in step_budget.groups if not g.zero_variance], metrics={"largest_group": largest}
        )


def first_size(step_budget: StepBudget, first: int) -> int:
    """``first``, or half of the usual group where it is 0."""
    return first or max(2, step_budget.group_size // 2)


def first_look(step_budget: StepBudget, first: int) -> list[TaskDraw]:
    """A small group of each of ``questions`` tasks."""
    size = first_size(step_budget, first)
    return [TaskDraw(place, size) for place in step_budget.draw_unplayed(step_budget.questions)]


def added(step_budget: StepBudget, more_G: Sequence[int]) -> list[TaskDraw]:
    """Draws that add to the groups that stand."""
    groups = enumerate(zip(step_budget.groups, more_G, strict=True))
    return [TaskDraw(group.task, count, group=place) for place, (group, count) in groups if count]
