"""Which tasks are played: posteriors, worst-case weights and schedules, by hand."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.task_sampling.selection import (
    Curriculum,
    GroupRobust,
    PosteriorSampling,
    decay_evidence,
    robust_weights,
    scheduled,
)
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

TASKS = [Task(f"t{i}", "q", data={"hops": 1 + i % 2}) for i in range(8)]


def step_budget_of(
    outcomes: dict[int, Sequence[float]], *, step: int = 1, seed: int = 0, **sizes: int
) -> StepBudget:
    """A step whose groups, by task, have these outcomes."""
    step_budget = StepBudget(
        step, TASKS, np.random.default_rng(seed), sizes.get("questions", 4), sizes.get("size", 2)
    )
    for place, rewards in outcomes.items():
        members = [Trajectory(TASKS[place], (), (), r, EndReason.ANSWERED) for r in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
    return step_budget


def test_evidence_fades_and_the_prior_stays() -> None:
    assert decay_evidence(1.0, 0.9) == 1.0
    assert decay_evidence(11.0, 0.9) == 10.0


def test_a_posterior_after_two_steps() -> None:
    """A reward of 1.5 counts as a success, one of -.1 as a failure.

    Task 0: 3 of 4, then 1 of 4: alpha 1 + 3, then 1 + .9 * 3 + 1; beta 1 + 1, then 1 + .9 * 1 + 3.
    Task 1: 2 of 2, then idle: alpha 1 + .99 * 2.
    """
    sampler = PosteriorSampling()
    sampler.draw(step_budget_of({}))
    sampler.select(step_budget_of({0: [1, 1, 0, 1], 1: [1.5, 1]}))
    selection = sampler.select(step_budget_of({0: [0, 1, -0.1, 0]}, step=2))
    state = sampler.state_dict()
    assert (state["successes"][0], state["failures"][0]) == pytest.approx((4.7, 4.9))
    assert (state["successes"][1], state["failures"][1]) == pytest.approx((2.98, 1.0))
    assert state["successes"][2:] == [1.0] * 6
    assert selection.metrics == {"known_tasks": 2}


def test_tasks_of_known_outcome_are_left_alone() -> None:
    """Posteriors as sharp as knives: tasks 0 to 3 always succeed or fail, 4 to 7 are even."""
    sampler = PosteriorSampling()
    sure, even = [1e6, 1.0, 1e6, 1.0], [1e6] * 4
    sampler.load_state_dict({"successes": sure + even, "failures": sure[::-1] + even})
    assert {draw.task for draw in sampler.draw(step_budget_of({}))} == {4, 5, 6, 7}


def test_every_task_may_be_drawn_at_the_beginning() -> None:
    """Among 8 equal posteriors each is in half of the draws: 200 of 400, 5 standard errors are 50."""
    counts = np.zeros(8)
    for seed in range(400):
        for draw in PosteriorSampling().draw(step_budget_of({}, seed=seed)):
            counts[draw.task] += 1
    assert (abs(counts - 200) < 50).all()


def test_worst_case_weights() -> None:
    # Equal losses, or strength 0: the shares.
    np.testing.assert_allclose(robust_weights([0.4, 0.4], [0.75, 0.25], strength=3, floor=0.1), [0.75, 0.25])
    np.testing.assert_allclose(robust_weights([0.9, 0.1], [0.75, 0.25], strength=0, floor=0.0), [0.75, 0.25])
    # exp(log 3 * 1) = 3 : 1.
    np.testing.assert_allclose(
        robust_weights([1.0, 0.0], [0.5, 0.5], strength=np.log(3), floor=0.0), [0.75, 0.25]
    )
    # Half of it stays with the shares.
    np.testing.assert_allclose(robust_weights([1.0, 0.0], [0.5, 0.5], strength=1e3, floor=0.5), [0.75, 0.25])


def test_worst_case_weights_solve_their_problem() -> None:
    """No mixture on a grid has more of sum q loss - KL(q || shares) / strength."""
    losses, shares, strength = np.array([0.2, 0.7, 0.4]), np.array([0.5, 0.3, 0.2]), 2.0

    def value(q: Any) -> float:
        return float(q @ losses - (q * np.log(q / shares)).sum() / strength)

    best = value(robust_weights(list(losses), list(shares), strength=strength, floor=0.0))
    grid = np.linspace(0.01, 0.98, 98)
    others = [value(np.array([a, b, 1 - a - b])) for a in grid for b in grid if a + b < 0.995]
    assert best >= max(others) > best - 1e-3


def test_a_class_loss_is_a_mean_over_its_own_steps() -> None:
    """Class 1 loses 1 and then .5: (.9 * .1 * 1 + .1 * .5) / (1 - .81) = .14 / .19; class 2 loses 0 twice."""
    sampler = GroupRobust()
    sampler.select(step_budget_of({0: [0, 0], 1: [1, 1]}))
    metrics = sampler.select(step_budget_of({0: [0, 1], 2: [1, 0]}, step=2)).metrics
    assert metrics == pytest.approx({"loss_hops_1": 0.14 / 0.19, "loss_hops_2": 0.0})


def test_losses_of_classes_are_taken_up_again() -> None:
    """A resumed sampler draws as the one that was stopped, and goes on with its means."""
    sampler, resumed = GroupRobust(), GroupRobust()
    sampler.select(step_budget_of({0: [0, 0], 1: [1, 1]}))
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    for step in range(2, 6):
        drawn = [
            one.draw(step_budget_of({}, step=step, seed=step, questions=3)) for one in (sampler, resumed)
        ]
        assert drawn[0] == drawn[1]
        metrics = [
            one.select(step_budget_of({0: [0, 1], 2: [1, 0]}, step=step)).metrics
            for one in (sampler, resumed)
        ]
        assert metrics[0] == metrics[1]


def test_failing_classes_are_drawn_more() -> None:
    """Losses 1 and 0 at strength log(3) and floor 0: three draws in four are of class 1; 300 of 400, 5 errors are 43."""
    sampler = GroupRobust(strength=float(np.log(3)), floor=0.0)
    sampler.select(step_budget_of({0: [0, 0], 1: [1, 1]}))
    drawn = [d.task for s in range(400) for d in sampler.draw(step_budget_of({}, seed=s, questions=1))]
    assert abs(sum(TASKS[task].data["hops"] == 1 for task in drawn) - 300) < 43


def test_a_step_has_no_task_twice_while_there_are_others() -> None:
    for seed in range(5):
        drawn = GroupRobust().draw(step_budget_of({}, seed=seed, questions=len(TASKS)))
        assert sorted(d.task for d in drawn) == list(range(len(TASKS)))
    assert len(GroupRobust().draw(step_budget_of({}, questions=len(TASKS) + 1))) == len(TASKS) + 1


def test_a_class_that_tasks_do_not_have() -> None:
    with pytest.raises(ConfigurationError, match="'level'"):
        GroupRobust(by="level").draw(step_budget_of({}))


def test_schedules() -> None:
    schedule = ((1, 2.0), (10, 4.0))
    assert [scheduled(schedule, step) for step in (0, 1, 9, 10, 99)] == [None, 2.0, 2.0, 4.0, 4.0]
    assert scheduled((), 5) is None


def test_a_curriculum_changes_tasks_and_environment() -> None:
    sampler = Curriculum(hops=((1, 1), (5, 2)), max_turns=((1, 2),), passages=((5, 4),), noise=((5, 0.25),))
    early, late = sampler.draw(step_budget_of({}, step=1)), sampler.draw(step_budget_of({}, step=5))
    assert {draw.task % 2 for draw in early} == {0}  # one hop
    assert {(*draw.env.items(), draw.noise) for draw in early} == {(("max_turns", 2), 0.0)}
    assert {(*draw.env.items(), draw.noise) for draw in late} == {(("max_turns", 2), ("k", 4), 0.25)}
    ranks = Curriculum(paid_ranks=((1, 100), (5, 10)))
    assert [ranks.draw(step_budget_of({}, step=n))[0].env for n in (4, 5)] == [
        {"paid_ranks": 100},
        {"paid_ranks": 10},
    ]
    metrics = sampler.select(step_budget_of({}, step=5)).metrics
    assert metrics == {
        "curriculum_hops": 2,
        "curriculum_max_turns": 2,
        "curriculum_passages": 4,
        "curriculum_noise": 0.25,
    }


def test_a_curriculum_without_schedules_is_uniform() -> None:
    draws = Curriculum().draw(step_budget_of({}))
    assert [draw.task for draw in draws] == step_budget_of({}).draw_unplayed(4)
    assert {(len(draw.env), draw.noise) for draw in draws} == {(0, 0.0)}


def test_a_curriculum_that_makes_no_sense() -> None:
    with pytest.raises(ConfigurationError, match=r"'hops'.*\[5, 1\]"):
        Curriculum(hops=((5, 1), (1, 2)))
    with pytest.raises(ConfigurationError, match=r"'noise'.*\b2\b"):
        Curriculum(noise=((1, 2.0),))
    with pytest.raises(ConfigurationError, match=r"\b0\b.*\b1\b.*\b1\b"):
        Curriculum(hops=((1, 0),)).draw(step_budget_of({}))


def test_noise_may_be_all_or_nothing() -> None:
    step_budget = step_budget_of({})
    for share in (0.0, 1.0):
        assert {draw.noise for draw in Curriculum(noise=((1, share),)).draw(step_budget)} == {share}


def test_a_curriculum_draws_groups_of_the_usual_size_and_trains_all() -> None:
    step_budget = step_budget_of({0: [1.0, 0.0]})
    draws = Curriculum().draw(step_budget)
    assert {draw.rollouts for draw in draws} == {step_budget.group_size}
    assert Curriculum().select(step_budget).trained == step_budget.groups


def test_a_pool_as_large_as_the_step_is_drawn_without_repeats() -> None:
    """Four questions of the tasks with one hop: where exactly four are left, each is drawn once."""
    step_budget = step_budget_of({})
    step_budget.questions = sum(task.data["hops"] == 1 for task in step_budget.tasks)
    drawn = [draw.task for draw in Curriculum(hops=((1, 1),)).draw(step_budget)]
    assert len(set(drawn)) == len(drawn) == step_budget.questions
    step_budget.questions += 1
    assert len(Curriculum(hops=((1, 1),)).draw(step_budget)) == step_budget.questions
