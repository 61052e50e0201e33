"""One Chromium for all browser environments of a process, on a thread of its own.

The driver keeps pages ready before they are asked for, and replaces the browser after a number of episodes: the new one
takes over at once, the old one goes when its last page is closed.
"""

import asyncio
import atexit
import contextlib
import functools
import os
import shutil
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.io.temporary import temporary_folder
from agentenv.envs.browser.page import DEADLINE_S, Tab, guarded
from agentenv.envs.browser.sites import Site
from agentenv.errors import BrowserFault, ConfigurationError, MissingExtra

T = TypeVar("T")

VARIABLE = "AGENTENV_CHROMIUM"
NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome",
)
"""Programs that are looked for, in this order. The first two are the same browser without windows, in which a page costs
less than half of the processor time."""
# No way out: no name resolves, what needs none goes to a proxy that is not there, and UDP may only go through that.
NETWORK = (
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--proxy-server=http://127.0.0.1:9",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
DRAWING = ("--disable-gpu", "--font-render-hinting=none", "--force-color-profile=srgb", "--hide-scrollbars")
_OMNIBOX = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")
"""Pop-ups of an address bar that nobody sees: Chromium loads two pages of its own for them with every window."""
_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)
"""What playwright switches off itself: a second list of features takes the place of the first."""
FEATURES = ("--disable-features=" + ",".join((*_PLAYWRIGHT, *_OMNIBOX)),)


def find_chromium() -> str | None:
    """The Chromium that ``AGENTENV_CHROMIUM`` names, or one of the system; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def unavailable() -> str:
    """Why no browser environment can run here; empty where one can."""
    for module in ("playwright", "miniwob"):
        if importlib_missing(module):
            return f"{module} is not installed (the extra 'gui')"
    return "" if find_chromium() else f"no Chromium is installed, and {VARIABLE} names none"


def importlib_missing(module: str) -> bool:
    """Whether ``module`` is not installed."""
    import importlib.util

    return importlib.util.find_spec(module) is None


class Chromium:
    """One browser process."""

    def __init__(self, browser: Any, files: contextlib.ExitStack) -> None:
        """Takes over what was started; ``files`` removes the folder of its temporary files."""
        self.browser = browser
        self.files = files
        self.opened = 0
        self.tabs = 0
        self.retired = False

    async def closed_if_idle(self) -> None:
        """Ends a retired browser once its last page is gone."""
        if self.retired and self.tabs == 0:
            await self.close()

    async def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.browser.close(), DEADLINE_S)
        # Its last processes may have written there after it was no longer connected.
        self.files.close()


class Driver:
    """Opens pages; one a process."""

    def __init__(self, *, recycle_after: int = 250, spares: int = 2) -> None:
        """Starts the thread; the browser starts with the first page.

        Args:
            recycle_after: Pages after which a browser is replaced.
            spares: Pages kept ready; a page for an address that was opened before is ready there.

        Raises:
            MissingExtra: playwright is not installed.
            ConfigurationError: there is no Chromium, or a bound is out of range.
        """
        if importlib_missing("playwright"):
            raise MissingExtra.of("playwright", "gui")
        if recycle_after < 1 or spares < 0:
            raise ConfigurationError(
                f"recycle_after={recycle_after} must be at least 1, spares={spares} at least 0"
            )
        found = find_chromium()
        if found is None:
            raise ConfigurationError(f"no Chromium is installed; install one or name it in {VARIABLE}")
        self._executable, self._recycle_after, self._spares = found, recycle_after, spares
        self._playwright: Any = None
        self._chromium: Chromium | None = None
        self._ready: list[tuple[Chromium, Tab, str]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._owner: dict[Tab, Chromium] = {}
        self._starting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._background = BackgroundLoop("agentenv-browser")
        self._closed = False

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs ``coroutine`` on the driver's event loop.

        Raises:
            RuntimeError: the driver is closed.
        """
        if self._closed:
            coroutine.close()
            raise RuntimeError("the browser's driver is closed")
        return self._background.submit(coroutine)

    async def open(self, site: Site, address: str, seed: int) -> Tab:
        """A page in which the episode of ``address`` under ``seed`` has begun.

        Raises:
            BrowserFault: the browser does not start, or the page does not load.
        """
        waiting = address if site.begin else ""
        async with guarded("opening a page"):
            tab = await self._take(site, waiting)
            try:
                await tab.begin(address, seed)
            except BaseException:
                await self.close_tab(tab)
                raise
        self._refill(site, waiting)
        return tab

    async def is_well(self, tab: Tab) -> bool:
        """Whether the browser of ``tab`` still shows other pages."""
        chromium = self._owner.get(tab)
        if chromium is None or not chromium.browser.is_connected():
            return False
        try:
            async with asyncio.timeout(DEADLINE_S):
                context = await chromium.browser.new_context()
                page = await context.new_page()
                well = await page.evaluate("6 * 7") == 42
                await context.close()
        except Exception:  # whatever is wrong with it, it is not the page alone
            return False
        return bool(well)

    async def rest(self) -> None:
        """Waits until the pages that are being made ready, or closed, are."""
        await asyncio.gather(*self._tasks)

    async def close_tab(self, tab: Tab) -> None:
        """Closes a page, and the browser with it where it was the last one of a retired browser."""
        chromium = self._owner.pop(tab, None)
        await tab.close()
        if chromium is not None:
            chromium.tabs -= 1
            await chromium.closed_if_idle()

    def close_later(self, tab: Tab) -> None:
        """Has a page closed; takes no lock, so that a garbage collector may call it."""
        with contextlib.suppress(RuntimeError):  # the loop has ended, and the browser with it
            self._loop.call_soon_threadsafe(lambda: self._begin(self.close_tab(tab)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, site: Site, address: str) -> Tab:
        chromium = await self._live()
        for entry in self._ready:
            if entry[0] is chromium and entry[1].site is site and entry[2] == address:
                self._ready.remove(entry)
                return entry[1]
        return await self._new_tab(site, "")

    async def _new_tab(self, site: Site, address: str) -> Tab:
        self._loop = asyncio.get_running_loop()
        chromium = await self._live()
        chromium.opened += 1
        chromium.tabs += 1
        try:
            tab = await Tab.open(chromium.browser, site, address)
        except BaseException:
            chromium.tabs -= 1
            raise
        self._owner[tab] = chromium
        return tab

    def _refill(self, site: Site, address: str) -> None:
        if self._spares:
            self._begin(self._prepare(site, address))

    async def _prepare(self, site: Site, address: str) -> None:
        """Makes a page ready; the oldest ones make room."""
        with contextlib.suppress(BrowserFault):  # the next episode will say so
            async with guarded("preparing a page"):
                tab = await self._new_tab(site, address)
                self._ready.append((self._owner[tab], tab, address))
                while len(self._ready) > self._spares:
                    await self.close_tab(self._ready.pop(0)[1])

    async def _live(self) -> Chromium:
        """The present browser; started where there is none, and replaced where its time has come."""
        async with self._starting:
            if self._chromium is not None and not self._chromium.browser.is_connected():
                self._chromium.files.close()
                self._chromium = None
            if self._chromium is not None and self._chromium.opened >= self._recycle_after:
                await self._retire()
            if self._chromium is None:
                self._chromium = await self._launch()
            return self._chromium

    async def _retire(self) -> None:
        old, self._chromium = self._chromium, None
        assert old is not None
        old.retired = True
        gone = [entry for entry in self._ready if entry[0] is old]
        self._ready = [entry for entry in self._ready if entry[0] is not old]
        for _, tab, _ in gone:
            await self.close_tab(tab)
        await old.closed_if_idle()

    async def _launch(self) -> Chromium:
        from playwright.async_api import async_playwright

        if self._playwright is None:
            self._playwright = await async_playwright().start()
        # Chromium's own sandbox cannot be had by root.
        flags = [*NETWORK, *DRAWING, *FEATURES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        # A browser that is killed leaves its temporary files, so it has a folder of its own for them. The name is short:
        # a socket is made in it, whose address has room for 107 characters.
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(temporary_folder("gui"))
            browser = await self._playwright.chromium.launch(
                executable_path=self._executable,
                headless=True,
                args=flags,
                env={**os.environ, "TMPDIR": str(folder)},
                timeout=DEADLINE_S * 1000,
            )
            browser.on("disconnected", lambda *_: shutil.rmtree(folder, ignore_errors=True))
            return Chromium(browser, stack.pop_all())

    def close(self) -> None:
        """Ends the browser, its helper process and the thread; a second call does nothing."""
        if self._closed:
            return
        with contextlib.suppress(Exception):
            self.submit(self._end()).result(DEADLINE_S)
        self._closed = True
        self._background.close(DEADLINE_S)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for chromium in {*self._owner.values(), *([self._chromium] if self._chromium else [])}:
            await chromium.close()
        if self._playwright is not None:
            await self._playwright.stop()


@functools.cache
def shared_driver() -> Driver:
    """The driver of all browser environments of this process.

    Raises:
        MissingExtra: playwright is not installed.
        ConfigurationError: there is no Chromium.
    """
    made = Driver()
    atexit.register(made.close)
    return made
