"""Scripted experts for MiniWoB: each reads the goal and the UI tree, as a policy would, and gives actions."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agentenv.envs.browser.browser_session import BrowserSession, BrowserStep
from agentenv.envs.gui.actions import Action, ActionKind, Direction
from agentenv.envs.gui.screen import Element


@dataclass
class PageView:
    """What an expert sees; renewed after each of its actions."""

    seen: BrowserStep

    @property
    def goal(self) -> str:
        """What is to be done."""
        return self.seen.goal

    @property
    def elements(self) -> tuple[Element, ...]:
        """Everything on the screen."""
        return self.seen.screen.elements or ()

    def quoted(self) -> list[str]:
        """The texts in double quotes in the goal."""
        return re.findall(r'"([^"]*)"', self.goal)

    def all(self, role: str = "", text: str | None = None) -> list[Element]:
        """The elements of a role and an exact text, where these are given."""
        fits = [element for element in self.elements if role in ("", element.role)]
        return [element for element in fits if text is None or element.text == text]

    def one(self, role: str = "", text: str | None = None) -> Element:
        """The first of ``all``; an expert that does not find what it needs is at its end."""
        found = self.all(role, text)
        if not found:
            raise LookupError(f"no {role or 'element'} {text!r} on the screen")
        return found[0]


Expert = Callable[[PageView], Iterator[Action]]
EXPERTS: dict[str, Expert] = {}
"""Experts by the page that they know."""


def expert(*names: str) -> Callable[[Expert], Expert]:
    """Registers the expert of some pages of MiniWoB."""

    def keep(function: Expert) -> Expert:
        EXPERTS.update({f"miniwob/{name}.html": function for name in names})
        return function

    return keep


def click(element: Element) -> Action:
    """A click on an element."""
    return Action(ActionKind.CLICK, id=element.id)


def write(element: Element, text: str) -> Action:
    """Types into a field."""
    return Action(ActionKind.TYPE, id=element.id, text=text)


def key(name: str) -> Action:
    """Presses a key."""
    return Action(ActionKind.KEY, text=name)


def scroll(element: Element, direction: Direction) -> Action:
    """Scrolls an element."""
    return Action(ActionKind.SCROLL, id=element.id, direction=direction)


def listed(text: str) -> list[str]:
    """The parts of ``a, b, c``."""
    return [part.strip() for part in text.split(",")]


def found_in(pattern: str, text: str) -> Sequence[str]:
    """The groups of a pattern that the goals of a page follow."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"{text!r} is no goal like {pattern!r}")
    return match.groups()


def submit(view: PageView) -> Action:
    """Clicks what sends a form off."""
    names = ("Submit", "submit", "Search", "Login", "Go!")
    return click(next(element for name in names for element in view.all(text=name)))


async def rehearse(
    session: BrowserSession, address: str, seed: int, acting: Expert, limit: int
) -> tuple[list[Action], float | None]:
    """Lets an expert play an episode on a page of its own.

    Args:
        session: One without a page; it is left without one.
        address: The page.
        seed: Of the episode.
        acting: The expert.
        limit: Actions after which it is stopped.

    Returns:
        What it did, and what the page gave; None where it came to no end.
    """
    played: list[Action] = []
    try:
        view = PageView(await session.open(address, seed))
        for action in acting(view):
            played.append(action)
            view.seen = await session.act(action)
            if view.seen.notes.reward is not None or len(played) >= limit:
                break
    finally:
        await session.leave()
    return played, view.seen.notes.reward
