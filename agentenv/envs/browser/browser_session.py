"""An episode on a page as a resource that can be rewound: a snapshot is its history, and restoring replays that.

A browser's memory cannot be copied, so the state capability is ``replay``. A digest of what the page shows is recorded after
every action, and a replay that shows something else is a fault.
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
    """The result of an action."""

    screen: Screen
    notes: Notes
    goal: str = ""
    """The text of the page's goal element; empty if its site has none."""

    @property
    def digest(self) -> str:
        """Twelve hexadecimal digits of a digest of everything except the pixels."""
        bare = replace(self.screen, image=None)
        return hashlib.sha256(repr((bare, self.notes, self.goal)).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class History:
    """The history of an episode: its beginning, its actions, and the digest after each."""

    address: str
    seed: int
    opening: str
    actions: tuple[Action, ...] = ()
    digests: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Size of its texts in bytes."""
        return len(repr(self))


class BrowserSession:
    """The page of one episode, as a resource of the environment's state."""

    def __init__(self, driver: Driver, site: Site, *, images: bool) -> None:
        """Makes a session without a page; see ``open``."""
        self._driver, self._site, self._images = driver, site, images
        self._tab: Tab | None = None
        self._history: History | None = None

    def __del__(self) -> None:
        """Closes the page of an episode that was never closed."""
        if (tab := self.__dict__.get("_tab")) is not None:
            self._driver.close_later(tab)

    async def open(self, address: str, seed: int) -> BrowserStep:
        """Starts an episode.

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
        """Executes an action; the notes in the result describe what happened on the page.

        Raises:
            PageHangs: the page hangs or broke the scripts of this package while its browser works; the session then has no
                page.
            BrowserFault: the browser or the page broke, now or earlier.
        """
        tab, history = self._require_page()
        async with self._guarded_page(tab, f"the action {action.kind}"):
            notes = await tab.act(action)
            screen, goal = await tab.screen(image=self._images)
        seen = BrowserStep(screen, notes, goal)
        self._history = replace(
            history, actions=(*history.actions, action), digests=(*history.digests, seen.digest)
        )
        return seen

    async def facts(self, answers: tuple[str, ...], *, ended: bool) -> PageFacts:
        """Returns the facts about the page for a validator.

        Raises:
            PageHangs: as in ``act``.
            BrowserFault: the browser or the page broke.
        """
        tab, _ = self._require_page()
        async with self._guarded_page(tab, "reading the page"):
            return await tab.facts(answers, ended=ended)

    @asynccontextmanager
    async def _guarded_page(self, tab: Tab, doing: str) -> AsyncIterator[None]:
        """Like ``guarded``, but raises ``PageHangs`` if only the page fails, because the policy's actions led there."""
        try:
            async with guarded(doing):
                yield
        except (LatePage, BrokenPage) as error:
            if not await self._driver.is_well(tab):
                raise
            self.drop()
            raise PageHangs from error

    async def screenshot(self) -> bytes:
        """Returns the page's present pixels as a PNG.

        Raises:
            BrowserFault: the browser or the page broke.
        """
        async with guarded("a screenshot"):
            return await self._require_page()[0].screenshot()

    def _require_page(self) -> tuple[Tab, History]:
        if self._tab is None or self._history is None:
            raise BrowserFault("the page is gone")
        return self._tab, self._history

    def snapshot(self) -> History:
        """Returns the history so far.

        Raises:
            BrowserFault: the page no longer exists.
        """
        return self._require_page()[1]

    def restore(self, handle: History) -> None:
        """Opens a new page and replays ``handle`` on it.

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
        """Makes a second session with its own page, which is brought to the same state by replay.

        Raises:
            ReplayDivergence: the page showed something else than before.
            BrowserFault: the browser or the page broke.
        """
        twin = type(self)(self._driver, self._site, images=self._images)
        twin.restore(self.snapshot())
        return twin

    async def leave(self) -> None:
        """Closes the page. A second call does nothing."""
        tab, self._tab = self._tab, None
        if tab is not None:
            await self._driver.close_tab(tab)

    def drop(self) -> None:
        """Closes the page without waiting for it."""
        self._driver.submit(self.leave())

    def close(self) -> None:
        """Closes the page and waits for that."""
        if self._tab is not None:
            self._driver.submit(self.leave()).result()


def _compare(place: str, observed: str, recorded: str) -> None:
    if observed != recorded:
        raise ReplayDivergence(f"{place} of the replay shows {observed} and the record {recorded}")
