"""What the expert of the desktop thinks: one sentence, or the parts of reasoning with which EvoCUA begins.

EvoCUA (Xue et al. 2026, arXiv:2601.15876) begins with about a thousand trajectories whose thoughts state the goal, check
what the screen shows, verify what was done, reflect on a mistake, and say why the task ends. Here they are built from the
plan and the views, so that every statement in them is true of the screen.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from agentenv.envs.domsim.widgets import Widget
from agentenv.envs.domsim.world import DesktopView
from agentenv.envs.gui.actions import Action, ActionKind

SLIPS = 0.25
"""Share of the tasks in which the expert makes a mistake to reflect on; the paper's was not found."""
RECALLED = 3
"""Actions, the latest, that a verification names."""
LISTED = 4
"""Items of a screen that are named where the one that is wanted is not among them."""


class Deed(NamedTuple):
    """One action of the expert, the widget that it is about, and the view on which it was chosen."""

    action: Action
    widget: Widget | None
    view: DesktopView


def sentence_of(action: Action, widget: Widget | None) -> str:
    """What the expert says it is about to do."""
    if widget is None:
        return f"I {str(action.kind).replace('_', ' ')} {action.text or action.direction or ''}".strip() + "."
    return f"I use {action.kind} on {widget.role} {widget.text!r}."


def with_slip(deeds: Sequence[Deed], seed: str) -> tuple[list[Deed], int | None]:
    """The deeds of the expert, in ``SLIPS`` of the tasks with a click that does nothing, and its place.

    It clicks the title of a page in place of what it wants there, which changes nothing, so that the deeds after it are
    right as they were. Its turn leads back to where the episode was, and is redundant for a policy that imitates.

    Args:
        deeds: All of a task.
        seed: Draws whether and where.
    """
    rng = Random(f"slip {seed}")
    places = [place for place, deed in enumerate(deeds) if deed.widget is not None]
    if not places or rng.random() >= SLIPS:
        return list(deeds), None
    place = rng.choice(places)
    view = deeds[place].view
    number, title = next(
        (number, widget) for number, widget in enumerate(view.widgets, 1) if widget.role == "heading"
    )
    slip = Deed(Action(ActionKind.CLICK, id=str(number)), title, view)
    return [*deeds[:place], slip, *deeds[place:]], place


def reasoning(deeds: Sequence[Deed], goal: str, slip: int | None) -> list[str]:
    """The thought before each of ``deeds``, in the parts of EvoCUA's cold start.

    Args:
        deeds: All of a task; the last one terminates it.
        goal: What the task asks for.
        slip: The place of the deed that does nothing; None where there is none.
    """
    return [_thought(deeds, place, goal, slip) for place in range(len(deeds))]


def _thought(deeds: Sequence[Deed], place: int, goal: str, slip: int | None) -> str:
    deed = deeds[place]
    last = place == len(deeds) - 1
    parts = [f"Goal: {' '.join(goal.split())}"] if place == 0 else []
    parts.append(f"Observation: {_observed(deed)}")
    if slip is not None and place == slip + 1:
        parts.append(f"Reflection: {_reflected(deeds[slip], deed)}")
    if last:
        failed = deed.action.text == "failure"
        parts += [
            f"Self-verification: {_verified(deeds, slip)}",
            f"Termination: {_concluded(deed.view) if failed else 'what the goal asks for is done, and nothing else.'}",
        ]
    return " ".join([*parts, f"Action: {sentence_of(deed.action, deed.widget)}"])


def _observed(deed: Deed) -> str:
    """What the screen shows that matters for the next action."""
    page, widget, action = deed.view.screen.title, deed.widget, deed.action
    if widget is not None:
        held = f", which holds {widget.value!r}" if widget.value else ""
        return f"the page {page!r} shows the {widget.role} {widget.text!r}{held}."
    match action.kind:
        case ActionKind.SCROLL:
            return f"the page {page!r} does not show what I need, and goes on {action.direction}."
        case ActionKind.OPEN:
            return f"I see the page {page!r}, and need the app {action.text!r}."
        case ActionKind.ANSWER:
            return f"I see the page {page!r}, and know what was asked: {action.text}."
        case _:
            return f"I see the page {page!r}."


def _reflected(slip: Deed, deed: Deed) -> str:
    """What was wrong with the deed that did nothing, and what is to be done instead."""
    clicked = slip.widget.text if slip.widget else ""
    wanted = f"the {deed.widget.role} {deed.widget.text!r}" if deed.widget else "something else"
    return f"my last action changed nothing, because {clicked!r} is only a title; what I need is {wanted}."


def _verified(deeds: Sequence[Deed], slip: int | None) -> str:
    """What was done before the last deed, the latest deeds that changed something, and what the screen shows of it."""
    *done, last = deeds
    real = [deed for place, deed in enumerate(done) if place != slip]
    said = [sentence_of(deed.action, deed.widget).removeprefix("I ").removesuffix(".") for deed in real]
    count = f"{len(real)} {'action' if len(real) == 1 else 'actions'}"
    used = next((deed.widget.key for deed in reversed(real) if deed.widget), "")
    shown = [
        _state(widget) for widget in last.view.widgets if widget.role == "status" or widget.key == used != ""
    ]
    seen = f" The screen shows {' and '.join(shown)}." if shown else ""
    return f"I have made {count}, the latest: {'; '.join(said[-RECALLED:]) or 'none'}.{seen}"


def _state(widget: Widget) -> str:
    """A widget in words, with what it holds and how it is set."""
    held = [repr(widget.value)] if widget.value else []
    marks = ", ".join([*held, *widget.states])
    return f"the {widget.role} {widget.text!r}" + (f" ({marks})" if marks else "")


def _concluded(view: DesktopView) -> str:
    """Why a task cannot be done: what it is about is not where it would be."""
    shown = [widget.text for widget in view.widgets if widget.role == "listitem"]
    listed = f", only {', '.join(map(repr, shown[:LISTED]))}" if shown else ""
    more = " and others" if len(shown) > LISTED else ""
    return f"what the goal names is not on the page {view.screen.title!r}{listed}{more}, so the task cannot be done."
