"""One Chromium for all browser environments of a process, controlled from a thread of its own.

The driver keeps pages ready in advance, and replaces the browser after a number of episodes. New pages then open in the new
browser, and the old one ends when its last page is closed.
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
"""Names of programs to search for, in this order. The first two are the same browser without windows, in which a page takes
less than half of the processor time."""
# Blocks all network access: names do not resolve, other requests go to a proxy that does not exist, and UDP may use only
# that proxy.
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
"""Pop-ups of an address bar that is never visible. Chromium would load two pages for them with every window."""
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
"""Features that playwright itself disables. They are repeated here, because a second list of features replaces the first."""
FEATURES = ("--disable-features=" + ",".join((*_PLAYWRIGHT, *_OMNIBOX)),)


def find_chromium() -> str | None:
    """Returns the Chromium that ``AGENTENV_CHROMIUM`` names, or an installed one; None without one."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def unavailable() -> str:
    """Returns the reason why no browser environment can run here; empty if it can."""
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
        """Takes ownership of a started browser. ``files`` removes the folder of its temporary files."""
        self.browser = browser
        self.files = files
        self.opened = 0
        self.tabs = 0
        self.retired = False

    async def closed_if_idle(self) -> None:
        """Ends a retired browser once its last page is closed."""
        if self.retired and self.tabs == 0:
            await self.close()

    async def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.browser.close(), DEADLINE_S)
        # Its processes may still write files after the connection has closed, so the folder is removed last.
        self.files.close()


class Driver:
    """Opens pages in a browser that it starts, replaces and ends."""

    def __init__(self, *, recycle_after: int = 250, spares: int = 2) -> None:
        """Starts the thread. The browser starts with the first page.

        Args:
            recycle_after: Number of pages after which a browser is replaced.
            spares: Number of pages kept ready, loaded with addresses that were opened before.

        Raises:
            MissingExtra: playwright is not installed.
            ConfigurationError: no Chromium is installed, or a limit is out of range.
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
        """Returns a page in which the episode of ``address`` with ``seed`` has started.

        Raises:
            BrowserFault: the browser does not start, or the page does not load.
        """
        waiting = address if site.begin else ""
        async with guarded("opening a page"):
            tab = await self._take_tab(site, waiting)
            try:
                await tab.begin(address, seed)
            except BaseException:
                await self.close_tab(tab)
                raise
        self._refill(site, waiting)
        return tab

    async def is_well(self, tab: Tab) -> bool:
        """Whether the browser of ``tab`` can still show other pages."""
        chromium = self._owner.get(tab)
        if chromium is None or not chromium.browser.is_connected():
            return False
        try:
            async with asyncio.timeout(DEADLINE_S):
                context = await chromium.browser.new_context()
                page = await context.new_page()
                well = await page.evaluate("6 * 7") == 42
                await context.close()
        except Exception:  # any error here means that the browser is broken too
            return False
        return bool(well)

    async def rest(self) -> None:
        """Waits until pages in preparation are ready, and closing ones are closed."""
        await asyncio.gather(*self._tasks)

    async def close_tab(self, tab: Tab) -> None:
        """Closes a page; also closes a retired browser whose last page it was."""
        chromium = self._owner.pop(tab, None)
        await tab.close()
        if chromium is not None:
            chromium.tabs -= 1
            await chromium.closed_if_idle()

    def close_later(self, tab: Tab) -> None:
        """Schedules the closing of a page. It takes no lock, so a finaliser may call it."""
        with contextlib.suppress(RuntimeError):  # the loop and the browser have ended
            self._loop.call_soon_threadsafe(lambda: self._start_task(self.close_tab(tab)))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_tab(self, site: Site, address: str) -> Tab:
        chromium = await self._live_browser()
        for entry in self._ready:
            if entry[0] is chromium and entry[1].site is site and entry[2] == address:
                self._ready.remove(entry)
                return entry[1]
        return await self._new_tab(site, "")

    async def _new_tab(self, site: Site, address: str) -> Tab:
        self._loop = asyncio.get_running_loop()
        chromium = await self._live_browser()
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
            self._start_task(self._prepare(site, address))

    async def _prepare(self, site: Site, address: str) -> None:
        """Makes a page ready for later; the oldest ready pages are closed if there are too many."""
        with contextlib.suppress(BrowserFault):  # the next episode will raise the error
            async with guarded("preparing a page"):
                tab = await self._new_tab(site, address)
                self._ready.append((self._owner[tab], tab, address))
                while len(self._ready) > self._spares:
                    await self.close_tab(self._ready.pop(0)[1])

    async def _live_browser(self) -> Chromium:
        """Returns the present browser; starts one if there is none, and replaces one that has had its number of pages."""
        async with self._starting:
            if self._chromium is not None and not self._chromium.browser.is_connected():
                self._chromium.files.close()
                self._chromium = None
            if self._chromium is not None and self._chromium.opened >= self._recycle_after:
                await self._retire_browser()
            if self._chromium is None:
                self._chromium = await self._launch()
            return self._chromium

    async def _retire_browser(self) -> None:
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
        # Chromium's own sandbox does not work for root.
        flags = [*NETWORK, *DRAWING, *FEATURES, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        # A browser that is killed leaves its temporary files behind, so it gets its own folder for them. The name is short,
        # because a socket is created there, whose path may have at most 107 characters.
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
        """Ends the browser, its helper process and the thread. A second call does nothing."""
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
    """Returns the driver that all browser environments of this process share.

    Raises:
        MissingExtra: playwright is not installed.
        ConfigurationError: no Chromium is installed.
    """
    made = Driver()
    atexit.register(made.close)
    return made
