"""Tasks of the miniature desktop: goal, validator and plan are made together, and the plan proves the validator.

A template draws what to do from the contents of a fresh world and says what the database is like afterwards. The validator
compares the whole database, so that an action that also changes something else does not pass (EvoCUA, Xue et al. 2026: task
and executable check are synthesised as a pair).
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Self

from agentenv.core.scoring.normalize import collapse
from agentenv.core.types import Task
from agentenv.envs.domsim.apps import across, bank, calendar, contacts, files, mail, notes, settings, shop
from agentenv.envs.domsim.desktop import Desktop
from agentenv.envs.domsim.records import Move, TaskDraft
from agentenv.envs.domsim.widgets import Widget
from agentenv.envs.domsim.world import App, DesktopView, World
from agentenv.envs.gui.actions import Action, Kind
from agentenv.errors import ConfigurationError, UnknownName

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
"""Every kind of task by name."""

MAX_SCROLLS = 6
SPLITS = ("train", "dev", "test")


class DesktopTask:
    """One task with its world as it begins; nothing in it changes, so copies share it."""

    __slots__ = ("answer", "goal", "plan", "start", "wanted")

    def __init__(self, template: str, seed: str) -> None:
        """Makes the task.

        Args:
            template: Which kind.
            seed: Which of its kind.

        Raises:
            UnknownName: no such template.
        """
        if template not in TEMPLATES:
            raise UnknownName.among("template", template, TEMPLATES)
        rng = Random(f"domsim {template} {seed}")
        self.start = DESKTOP.start(rng)
        draft = TEMPLATES[template](self.start.data, rng)
        self.goal, self.plan, self.answer = draft.goal, draft.plan, draft.answer
        self.wanted = self.start.facts() | draft.changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def achieved(self, world: World) -> bool:
        """The validator: the database is as it shall be, in everything, and the question is answered."""
        said = self.answer is None or collapse(world.answer).casefold() == self.answer.casefold()
        return said and world.facts() == self.wanted


def solve(desktop_task: DesktopTask) -> list[tuple[Action, Widget | None, DesktopView]]:
    """The expert: every action with the widget it is about and the view on which it was chosen.

    The plan is played on a copy of the world, so that each key becomes the element that stands there then; what is out of
    view is scrolled to.

    Raises:
        LookupError: the plan names a widget that the page does not have.
    """
    world, played = copy.deepcopy(desktop_task.start), []
    moves = [*desktop_task.plan, ("terminate", "success")]
    while moves:
        view = DESKTOP.view(world)
        action, widget = _next_action(world, view, moves)
        played.append((action, widget, view))
        DESKTOP.act(world, view, action)
    return played


def _next_action(world: World, view: DesktopView, moves: list[Move]) -> tuple[Action, Widget | None]:
    """The action that the first of ``moves`` begins with; a move that is done with it is taken off."""
    kind, *rest = moves[0]
    if kind in (Kind.OPEN, Kind.ANSWER, Kind.TERMINATE):
        moves.pop(0)
        return Action(Kind(kind), text=rest[0]), None
    hidden = [key for key in (rest if kind == Kind.DRAG else rest[:1]) if view.id_of(key) is None]
    if hidden:
        return _towards(world, view, hidden[0]), None
    id = view.id_of(rest[0])
    widget = view.widgets[int(id or 0) - 1]
    if kind == "fill" and widget.value and world.focus != widget.key:
        return Action(Kind.CLICK, id=id), widget
    if kind == "fill" and widget.value and not world.replacing:
        return Action(Kind.KEY, text="Control+a"), widget
    moves.pop(0)
    match kind:
        case "fill":
            aimed = None if world.replacing else id
            return Action(Kind.TYPE, text=rest[1], id=aimed), widget
        case Kind.SELECT:
            return Action(Kind.SELECT, text=rest[1], id=id), widget
        case Kind.DRAG:
            return Action(Kind.DRAG, id=id, end_id=view.id_of(rest[1])), widget
        case _:
            return Action(Kind.CLICK, id=id), widget


def _towards(world: World, view: DesktopView, key: str) -> Action:
    """Scrolls to where ``key`` comes into view."""
    twin = copy.deepcopy(world)
    for way in ("down", "up"):
        for _ in range(MAX_SCROLLS):
            seen = DESKTOP.view(twin)
            if seen.id_of(key) is not None:
                return Action(Kind.SCROLL, direction="down" if twin.scroll > world.scroll else "up")
            if DESKTOP.act(twin, seen, Action(Kind.SCROLL, direction=way)):
                break
    raise LookupError(
        f"the page {world.page} has no {key!r}; it has {[w.key for w in view.widgets if w.key]}"
    )


def generate_domsim_tasks(
    n: int, *, seed: int = 0, split: str = "train", templates: Iterable[str] = TEMPLATES
) -> tuple[Task, ...]:
    """``n`` tasks, templates in turn, each proved by the expert; the same for the same arguments.

    Args:
        n: How many.
        seed: Which.
        split: Splits share templates and no world.
        templates: Kinds of task.

    Raises:
        ConfigurationError: ``n`` below 1 or no template.
        UnknownName: no such template or split.
    """
    names = tuple(templates)
    if split not in SPLITS:
        raise UnknownName.among("split", split, SPLITS)
    if n < 1 or not names:
        raise ConfigurationError(f"n={n} must be at least 1, and at least one template is needed")
    tasks = []
    for index in range(n):
        name, key = names[index % len(names)], f"{split} {seed} {index // len(names)}"
        desktop_task = DesktopTask(name, key)
        if flaw := flaw_of(desktop_task):
            raise ConfigurationError(f"the template {name!r} with the seed {key!r} {flaw}")
        data = {"template": name, "seed": key}
        tasks.append(
            Task(f"{name}/{split}-{seed}-{index // len(names)}", desktop_task.goal, ("",), split, data)
        )
    return tuple(tasks)


def flaw_of(desktop_task: DesktopTask) -> str:
    """What is wrong with a task that was just made; empty where the expert proves it sound.

    Sound means: not achieved at the start, achieved at the end of the plan, and at no time before the plan's last move
    where the task is about one change.
    """
    if desktop_task.achieved(desktop_task.start):
        return "is achieved before anything is done"
    world = copy.deepcopy(desktop_task.start)
    for action, _, view in solve(desktop_task):
        if reason := DESKTOP.act(world, view, action):
            return f"has a plan whose action {action} fails: {reason}"
    return "" if desktop_task.achieved(world) else "has a plan that does not achieve it"


__all__: Sequence[str] = [
    "APPS",
    "DESKTOP",
    "TEMPLATES",
    "DesktopTask",
    "flaw_of",
    "generate_domsim_tasks",
    "solve",
]
