"""GDRO's games over classes of difficulty: classes, weights and allocations by hand, and what a resumed sampler draws."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import CREDIT_WEIGHT
from agentenv.trainers.task_sampling.difficulty_games import (
    DifficultyGame,
    PromptGame,
    RolloutGame,
    difficulty_class,
    game_distribution,
    game_weights,
    standard_scores,
    surrogate_loss,
    variance_allocation,
)
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

TASKS = [Task(f"t{i}", "q") for i in range(8)]


def step_of(outcomes: dict[int, Sequence[float]], *, seed: int = 0, **sizes: int) -> StepBudget:
    """A step whose groups, by task, have these outcomes."""
    step_budget = StepBudget(
        1, TASKS, np.random.default_rng(seed), sizes.get("questions", 4), sizes.get("size", 4)
    )
    for place, rewards in outcomes.items():
        members = [Trajectory(TASKS[place], (), (), r, EndReason.ANSWERED) for r in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
    return step_budget


@pytest.mark.parametrize(
    ("success", "now", "margin", "wanted"),
    [
        (0.0, 0, 0.0, 0),
        (0.1, 0, 0.0, 1),
        (0.3, 2, 0.0, 3),
        (1.0, 0, 0.0, 9),
        (0.34, 2, 0.05, 2),  # not past .3 by .05
        (0.36, 2, 0.05, 3),
        (0.16, 2, 0.05, 2),  # a fall: not past .2 by .05
        (0.14, 2, 0.05, 1),
        (0.9, 2, 0.05, 9),
    ],
)
def test_a_class_has_a_width_of_a_tenth_and_a_margin(
    success: float, now: int, margin: float, wanted: int
) -> None:
    assert difficulty_class(success, now, margin) == wanted


def test_weights_and_distribution_by_hand() -> None:
    """exp(.5 * 2) and exp(0); 20 is clipped to 4. Then .8 * w / sum w + .2 / 2."""
    weights = game_weights([2.0, 0.0, 20.0], strength=0.5, bound=4.0)
    assert weights == pytest.approx([math.e, 1.0, math.exp(2.0)])
    played = game_distribution(np.array([3.0, 1.0]), floor=0.2)
    assert played == pytest.approx([0.8 * 0.75 + 0.1, 0.8 * 0.25 + 0.1])


@pytest.mark.parametrize(
    ("variances", "total", "bounds", "wanted"),
    [
        ([0.25, 0.0625], 9, (1, 9), [6, 3]),  # deviations 2 : 1
        ([0.25, 0.0], 8, (2, 8), [6, 2]),
        ([0.25, 0.0], 8, (1, 5), [5, 3]),
        ([0.0, 0.0, 0.0], 6, (1, 9), [2, 2, 2]),
        ([0.2, 0.2], 9, (1, 3), [3, 3]),  # the bound leaves some of the budget
    ],
)
def test_rollouts_follow_the_deviation(
    variances: list[float], total: int, bounds: tuple[int, int], wanted: list[int]
) -> None:
    assert variance_allocation(variances, total, low=bounds[0], high=bounds[1]) == wanted


def test_no_other_allocation_has_less_variance() -> None:
    variances, total = [0.25, 0.09, 0.01], 12
    found = variance_allocation(variances, total, low=1, high=12)
    sizes = [n for n in itertools.product(range(1, 11), repeat=3) if sum(n) == total]
    assert sum(v / n for v, n in zip(variances, found, strict=True)) == pytest.approx(
        min(sum(v / n for v, n in zip(variances, one, strict=True)) for one in sizes)
    )


def test_a_task_moves_to_the_class_of_its_mean_success() -> None:
    """Any success: 1, 0, 1 has the mean 2/3; the shares 1/4, 0, 1/2 have 1/4. A window of two forgets the first."""
    steps = [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]]
    for options, wanted in (({}, 6), ({"solved": "mean"}, 2), ({"window": 2}, 5)):
        given: dict[str, Any] = options
        sampler = PromptGame(**given)
        for rewards in steps:
            sampler.select(step_of({3: rewards}))
        assert (sampler.class_of(3), sampler.class_of(4)) == (wanted, 0)


def test_the_loss_of_a_class_is_a_moving_mean() -> None:
    """Both tasks are in class 0 at first, with losses 1 and .5: .75. Then task 0 alone is, with 1: .9 * .75 + .1 * 1."""
    sampler = PromptGame()
    assert sampler.select(step_of({0: [0, 0], 1: [0, 1]})).metrics == {"loss_class_0": 0.75}
    metrics = sampler.select(step_of({0: [0, 0], 1: [1, 1]})).metrics
    assert metrics == pytest.approx({"loss_class_0": 0.775, "loss_class_9": 0.0})


def test_the_surrogate_loss_by_hand() -> None:
    """Rewards 1 and 0 stand .5 / sqrt(.5) = .707 off: with 10 and 30 tokens -(.707 * 10 - .707 * 30) / 40 = .354."""
    assert surrogate_loss([1.0, 0.0], [10, 30]) == pytest.approx(0.35355, abs=1e-4)
    assert surrogate_loss([1.0, 0.0], [30, 10]) == pytest.approx(-0.35355, abs=1e-4)
    assert surrogate_loss([1.0, 0.0], [20, 20]) == surrogate_loss([1.0, 1.0], [10, 30]) == 0.0
    assert surrogate_loss([1.0, 0.0], [0, 0]) == 0.0


def test_the_surrogate_loss_follows_long_failures_and_not_hard_tasks() -> None:
    """Task 0 always fails, task 1 fails at length. By failure the first weighs more, by the surrogate the second."""
    weights = {}
    for signal in ("failure", "surrogate"):
        game = PromptGame(signal=signal, apply="weight", strength=1.0, bound=1.0)
        game.classes = {0: 0, 1: 5}
        step = step_of({0: [0.0, 0.0], 1: [1.0, 0.0]})
        lengths = {0: (20, 20), 1: (10, 30)}
        for group in step.groups:
            group.members = [
                replace(
                    member, segments=(Segment(SegmentKind.POLICY, (7,) * count, 0, logprobs=(0.0,) * count),)
                )
                for member, count in zip(group.members, lengths[group.task], strict=True)
            ]
        chosen = game.select(step).trained
        weights[signal] = {group.task: group.members[0].info[CREDIT_WEIGHT] for group in chosen}
    assert weights["failure"] == pytest.approx({0: math.e, 1: math.exp(0.5)})
    assert weights["surrogate"] == pytest.approx({0: 1.0, 1: math.exp(0.35355)}, abs=1e-4)


def test_the_loss_of_a_class_may_be_taken_per_share_of_the_step() -> None:
    """Class 5 has one of four groups with a loss of 1/2, so 1/2 over 1/4 is 2; class 0 three with a loss of 1: 4/3."""
    outcomes: dict[int, Sequence[float]] = {0: [1.0, 0.0], 1: [0.0], 2: [0.0], 3: [0.0]}
    for per_share, wanted in ((False, {5: 0.5, 0: 1.0}), (True, {5: 2.0, 0: 4 / 3})):
        game = PromptGame(per_share=per_share)
        game.classes = {0: 5}
        game.select(step_of(outcomes))
        assert game.means == pytest.approx(wanted)


def test_classes_of_larger_loss_are_drawn_more() -> None:
    """Class 0 has seven tasks and loss 1, class 9 one task and loss 0; at log 3 without floor, 3 of 4 draws: 300, 43 off."""
    sampler = PromptGame(strength=math.log(3), floor=0.0, rate=1.0)
    sampler.select(step_of({0: [1, 1]}))
    sampler.select(step_of({0: [1, 1], 1: [0, 0]}))
    drawn = [d.task for seed in range(400) for d in sampler.draw(step_of({}, seed=seed, questions=1))]
    assert abs(sum(task != 0 for task in drawn) - 300) < 43


@pytest.mark.parametrize(
    ("apply", "cap", "wanted"),
    [
        ("weight", 10.0, [1.0, 3.0]),  # 3^0 and 3^1
        ("weight", 2.0, [1.0, 2.0]),
        ("probability", 10.0, [0.25, 0.75]),
        ("probability", 0.5, [0.25, 0.5]),
    ],
)
def test_credit_is_weighed_by_the_weight_or_the_probability_of_its_class(
    apply: Any, cap: float, wanted: list[float]
) -> None:
    """Task 0 is in class 9 with a loss of 0, task 1 in class 0 with a loss of 1; strength log 3, no floor."""
    game = PromptGame(apply=apply, cap=cap, strength=math.log(3), floor=0.0)
    game.classes, game.means = {0: 9, 1: 0}, {9: 0.0, 0: 1.0}
    step = step_of({0: [1, 1], 1: [0, 0]})
    for group in game.select(step).trained:
        factors = [member.info[CREDIT_WEIGHT] for member in group.members]
        assert factors == pytest.approx([wanted[group.task]] * 2)


def test_credit_is_weighed_after_the_losses_of_the_step_were_taken_in() -> None:
    """Nothing is known before. Task 0 of class 9 has a loss of 0, tasks 1 and 2 of class 0 of 1 and 1/2: 3^0 and 3^.75."""
    game = PromptGame(apply="weight", strength=math.log(3))
    game.classes = {0: 9}
    trained = game.select(step_of({0: [1, 1], 1: [0, 0], 2: [0, 1]})).trained
    factors = [group.members[0].info[CREDIT_WEIGHT] for group in trained]
    assert factors == pytest.approx([1.0, 3**0.75, 3**0.75])


def test_standard_scores_by_hand() -> None:
    """.2 .3 .7 have a mean of .4, deviations -.2 -.1 .3 and a variance of .14 / 3: over .216025."""
    scores = standard_scores(np.array([0.2, 0.3, 0.7]), bound=3.0)
    assert scores == pytest.approx([-0.925820, -0.462910, 1.388730], abs=1e-6)
    assert standard_scores(np.array([0.2, 0.3, 0.7]), bound=0.5) == pytest.approx([-0.5, -0.462910, 0.5])
    assert standard_scores(np.full(3, 1 / 3), bound=3.0).tolist() == [1.0] * 3
    assert standard_scores(np.ones(1), bound=3.0).tolist() == [1.0]


def test_the_probabilities_of_classes_may_be_scored() -> None:
    """Of two classes one is a deviation above their mean and the other one below it."""
    game = PromptGame(apply="probability", strength=math.log(3), floor=0.0, z_bound=3.0)
    game.classes, game.means = {0: 9, 1: 0}, {9: 0.0, 0: 1.0}
    for group in game.select(step_of({0: [1, 1], 1: [0, 0]})).trained:
        factors = [member.info[CREDIT_WEIGHT] for member in group.members]
        assert factors == pytest.approx([[-1.0, 1.0][group.task]] * 2)


@pytest.mark.parametrize("solved", ["any", "mean"])
def test_tasks_that_are_always_or_never_solved_may_be_left_out(solved: Any) -> None:
    """Of tasks 0, 1 and 2, always, never and sometimes solved, the last alone moves its class: its loss is 1/2."""
    outcomes: dict[int, Sequence[float]] = {0: [1, 1], 1: [0, 0], 2: [0, 1]}
    game = PromptGame(solved=solved, leave_out=True, apply="weight", strength=math.log(4))
    game.outcomes = {2: [0.0]}
    selection = game.select(step_of(outcomes))
    assert [group.task for group in selection.trained] == [2]
    assert selection.metrics == {"loss_class_0": 0.5}
    assert [member.info[CREDIT_WEIGHT] for member in selection.trained[0].members] == pytest.approx([2.0] * 2)
    # The others are in a class all the same, for the draw, and take part once their mean has left 0 and 1.
    assert [game.class_of(task) for task in (0, 1)] == [9, 0]
    assert [g.task for g in game.select(step_of({0: [0, 0], 1: [1, 1]})).trained] == [0, 1]
    assert PromptGame(solved=solved).select(step_of({0: [1, 1]})).metrics == {"loss_class_0": 0.0}
    assert not PromptGame(leave_out=True, apply="weight").select(step_of({0: [1, 1]})).trained


def test_a_varied_class_is_played_longer() -> None:
    """Task 0 always succeeds, so its class varies by 0; the others have .25, so of 16 rollouts task 0 has two."""
    sampler = RolloutGame(rate=1.0, solved="mean")
    sampler.select(step_of({0: [1, 1]}))
    sampler.select(step_of({0: [1, 1], 1: [0, 1]}))
    for seed in range(20):
        sizes = {draw.task: draw.rollouts for draw in sampler.draw(step_of({}, seed=seed))}
        assert sum(sizes.values()) == 16
        if 0 in sizes:
            assert sizes[0] == 2
            assert min(size for task, size in sizes.items() if task) >= 4


@pytest.mark.parametrize("game", [PromptGame, RolloutGame])
def test_classes_are_taken_up_again(game: type[PromptGame] | type[RolloutGame]) -> None:
    sampler, resumed = game(), game()
    sampler.select(step_of({0: [0, 1, 1, 1], 1: [1, 1, 1, 1], 2: [0, 0, 0, 0]}))
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert sampler.draw(step_of({}, seed=3)) == resumed.draw(step_of({}, seed=3))
    both = [one.select(step_of({0: [0, 1]})).metrics for one in (sampler, resumed)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("game", "options"),
    [
        (DifficultyGame, {"window": -1}),
        (DifficultyGame, {"margin": 1.0}),
        (DifficultyGame, {"rate": 0.0}),
        (PromptGame, {"strength": -0.5}),
        (PromptGame, {"bound": 0.0}),
        (PromptGame, {"floor": 1.5}),
        (PromptGame, {"apply": "probability", "z_bound": -1.0}),
        (PromptGame, {"apply": "weight", "z_bound": 3.0}),
        (RolloutGame, {"fewest": 0}),
        (RolloutGame, {"fewest": 4, "most": 3}),
    ],
)
def test_options_out_of_range_are_refused(game: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(reversed(options))):
        game(**options)
