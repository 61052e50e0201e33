"""DRIVE's second stage by hand: the survey, which tasks stay in each phase and in its control, sizes, and state."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.task_sampling.hard_focus import HardFocus, hardest
from agentenv.trainers.task_sampling.samplers import get_sampler
from agentenv.trainers.task_sampling.step_budget import StepBudget, TaskDraw

TASKS = [Task(name, name) for name in ("d", "c", "b", "a", "e")]
RATES = {0: 0.0, 1: 0.5, 2: 0.0, 3: 0.0, 4: 1.0}


def test_the_lowest_rates_and_among_equals_the_first_ids() -> None:
    ids = {place: task.id for place, task in enumerate(TASKS)}
    assert hardest(RATES, ids, 2) == [3, 2]  # a and b of a, b and d
    assert hardest(RATES, ids, 9) == [3, 2, 0, 1, 4]


class Outcome:
    """What a sampler reads of a trajectory."""

    valid, guided = True, False

    def __init__(self, reward: float) -> None:
        self.reward = reward


def step(
    sampler: HardFocus, number: int, rates: Mapping[int, float] = RATES
) -> tuple[list[TaskDraw], Mapping[str, Any]]:
    """One step of 2 groups of 4, of which the share that ``rates`` says succeeds."""
    budget = StepBudget(number, TASKS, np.random.default_rng(number), questions=2, group_size=4)
    draws = list(sampler.draw(budget))
    for draw, group in zip(draws, budget.reserve(draws), strict=True):
        wins = round(rates[draw.task] * draw.rollouts)
        group.members += [Outcome(float(i < wins)) for i in range(draw.rollouts)]  # type: ignore[misc]
    budget.rounds = 1
    assert sampler.draw(budget) == []
    return draws, sampler.select(budget).metrics


def test_every_task_once_and_then_the_hardest_in_large_groups() -> None:
    sampler = HardFocus(phases=((2, 3), (1, 1)), group_size=8)
    survey = [step(sampler, n)[0] for n in (1, 2, 3)]
    assert [[(draw.task, draw.rollouts) for draw in draws] for draws in survey] == [
        [(0, 4), (1, 4)],
        [(2, 4), (3, 4)],
        [(4, 4)],
    ]
    first = [step(sampler, n, {**RATES, 0: 1.0}) for n in (4, 5)]
    assert [metrics["focus_tasks"] for _, metrics in first] == [3, 3]
    assert all(len(draws) == 1 and draws[0].rollouts == 8 for draws, _ in first)
    assert {draws[0].task for draws, _ in first} <= {0, 2, 3}
    (last,), metrics = step(sampler, 6)
    assert metrics["focus_phase"] == 2
    assert last.task in (2, 3)
    assert [step(sampler, n)[0][0].task for n in range(7, 10)] == [last.task] * 3  # the last phase stays


def test_what_is_known_from_before_counts_for_a_task_that_was_not_played() -> None:
    sampler = HardFocus(phases=((1, 3), (1, 1)), group_size=8)
    for n in (1, 2, 3):
        step(sampler, n)
    (drawn,), _ = step(sampler, 4, dict.fromkeys(range(5), 1.0))  # whichever is played is solved now
    rest = {0: "d", 2: "b", 3: "a"}
    rest.pop(drawn.task)
    (last,), _ = step(sampler, 5)
    assert last.task == min(rest, key=lambda place: rest[place])


def test_the_control_keeps_as_many_tasks_whatever_their_rates() -> None:
    """Drawn from those of the phase before by the step's own chance; the easiest are among them as often as others."""
    kept = []
    for chance in range(20):
        sampler = HardFocus(phases=((1, 3), (1, 2)), group_size=8, keep="random")
        for n in (1, 2, 3, 4):
            step(sampler, 100 * chance + n)
            if n == 3:
                kept.append(tuple(sampler.state_dict()["pool"]))
        last = sampler.state_dict()["pool"]
        assert len(set(kept[-1])) == 3
        assert len(last) == 2
        assert set(last) < set(kept[-1])
    assert len(set(kept)) > 5
    assert any({1, 4} <= set(pool) for pool in kept)  # of the hardest three neither is one
    hard = HardFocus(phases=((1, 3),), group_size=8)
    for n in (1, 2, 3):
        step(hard, n)
    assert hard.state_dict()["pool"] == [0, 2, 3]


def test_the_control_keeps_all_tasks_where_a_phase_asks_for_more() -> None:
    sampler = HardFocus(phases=((1, 9),), group_size=8, keep="random")
    for n in (1, 2, 3):
        step(sampler, n)
    assert sampler.state_dict()["pool"] == [0, 1, 2, 3, 4]


def test_the_budget_of_a_step_stays_and_bounds_a_group() -> None:
    sampler = HardFocus(phases=((9, 5),), group_size=3)
    for n in (1, 2, 3):
        step(sampler, n)
    draws, _ = step(sampler, 4)
    assert [draw.rollouts for draw in draws] == [3, 3]  # 8 episodes hold two groups of 3
    assert len({draw.task for draw in draws}) == 2
    large = HardFocus(phases=((9, 5),), group_size=64)
    for n in (1, 2, 3):
        step(large, n)
    assert [draw.rollouts for draw in step(large, 4)[0]] == [8]


def test_its_state_goes_on_where_it_stood() -> None:
    sampler, again = (HardFocus(phases=((2, 3), (1, 1)), group_size=8) for _ in range(2))
    for n in (1, 2, 3, 4):
        step(sampler, n)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for n in (5, 6, 7):
        assert step(again, n) == step(sampler, n)


@pytest.mark.parametrize(
    "options",
    [{"group_size": 1}, {"phases": []}, {"phases": [[0, 5]]}, {"phases": [[5, 0]]}, {"keep": "easiest"}],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        get_sampler("hard_focus", options)
