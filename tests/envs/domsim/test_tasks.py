"""DomSim's tasks: every template is proved by its expert, no shortcut passes, side effects count, worlds are independent."""

import copy
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.envs.domsim.apps.bank import cents
from agentenv.envs.domsim.apps.shop import Line, bought, in_cart
from agentenv.envs.domsim.records import (
    MissingRecord,
    Move,
    added,
    changed,
    find,
    joined_value,
    numbered,
    without,
)
from agentenv.envs.domsim.tasks import (
    APPS,
    DESKTOP,
    INFEASIBLE,
    MUTANTS,
    TEMPLATES,
    DesktopTask,
    flaw_of,
    generate_domsim_tasks,
    played,
    solve,
    wrong_ends,
)
from agentenv.envs.domsim.world import World
from agentenv.envs.gui.actions import DIRECTIONS, Action, ActionKind
from agentenv.errors import ConfigurationError, UnknownName

SEEDS = range(3)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_expert_proves_every_template(template: str) -> None:
    for seed in SEEDS:
        assert flaw_of(DesktopTask(template, f"test {seed}")) == ""


def test_a_new_phone_number_is_another_one() -> None:
    # The worlds of these seeds draw the number that the person has.
    for key in ("train 82 17", "train 93 97"):
        assert flaw_of(DesktopTask("contacts-new-phone", key)) == ""


def test_there_are_at_least_forty_templates_and_goals_differ() -> None:
    assert len(TEMPLATES) >= 40
    goals = {DesktopTask(template, "goal").goal for template in TEMPLATES}
    assert len(goals) == len(TEMPLATES)


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_plan_less_its_last_move_is_not_enough(template: str) -> None:
    desktop_task = DesktopTask(template, "test")
    world = copy.deepcopy(desktop_task.start)
    for action, _, view in solve(desktop_task)[:-2]:
        DESKTOP.act(world, view, action)
        assert not desktop_task.achieved(world)


def test_a_side_effect_spoils_what_was_achieved() -> None:
    desktop_task = DesktopTask("mail-star", "test")
    world = copy.deepcopy(desktop_task.start)
    for action, _, view in solve(desktop_task)[:-1]:
        DESKTOP.act(world, view, action)
    assert desktop_task.achieved(world)
    DESKTOP.act(world, DESKTOP.view(world), Action(ActionKind.OPEN, text="settings"))
    view = DESKTOP.view(world)
    DESKTOP.act(world, view, Action(ActionKind.CLICK, id=view.id_of("switch.Dark mode")))
    assert not desktop_task.achieved(world)


def test_an_answer_is_compared_whole() -> None:
    desktop_task = DesktopTask("shop-price", "test")
    world = copy.deepcopy(desktop_task.start)
    assert desktop_task.answer is not None
    for said, right in (
        (desktop_task.answer, True),
        (f" {desktop_task.answer} ", True),
        ("", False),
        (f"about {desktop_task.answer}", False),
    ):
        world.answer = said
        assert desktop_task.achieved(world) is right


def test_a_plan_that_names_what_is_not_there_is_a_flaw_of_the_template() -> None:
    desktop_task = DesktopTask("mail-star", "test")
    desktop_task.plan = (("open", "mail"), ("click", "nothing"))
    with pytest.raises(LookupError, match="'nothing'"):
        solve(desktop_task)
    desktop_task.plan = (("open", "mail"),)
    assert flaw_of(desktop_task) == "has a plan that does not achieve it"
    desktop_task.wanted = desktop_task.start.facts()
    assert flaw_of(desktop_task) == "is achieved before anything is done"


def test_tasks_are_repeatable_and_splits_share_no_world() -> None:
    names = ["mail-star", "shop-buy"]
    tasks = generate_domsim_tasks(6, seed=3, templates=names)
    assert tasks == generate_domsim_tasks(6, seed=3, templates=names)
    assert [task.data["template"] for task in tasks] == names * 3
    assert len({task.id for task in tasks}) == 6
    held_out = generate_domsim_tasks(6, seed=3, split="test", templates=names)
    assert not {task.data["seed"] for task in tasks} & {task.data["seed"] for task in held_out}


def test_bad_requests_for_tasks() -> None:
    with pytest.raises(UnknownName, match="mail-star"):
        generate_domsim_tasks(1, templates=["mail-stars"])
    with pytest.raises(UnknownName, match="train"):
        generate_domsim_tasks(1, split="trian")
    with pytest.raises(ConfigurationError, match=r"\bn=0\b"):
        generate_domsim_tasks(0)


def test_tables_of_records() -> None:
    rows = numbered([Line(0, 5), Line(0, 6)])
    assert rows == (Line(1, 5), Line(2, 6))
    assert find(rows, 2) == Line(2, 6)
    assert changed(rows, 1, quantity=9) == (Line(1, 9), Line(2, 6))
    assert without(rows, 1) == (Line(2, 6),)
    assert added(rows, Line(0, 7))[-1] == Line(3, 7)
    assert added((), Line(0, 7)) == (Line(1, 7),)
    with pytest.raises(MissingRecord):
        find(rows, 3)


def test_an_order_by_hand() -> None:
    data = DESKTOP.start(Random(0)).data
    first = data["shop.products"][0]
    after = bought(data, (Line(1, 2),), "Oak Street 1", True)
    price = 2 * first.price - 2 * first.price // 10
    assert after["shop.balance"] == data["shop.balance"] - price
    assert after["shop.products"][0].stock == first.stock - 2
    assert (after["shop.cart"], after["shop.orders"][0].total) == ((), price)
    assert in_cart((Line(1, 2), Line(3, 1)), 1, 3) == (Line(1, 5), Line(3, 1))
    assert in_cart((Line(1, 2), Line(3, 1)), 2, 3) == (Line(1, 2), Line(2, 3), Line(3, 1))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12.50", 1250),
        ("12", 1200),
        ("$0.05", 5),
        ("", None),
        ("12.5", None),
        ("1.234", None),
        ("-1", None),
        ("²", None),
    ],
)
def test_amounts(text: str, value: int | None) -> None:
    assert cents(text) == value


_POINTS = st.tuples(st.floats(-10, 700), st.floats(-10, 460))
_ACTIONS = st.one_of(
    st.builds(Action, st.just(ActionKind.CLICK), id=st.integers(0, 30).map(str)),
    st.builds(Action, st.just(ActionKind.CLICK), point=_POINTS),
    st.builds(Action, st.just(ActionKind.TYPE), st.text(max_size=5), id=st.none() | st.integers(0, 30).map(str)),
    st.builds(Action, st.just(ActionKind.SELECT), st.sampled_from(["2", "Work", "12:00"]), id=st.integers(0, 30).map(str)),
    st.builds(Action, st.just(ActionKind.KEY), st.sampled_from(["Enter", "Tab", "Escape", "Control+a", "Backspace", "x"])),
    st.builds(Action, st.just(ActionKind.SCROLL), direction=st.sampled_from(DIRECTIONS)),
    st.builds(Action, st.just(ActionKind.SWIPE), point=_POINTS, end=_POINTS),
    st.builds(Action, st.just(ActionKind.DRAG), id=st.integers(0, 30).map(str), end_id=st.integers(0, 30).map(str)),
    st.builds(Action, st.just(ActionKind.SYSTEM_BUTTON), st.sampled_from(["Back", "Home", "Menu", "Enter"])),
    st.builds(Action, st.just(ActionKind.OPEN), st.sampled_from([*APPS, "Mail", "?"])),
    st.builds(Action, st.just(ActionKind.WAIT)),
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.lists(_ACTIONS, max_size=40))
def test_nothing_that_can_be_done_breaks_the_desktop_or_reaches_a_copy(
    seed: int, actions: list[Action]
) -> None:
    world = DESKTOP.start(Random(seed))
    if seed:  # the bank, open
        world.data["_bank.inside"] = True
    for action in actions:
        twin = copy.deepcopy(world)
        seen = DESKTOP.view(twin).screen
        DESKTOP.act(world, DESKTOP.view(world), action)
        assert DESKTOP.view(twin).screen == seen
        for element in DESKTOP.view(world).screen.elements or ():
            assert 0 <= element.box.x1 < element.box.x2 <= 672
            assert 0 <= element.box.y1 < element.box.y2 <= 448


@pytest.mark.parametrize("template", ["mail-star", "notes-pin", "calendar-when"])
def test_a_validator_refuses_wrong_ends(template: str) -> None:
    name = template if template in TEMPLATES else next(iter(TEMPLATES))
    desktop_task = DesktopTask(name, "wrong")
    world = copy.deepcopy(desktop_task.start)
    played(world, desktop_task.plan)
    wrong = wrong_ends(desktop_task, world)
    assert 0 < len(wrong) <= MUTANTS
    assert not any(desktop_task.achieved(other) for _, other in wrong)
    assert desktop_task.achieved(world)


def test_a_validator_that_looks_at_less_is_found_out() -> None:
    class Lenient(DesktopTask):
        def achieved(self, world: World) -> bool:
            changed = {name for name in self.wanted if self.wanted[name] != self.start.facts()[name]}
            return all(world.facts()[name] == self.wanted[name] for name in changed)

    assert flaw_of(DesktopTask("mail-star", "test")) == ""
    assert "lost its last record" in flaw_of(Lenient("mail-star", "test"))


def test_joined_tasks_are_sound_and_ask_for_both() -> None:
    tasks = generate_domsim_tasks(6, joined=2, split="dev")
    assert tasks == generate_domsim_tasks(6, joined=2, split="dev")
    assert len({task.question for task in tasks}) == 6
    for task in tasks:
        first, second = task.data["template"].split("+")
        assert {first, second} <= TEMPLATES.keys()
        desktop_task = DesktopTask(task.data["template"], task.data["seed"])
        assert flaw_of(desktop_task) == ""
        assert desktop_task.goal.startswith("First do this: ")
        half = copy.deepcopy(desktop_task.start)
        played(half, DesktopTask(task.data["template"], task.data["seed"]).plan[:1])
        assert not desktop_task.achieved(half)


@pytest.mark.parametrize(
    ("values", "all_of_them", "any_of_them"),
    [
        ([1.0], 1.0, 1.0),
        ([1.0, 0.5], 0.75, 1.0),  # the mean; one is whole
        ([0.5, 0.25], 0.375, 0.5),  # the mean; the largest
        ([1.0, 0.0], 0.0, 1.0),  # none may be 0
        ([0.0, 0.0], 0.0, 0.0),
    ],
)
def test_measures_of_one_task_are_joined_as_osworld_does(
    values: list[float], all_of_them: float, any_of_them: float
) -> None:
    assert joined_value(values, "and") == pytest.approx(all_of_them)
    assert joined_value(values, "or") == pytest.approx(any_of_them)


def ended(task: DesktopTask, *plans: Sequence[Move]) -> World:
    """The world of ``task`` after ``plans``."""
    world = copy.deepcopy(task.start)
    for plan in plans:
        played(world, plan)
    return world


def test_of_two_ways_one_is_right_and_both_are_not() -> None:
    task = DesktopTask("mail-star|notes-pin", "0")
    first, second = (end.plan for end in task.ends)
    assert task.goal.startswith("Do one of these things, and no more than one:\n- ")
    assert flaw_of(task) == ""
    assert [task.achieved(ended(task, *plans)) for plans in ((), (first,), (second,), (first, second))] == [
        False, True, True, False,
    ]  # fmt: skip
    assert task.passed(ended(task, second), "success")
    assert not task.passed(ended(task, second), "failure")


def test_a_way_that_answers_a_question_wants_its_answer() -> None:
    question = next(name for name in TEMPLATES if DesktopTask(name, "q").answer is not None)
    task = DesktopTask(f"notes-pin|{question}", "0")
    said = ended(task, task.ends[1].plan)
    assert task.achieved(said)
    said.answer = f"not {said.answer}"
    assert not task.achieved(said)
    assert flaw_of(task) == ""


def test_tasks_of_several_ways_are_made_and_sound() -> None:
    tasks = generate_domsim_tasks(4, joined=2, conjunction="or", split="dev")
    assert all(task.data["template"].count("|") == 1 for task in tasks)
    assert [flaw_of(DesktopTask(task.data["template"], task.data["seed"])) for task in tasks] == [""] * 4
    with pytest.raises(UnknownName, match="'xor'"):
        generate_domsim_tasks(1, joined=2, conjunction="xor")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="several ways"):
        DesktopTask(f"{INFEASIBLE}mail-star|notes-pin", "0")


def test_a_validator_that_takes_another_way_for_done_is_found_out() -> None:
    task = DesktopTask("mail-star|notes-pin", "0")
    task.others = (task.others[0]._replace(plan=(("open", "notes"),)),)
    assert flaw_of(task) == "has a plan that does not achieve it"


def test_what_cannot_be_joined_is_refused() -> None:
    questions = [name for name in TEMPLATES if DesktopTask(name, "q").answer is not None][:2]
    with pytest.raises(ConfigurationError, match="question"):
        DesktopTask("+".join(questions), "0")
    with pytest.raises(ConfigurationError, match="50"):
        generate_domsim_tasks(1, joined=2, templates=questions)
    with pytest.raises(UnknownName, match="'mail-stra'"):
        DesktopTask("mail-star+mail-stra", "0")
    with pytest.raises(ConfigurationError, match="joined=0"):
        generate_domsim_tasks(1, joined=0)


ABOUT_RECORDS = (
    "mail-star",
    "contacts-regroup",
    "calendar-move",
    "files-drag",
    "notes-pin",
    "across-note-code",
)


@pytest.mark.parametrize("name", ABOUT_RECORDS)
def test_a_task_without_its_record_cannot_be_done(name: str) -> None:
    """The goal is that of a task that can be; failure is right where nothing was changed, and success never is."""
    usual, task = DesktopTask(name, "0"), DesktopTask(f"{INFEASIBLE}{name}", "0")
    assert (task.goal, task.status, usual.status) == (usual.goal, "failure", "success")
    assert (flaw_of(task), flaw_of(usual)) == ("", "")
    with pytest.raises(LookupError):
        played(copy.deepcopy(task.start), usual.plan)
    assert task.passed(task.start, "failure")
    assert not task.passed(task.start, "success")
    assert not usual.passed(usual.start, "failure")
    changed = copy.deepcopy(task.start)
    changed.data["settings.device"] = "another"
    assert not task.passed(changed, "failure")
    assert solve(task)[-1][0].text == "failure"


def test_what_can_be_done_all_the_same_is_not_sound() -> None:
    task = DesktopTask(f"{INFEASIBLE}notes-pin", "0")
    task.impossible = (("open", "notes"),)
    assert flaw_of(task) == "can be done"


def test_every_kind_is_asked_for_with_infeasible_tasks_between() -> None:
    tasks = generate_domsim_tasks(240, infeasible=0.1)
    kinds = Counter(task.data["template"] for task in tasks)
    about = {name for name in kinds if name.startswith(INFEASIBLE)}
    # A tenth of 240 tasks and one for each of the kinds that are about a record.
    assert sum(kinds[name] for name in about) == 24
    assert len(about) == 23
    assert kinds.keys() - about == set(TEMPLATES)
    assert len({task.id for task in tasks}) == 240


def test_a_share_of_the_tasks_is_infeasible() -> None:
    """A quarter of twelve, spread evenly; the others are the first of those that come without them."""
    names = ("settings-turn-one", "notes-pin", "mail-star")
    tasks, usual = (
        generate_domsim_tasks(12, templates=names, infeasible=0.25),
        generate_domsim_tasks(12, templates=names),
    )
    odd = [place for place, task in enumerate(tasks) if task.data["template"].startswith(INFEASIBLE)]
    assert odd == [3, 7, 11]
    assert [t for i, t in enumerate(tasks) if i not in odd] == list(usual[:9])
    assert {tasks[place].data["template"].removeprefix(INFEASIBLE) for place in odd} == {
        "notes-pin",
        "mail-star",
    }
    for bad in ({"infeasible": 1.5}, {"infeasible": 1.0, "templates": ("settings-turn-one",)}):
        with pytest.raises(ConfigurationError, match=r"1\.5|settings-turn-one"):
            generate_domsim_tasks(2, **bad)
    with pytest.raises(ConfigurationError, match="no record"):
        DesktopTask(f"{INFEASIBLE}settings-turn-one", "0")
