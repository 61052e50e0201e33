"""GDRO's games over classes of difficulty: classes, weights and allocations by hand, and what a resumed sampler draws."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, variance
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import CREDIT_WEIGHT
from agentenv.trainers.task_sampling.difficulty_games import (
    PRIOR_FREEDOM,
    PRIOR_VARIANCE,
    DifficultyGame,
    PromptGame,
    RolloutGame,
    difficulty_class,
    estimated_variance,
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
    for options, wanted in (({"solved": "any"}, 6), ({}, 2), ({"solved": "any", "window": 2}, 5)):
        given: dict[str, Any] = options
        sampler = PromptGame(**given)
        for rewards in steps:
            sampler.select(step_of({3: rewards}))
        assert (sampler.class_of(3), sampler.class_of(4)) == (wanted, 0)


def test_the_loss_of_a_class_is_a_moving_mean() -> None:
    """Both tasks are in class 0 at first, with losses 1 and .5: .75. Then task 0 alone is, with 1: .9 * .75 + .1 * 1.

    Task 1 is then in the class of its mean success of 1/2.
    """
    sampler = PromptGame()
    assert sampler.select(step_of({0: [0, 0], 1: [0, 1]})).metrics == {"loss_class_0": 0.75}
    metrics = sampler.select(step_of({0: [0, 0], 1: [1, 1]})).metrics
    assert metrics == pytest.approx({"loss_class_0": 0.775, "loss_class_5": 0.0})


def test_the_surrogate_loss_by_hand() -> None:
    """Rewards 1 and 0 stand .5 / sqrt(.5) = .707 off: with 10 and 30 tokens -(.707 * 10 - .707 * 30) / 40 = .354."""
    assert surrogate_loss([1.0, 0.0], [10, 30]) == pytest.approx(0.35355, abs=1e-4)
    assert surrogate_loss([1.0, 0.0], [30, 10]) == pytest.approx(-0.35355, abs=1e-4)
    for rewards, lengths in (([1.0, 0.0], [20, 20]), ([1.0, 1.0], [10, 30]), ([1.0, 0.0], [0, 0])):
        # To rounding: processors add products in different orders.
        assert surrogate_loss(rewards, lengths) == pytest.approx(0.0, abs=1e-12)


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
    """Task 0 has succeeded 400 times and the others half of the time, so of 16 rollouts task 0 has two."""
    sampler = RolloutGame(rate=1.0)
    sampler.select(step_of({0: [1] * 400}))
    sampler.select(step_of({0: [1] * 400, 1: [0, 1] * 200}))
    for seed in range(20):
        sizes = {draw.task: draw.rollouts for draw in sampler.draw(step_of({}, seed=seed))}
        assert sum(sizes.values()) == 16
        if 0 in sizes:
            assert sizes[0] == 2
            assert min(size for task, size in sizes.items() if task) >= 4


def test_the_variance_of_a_class_by_hand() -> None:
    """Before anything 1/6. Squares about the means: 3/4 of 0 0 0 1 with three degrees of freedom, 1/2 of 0 1 with one.

    (8/6 + 5/4) / (8 + 4) = 31/144. A further step of 1 1 leaves .9 of both: (8/6 + .9 * 5/4) / (8 + .9 * 4 + 1).
    """
    game = RolloutGame(margin=0.99)  # so that no task leaves class 0
    assert game.variance_of(0) == pytest.approx(1 / 6)
    assert game.select(step_of({0: [0, 0, 0, 1], 1: [0, 1]})).metrics["variance_class_0"] == pytest.approx(
        31 / 144
    )
    metrics = game.select(
        step_of({0: [1, 1], 2: [1], 3: []})
    ).metrics  # one rollout says nothing of a variance
    assert metrics["variance_class_0"] == pytest.approx((8 / 6 + 0.9 * 5 / 4) / (8 + 0.9 * 4 + 1))


def test_small_groups_do_not_make_a_class_look_less_varied() -> None:
    """Of groups of 2 and of groups of 8 of a task that succeeds half of the time the squares over their freedom are 1/4."""
    for size in (2, 8):
        game = RolloutGame(margin=0.99)
        game.learn(step_of({0: [0.0] * size}).groups)  # no squares, and its freedom is taken off below
        for rewards in itertools.product([0.0, 1.0], repeat=size):
            game.squares[0] += (size - 1) * variance(rewards)
        assert game.squares[0] / 2**size / (size - 1) == pytest.approx(0.25)


def test_a_class_of_a_few_equal_groups_does_not_get_the_fewest_rollouts() -> None:
    """Tasks 0 and 1 succeed every time and task 2 half of the time: v is 2/21 in class 9, 7/51 in class 0, 1/6 in class 5.

    With groups of 8 the sizes in real numbers are 64 sqrt(v) / 2.88, which is 6.9 in class 9. A variance of 0 gave 2.
    """
    game = RolloutGame()
    game.select(step_of({0: [1] * 4, 1: [1] * 4, 2: [0, 0, 1, 1]}))
    game.select(step_of({0: [1] * 4, 1: [1] * 4}))
    found = [game.variance_of(task) for task in (0, 3, 2)]
    assert found == pytest.approx([(8 / 6) / 14, (8 / 6 + 1) / 17, 1 / 6])
    sizes = {d.task: d.rollouts for d in game.draw(step_of({}, questions=8, size=8))}
    assert (sizes[0], sizes[1], sizes[2]) == (7, 7, 9)


@pytest.mark.parametrize(("size", "wanted"), [(2, 9.0), (4, 7.5), (8, 6.75)])
def test_the_weight_of_the_prior_is_what_credibility_gives(size: int, wanted: float) -> None:
    """Var(v) = 1/30 - 1/36 = 1/180 for rates that are all equally likely, and E[Var(s^2)] by all counts of successes.

    k successes of n have the chance 1 / (n + 1) and s^2 = k (n - k) / (n (n - 1)); Var(s^2) = E[Var(s^2 | p)] + Var(v).
    """
    found = [k * (size - k) / (size * (size - 1)) for k in range(size + 1)]
    assert fmean(found) == pytest.approx(PRIOR_VARIANCE)
    within = fmean(one**2 for one in found) - fmean(found) ** 2 - 1 / 180
    freedom = (size - 1) * within / (1 / 180)
    assert freedom == pytest.approx(wanted)
    assert abs(freedom - PRIOR_FREEDOM) <= 1.25
    assert estimated_variance(0.0, 0.0) == PRIOR_VARIANCE


def test_estimated_variances_keep_their_promise() -> None:
    """40 tasks over twelve steps: the sizes leave as much of the variance of even groups as they promise, and less than all.

    A moving mean of the groups' variances about their own means, without a prior, promised .94 here and left 1.16.
    """
    rates = np.array([0.95] * 20 + [0.05] * 10 + np.linspace(0.05, 0.95, 10).tolist())
    tasks = [Task(f"t{i}", "q") for i in range(len(rates))]
    promised = left = even = counted = 0.0
    for seed in range(40):
        rng, game = np.random.default_rng(seed), RolloutGame()
        for number in range(1, 13):
            step = StepBudget(number, tasks, np.random.default_rng([seed, number]), 8, 8)
            draws = game.draw(step)
            for draw in draws:
                v = rates[draw.task] * (1 - rates[draw.task])
                left, even = left + v / draw.rollouts, even + v / 8
                promised += game.variance_of(draw.task) / draw.rollouts
                counted += game.variance_of(draw.task) / 8
                rewards = (rng.random(draw.rollouts) < rates[draw.task]).astype(float)
                members = [Trajectory(tasks[draw.task], (), (), r, EndReason.ANSWERED) for r in rewards]
                step.groups.append(Group(draw.task, 0, members))
            game.select(step)
    assert left / even < 1
    assert abs(left / even - promised / counted) < 0.03


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
