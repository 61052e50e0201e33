"""Tasks of the simulated desktop. Goal, validator and plan are generated together, and the plan tests the validator.

A template draws a goal from the content of a new world, and determines the database at the end. The validator compares the
whole database, so an action with side effects does not pass (EvoCUA, Xue et al. 2026: task and executable check are
synthesised as a pair).
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Self

from agentenv.core.scoring.normalize import collapse
from agentenv.core.types import Task
from agentenv.envs.domsim.apps import across, bank, calendar, contacts, files, mail, notes, settings, shop
from agentenv.envs.domsim.decontamination import HeldOutTasks
from agentenv.envs.domsim.desktop import Desktop
from agentenv.envs.domsim.records import Conjunction, Move, TaskDraft, WantedEnd, joined_value, without
from agentenv.envs.domsim.widgets import Widget
from agentenv.envs.domsim.world import App, DesktopView, World
from agentenv.envs.gui.actions import Action, ActionKind
from agentenv.errors import ConfigurationError, check_known

APPS: Mapping[str, App] = {
    "mail": mail.Mail(),
    "shop": shop.Shop(),
    "contacts": contacts.Contacts(),
    "calendar": calendar.Calendar(),
    "settings": settings.Settings(),
    "files": files.Files(),
    "notes": notes.Notes(),
    "bank": bank.Bank(),
}
DESKTOP = Desktop(APPS)

Template = Callable[[dict[str, Any], Random], TaskDraft]
TEMPLATES: Mapping[str, Template] = {
    **mail.TEMPLATES,
    **shop.TEMPLATES,
    **contacts.TEMPLATES,
    **calendar.TEMPLATES,
    **settings.TEMPLATES,
    **files.TEMPLATES,
    **notes.TEMPLATES,
    **bank.TEMPLATES,
    **across.TEMPLATES,
}
"""All templates of tasks by name."""

INFEASIBLE = "infeasible:"
"""The prefix of a template's name for its infeasible variant: a world without the record that the task needs."""
RECORDS: Mapping[str, str] = {
    "letter": "mail.box",
    "person": "contacts.people",
    "event": "calendar.events",
    "file": "files.files",
    "note": "notes.notes",
}
"""Tables of the records that a plan may click on, by the first word of the widget's key."""
MAX_SCROLLS = 6
JOIN = "+"
"""Separates the names of templates whose tasks are all to be done, one after another."""
EITHER = "|"
"""Separates the names of templates of which one task is to be done."""
MARKS: Mapping[Conjunction, str] = {"and": JOIN, "or": EITHER}
"""The separator of template names for each way in which their validators are combined."""
MUTANTS = 5
"""The number of wrong end states that each validator must reject."""
PATIENCE = 50
"""The number of failed draws in a row after which no joined task is made."""
SPLITS = ("train", "dev", "test")
HELD_OUT = ("n", "seed", "split", "templates", "joined", "infeasible", "conjunction")
"""The options that identify the test tasks from which synthesised tasks must differ."""


class DesktopTask:
    """One task with its initial world. It is immutable, so copies share it."""

    __slots__ = ("answer", "goal", "impossible", "others", "plan", "start", "wanted")

    def __init__(self, template: str, seed: str) -> None:
        """Generates the task.

        Args:
            template: The kind of task. Tasks of several templates with ``+`` between them are all to be done in turn; of
                several with ``|`` between them, one is to be done. With the prefix ``INFEASIBLE``, which only a single
                template may have, the record that the task needs is missing.
            seed: Selects the task among those of its template.

        Raises:
            UnknownName: there is no such template.
            ConfigurationError: an infeasible task needs no record, or is one of several; of two tasks in turn both are
                questions, or the later one cannot be drawn from the world that the earlier one leaves.
        """
        feasible = template.removeprefix(INFEASIBLE)
        first, *others = feasible.split(EITHER)
        names = first.split(JOIN)
        for name in (*names, *others):
            check_known("template", name, TEMPLATES)
        if others and template != feasible:
            raise ConfigurationError(
                f"the task {template!r} cannot be made infeasible by removing a record: there are several ways to do it"
            )
        rng = Random(f"domsim {feasible} {seed}")
        self.start = DESKTOP.start(rng)
        draft = TEMPLATES[names[0]](self.start.data, rng)
        for name in names[1:]:
            draft = _joined(self.start, draft, name, rng)
        drafts = [TEMPLATES[name](self.start.data, rng) for name in others]
        self.others = tuple(
            WantedEnd(one.plan, self.start.facts() | one.changes, one.answer) for one in drafts
        )
        """Further correct ends, each of which is accepted instead of the first one."""
        if drafts:
            ways = "\n".join(f"- {one.goal}" for one in (draft, *drafts))
            draft = draft._replace(goal=f"Do one of these things, and no more than one:\n{ways}")
        self.impossible: tuple[Move, ...] = ()
        """The plan that the missing record makes impossible; empty for a feasible task."""
        if template != feasible:
            draft, self.impossible = _without_record(self.start, draft), draft.plan
        self.goal, self.plan, self.answer = draft.goal, draft.plan, draft.answer
        self.wanted = self.start.facts() | draft.changes

    @property
    def ends(self) -> tuple[WantedEnd, ...]:
        """The correct ends, that of the plan first."""
        return (WantedEnd(self.plan, self.wanted, self.answer), *self.others)

    @property
    def status(self) -> str:
        """The status with which the episode has to be terminated."""
        return "failure" if self.impossible else "success"

    def passed(self, world: World, status: str) -> bool:
        """Whether an episode is right that ended with ``status`` in ``world``.

        As in OSWorld, the status failure is right only for an infeasible task. Here nothing may have been changed then.
        """
        return status == self.status and self.achieved(world)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def achieved(self, world: World) -> bool:
        """The validator: whether the database and the answer are exactly those of one correct end.

        Database and answer are separate measures, combined as in OSWorld: with ``and`` within an end, and with ``or`` over
        the ends.
        """
        facts, said = world.facts(), collapse(world.answer).casefold()
        values = [
            joined_value(
                [float(facts == end.wanted), float(end.answer is None or said == end.answer.casefold())],
                "and",
            )
            for end in self.ends
        ]
        return joined_value(values, "or") == 1


def _joined(start: World, first: TaskDraft, template: str, rng: Random) -> TaskDraft:
    """Combines ``first`` with a task of ``template`` that follows it, drawn from the world that the first one leaves.

    Raises:
        ConfigurationError: both are questions, or no second task can be drawn.
    """
    world = copy.deepcopy(start)
    played(world, first.plan)
    try:
        second = TEMPLATES[template](world.data, rng)
    except (LookupError, ValueError) as error:
        raise ConfigurationError(f"nothing is left for a task of {template!r}: {error!r}") from error
    if first.answer is not None and second.answer is not None:
        raise ConfigurationError("only one of the tasks that are joined can be a question")
    # the second task was drawn after the first, so its values include both changes
    changes = first.changes | second.changes
    answer = first.answer if second.answer is None else second.answer
    goal = f"First do this: {first.goal}\nThen do this: {second.goal}"
    return TaskDraft(goal, (*first.plan, *second.plan), changes, answer)


def _without_record(start: World, draft: TaskDraft) -> TaskDraft:
    """Removes the record that ``draft`` needs from ``start``; returns the task of searching for it.

    Raises:
        ConfigurationError: the task needs no record of ``RECORDS``.
    """
    for place, move in enumerate(draft.plan):
        kind, _, id = (
            move[1].partition(".") if move[0] in (ActionKind.CLICK, ActionKind.DRAG) else ("", "", "")
        )
        if kind in RECORDS:
            start.data[RECORDS[kind]] = without(start.data[RECORDS[kind]], int(id))
            return TaskDraft(draft.goal, draft.plan[:place], {})
    raise ConfigurationError(
        f"the task {draft.goal!r} cannot be made infeasible: it is about no record that could be removed"
    )


def solve(desktop_task: DesktopTask) -> list[tuple[Action, Widget | None, DesktopView]]:
    """Plays the expert: returns every action with the widget it refers to, and the view on which it was chosen.

    The plan is played on a copy of the world, so that each key is resolved to the element of the current page. Elements
    outside of the view are scrolled to.

    Raises:
        LookupError: the plan names a widget that the page does not have.
    """
    return played(copy.deepcopy(desktop_task.start), [*desktop_task.plan, ("terminate", desktop_task.status)])


def played(world: World, plan: Iterable[Move]) -> list[tuple[Action, Widget | None, DesktopView]]:
    """Executes ``plan`` in ``world``: returns every action with its widget, and the view on which it was chosen.

    Raises:
        LookupError: the plan names a widget that the page does not have.
    """
    moves, done = list(plan), []
    while moves:
        view = DESKTOP.view(world)
        action, widget = _next_action(world, view, moves)
        done.append((action, widget, view))
        DESKTOP.act(world, view, action)
    return done


def _next_action(world: World, view: DesktopView, moves: list[Move]) -> tuple[Action, Widget | None]:
    """Returns the next action for the first of ``moves``; removes the move from the list if the action completes it."""
    kind, *rest = moves[0]
    if kind in (ActionKind.OPEN, ActionKind.ANSWER, ActionKind.TERMINATE):
        moves.pop(0)
        return Action(ActionKind(kind), text=rest[0]), None
    hidden = [key for key in (rest if kind == ActionKind.DRAG else rest[:1]) if view.id_of(key) is None]
    if hidden:
        return _towards(world, view, hidden[0]), None
    id = view.id_of(rest[0])
    widget = view.widgets[int(id or 0) - 1]
    if kind == "fill" and widget.value and world.focus != widget.key:
        return Action(ActionKind.CLICK, id=id), widget
    if kind == "fill" and widget.value and not world.replacing:
        return Action(ActionKind.KEY, text="Control+a"), widget
    moves.pop(0)
    match kind:
        case "fill":
            aimed = None if world.replacing else id
            return Action(ActionKind.TYPE, text=rest[1], id=aimed), widget
        case ActionKind.SELECT:
            return Action(ActionKind.SELECT, text=rest[1], id=id), widget
        case ActionKind.DRAG:
            return Action(ActionKind.DRAG, id=id, end_id=view.id_of(rest[1])), widget
        case _:
            return Action(ActionKind.CLICK, id=id), widget


def _towards(world: World, view: DesktopView, key: str) -> Action:
    """Returns a scroll that brings the widget ``key`` closer to the view."""
    twin = copy.deepcopy(world)
    for way in ("down", "up"):
        for _ in range(MAX_SCROLLS):
            seen = DESKTOP.view(twin)
            if seen.id_of(key) is not None:
                return Action(ActionKind.SCROLL, direction="down" if twin.scroll > world.scroll else "up")
            if DESKTOP.act(twin, seen, Action(ActionKind.SCROLL, direction=way)):
                break
    raise LookupError(
        f"the page {world.page} has no {key!r}; it has {[w.key for w in view.widgets if w.key]}"
    )


def generate_domsim_tasks(
    n: int,
    *,
    seed: int = 0,
    split: str = "train",
    templates: Iterable[str] = TEMPLATES,
    joined: int = 1,
    conjunction: Conjunction = "and",
    infeasible: float = 0.0,
    apart_from: Mapping[str, Any] | None = None,
) -> tuple[Task, ...]:
    """Generates ``n`` tasks that the expert can solve, from the templates in turn; equal arguments give equal tasks.

    Args:
        n: The number of tasks.
        seed: Selects the tasks.
        split: The split. Different splits share templates, but no world.
        templates: The templates to use.
        infeasible: Share of infeasible tasks, evenly distributed among the others: of the templates that need a record, one
            after another. They are not joined. The other tasks are the same as without infeasible ones.
        joined: Number of templates that one task combines (EvoCUA builds new tasks from atomic capabilities in this way). If
            it is above 1, templates are drawn, and unsound tasks are discarded.
        conjunction: How tasks are combined: ``and`` requires all of them in turn, ``or`` requires one of them.
        apart_from: Arguments of this function (``n``, ``seed`` and so on) that generate test tasks. A joined or infeasible
            task that matches one of these in its goal, start or check is discarded as well (EvoCUA).

    Raises:
        ConfigurationError: ``n`` or ``joined`` is below 1, a share is outside of 0 to 1, there is no template, no sound task
            is found, or ``apart_from`` is given for tasks that are not joined.
        UnknownName: there is no such template, split or conjunction, or no such argument in ``apart_from``.
    """
    check_known("conjunction", conjunction, MARKS)
    names, held = tuple(templates), _held_out(apart_from, joined)
    check_known("split", split, SPLITS)
    if n < 1 or not names or not 1 <= joined <= len(names) or not 0 <= infeasible <= 1:
        raise ConfigurationError(
            f"n={n} must be at least 1, joined={joined} from 1 to the {len(names)} templates, and "
            f"infeasible={infeasible} from 0 to 1"
        )
    tasks, rest, feasible = [], names, 0
    for index in range(n):
        place = feasible if joined > 1 else feasible // len(names)
        # The small addition is needed because a product of floats may be slightly below its integer value.
        if int((index + 1) * infeasible + 1e-9) > int(index * infeasible + 1e-9):
            place = index
            name, key, desktop_task = _infeasible(rest, f"{split} {seed}", index, held)
            after = rest.index(name.removeprefix(INFEASIBLE)) + 1
            rest = (*rest[after:], *rest[:after])
        elif joined == 1:
            name, key = names[feasible % len(names)], f"{split} {seed} {place}"
            desktop_task = _sound(name, key)
        else:
            name, key, desktop_task = _synthesized(
                names, joined, f"{split} {seed} {place}", held, MARKS[conjunction]
            )
        feasible += not desktop_task.impossible
        number, data = f"{split}-{seed}-{place}", {"template": name, "seed": key}
        tasks.append(Task(f"{name}/{number}", desktop_task.goal, ("",), split, data))
    return tuple(tasks)


def _sound(name: str, key: str) -> DesktopTask:
    """Generates the task of a template.

    Raises:
        ConfigurationError: the task is not sound.
    """
    desktop_task = DesktopTask(name, key)
    if flaw := flaw_of(desktop_task):
        raise ConfigurationError(f"the template {name!r} with the seed {key!r} {flaw}")
    return desktop_task


def _held_out(apart_from: Mapping[str, Any] | None, joined: int) -> HeldOutTasks | None:
    """Returns the test tasks from which synthesised tasks must differ.

    Raises:
        ConfigurationError: the tasks are not synthesised.
        UnknownName: `generate_domsim_tasks` has no such argument.
    """
    if apart_from is None:
        return None
    if joined == 1:
        raise ConfigurationError(
            f"apart_from={dict(apart_from)} needs joined above 1: a task of one template is its own kind in every split"
        )
    for name in apart_from:
        check_known("argument of apart_from", name, HELD_OUT)
    tests = generate_domsim_tasks(**{"n": 100, "split": "test", **apart_from})
    return HeldOutTasks(DesktopTask(test.data["template"], test.data["seed"]) for test in tests)


def _infeasible(
    names: Sequence[str], seed: str, place: int, held: HeldOutTasks | None
) -> tuple[str, str, DesktopTask]:
    """Generates a sound infeasible task of the first possible template: returns its template, its seed and the task.

    Raises:
        ConfigurationError: no template needs a record, or ``PATIENCE`` draws of each match test tasks.
    """
    for template in names:
        name = INFEASIBLE + template
        for attempt in range(PATIENCE):
            key = f"{seed} infeasible {place}" + (f" {attempt}" if attempt else "")
            try:
                desktop_task = DesktopTask(name, key)
            except ConfigurationError:
                break
            if flaw_of(desktop_task):
                break
            if not (held and held.overlap(desktop_task)):
                return name, key, desktop_task
    raise ConfigurationError(
        f"none of the templates {names} is about a record that could be missing"
        + (", or all such tasks are among those that are held out" if held else "")
    )


def _synthesized(
    names: Sequence[str], joined: int, seed: str, held: HeldOutTasks | None = None, mark: str = JOIN
) -> tuple[str, str, DesktopTask]:
    """Generates a sound task of drawn templates that matches no test task: returns its template, its seed and the task.

    Raises:
        ConfigurationError: ``PATIENCE`` draws found none.
    """
    rng = Random(f"joined {joined} {seed}")
    for attempt in range(PATIENCE):
        name, key = mark.join(rng.sample(names, joined)), f"{seed} {attempt}"
        try:
            desktop_task = DesktopTask(name, key)
            flaw = flaw_of(desktop_task)
        except (ConfigurationError, LookupError):
            continue
        if not flaw and not (held and held.overlap(desktop_task)):
            return name, key, desktop_task
    raise ConfigurationError(
        f"none of {PATIENCE} draws of {joined} of the templates {names} gave a task that can be used"
    )


def flaw_of(desktop_task: DesktopTask) -> str:
    """Returns what is wrong with a generated task; empty if it is sound.

    A sound task's validator rejects the start, accepts the end of the expert's plan, and rejects up to ``MUTANTS`` wrong
    variants of that end.
    """
    if desktop_task.passed(desktop_task.start, "success"):
        return "is achieved before anything is done"
    if desktop_task.impossible and _can_be_played(desktop_task.start, desktop_task.impossible):
        return "can be done"
    flaws = (_flaw_of_end(desktop_task, end) for end in desktop_task.ends)
    return next((flaw for flaw in flaws if flaw), "")


def _flaw_of_end(desktop_task: DesktopTask, end: WantedEnd) -> str:
    world = copy.deepcopy(desktop_task.start)
    plan = [*end.plan, ("terminate", desktop_task.status)]
    for action, _, view in played(copy.deepcopy(world), plan):
        if reason := DESKTOP.act(world, view, action):
            return f"has a plan whose action {action} fails: {reason}"
    if not desktop_task.passed(world, desktop_task.status):
        return "has a plan that does not achieve it"
    for what, wrong in wrong_ends(desktop_task, world):
        if desktop_task.passed(wrong, desktop_task.status):
            return f"accepts an end in which {what}"
    return ""


def _can_be_played(start: World, plan: Iterable[Move]) -> bool:
    try:
        played(copy.deepcopy(start), plan)
    except LookupError:
        return False
    return True


def wrong_ends(desktop_task: DesktopTask, end: World) -> list[tuple[str, World]]:
    """Returns up to ``MUTANTS`` wrong variants of the correct end, each with a description of the error.

    In each, one of the task's changes is undone, something else is changed too, or the answer differs.
    """
    start, facts = desktop_task.start.facts(), end.facts()
    rng = Random(f"wrong ends {desktop_task.goal}")
    changed = [name for name in facts if facts[name] != start.get(name)]
    others = [
        name for name, value in facts.items() if name not in changed and isinstance(value, tuple) and value
    ]
    wrong = [(f"{name} is as at the start", {name: start.get(name)}) for name in changed]
    wrong += [
        (f"{name} lost its last record", {name: facts[name][:-1]}) for name in rng.sample(others, len(others))
    ]
    found = []
    for what, changes in wrong[: MUTANTS - bool(end.answer)]:
        world = copy.deepcopy(end)
        world.data |= changes
        found.append((what, world))
    if end.answer:
        world = copy.deepcopy(end)
        world.answer = f"not {end.answer}"
        found.append(("the answer is another one", world))
    return found


__all__: Sequence[str] = [
    "APPS",
    "DESKTOP",
    "TEMPLATES",
    "DesktopTask",
    "flaw_of",
    "generate_domsim_tasks",
    "played",
    "solve",
    "wrong_ends",
]
