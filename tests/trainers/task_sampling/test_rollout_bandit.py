"""GDRO's bandit over rollouts by hand: chances, EXP3.P's update, arms that spend the budget, the price."""

import json
import math
from itertools import product
from statistics import variance
from typing import Any, Literal

import numpy as np
import pytest

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import CREDIT_WEIGHT
from agentenv.trainers.task_sampling.difficulty_games import PromptGame, RolloutGame
from agentenv.trainers.task_sampling.rollout_bandit import (
    arm_chances,
    chosen_arms,
    moved_price,
    priced_loss,
    updated_scores,
)
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

TASKS = [Task(f"t{i}", "q") for i in range(6)]


def step_budget_of(
    outcomes: dict[int, list[float]], *, step: int = 1, questions: int = 2, size: int = 4
) -> StepBudget:
    step_budget = StepBudget(step, TASKS, np.random.default_rng(step), questions, size)
    for place, rewards in outcomes.items():
        members = [Trajectory(TASKS[place], (), (), r, EndReason.ANSWERED) for r in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
        step_budget.reserved += len(members)
    return step_budget


def test_chances_are_mixed_with_the_uniform_ones() -> None:
    """Scores ln 3 and 0: 3/4 and 1/4; a fifth of the plays is uniform: .8 (3/4) + .1 = .7."""
    np.testing.assert_allclose(arm_chances([math.log(3), 0.0], exploration=0.2), [0.7, 0.3])
    np.testing.assert_allclose(arm_chances([900.0, 0.0], exploration=1.0), [0.5, 0.5])


def test_scores_move_by_the_loss_of_the_arm_and_a_bonus_for_all() -> None:
    """Exploration .3 and two arms: rate .05. Arm 0: .05 (.1 - .6) / .7 = -1/28; arm 1: .05 (.1 / .3) = 1/60."""
    moved = updated_scores([1.0, 2.0], np.array([0.7, 0.3]), 0, 0.6, exploration=0.3, bonus=0.1)
    assert moved == pytest.approx([1 - 1 / 28, 2 + 1 / 60])


def test_arms_spend_the_budget_as_likely_as_can_be() -> None:
    """Three tasks of one class and one of another, of 2, 3 or 4 rollouts, 12 together: 3 * 3 + 3 or 3 * 2 + 4 is 10."""
    likes_four = [math.log(p) for p in (0.1, 0.1, 0.8)]
    likes_two = [math.log(p) for p in (0.8, 0.1, 0.1)]
    assert chosen_arms([likes_two, likes_two], [3, 1], [2, 3, 4], 12) == [3, 3]
    assert chosen_arms([likes_two, likes_four], [1, 1], [2, 3, 4], 6) == [2, 4]
    assert chosen_arms([likes_four, likes_two], [1, 1], [2, 3, 4], 6) == [4, 2]
    assert chosen_arms([likes_two], [4], [2, 3, 4], 7) == [2]  # too many in any case


def test_no_other_choice_is_better() -> None:
    rng = np.random.default_rng(0)
    arms, counts = [1, 2, 3, 5], [2, 1, 3]
    for total in range(6, 31):
        logs = np.log(rng.dirichlet(np.ones(4), size=3))
        choices = [
            c
            for c in product(range(4), repeat=3)
            if sum(n * arms[k] for n, k in zip(counts, c, strict=True)) <= total
        ]
        spent = {c: sum(n * arms[k] for n, k in zip(counts, c, strict=True)) for c in choices}
        value = {c: sum(logs[b, k] for b, k in enumerate(c)) for c in choices}
        best = max(choices, key=lambda c: (spent[c], value[c]))
        assert chosen_arms(logs.tolist(), counts, arms, total) == [arms[k] for k in best]


def test_the_price() -> None:
    """Of arms from 2 on the largest s^2 / n is (1/2) / 2: s^2 = .1 and n = 4 have .1 of it."""
    assert priced_loss(0.1, 4, 0.1, 2) == pytest.approx(0.5)
    assert priced_loss(0.5, 2, 0.1, 2) == 1.0
    assert priced_loss(0.05, 4, -0.5, 2) == 0.0
    assert moved_price(0.1, 5.0, 4.0, 0.02) == pytest.approx(0.12)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_the_mean_loss_of_an_arm_is_the_variance_over_its_size(rate: float) -> None:
    """Over all outcomes of n rollouts: 4 (2 - 1) v / n, so that an arm of 2 costs twice as much as one of 4."""
    for size in (2, 4):
        outcomes = list(product([0.0, 1.0], repeat=size))
        chances = [math.prod(rate if one else 1 - rate for one in outcome) for outcome in outcomes]
        losses = [priced_loss(variance(outcome), size, 0.0, 2) for outcome in outcomes]
        mean = sum(chance * loss for chance, loss in zip(chances, losses, strict=True))
        assert mean == pytest.approx(4 * rate * (1 - rate) / size)


def test_the_game_spends_the_budget_learns_and_goes_on_from_a_checkpoint() -> None:
    game, again = RolloutGame(rule="bandit", most=6), RolloutGame(rule="bandit", most=6)
    draws = game.draw(step_budget_of({}))
    assert sum(draw.rollouts for draw in draws) == 8
    metrics = game.select(step_budget_of({0: [1.0, 0.0], 1: [0.0] * 6})).metrics
    assert metrics["rollout_price"] == 0.0  # four rollouts of a task on average, as wanted
    # Arms 2 to 6 of class 0, all as likely: of 2 the loss is (1/2 / 2) / (1/2 / 2) = 1, of 6 it is 0.
    # The second of them is played with the chances that the first has left.
    first = updated_scores([0.0] * 5, np.full(5, 0.2), 0, 1.0, exploration=0.15, bonus=0.01)
    then = updated_scores(first, arm_chances(first, exploration=0.15), 4, 0.0, exploration=0.15, bonus=0.01)
    assert game.arms[0] == pytest.approx(then)
    again.load_state_dict(json.loads(json.dumps(game.state_dict())))
    assert json.dumps(again.state_dict()) == json.dumps(game.state_dict())
    assert again.draw(step_budget_of({}, step=2)) == game.draw(step_budget_of({}, step=2))


@pytest.mark.parametrize("solved", ["any", "mean"])
def test_both_rules_play_classes_unequally_often(solved: Literal["any", "mean"]) -> None:
    """Tasks that always fail beside those that half succeed; an arm that gained by being played was played for ever."""
    for rule in ("bandit", "closed"):
        game, sizes = RolloutGame(rule=rule, solved=solved, most=8), set()
        for step in range(1, 20):
            step_budget = step_budget_of({}, step=step)
            for draw, group in zip(draws := game.draw(step_budget), step_budget.reserve(draws), strict=True):
                rewards = [float(n % 2) if draw.task % 2 else 0.0 for n in range(draw.rollouts)]
                group.members += [
                    Trajectory(TASKS[draw.task], (), (), r, EndReason.ANSWERED) for r in rewards
                ]
            game.select(step_budget)
            sizes |= {draw.rollouts for draw in draws}
        assert len(sizes) > 2, rule


def test_credit_may_be_weighed_in_place_of_the_draw() -> None:
    """A class of loss 1 has the weight exp(strength), at most the cap; tasks are drawn uniformly."""
    game = PromptGame(apply="weight", strength=2.0, cap=3.0)
    (group,) = game.select(step_budget_of({0: [0.0, 0.0]})).trained
    assert [member.info[CREDIT_WEIGHT] for member in group.members] == [3.0, 3.0]  # e^2 is above the cap
    low = PromptGame(apply="weight", strength=0.5)
    (group,) = low.select(step_budget_of({0: [0.0, 0.0]})).trained
    assert group.members[0].info[CREDIT_WEIGHT] == pytest.approx(math.exp(0.5))
    uniform = step_budget_of({}, questions=4)
    expected = StepBudget(1, TASKS, np.random.default_rng(1), 4, 4).draw_unplayed(4)
    assert [draw.task for draw in low.draw(uniform)] == expected


@pytest.mark.parametrize(
    "option",
    [{"exploration": 0.0}, {"bonus": -0.1}, {"price_rate": -1.0}, {"rule": "bandit", "fewest": 1}],
)
def test_options_have_bounds(option: dict[str, Any]) -> None:
    name = next(reversed(option))
    with pytest.raises(ConfigurationError, match=name):
        RolloutGame(**option)
