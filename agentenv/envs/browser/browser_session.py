"""An episode on a page as a resource that can be rewound: captured as its history, brought back by playing that again.

A browser's memory cannot be copied, so the state capability is ``replay``: what the page shows after every action is
hashed, and a replay that shows something else is a fault and no state to go on from.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

from agentenv.envs.browser.driver import Driver
from agentenv.envs.browser.page import BrokenPage, LatePage, Notes, PageHangs, Tab, guarded
from agentenv.envs.browser.sites import PageFacts, Site
from agentenv.envs.gui.actions import Action
from agentenv.envs.gui.screen import Screen
from agentenv.errors import BrowserFault, ReplayDivergence


@dataclass(frozen=True)
class BrowserStep:
    """What an action led to."""

    screen: Screen
    notes: Notes
    goal: str = ""
    """What the page's goal element says; empty where its site has none."""

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of everything but the pixels."""
        bare = replace(self.screen, image=None)
        return hashlib.sha256(repr((bare, self.notes, self.goal)).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class History:
    """Where an episode stands: how it began, what was done, and what each showed."""

    address: str
    seed: int
    opening: str
    actions: tuple[Action, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of the texts in it."""
        return len(repr(self))


class BrowserSession:
    """One episode's page. ``snapshot``, ``restore``, ``fork`` and ``close`` make it a resource of a state."""

    def __init__(self, driver: Driver, site: Site, *, images: bool) -> None:
        """A session without a page; see ``open``."""
        self._driver, self._site, self._images = driver, site, images
        self._tab: Tab | None = None
        self._history: History | None = None

    def __del__(self) -> None:
        """Closes the page of an episode that nobody closed."""
        if (tab := self.__dict__.get("_tab")) is not None:
            self._driver.close_later(tab)

    async def open(self, address: str, seed: int) -> BrowserStep:
        """Begins an episode.

        Raises:
            BrowserFault: the browser or the page broke.
        """
        self._tab = await self._driver.open(self._site, address, seed)
        async with guarded("reading the page"):
            screen, goal = await self._tab.screen(image=self._images)
        seen = BrowserStep(screen, Notes(), goal)
        self._history = History(address, seed, seen.digest)
        return seen

    async def act(self, action: Action) -> BrowserStep:
        """Carries out an action; what the page makes of it is in the notes.

        Raises:
            PageHangs: the page came to no end or broke our scripts, though its browser is well; the session then has no
                page.
            BrowserFault: the browser or the page broke, now or before.
        """
        tab, history = self._alive()
        async with self._of_the_page(tab, f"the action {action.kind}"):
            notes = await tab.act(action)
            screen, goal = await tab.screen(image=self._images)
        seen = BrowserStep(screen, notes, goal)
        self._history = replace(
            history, actions=(*history.actions, action), digests=(*history.digests, seen.digest)
        )
        return seen

    async def facts(self, answers: tuple[str, ...], *, ended: bool) -> PageFacts:
        """What a validator learns.

        Raises:
            PageHangs: as in ``act``.
            BrowserFault: the browser or the page broke.
        """
        tab, _ = self._alive()
        async with self._of_the_page(tab, "reading the page"):
            return await tab.facts(answers, ended=ended)

    @asynccontextmanager
    async def _of_the_page(self, tab: Tab, doing: str) -> AsyncIterator[None]:
        """``guarded``, and what the page is to blame for is ``PageHangs``: the policy has brought it there."""
        try:
            async with guarded(doing):
                yield
        except (LatePage, BrokenPage) as error:
            if not await self._driver.is_well(tab):
                raise
            self.drop()
            raise PageHangs from error

    async def screenshot(self) -> bytes:
        """The page's pixels now, as a PNG.

        Raises:
            BrowserFault: the browser or the page broke.
        """
        async with guarded("a screenshot"):
            return await self._alive()[0].screenshot()

    def _alive(self) -> tuple[Tab, History]:
        if self._tab is None or self._history is None:
            raise BrowserFault("the page is gone")
        return self._tab, self._history

    def snapshot(self) -> History:
        """The history so far.

        Raises:
            BrowserFault: the page is gone.
        """
        return self._alive()[1]

    def restore(self, handle: History) -> None:
        """Opens a new page and plays ``handle`` on it.

        Raises:
            ReplayDivergence: the page showed something else than before; the session then has no page.
            BrowserFault: the browser or the page broke.
        """
        self._driver.submit(self._replay(handle)).result()

    async def _replay(self, history: History) -> None:
        await self.leave()
        try:
            _compare("the opening", (await self.open(history.address, history.seed)).digest, history.opening)
            for number, (action, digest) in enumerate(zip(history.actions, history.digests, strict=True), 1):
                _compare(f"action {number}", (await self.act(action)).digest, digest)
        except BaseException:
            await self.leave()
            raise

    def fork(self) -> Self:
        """A twin with a page of its own, brought here by replay.

        Raises:
            ReplayDivergence: the page showed something else than before.
            BrowserFault: the browser or the page broke.
        """
        twin = type(self)(self._driver, self._site, images=self._images)
        twin.restore(self.snapshot())
        return twin

    async def leave(self) -> None:
        """Closes the page; a second call does nothing."""
        tab, self._tab = self._tab, None
        if tab is not None:
            await self._driver.close_tab(tab)

    def drop(self) -> None:
        """Closes the page without waiting for it."""
        self._driver.submit(self.leave())

    def close(self) -> None:
        """Closes the page, waiting for it."""
        if self._tab is not None:
            self._driver.submit(self.leave()).result()


def _compare(place: str, observed: str, recorded: str) -> None:
    if observed != recorded:
        raise ReplayDivergence(f"{place} of the replay shows {observed} and the record {recorded}")
