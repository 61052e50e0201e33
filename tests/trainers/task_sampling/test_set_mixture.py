"""Weights of several sets: how many tasks each gives, which of them, and with which samplers that holds."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError
from agentenv.trainers.task_sampling.samplers import (
    SAMPLERS,
    Group,
    StepBudget,
    TaskDraw,
    chooses_tasks,
    collect,
    get_sampler,
)
from agentenv.trainers.task_sampling.set_mixture import SetMixture, set_mixture

SMALL, LARGE = 3, 300


def merged(**sizes: int) -> Source:
    """Sets of so many questions each, as one source."""
    tasks = [
        Task(f"{name}:{i}", f"Which thing is {name} {i}?", ("x",), data={"set": name, "hops": 1 + i % 3})
        for name, size in sizes.items()
        for i in range(size)
    ]
    return Source("+".join(sizes), "train", tuple(tasks), None, None, parts=tuple(sizes))


def step_budget(source: Source, weights: dict[str, float], step: int, questions: int = 8) -> StepBudget:
    mixture = set_mixture(source, weights)
    return StepBudget(step, source.tasks, np.random.default_rng([3, step]), questions, 4, mixture)


class Start:
    """A generator whose common random start is given."""

    def __init__(self, start: float) -> None:
        self.start = start

    def random(self) -> float:
        return self.start


@pytest.mark.parametrize(
    ("weights", "start", "counts"),
    [
        # Of 8 tasks .7 is 5.6: points at .5, 1.5, ..., 7.5, of which six lie below 5.6.
        ((0.7, 0.3), 0.5, [6, 2]),
        ((0.7, 0.3), 0.6, [5, 3]),
        ((0.7, 0.3), 0.0, [6, 2]),
        ((7, 3), 0.5, [6, 2]),  # weights are relative
        ((1, 1), 0.99, [4, 4]),
        ((1, 1, 2), 0.3, [2, 2, 4]),
        ((1, 99), 0.05, [1, 7]),
        ((1, 99), 0.5, [0, 8]),
    ],
)
def test_each_set_gives_its_share_rounded_by_chance(
    weights: Sequence[float], start: float, counts: list[int]
) -> None:
    rng: Any = Start(start)
    assert SetMixture([[0]] * len(weights), weights).counts(8, rng) == counts


@pytest.mark.parametrize("total", [1, 5, 8])
def test_the_mean_of_the_counts_is_exactly_the_share(total: int) -> None:
    mixture = SetMixture([[0], [1], [2]], [0.5, 0.3, 0.2])
    starts: list[Any] = [Start((k + 0.5) / 10) for k in range(10)]
    counts = [mixture.counts(total, start) for start in starts]
    assert [fmean(own) for own in zip(*counts, strict=True)] == pytest.approx(
        [0.5 * total, 0.3 * total, 0.2 * total]
    )
    assert {sum(own) for own in counts} == {total}


def test_shares_do_not_follow_the_sizes_and_a_small_set_is_gone_through_again() -> None:
    budget = step_budget(merged(small=SMALL, large=LARGE), {"small": 1, "large": 1}, 1)
    drawn = budget.draw_unplayed(8)
    small = Counter(place for place in drawn if place < SMALL)
    assert sorted(small.values()) == [1, 1, 2]
    assert len({place for place in drawn if place >= SMALL}) == 4


def test_within_a_set_what_was_not_played_in_the_step_comes_first() -> None:
    budget = step_budget(merged(small=SMALL, large=LARGE), {"small": 1, "large": 1}, 1)
    budget.groups = [Group(0, 0), Group(2, 0)]
    drawn = [place for place in budget.draw_unplayed(2) if place < SMALL]
    assert drawn == [1]
    assert {0, 1, 2} == {place for place in budget.draw_unplayed(6) if place < SMALL}


def test_all_tasks_of_a_set_are_equally_likely() -> None:
    source, counts = merged(small=SMALL, large=LARGE), Counter[int]()
    for step in range(3000):
        counts.update(step_budget(source, {"small": 0.25, "large": 0.75}, step).draw_unplayed(4))
    assert sum(counts[place] for place in range(SMALL)) == 3000  # one of four in each step
    # 1000 each, by a binomial of 3000 draws with a standard deviation of 26.
    assert all(900 < counts[place] < 1100 for place in range(SMALL))


def test_a_set_of_weight_zero_is_never_drawn_and_no_weights_are_no_mixture() -> None:
    source = merged(small=SMALL, large=LARGE)
    assert set_mixture(source, {}) is None
    mixture = set_mixture(source, {"small": 0.0, "large": 2.0})
    assert mixture is not None
    assert min(mixture.draw(200, (), np.random.default_rng(0))) >= SMALL


def test_a_weight_needs_questions_of_its_set() -> None:
    with pytest.raises(ConfigurationError, match=r"'small' the weight 0\.5.*none of the 300 questions"):
        set_mixture(merged(small=0, large=LARGE), {"small": 0.5, "large": 0.5})
    assert set_mixture(merged(small=0, large=LARGE), {"small": 0, "large": 0.5}) is not None


def _played(task: Task, reward: float) -> Trajectory:
    segments = (
        Segment(SegmentKind.PROMPT, (1,), 0),
        Segment(SegmentKind.POLICY, (5, 6), 0, logprobs=(-0.25, -0.5), version=1),
        Segment(SegmentKind.ENV, (7,), 0),
        Segment(SegmentKind.POLICY, (8,), 1, logprobs=(-0.25,), version=1),
    )
    turns = (Turn("a"), Turn("b", reward=reward))
    return Trajectory(task, segments, turns, reward, EndReason.ANSWERED, id=task.id)


def _own_draws(name: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> int:
    """How many of the groups of 40 steps are of tasks that ``draw_unplayed`` did not give."""
    source, given, own = merged(small=SMALL, large=40), list[int](), 0
    draw_unplayed = StepBudget.draw_unplayed

    def recorded(self: StepBudget, count: int) -> list[int]:
        places = draw_unplayed(self, count)
        given.extend(places)
        return places

    monkeypatch.setattr(StepBudget, "draw_unplayed", recorded)
    sampler = get_sampler(name, options)
    for step in range(1, 41):
        budget = StepBudget(step, source.tasks, np.random.default_rng([0, step]), 4, 4)
        given.clear()

        def play(
            draws: Sequence[TaskDraw], groups: Sequence[Group], budget: StepBudget
        ) -> list[list[Trajectory]]:
            chance = budget.rng.random
            tasks = [[source.tasks[draw.task]] * draw.rollouts for draw in draws]
            return [[_played(task, float(chance() < 0.5)) for task in mine] for mine in tasks]

        collect(sampler, budget, play)
        own += sum((Counter(group.task for group in budget.groups) - Counter(given)).values())
    return own


@pytest.mark.parametrize("name", [name for name in SAMPLERS if name != "self_play"])  # which needs games
def test_the_samplers_that_take_weights_are_those_that_leave_the_draw_to_the_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (_own_draws(name, monkeypatch, {}) > 0) == chooses_tasks(get_sampler(name))


def test_a_game_over_prompts_leaves_the_draw_to_the_step_where_it_weighs_credit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"apply": "weight"}
    assert _own_draws("prompt_gdro", monkeypatch, options) == 0
    assert not chooses_tasks(get_sampler("prompt_gdro", options))
