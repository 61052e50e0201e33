"""Synthesised tasks apart from those of a test: by their words, their start and their validator, and in a training set."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentenv.envs.domsim.decontamination import HeldOutTasks, wanted_changes
from agentenv.envs.domsim.records import WantedEnd
from agentenv.envs.domsim.tasks import INFEASIBLE, DesktopTask, generate_domsim_tasks
from agentenv.envs.domsim.world import World
from agentenv.errors import ConfigurationError, UnknownName


@dataclass
class Posed:
    goal: str
    start: World
    wanted: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None

    @property
    def ends(self) -> tuple[WantedEnd, ...]:
        return (WantedEnd((), self.wanted, self.answer),)


def posed(goal: str, box: int = 0, wanted: int = 1, answer: str | None = None) -> Posed:
    return Posed(
        goal,
        World({"mail.box": box, "shop.cart": 5, "_next": 7}),
        {"mail.box": wanted, "shop.cart": 5},
        answer,
    )


HELD = HeldOutTasks([posed("Star the mail about rent.", box=3, wanted=4)])


@pytest.mark.parametrize(
    ("task", "way"),
    [
        (posed("Star the mail about rent.", box=8, wanted=9), "semantic"),
        (posed("Empty the bin of the desktop.", box=3, wanted=9), "configuration"),
        (posed("Empty the bin of the desktop.", box=8, wanted=4), "evaluator"),
        (posed("Empty the bin of the desktop.", box=8, wanted=4, answer="yes"), ""),
        (posed("Empty the bin of the desktop.", box=8, wanted=9), ""),
    ],
    ids=["goal", "start", "changes", "another answer", "none"],
)
def test_the_three_ways(task: Posed, way: str) -> None:
    assert HELD.overlap(task) == way


def test_a_higher_bound_lets_like_goals_pass_and_a_test_without_tasks_all() -> None:
    like = posed("Star the mail about the rent.", box=8, wanted=9)
    assert HELD.overlap(like) == "semantic"
    strict = HeldOutTasks([posed("Star the mail about rent.", box=3, wanted=4)], similarity=0.999)
    assert strict.overlap(like) == ""
    assert HeldOutTasks([]).overlap(like) == ""


def test_what_is_as_at_the_start_is_no_change() -> None:
    task = DesktopTask("mail-star", "test 0")
    assert "mail.box" in wanted_changes(task)
    assert "shop" not in wanted_changes(task)
    other = copy.copy(task)
    assert wanted_changes(other) == wanted_changes(task)


def test_joined_tasks_leave_out_those_of_the_test() -> None:
    """Kept apart from tasks of its own split and seed, no task is what it would have been; without, the same come again."""
    words: dict[str, Any] = {"seed": 1, "templates": ("notes-pin", "files-delete", "mail-star"), "joined": 2}
    plain = generate_domsim_tasks(3, **words)
    held = {"n": 3, "split": "train", **words}
    apart = generate_domsim_tasks(3, apart_from=held, **words)
    assert not {task.question for task in plain} & {task.question for task in apart}
    test = HeldOutTasks(DesktopTask(t.data["template"], t.data["seed"]) for t in plain)
    assert [test.overlap(DesktopTask(t.data["template"], t.data["seed"])) for t in apart] == [""] * 3
    assert (
        generate_domsim_tasks(3, apart_from={"n": 1, "templates": ["shop-take-out"], "seed": 9}, **words)
        == plain
    )


def test_infeasible_tasks_leave_out_those_of_the_test() -> None:
    """As above, of tasks that cannot be done: each is drawn again until it says and begins otherwise."""
    words: dict[str, Any] = {
        "seed": 1,
        "templates": ("notes-pin", "files-delete", "mail-star"),
        "joined": 2,
        "infeasible": 1.0,
    }
    plain = generate_domsim_tasks(2, **words)
    apart = generate_domsim_tasks(2, apart_from={"n": 2, "split": "train", **words}, **words)
    assert all(task.data["template"].startswith(INFEASIBLE) for task in (*plain, *apart))
    assert not {task.question for task in plain} & {task.question for task in apart}
    test = HeldOutTasks(DesktopTask(t.data["template"], t.data["seed"]) for t in plain)
    assert [test.overlap(DesktopTask(t.data["template"], t.data["seed"])) for t in apart] == [""] * 2


def test_validators_that_want_nothing_are_no_overlap() -> None:
    """All tasks that cannot be done have the same; a question wants no change either, but an answer."""
    held = HeldOutTasks(
        [
            posed("Star the mail about rent.", box=3, wanted=3),
            posed("Who wrote?", box=4, wanted=4, answer="Ada"),
        ]
    )
    assert held.overlap(posed("Empty the bin of the desktop.", box=8, wanted=8)) == ""
    assert held.overlap(posed("Empty the bin of the desktop.", box=8, wanted=8, answer="Ada")) == "evaluator"


def test_what_cannot_be_kept_apart_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="joined"):
        generate_domsim_tasks(1, apart_from={"n": 1})
    with pytest.raises(UnknownName, match="'sead'"):
        generate_domsim_tasks(1, joined=2, apart_from={"sead": 1})
