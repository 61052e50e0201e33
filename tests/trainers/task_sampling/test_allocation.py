"""How many rollouts a task gets: DAPO's rule and DARS's formulas, by hand."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import others_mean
from agentenv.trainers.credit.shaping import shape_rewards
from agentenv.trainers.task_sampling.allocation import (
    DifficultyAdaptive,
    DiversityFilter,
    DynamicSampling,
    Uniform,
    apportioned,
    hardness_allocation,
    is_diverse,
)
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget, TaskDraw, TaskSampler, collect

TASKS = [Task(f"t{i}", "q") for i in range(20)]


def step_budget_of(
    *outcomes: Sequence[float], rounds: int = 1, questions: int = 4, size: int = 4
) -> StepBudget:
    """A step under way whose groups have these outcomes."""
    step_budget = StepBudget(1, TASKS, np.random.default_rng(0), questions, size, rounds=rounds)
    for place, rewards in enumerate(outcomes):
        members = [Trajectory(TASKS[place], (), (), r, EndReason.ANSWERED) for r in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
        step_budget.reserved += len(members)
    return step_budget


def sizes(draws: Sequence[TaskDraw]) -> list[tuple[int | None, int]]:
    return [(draw.group, draw.rollouts) for draw in draws]


# Four outcomes with 0, 1, 3 and 4 right: only 1 and 3 differ.
COUNTS = ([0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1])


def test_dapo_keeps_groups_that_differ() -> None:
    kept = DynamicSampling().select(step_budget_of(*COUNTS)).trained
    assert [group.task for group in kept] == [1, 2]


def episode(reward: float, tokens: int) -> Trajectory:
    sampled = Segment(SegmentKind.POLICY, tuple(range(tokens)), 0, logprobs=(-0.5,) * tokens)
    return Trajectory(TASKS[0], (sampled,), (), reward, EndReason.ANSWERED)


@pytest.mark.parametrize("sampler", [DynamicSampling(), DifficultyAdaptive(), DiversityFilter(eta=0.0)])
def test_outcomes_decide_before_the_penalty_on_overlong_episodes(sampler: TaskSampler) -> None:
    """DAPO filters by accuracy.

    Two right answers of 4 and 8 tokens are worth 1 and 0 with the penalty (limit 8, buffer 4) and are dropped. A wrong one
    of 4 tokens and a right one of 8 are worth 0 with it and are kept.
    """
    dropped, kept = [episode(1.0, 4), episode(1.0, 8)], [episode(0.0, 4), episode(1.0, 8)]
    shaped = [[t.reward for t in shape_rewards(g, limit=8, overlong_buffer=4)] for g in (dropped, kept)]
    assert shaped == [[1.0, 0.0], [0.0, 0.0]]
    step_budget = step_budget_of()
    step_budget.groups += [Group(place, 0, members) for place, members in enumerate((dropped, kept))]
    assert [group.task for group in sampler.select(step_budget).trained] == [1]


def test_dapo_plays_as_many_fresh_tasks_as_are_missing() -> None:
    """``keep`` .75 of 8 questions is 6; 2 of 4 differ, so 4 are missing; 16 of 32 episodes are left, enough for 4."""
    sampler = DynamicSampling(keep=0.75)
    draws = sampler.draw(step_budget_of(*COUNTS, questions=8))
    assert sizes(draws) == [(None, 4)] * 4
    assert not {draw.task for draw in draws} & {0, 1, 2, 3}
    assert sizes(sampler.draw(step_budget_of(*COUNTS, questions=6))) == [(None, 4)] * 2  # 4 - 2 missing
    assert sizes(sampler.draw(step_budget_of(*COUNTS, questions=5))) == [(None, 4)]  # budget for one more
    assert sampler.draw(step_budget_of(*COUNTS[1:3], questions=3)) == []  # 2 of 2 differ


def test_dapo_stops_after_its_waves() -> None:
    flat = step_budget_of(*[[0, 0, 0, 0]] * 2, rounds=3, questions=8)
    assert DynamicSampling(max_rounds=3).draw(flat) == []
    assert DynamicSampling(max_rounds=0).draw(flat) != []


@pytest.mark.parametrize(
    ("sampler", "last", "trained"),
    [
        # Two of four questions shall differ. One of the first two does, then one question a round takes the other's place,
        # until the budget of four is spent: all of the last round is kept, and nothing else without a difference.
        (DynamicSampling(keep_last=True), [0.5, 0.5], [[0, 1], [0.5, 0.5]]),
        (DynamicSampling(), [0.5, 0.5], [[0, 1]]),
        (
            DynamicSampling(keep_last=True, max_rounds=2),
            [],
            [[0, 1], [1, 1]],
        ),  # the last round is the second one
        (DynamicSampling(keep_last=True), [1, 0], [[0, 1], [1, 0]]),  # as many differ as are wanted
    ],
)
def test_gigpo_keeps_the_last_try_as_it_is(
    sampler: DynamicSampling, last: Sequence[float], trained: Sequence[Sequence[float]]
) -> None:
    rounds: Iterator[list[Sequence[float]]] = iter([[[0, 0], [0, 1]], [[1, 1]], [last]])

    def play(draws: Sequence[TaskDraw], *_: object) -> list[list[Trajectory]]:
        return [
            [Trajectory(TASKS[draw.task], (), (), r, EndReason.ANSWERED, id="e") for r in rewards]
            for draw, rewards in zip(draws, next(rounds), strict=True)
        ]

    batch = collect(sampler, StepBudget(1, TASKS, np.random.default_rng(0), 4, 2), play)
    assert [[member.reward for member in group] for group in batch.trained] == trained


def test_returns_are_diverse_beyond_eta_or_alone() -> None:
    # The population deviation of 0 and x is x / 2, the sample's would be x / sqrt 2.
    assert is_diverse([0, 0.61], 0.3)
    assert not is_diverse([0, 0.59], 0.3)
    # One success of 16: sqrt(1/16 * 15/16) = .242, the sample's .25.
    assert is_diverse([1] + [0] * 15, 0.24)
    assert not is_diverse([1] + [0] * 15, 0.245)
    assert is_diverse([0.2], 0.3)
    assert not is_diverse([], 0.3)


def test_ui_s1_compares_returns_of_first_turns() -> None:
    """Outcomes 1 and 1; the returns from the first turn at gamma .5 are 1 and 0 + .5: population deviation .25."""
    step_budget = step_budget_of([1, 1], [1, 1], [0, 0])
    for member, rewards in zip(step_budget.groups[1].members, ([1.0, 0.0], [0.0, 1.0]), strict=True):
        object.__setattr__(member, "turns", tuple(Turn("a", reward=r) for r in rewards))
    kept = DiversityFilter(eta=0.24).select(step_budget).trained
    assert [group.task for group in kept] == [1]
    assert DiversityFilter(eta=0.26).select(step_budget).trained == []
    # A first turn that did not match carries nothing on: the returns are 1 and 0, their deviation .5.
    broken = [replace(turn, valid=False) for turn in step_budget.groups[1].members[1].turns]
    object.__setattr__(step_budget.groups[1].members[1], "turns", tuple(broken))
    assert [
        group.task for group in DiversityFilter(eta=0.49, segment_end="exclude").select(step_budget).trained
    ] == [1]


def gains(sampler: TaskSampler, step: int, chances: Sequence[float]) -> list[float]:
    """Sum of leave-one-out credit times slope of the log-prob, for the first half of the tasks and for the second.

    A task is one Bernoulli choice whose log-odds are its own parameter: the slope is R - p, the exact gradient p (1 - p).
    """
    step_budget, sums = StepBudget(step, TASKS, np.random.default_rng(step), 4, 4), [0.0, 0.0]

    def play(
        draws: Sequence[TaskDraw], groups: Sequence[Group], step_budget: StepBudget
    ) -> list[list[Trajectory]]:
        return [
            [
                Trajectory(
                    TASKS[draw.task], (), (), float(u < chances[draw.task]), EndReason.ANSWERED, id="e"
                )
                for u in step_budget.rng.random(draw.rollouts)
            ]
            for draw in draws
        ]

    for group in collect(sampler, step_budget, play).trained:
        rewards = np.array([trajectory.reward for trajectory in group])
        place = int(group[0].task.id[1:])
        sums[place >= 10] += float((rewards - others_mean(rewards)) @ (rewards - chances[place]))
    return sums


@pytest.mark.parametrize(
    ("sampler", "unbiased"),
    [(Uniform(), True), (DynamicSampling(), True), (DifficultyAdaptive(weighting="hardness"), False)],
    ids=["uniform", "dapo", "dars"],
)
def test_refilling_moves_no_weight_between_tasks(sampler: TaskSampler, unbiased: bool) -> None:
    """Tasks of chance .1 and .5 gain as .09 to .25, within 4 standard errors; DARS is meant to weigh the former up."""
    chances = [0.1] * 10 + [0.5] * 10
    found = np.array([gains(sampler, step, chances) for step in range(1500)])
    difference = found[:, 0] / 0.09 - found[:, 1] / 0.25
    error = difference.std() / len(difference) ** 0.5
    assert (abs(difference.mean()) < 4 * error) == unbiased
    assert found.mean(axis=0).min() > 0


@pytest.mark.parametrize(
    ("accuracy", "weighting", "scale", "expected"),
    [
        # n = 8, a = 1/4: S = 3/8, n S = 3, peak 4: ceil((4 - 3) / (3/8)) = ceil(2.67).
        (0.25, "equal", "none", 3),
        # Hardness: 2 (3/4) 4 = 6: (6 - 3) / (3/8) = 8.
        (0.25, "hardness", "none", 8),
        # None right counts as 1/16: S = 15/128, n S = 15/16: ceil((49/16) / (15/128)) = 27, bounded to 32 - 8.
        (0.0, "equal", "none", 24),
        # Hardness: 2 (15/16) 4 = 7.5: (7.5 - .9375) / (15/128) = 56 = 64 - 8.
        (0.0, "hardness", "none", 56),
        # Standardised: S = 2 sqrt(3/16) = .866, n S = 6.93, peak 8: ceil(1.072 / .866) = 2.
        (0.25, "equal", "std", 2),
        (0.5, "equal", "none", 0),
        # Above a half nothing is added, although 3/4 has the S of 1/4 and 5/8 that of 3/8.
        (0.75, "equal", "none", 0),
        (0.625, "equal", "none", 0),
        (0.75, "equal", "std", 0),
        (0.875, "hardness", "none", 0),
        (1.0, "equal", "none", 0),
    ],
)
def test_dars_allocations(accuracy: float, weighting: str, scale: str, expected: int) -> None:
    cap = 32 if weighting == "equal" else 64
    given = hardness_allocation(accuracy, 8, cap=cap, weighting=weighting, scale=scale)  # type: ignore[arg-type]
    assert given == expected


def test_a_half_is_where_a_group_stops_being_hard() -> None:
    """Size 20: 9 and 11 right have the same S, .495, so 20 S = 9.9 of a peak of 10: ceil(.1 / .495) = 1 for the hard one."""
    given = [hardness_allocation(right / 20, 20, cap=32) for right in (9, 10, 11)]
    assert given == [1, 0, 0]


def test_float_noise_buys_no_rollout() -> None:
    """Size 6, a = 1/3: S = 4/9, n S = 8/3; hardness 2 (2/3) 3 = 4: (4/3) / (4/9) = 3 and not 4."""
    assert hardness_allocation(1 / 3, 6, cap=64, weighting="hardness") == 3


def test_a_group_above_its_cap_gets_none() -> None:
    assert hardness_allocation(0.1, 40, cap=32) == 0


def test_shares_of_what_does_not_fit() -> None:
    assert apportioned([2, 0, 3], 7) == [2, 0, 3]
    # 6, 3 and 1 of 10 into 5: 3, 1.5 and .5, the halves to the first.
    assert apportioned([6, 3, 1], 5) == [3, 2, 0]
    assert apportioned([1, 1, 1], 0) == [0, 0, 0]


def test_dars_looks_first_then_adds_where_little_succeeds() -> None:
    """Budget 4 x 4, first looks of 2; halves and more get none.

    Two failures count as a = 1/4: S = 3/8, n S = 3/4, peak 1: ceil((1/4) / (3/8)) = 1 more. That leaves 8 - 2 = 6 episodes
    for 3 fresh tasks.
    """
    sampler = DifficultyAdaptive()
    first = sampler.draw(step_budget_of(rounds=0))
    assert sizes(first) == [(None, 2)] * 4
    assert len({draw.task for draw in first}) == 4
    step_budget = step_budget_of([0, 0], [1, 0], [1, 1], [0, 0])
    assert sizes(sampler.draw(step_budget)) == [(0, 1), (3, 1), (None, 2), (None, 2), (None, 2)]
    assert [group.task for group in sampler.select(step_budget).trained] == [1]
    assert sampler.draw(step_budget_of([0, 0], rounds=2)) == []


def test_dars_divides_what_is_left_where_the_formula_asks_for_more() -> None:
    """Hardness on three failed pairs: 2 (3/4) 1 = 1.5: (1.5 - .75) / (3/8) = 2 each, 6 where 2 are left."""
    step_budget = step_budget_of([0, 0], [0, 0], [0, 0], questions=2)
    assert sizes(DifficultyAdaptive(weighting="hardness").draw(step_budget)) == [(0, 1), (1, 1)]


def test_the_first_look_is_as_large_as_asked() -> None:
    assert sizes(DifficultyAdaptive(first=3).draw(step_budget_of(rounds=0))) == [(None, 3)] * 4


def test_what_is_not_compared_is_in_no_diversity() -> None:
    """Returns 1, 1 and 0 differ; without the third episode they do not."""
    plain = step_budget_of([1, 0], questions=1, size=2).groups[0]
    alike = step_budget_of([1, 1, 0], questions=1, size=3).groups[0]
    assert DiversityFilter().keeps(plain)
    for lost in ({"valid": False}, {"origin": Origin.DEMONSTRATION, "group_id": "/shown"}):
        members = [*alike.members[:2], replace(alike.members[2], **lost)]
        assert not DiversityFilter().keeps(Group(0, 0, members))
    hinted = replace(alike.members[2], origin=Origin.RETRY, parent_id="another")
    assert DiversityFilter().keeps(Group(0, 0, [*alike.members[:2], hinted]))


SELECTIVE = [DynamicSampling(), DifficultyAdaptive(first=4), DiversityFilter()]
DROPPING = pytest.mark.parametrize("sampler", SELECTIVE, ids=lambda sampler: type(sampler).__name__)


def rescued(sampler: TaskSampler, *added: Trajectory) -> list[list[Trajectory]]:
    """What is trained of a step in which every episode failed and every group got ``added`` beside its own."""

    def play(draws: Sequence[TaskDraw], groups: object, step_budget: StepBudget) -> list[list[Trajectory]]:
        lost = [step_budget_of([0.0] * draw.rollouts).groups[0].members for draw in draws]
        return [[*members, *added] for members in lost]

    return collect(sampler, step_budget_of(rounds=0), play).trained


@DROPPING
def test_a_group_that_help_rescued_is_trained(sampler: TaskSampler) -> None:
    """Guide, SEELE and Critique-GRPO act where all fail, and what they add belongs to the group."""
    hinted = replace(step_budget_of([1.0]).groups[0].members[0], origin=Origin.RETRY, parent_id="a")
    trained = rescued(sampler, hinted)
    assert [len(group) for group in trained] == [5] * len(trained)
    assert len(trained) >= 2
    assert rescued(sampler) == []


@DROPPING
def test_what_has_a_group_of_its_own_outlives_the_group_that_is_dropped(sampler: TaskSampler) -> None:
    """Demonstrations (ReLIFT), preference pairs (EvoCUA) and reflections (R3L) stand beside a group that teaches nothing."""
    shown = replace(
        step_budget_of([1.0]).groups[0].members[0], origin=Origin.DEMONSTRATION, group_id="/shown"
    )
    trained = rescued(sampler, shown)
    assert trained == [[shown]] * len(trained)
    assert len(trained) >= 4


@pytest.mark.parametrize(
    ("sampler", "option", "accepted", "refused"),
    [
        (DynamicSampling, "keep", (1e-9, 1.0), (0.0, -0.5, 1.01)),
        (DynamicSampling, "max_rounds", (0, 1), (-1,)),
        (DiversityFilter, "eta", (0.0, 2.0), (-0.01,)),
        (DifficultyAdaptive, "first", (0, 2), (1, -1)),
        (DifficultyAdaptive, "cap", (0, 1), (-1,)),
    ],
)
def test_options_have_bounds(
    sampler: type[TaskSampler], option: str, accepted: Sequence[float], refused: Sequence[float]
) -> None:
    for value in accepted:
        assert getattr(sampler(**{option: value}), option) == value
    for value in refused:
        with pytest.raises(ConfigurationError) as caught:
            sampler(**{option: value})
        assert repr(option) in str(caught.value)
        assert str(value) in str(caught.value)
