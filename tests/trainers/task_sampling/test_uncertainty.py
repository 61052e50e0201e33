"""XRPO by hand: intervals, priorities, and the solved examples that a question is played with where all fail."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.trajectory import Origin, Trajectory, Turn
from agentenv.core.types import EndReason, Message, Task
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget, TaskDraw
from agentenv.trainers.task_sampling.uncertainty import (
    UncertaintyAllocation,
    half_width,
    nearest_places,
    priority,
    solved_example,
    uncertainty_allocation,
)

QUESTIONS = (
    "who built the old bridge",
    "who built the new bridge",
    "when was the poet born",
    "how tall is the tower",
)
TASKS = [Task(f"t{i}", question) for i, question in enumerate(QUESTIONS)]


def episode(place: int, reward: float, action: str = "act", seen: str = "") -> Trajectory:
    turn = Turn(action, observation=(Message("tool", seen),) if seen else ())
    return Trajectory(TASKS[place], (), (turn,), reward, EndReason.ANSWERED)


def step_budget_of(
    *outcomes: Sequence[float], rounds: int = 1, questions: int = 4, size: int = 4
) -> StepBudget:
    """A step under way whose groups have these outcomes."""
    step_budget = StepBudget(1, TASKS, np.random.default_rng(0), questions, size, rounds=rounds)
    for place, rewards in enumerate(outcomes):
        members = [episode(place, reward) for reward in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
        step_budget.reserved += len(members)
    return step_budget


def sizes(draws: Sequence[TaskDraw]) -> list[tuple[int | None, int]]:
    return [(draw.group, draw.rollouts) for draw in draws]


def test_half_widths() -> None:
    assert half_width(0.5, 4) == pytest.approx(3.1824 * 0.5 / 2, abs=1e-4)
    assert half_width(0.0, 2) == 0.0
    assert half_width(1.0, 1) == math.inf


def test_priorities() -> None:
    """Deviation 1/2: h(4) = .79561, h(5) = 2.7764 (1/2) / sqrt(5) = .62083; bonus .1 sqrt(log(17) / 4) = .08416."""
    assert priority(0.5, 4, 16, exploration=0.0) == pytest.approx(0.79561 - 0.62083, abs=1e-4)
    assert priority(0.5, 4, 16, exploration=0.1) == pytest.approx(0.17478 + 0.08416, abs=1e-4)
    assert priority(0.0, 4, 16, exploration=0.0) == 0.0
    assert priority(0.0, 1, 16, exploration=0.0) == math.inf


def test_rollouts_go_where_they_take_off_most() -> None:
    # Only the second group is uncertain; without exploration it gets everything.
    assert uncertainty_allocation([0.0, 0.5, 0.0], [4, 4, 4], 3, exploration=0.0) == [0, 3, 0]
    # Nothing is uncertain: the bonus levels the sizes.
    assert uncertainty_allocation([0.0, 0.0, 0.0], [4, 2, 3], 3, exploration=0.1) == [0, 2, 1]
    # A group of one outcome has no interval and comes first.
    assert uncertainty_allocation([0.5, 0.0], [4, 1], 1, exploration=0.0) == [0, 1]


def test_xrpo_spends_the_rest_in_equal_rounds() -> None:
    sampler = UncertaintyAllocation(exploration=0.0)
    assert sizes(sampler.draw(step_budget_of(rounds=0))) == [(None, 2)] * 4
    pairs = ([0, 0], [1, 0], [1, 1], [0, 0])
    assert sizes(sampler.draw(step_budget_of(*pairs))) == [(1, 4)]  # half of the 8 that are left
    step_budget = step_budget_of([0, 0], [1, 0, 1, 1, 1, 1], [1, 1], [0, 0], rounds=2)
    assert sizes(sampler.draw(step_budget)) == [(1, 4)]
    assert sampler.draw(step_budget_of(*pairs, rounds=3)) == []
    assert sampler.select(step_budget).metrics == {
        "largest_group": 6,
        "seeded_groups": 0,
        "solved_examples": 2,
    }


def test_the_confidence_level_reaches_every_half_width() -> None:
    """Deviation 1/2 at a level of .5: t(3) = .76489, t(4) = .74070; h(4) = .19122, h(5) = .16562."""
    assert priority(0.5, 4, 16, exploration=0.0, level=0.5) == pytest.approx(0.19122 - 0.16562, abs=1e-4)
    # At .95 the pair is widest by far; at a level near 0 every interval is narrow and the bonus levels the sizes.
    assert uncertainty_allocation([0.5, 0.0], [3, 2], 1, exploration=0.1) == [1, 0]
    assert uncertainty_allocation([0.5, 0.0], [3, 2], 1, exploration=0.1, level=1e-6) == [0, 1]
    step_budget = step_budget_of([1, 0, 1], [0, 0], questions=2, size=3)
    wide, narrow = (UncertaintyAllocation(rounds=1, level=level).draw(step_budget) for level in (0.95, 1e-6))
    assert sizes(wide) == [(0, 1)]
    assert sizes(narrow) == [(1, 1)]


def test_equal_priorities_go_to_the_first_group() -> None:
    assert uncertainty_allocation([0.5, 0.5, 0.5], [4, 4, 4], 1, exploration=0.1) == [1, 0, 0]


def test_a_single_outcome_has_no_deviation() -> None:
    """One outcome is of unknown spread and is played again first, whatever its value."""
    draws = UncertaintyAllocation(rounds=1).draw(step_budget_of([1], [1, 0], questions=2, size=2))
    assert sizes(draws) == [(0, 1)]


def test_a_reflection_is_no_outcome_of_its_task() -> None:
    """R3L adds reflections, in groups of their own and with reward 1: failures of one task stay failures that all agree."""
    step_budget = step_budget_of([0, 0, 0, 0], [1, 0, 0, 0], rounds=1, questions=2, size=6)
    dialogue = replace(episode(0, 1.0), group_id="reflection", origin=Origin.REFLECTION)
    step_budget.groups[0].members += [dialogue] * 2
    sampler = UncertaintyAllocation(rounds=1, exploration=0.0, examples=0)
    assert sizes(sampler.draw(step_budget)) == [(1, 4)]


def test_xrpo_trains_every_group() -> None:
    step_budget = step_budget_of([0, 0], [1, 0])
    assert UncertaintyAllocation().select(step_budget).trained == step_budget.groups


def test_the_first_look_is_as_large_as_asked() -> None:
    assert sizes(UncertaintyAllocation(first=3).draw(step_budget_of(rounds=0))) == [(None, 3)] * 4


def test_the_nearest_come_first_and_of_equal_ones_the_first() -> None:
    """Inner products with (1, 0): 0, .6, 1, .6."""
    vectors = np.array([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0], [0.6, -0.8]])
    assert nearest_places(np.array([1.0, 0.0]), vectors, 3) == [2, 1, 3]
    assert nearest_places(np.array([1.0, 0.0]), vectors[:1], 3) == [0]


def test_an_example_is_the_question_with_what_was_done_and_seen_and_is_cut_where_it_is_long() -> None:
    solved = episode(0, 1.0, "<search>bridge</search>", "by Vell")
    assert solved_example(solved, 100) == "Question: who built the old bridge\n<search>bridge</search>by Vell"
    assert solved_example(solved, 8) == "Question: who built the old bridge\n<search> ..."


def solving(*places: int, **options: Any) -> UncertaintyAllocation:
    """A sampler that has seen these tasks solved, in this order."""
    sampler = UncertaintyAllocation(rounds=1, exploration=0.0, **options)
    for place in places:
        step_budget = StepBudget(1, TASKS, np.random.default_rng(0), 1, 2)
        step_budget.groups = [Group(place, 0, [episode(place, 0.0), episode(place, 1.0, f"way {place}")])]
        sampler.select(step_budget)
    return sampler


def test_a_task_on_which_all_fail_is_played_with_the_solved_examples_of_the_most_similar_others() -> None:
    """Task 0 fails, task 1 differs: of the four that are left one goes to task 0 and three where something is uncertain."""
    sampler = solving(3, 2, 0, 1)
    told, untold = sampler.draw(step_budget_of([0, 0], [1, 0], questions=2))
    assert sizes([told, untold]) == [(0, 1), (1, 3)]
    assert untold.guidance == ""
    first, second, *_ = told.guidance.split("Question: ")[1:]
    assert first.startswith(f"{QUESTIONS[1]}\nway 1")  # four words in common
    assert second.startswith((QUESTIONS[2], QUESTIONS[3]))
    assert QUESTIONS[0] not in told.guidance  # its own solution would be the answer
    assert told.guidance.count("Question: ") == 2


def test_similar_questions_are_found_by_the_encoder_that_is_named() -> None:
    with pytest.raises(UnknownName, match="'hush'"):
        solving(1, encoder="hush").draw(step_budget_of([0, 0], [1, 0], questions=2))


def test_nothing_is_shown_without_examples_or_after_a_success() -> None:
    failed = ([0, 0], [1, 0])
    assert [d.guidance for d in solving().draw(step_budget_of(*failed, questions=2))] == [""]
    assert [d.guidance for d in solving(1, examples=0).draw(step_budget_of(*failed, questions=2))] == [""]
    alone = solving(0).draw(step_budget_of(*failed, questions=2))  # only its own solution is known
    assert [d.guidance for d in alone] == [""]
    step_budget = step_budget_of(*failed, questions=2)
    with_help = replace(episode(0, 1.0), origin=Origin.RETRY, parent_id="e")
    step_budget.groups[0].members.append(with_help)
    step_budget.reserved += 1
    assert [d.guidance for d in solving(1).draw(step_budget)] == [""] * len(solving(1).draw(step_budget))


def test_seeds_stay_within_the_round() -> None:
    draws = solving(3, seeds=3).draw(step_budget_of([0, 0], [0, 0], questions=2))
    assert sizes(draws) == [(0, 3), (1, 1)]
    assert sizes(solving(3, seeds=9).draw(step_budget_of([0, 0], [0, 0], questions=2))) == [(0, 4)]


def test_the_newest_solution_is_kept_in_the_order_in_which_tasks_were_solved_and_survives_a_checkpoint() -> (
    None
):
    sampler = solving(0, 1, 0)
    assert [place for place, _ in sampler.state_dict()["solved"]] == [1, 0]
    again = UncertaintyAllocation(rounds=1, exploration=0.0)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert json.dumps(again.state_dict()) == json.dumps(sampler.state_dict())
    step_budget = step_budget_of([1, 0], [1, 0], [0, 0])
    assert again.draw(step_budget) == sampler.draw(step_budget)


@pytest.mark.parametrize(
    ("option", "accepted", "refused"),
    [
        ("first", (0, 2), (1, -1)),
        ("rounds", (1, 2), (0,)),
        ("exploration", (0.0, 3.0), (-0.01,)),
        ("level", (0.01, 0.99), (0.0, 1.0, 1.5)),
        ("examples", (0, 2), (-1,)),
        ("example_characters", (1, 9), (0,)),
        ("seeds", (0, 4), (-1,)),
    ],
)
def test_options_have_bounds(option: str, accepted: Sequence[float], refused: Sequence[float]) -> None:
    for value in accepted:
        assert getattr(UncertaintyAllocation(**{option: value}), option) == value  # type: ignore[arg-type]
    for value in refused:
        with pytest.raises(ConfigurationError) as caught:
            UncertaintyAllocation(**{option: value})  # type: ignore[arg-type]
        assert repr(option) in str(caught.value)
        assert str(value) in str(caught.value)


def test_examples_need_episodes_that_are_played_once() -> None:
    base = load_config("laptop-search")
    words = ["--rollout.sampler", "xrpo", "--rollout.strategy", "rollback"]
    with pytest.raises(ConfigurationError, match="'xrpo'"):
        override(base, words)
    override(base, [*words, "--rollout.sampler_options.examples", "0"])
    weighed = [
        "--rollout.sampler",
        "xrpo",
        "--loss.proximal",
        "recompute",
        "--loss.correction.mode",
        "truncate",
    ]
    override(base, weighed)
    with pytest.raises(ConfigurationError, match="'xrpo'"):
        override(base, [*weighed, "--loss.correction.off_context", "ratio"])
