"""Scripted experts for MiniWoB. Each reads the goal and the UI tree, like a policy, and yields actions."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agentenv.envs.browser.browser_session import BrowserSession, BrowserStep
from agentenv.envs.gui.actions import Action, ActionKind, Direction
from agentenv.envs.gui.screen import Element


@dataclass
class PageView:
    """What an expert sees. It is updated after each of its actions."""

    seen: BrowserStep

    @property
    def goal(self) -> str:
        """The goal of the episode."""
        return self.seen.goal

    @property
    def elements(self) -> tuple[Element, ...]:
        """All elements on the screen."""
        return self.seen.screen.elements or ()

    def quoted(self) -> list[str]:
        """The texts in double quotes in the goal."""
        return re.findall(r'"([^"]*)"', self.goal)

    def all(self, role: str = "", text: str | None = None) -> list[Element]:
        """Returns the elements with a role and an exact text, if these are given."""
        fits = [element for element in self.elements if role in ("", element.role)]
        return [element for element in fits if text is None or element.text == text]

    def one(self, role: str = "", text: str | None = None) -> Element:
        """Returns the first of ``all``; raises an error that ends the expert if there is none."""
        found = self.all(role, text)
        if not found:
            raise LookupError(f"no {role or 'element'} {text!r} on the screen")
        return found[0]


Expert = Callable[[PageView], Iterator[Action]]
EXPERTS: dict[str, Expert] = {}
"""Experts by the name of their page."""


def expert(*names: str) -> Callable[[Expert], Expert]:
    """Registers the expert of one or more pages of MiniWoB."""

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
    """Splits ``a, b, c`` into its parts."""
    return [part.strip() for part in text.split(",")]


def found_in(pattern: str, text: str) -> Sequence[str]:
    """Returns the groups of a pattern that matches the goals of a page."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"{text!r} is no goal like {pattern!r}")
    return match.groups()


def submit(view: PageView) -> Action:
    """Clicks the button that submits a form."""
    names = ("Submit", "submit", "Search", "Login", "Go!")
    return click(next(element for name in names for element in view.all(text=name)))


async def rehearse(
    session: BrowserSession, address: str, seed: int, acting: Expert, limit: int
) -> tuple[list[Action], float | None]:
    """Plays an episode with an expert on a page of its own.

    Args:
        session: A session without a page. Its page is closed again at the end.
        address: The address of the page.
        seed: The seed of the episode.
        acting: The expert.
        limit: Number of actions after which the expert is stopped.

    Returns:
        The expert's actions, and the reward of the page; None if the episode did not end.
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
