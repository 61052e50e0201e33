"""Rollouts in tiers, by hand."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import Origin, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget
from agentenv.trainers.task_sampling.tiered import TieredBudget, enough_at

TASKS = [Task(f"t{i}", "q") for i in range(20)]


def under_way(*outcomes: Sequence[float | None], questions: int = 4, size: int = 4) -> StepBudget:
    """A step whose groups have these outcomes; None is an episode that was lost to a fault."""
    budget = StepBudget(1, TASKS, np.random.default_rng(0), questions, size, rounds=bool(outcomes))
    for place, rewards in enumerate(outcomes):
        members = [
            Trajectory(TASKS[place], (), (), r or 0.0, EndReason.ANSWERED, valid=r is not None)
            for r in rewards
        ]
        budget.groups.append(Group(place, budget.reserved, members))
        budget.reserved += len(members)
    return budget


def drawn(sampler: TieredBudget, budget: StepBudget) -> list[tuple[int | None, int]]:
    return [(draw.group, draw.rollouts) for draw in sampler.draw(budget)]


@pytest.mark.parametrize(
    ("rates", "tier"),
    [([0.5], 0), ([0.4], None), ([0.4, 0.25], 1), ([0.4, 0.2], None), ([0.4, 0.2, 1.0], None), ([], None)],
)
def test_the_first_tier_that_is_enough(rates: list[float], tier: int | None) -> None:
    """Thresholds .5 and .25; after the last tier nothing is decided."""
    assert enough_at(rates, (0.5, 0.25)) == tier


def test_a_task_that_is_solved_too_rarely_gets_the_next_tier() -> None:
    """Tiers 2, 4 and 8 of a budget of 16. Rates 0 and 1/2 after two: the first gets 2 more, the second none."""
    sampler = TieredBudget()
    assert drawn(sampler, under_way()) == [(None, 2)] * 4
    assert drawn(sampler, under_way([0, 0], [1, 0], [1, 1], [1, 1])) == [(0, 2)]
    # one of four is .25, which is enough there; none of four gets 4 more, up to 8, and then nothing
    assert drawn(sampler, under_way([0, 0, 0, 1], [0, 0, 0, 0], [1, 1], [1, 1])) == [(1, 4)]
    # half of the first two was enough, so what came later does not matter; 8 are the last tier
    assert drawn(sampler, under_way([1, 0, 0, 0], [0] * 8, [1, 1])) == [(None, 2)]


def test_what_is_wanted_is_shared_where_it_does_not_fit() -> None:
    """Budget 2 x 5 with 6 played: 3 groups want 2 each and 4 are left: 1.33 each, the rest to the first."""
    budget = under_way([0, 0], [0, 0], [0, 0], questions=2, size=5)
    assert drawn(TieredBudget(tiers=(2, 4), thresholds=(0.5,)), budget) == [(0, 2), (1, 1), (2, 1)]


def test_a_group_that_was_lost_to_faults_gets_nothing() -> None:
    assert drawn(TieredBudget(), under_way([None, None], [1, 1], [1, 1], [1, 1], size=2)) == []
    assert drawn(TieredBudget(), under_way([None, 0], [1, 1], [1, 1], [1, 1])) == [(0, 2)]


def test_preference_pairs_are_no_episodes_of_a_tier() -> None:
    """As `critical_step` returns them, four trajectories behind each failure: of two failures there are ten members."""
    budget = under_way([0, 0], [0, 1], [1, 1], [1, 1])
    for group in budget.groups:
        group.members = [
            one
            for member in group.members
            for one in (
                member,
                *[replace(member, group_id=f"{i}", origin=Origin.DEMONSTRATION) for i in range(4)][
                    : 0 if member.reward else 4
                ],
            )
        ]
    assert [len(group.members) for group in budget.groups] == [10, 6, 2, 2]
    # the second tier of the first group is to come; of the second group's first two episodes 1/2 is enough
    assert drawn(TieredBudget(), budget) == [(0, 2)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tiers": (4, 2, 8)}, "tiers"),
        ({"tiers": (0, 2, 8)}, "tiers"),
        ({"tiers": (2, 4)}, "thresholds"),
        ({"thresholds": (0.5, 1.5)}, "thresholds"),
    ],
    ids=str,
)
def test_options_out_of_range_are_named(options: dict[str, tuple[float, ...]], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{named}'"):
        TieredBudget(**options)  # type: ignore[arg-type]
