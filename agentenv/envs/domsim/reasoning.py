"""The thoughts of the desktop's expert: one sentence, or several parts as in EvoCUA's first training data.

EvoCUA (Xue et al. 2026, arXiv:2601.15876) begins with about a thousand trajectories whose thoughts state the goal, describe
the screen, verify the previous actions, reflect on a mistake, and explain why the task ends. Here they are generated from
the plan and the views, so every statement in them is true.
"""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from agentenv.envs.domsim.widgets import Widget
from agentenv.envs.domsim.world import DesktopView
from agentenv.envs.gui.actions import Action, ActionKind

SLIPS = 0.25
"""Share of the tasks in which the expert makes a mistake to reflect on. The paper's share was not found."""
RECALLED = 3
"""Number of latest actions that a verification mentions."""
LISTED = 4
"""Number of elements that are mentioned if the wanted one is not on the screen."""


class Deed(NamedTuple):
    """One action of the expert, the widget that it refers to, and the view on which it was chosen."""

    action: Action
    widget: Widget | None
    view: DesktopView


def sentence_of(action: Action, widget: Widget | None) -> str:
    """Describes in a sentence what the expert is about to do."""
    if widget is None:
        return f"I {str(action.kind).replace('_', ' ')} {action.text or action.direction or ''}".strip() + "."
    return f"I use {action.kind} on {widget.role} {widget.text!r}."


def with_slip(deeds: Sequence[Deed], seed: str) -> tuple[list[Deed], int | None]:
    """Inserts a click that does nothing into the actions of ``SLIPS`` of the tasks; also returns its index, or None.

    The expert clicks the title of a page instead of the wanted element. This changes nothing, so the later actions remain
    right. The turn returns to the same state, so it is redundant for a policy that imitates the expert.

    Args:
        deeds: All actions of a task.
        seed: Decides whether and where the click is inserted.
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
    """Writes the thought before each of ``deeds``, in the parts of EvoCUA's first training data.

    Args:
        deeds: All actions of a task; the last one terminates the episode.
        goal: The goal of the task.
        slip: The index of the action that does nothing; None without one.
    """
    return [_thought(deeds, place, goal, slip) for place in range(len(deeds))]


def _thought(deeds: Sequence[Deed], place: int, goal: str, slip: int | None) -> str:
    deed = deeds[place]
    last = place == len(deeds) - 1
    parts = [f"Goal: {' '.join(goal.split())}"] if place == 0 else []
    parts.append(f"Observation: {_observation_text(deed)}")
    if slip is not None and place == slip + 1:
        parts.append(f"Reflection: {_reflection_text(deeds[slip], deed)}")
    if last:
        failed = deed.action.text == "failure"
        parts += [
            f"Self-verification: {_verification_text(deeds, slip)}",
            f"Termination: {_infeasible_text(deed.view) if failed else 'what the goal asks for is done, and nothing else.'}",
        ]
    return " ".join([*parts, f"Action: {sentence_of(deed.action, deed.widget)}"])


def _observation_text(deed: Deed) -> str:
    """Describes what on the screen matters for the next action."""
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


def _reflection_text(slip: Deed, deed: Deed) -> str:
    """Explains what was wrong with the action that did nothing, and what to do instead."""
    clicked = slip.widget.text if slip.widget else ""
    wanted = f"the {deed.widget.role} {deed.widget.text!r}" if deed.widget else "something else"
    return f"my last action changed nothing, because {clicked!r} is only a title; what I need is {wanted}."


def _verification_text(deeds: Sequence[Deed], slip: int | None) -> str:
    """Describes the latest effective actions, and what the screen shows of the last one."""
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
    """Describes a widget with its value and state."""
    held = [repr(widget.value)] if widget.value else []
    marks = ", ".join([*held, *widget.states])
    return f"the {widget.role} {widget.text!r}" + (f" ({marks})" if marks else "")


def _infeasible_text(view: DesktopView) -> str:
    """Explains why a task is infeasible: the element that it needs is missing."""
    shown = [widget.text for widget in view.widgets if widget.role == "listitem"]
    listed = f", only {', '.join(map(repr, shown[:LISTED]))}" if shown else ""
    more = " and others" if len(shown) > LISTED else ""
    return f"what the goal names is not on the page {view.screen.title!r}{listed}{more}, so the task cannot be done."
