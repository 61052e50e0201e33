"""The page of one episode in a browser: loading it, acting on it, waiting for it and reading it.

What happens on the page is recorded in ``Notes`` for the policy; failures of the browser raise ``BrowserFault``.
"""

import asyncio
import base64
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.envs.browser.sites import ORIGIN, PageFacts, Site
from agentenv.envs.gui.actions import Action, ActionKind
from agentenv.envs.gui.screen import Box, Element, Screen
from agentenv.errors import BrowserFault

WORLD = "agentenv"
SETTLE_MS = 3000
"""Virtual milliseconds after which a page that never becomes idle is read anyway."""
LEAST_MS = 20
"""Virtual milliseconds that every action takes at least."""
DRAWN = frozenset({"Image", "Font", "Stylesheet"})
"""Kinds of requests that change what is visible without a script."""
DRAWN_S = 2.0
"""Seconds after which the page is read without waiting for them any longer."""
MAX_ROUNDS = 20  # largest number of navigations and requests after one action
MAX_SAID = 500  # largest number of characters of a page error
MAX_NOTES = 20  # largest number of events during one action
MAX_NOTE = 200  # largest number of characters of one event
EVENTS = frozenset({"error", "alert", "confirm", "prompt", "navigation", "network", "popup"})
DEADLINE_S = 30.0
WAIT_LIMIT_S = 60.0  # longest wait or long press, in virtual seconds
SCROLLED = 0.8  # share of the visible area that one scroll moves
DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


class PageRefused(Exception):
    """The page refuses this action. The message is a sentence for the policy."""


class PageHangs(Exception):
    """The page hangs while its browser works: an action led to a script that does not end."""


class LatePage(BrowserFault):
    """The page did not answer in time."""


class BrokenPage(BrowserFault):
    """A script of this package failed on the page, because the page changed something that it relies on."""


@dataclass
class Notes:
    """What happened on the page during one action."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """Kind (one of ``EVENTS``) and text on one line. Events of the kinds navigation, network and popup were blocked."""
    looping: bool = False
    """Whether the page kept opening dialogs without end."""
    reward: float | None = None
    """The reward of the page, once the task was decided."""
    refused: str = ""
    """Why the action could not be executed; empty if it was executed."""


@functools.cache
def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def prelude(site: Site) -> str:
    """Returns the script that runs first in every document of ``site``."""
    settings = (
        f"{{navigates: {json.dumps(site.navigates)}, style: {json.dumps(site.style)}, "
        f"begin: {site.begin or '() => {}'}}}"
    )
    before, _, after = _script("prelude.js").split("/*SITE*/")
    return before + settings + after


def tree(site: Site) -> str:
    """Returns the script that reads documents of ``site`` in an isolated world."""
    before, _, after = _script("tree.js").split("/*IGNORED*/")
    return before + json.dumps(site.ignored) + after


class Tab:
    """A page in a browser context of its own. Every method runs on the driver's event loop."""

    def __init__(self, context: Any, site: Site) -> None:
        self._context, self.site = context, site
        self._page: Any = None
        self._cdp: Any = None
        self._notes = Notes()
        self._requests = 0
        self._drawing: set[str] = set()
        self._loads = 0
        self._downloads = 0
        self._world: tuple[int, int] = (-1, 0)  # the page load that it belongs to, and its id
        self._crashed = False
        self._answered = asyncio.Event()

    @classmethod
    async def open(cls, browser: Any, site: Site, address: str = "") -> "Tab":
        """Opens a page in a new context, blank or loaded with ``address``, without starting an episode."""
        context = await browser.new_context(
            viewport={"width": site.width, "height": site.height},
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
            accept_downloads=False,
            service_workers="block",
        )
        tab = cls(context, site)
        await context.route("**/*", tab._serve)
        page = tab._page = await context.new_page()
        page.on("load", tab._on_load)
        page.on("download", tab._on_download)
        page.on("crash", tab._on_crash)
        page.on("close", tab._on_crash)  # also called if the browser dies; ends all waits
        context.on("page", tab._on_popup)
        tab._cdp = await context.new_cdp_session(page)
        tab._cdp.on("Runtime.bindingCalled", tab._report)
        tab._cdp.on("Network.requestWillBeSent", tab._on_request)
        tab._cdp.on("Network.loadingFinished", tab._on_response)
        tab._cdp.on("Network.loadingFailed", tab._on_response)
        await asyncio.gather(
            tab._cdp.send("Page.enable"),
            tab._cdp.send("Network.enable"),
            tab._cdp.send("Runtime.enable"),
            tab._cdp.send("Runtime.addBinding", {"name": "agentenvReport"}),
            tab._cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": prelude(site)}),
            tab._cdp.send(
                "Page.addScriptToEvaluateOnNewDocument", {"source": tree(site), "worldName": WORLD}
            ),
        )
        if address:
            await tab._goto(address)
            await tab._call_tree_script("rehearse")  # the first call of the script is slow
        return tab

    async def begin(self, address: str, seed: int) -> None:
        """Starts an episode; loads ``address`` first, unless it is already loaded."""
        # The page can represent only the lower 32 bits; a larger JavaScript number would lose its last digits.
        seed %= 1 << 32
        if not self.site.begin:
            source = f"agentenv.seeded({seed})"
            await self._cdp.send("Page.addScriptToEvaluateOnNewDocument", {"source": source})
        if self._page.url != address:
            await self._goto(address)
        self._notes = Notes()
        await self._settle(first=f"agentenv.begin({seed}), " if self.site.begin else "")

    async def _goto(self, address: str) -> None:
        await self._page.goto(address, wait_until="load", timeout=DEADLINE_S * 1000)
        # Otherwise going back would lead to the blank page from which every page is opened, outside of the site.
        await self._cdp.send("Page.resetNavigationHistory")

    # Events from the browser.

    async def _serve(self, route: Any) -> None:
        url = route.request.url
        self._requests += 1
        try:
            if (found := self.site.read(url)) is not None:
                await route.fulfill(status=200, body=found[0], headers=found[1])
            elif url.startswith(ORIGIN + "/"):
                await route.fulfill(status=404, body="Not found")
            elif route.request.is_navigation_request() and route.request.frame.parent_frame is None:
                self._note("navigation", url)
                await route.fulfill(status=204)
            else:
                self._note("network", url)
                await route.abort("blockedbyclient")
        except Exception:  # the page was closed meanwhile, so no reply is needed
            return
        finally:
            self._requests -= 1
            self._answered.set()

    def _note(self, kind: str, text: str) -> None:
        if len(self._notes.events) < MAX_NOTES:
            # On one line, because a page could otherwise imitate lines of the UI tree.
            self._notes.events.append((kind, " ".join(text[:MAX_NOTE].split())))

    def _on_request(self, event: dict[str, Any]) -> None:
        # These events come in order with the results of scripts, unlike the calls of `_serve`.
        if event.get("type") in DRAWN:
            self._drawing.add(event["requestId"])

    def _on_response(self, event: dict[str, Any]) -> None:
        self._drawing.discard(event["requestId"])
        self._answered.set()

    def _on_load(self, *_: Any) -> None:
        self._loads += 1
        self._answered.set()

    def _on_download(self, download: Any) -> None:
        """Handles a link to a file that the browser cannot show: the file is dropped, and the page stays."""
        self._note("navigation", download.url)
        self._downloads += 1
        self._answered.set()

    def _on_crash(self, *_: Any) -> None:
        self._crashed = True
        self._answered.set()

    async def _on_popup(self, page: Any) -> None:
        if page is not self._page:
            self._note("popup", page.url)
            with contextlib.suppress(Exception):
                await page.close()

    def _report(self, event: dict[str, Any]) -> None:
        if self._notes.reward is None:
            self._notes.reward = float(event["payload"])

    # Actions.

    async def act(self, action: Action) -> Notes:
        """Executes ``action`` and waits until the page is idle.

        Raises:
            BrowserFault: the page crashed or did not become idle within the deadline.
        """
        self._notes = Notes()
        least = LEAST_MS
        try:
            least = await self._carry_out(action)
        except PageRefused as reason:
            self._notes.refused = str(reason)
        await self._settle(least)
        return self._notes

    async def _carry_out(self, action: Action) -> int:
        """Executes the action; returns the virtual milliseconds that it takes at least.

        Raises:
            PageRefused: the action cannot be executed on this page.
        """
        mouse, keyboard = self._page.mouse, self._page.keyboard
        match action.kind:
            case ActionKind.CLICK:
                await mouse.click(*await self._target_point(action.id, action.point))
            case ActionKind.DOUBLE_CLICK:
                await mouse.dblclick(*await self._target_point(action.id, action.point))
            case ActionKind.HOVER:
                await mouse.move(*await self._target_point(action.id, action.point))
            case ActionKind.LONG_PRESS:
                await mouse.move(*await self._target_point(action.id, action.point))
                await mouse.down()
                await self._settle(_virtual_ms(action.time))
                await mouse.up()
            case ActionKind.DRAG:
                await self._drag(action)
            case ActionKind.TYPE:
                await self._type(action)
            case ActionKind.KEY:
                await self._press(keyboard, action.text)
            case ActionKind.SELECT:
                await self._ask("choose", action.id, action.point, action.text)
            case ActionKind.SCROLL:
                dx, dy = (SCROLLED * part for part in DIRECTIONS[action.direction or "down"])
                middle = (self.site.width / 2, self.site.height / 2)
                at = None if action.id else action.point or middle
                await self._ask("scroll", action.id, at, dx, dy)
            case ActionKind.WAIT:
                return _virtual_ms(action.time)
        return LEAST_MS

    async def _drag(self, action: Action) -> None:
        mouse = self._page.mouse
        start, end = (
            await self._target_point(action.id, action.point),
            await self._target_point(action.end_id, action.end),
        )
        await mouse.move(*start)
        await mouse.down()
        await mouse.move(*end, steps=5)
        await mouse.up()

    async def _type(self, action: Action) -> None:
        if action.id is not None and not await self._call_tree_script("focus", action.id):
            raise PageRefused(f"There is no element {action.id}.")
        if action.point is not None:
            await self._page.mouse.click(*action.point)
        await self._page.keyboard.type(action.text)

    async def _press(self, keyboard: Any, keys: str) -> None:
        from playwright.async_api import Error

        try:
            await keyboard.press(keys)
        except Error as error:
            if "Unknown key" not in str(error):
                raise
            raise PageRefused(
                f"There is no key {keys!r}; write Enter, Tab, Backspace, a or Control+a."
            ) from None

    async def _ask(self, function: str, *given: Any) -> None:
        if complaint := await self._call_tree_script(function, *given):
            raise PageRefused(complaint)

    async def _target_point(self, id: str | None, point: tuple[float, float] | None) -> tuple[float, float]:
        if point is not None:
            if not (0 <= point[0] < self.site.width and 0 <= point[1] < self.site.height):
                raise PageRefused(
                    f"{list(point)} lies outside of the {self.site.width}x{self.site.height} screen."
                )
            return point
        if (found := await self._call_tree_script("place", id)) is None:
            raise PageRefused(f"There is no element {id} that can be seen.")
        return found[0], found[1]

    # Waiting.

    async def _settle(self, least_ms: int = LEAST_MS, first: str = "") -> None:
        """Waits until no scripts, timers, requests and navigations are pending; it never waits for a fixed time."""
        most_ms = SETTLE_MS
        for _ in range(MAX_ROUNDS):
            seen = self._loads, self._downloads
            call = f"{first}agentenv.settle({least_ms}, {most_ms})"
            reply = await self._evaluate(call, lost={"leaving": True})
            self._take_notes(reply)
            most_ms = SETTLE_MS
            if reply["leaving"]:
                await self._wait_until(lambda seen=seen: (self._loads, self._downloads) != seen)
            elif self._drawing:
                await self._await_drawing()
                # Virtual time does not advance while an image loads, as if it had loaded at once.
                most_ms = 0
            elif self._requests:
                await self._wait_until(lambda: not self._requests)
            else:
                return
            least_ms, first = 0, ""

    async def _await_drawing(self) -> None:
        """Waits for images, fonts and styles, but not long for one that never arrives."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAWN_S):
                await self._wait_until(lambda: not self._drawing and not self._requests)
        self._drawing.clear()

    def _take_notes(self, reply: Any) -> None:
        """Records the reply of this package's script in the page's own world, where the page may have changed it.

        Raises:
            BrokenPage: the reply does not have the form that the script gives it.
        """
        match reply:
            case {"leaving": bool(), "notes": list(told), "looping": bool(looping)}:
                self._notes.looping |= looping
            case {"leaving": bool()}:
                told = []
            case _:
                told = [reply]
        for note in told:
            match note:
                case [str(kind), str(text)] if kind in EVENTS:
                    self._note(kind, text)
                case _:
                    raise BrokenPage(
                        f"the page has tampered with the record of its events: {str(note)[:MAX_NOTE]}"
                    )

    async def _wait_until(self, condition: Any) -> None:
        while not condition():
            self._check_alive()
            self._answered.clear()
            await self._answered.wait()

    def _check_alive(self) -> None:
        if self._crashed:
            raise BrowserFault("the page crashed, or its browser is gone")

    async def _evaluate(self, expression: str, *, world: int | None = None, lost: Any = None) -> Any:
        """Evaluates ``expression``; returns ``lost``, if given, when the document is replaced meanwhile."""
        from playwright.async_api import Error

        given: dict[str, Any] = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        if world is not None:
            given["contextId"] = world
        self._check_alive()
        try:
            reply = await self._cdp.send("Runtime.evaluate", given)
        except Error as error:
            self._check_alive()
            gone = "context was destroyed" in str(error) or "navigated" in str(error)
            if lost is not None and gone:
                return lost
            raise
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise BrokenPage(details.get("exception", {}).get("description", details["text"])[:MAX_SAID])
        return reply["result"].get("value")

    # Reading.

    async def _call_tree_script(self, function: str, *given: Any) -> Any:
        """Calls a function of ``tree.js``."""
        from playwright.async_api import Error

        call = f"agentenvPage.{function}({', '.join(map(json.dumps, given))})"
        for _ in range(MAX_ROUNDS):
            try:
                return await self._evaluate(call, world=await self._isolated_world())
            except Error as error:
                # A script may replace the document without a page load.
                if "Cannot find context" not in str(error):
                    raise
                self._world = (-1, 0)
        raise BrokenPage("the page keeps replacing its document, so that it cannot be read")

    async def _isolated_world(self) -> int:
        """Returns the id of the isolated world that contains ``tree.js`` in the present document."""
        if self._world[0] != self._loads:
            frames = await self._cdp.send("Page.getFrameTree")
            made = {"frameId": frames["frameTree"]["frame"]["id"], "worldName": WORLD}
            context = await self._cdp.send("Page.createIsolatedWorld", made)
            self._world = (self._loads, context["executionContextId"])
        return self._world[1]

    async def screen(self, *, image: bool) -> tuple[Screen, str]:
        """Returns the UI tree, with pixels if requested, and the text of the site's goal element."""
        seen = await self._call_tree_script("look", self.site.goal)
        elements = tuple(
            Element(id, role, text, Box(*box), value, tuple(states))
            for id, role, text, box, value, states in seen["rows"]
        )
        png = await self.screenshot() if image else None
        return Screen(seen["width"], seen["height"], seen["title"], elements, png), seen["goal"]

    async def screenshot(self) -> bytes:
        """Returns the pixels as a PNG."""
        shot = await self._cdp.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(shot["data"])

    async def facts(self, answers: tuple[str, ...], *, ended: bool) -> PageFacts:
        """Returns the facts for a validator, with the policy's answers and whether it has ended the episode."""
        return PageFacts(**await self._call_tree_script("facts"), answers=answers, ended=ended)

    async def close(self) -> None:
        """Closes page and context, and ignores their errors."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._context.close(), DEADLINE_S)


@contextlib.asynccontextmanager
async def guarded(doing: str) -> AsyncIterator[None]:
    """Sets a deadline for the block, and turns every error of the browser into a fault.

    Raises:
        BrowserFault: the browser died, the page crashed, or (`LatePage`) the deadline passed.
    """
    from playwright.async_api import Error

    try:
        async with asyncio.timeout(DEADLINE_S):
            yield
    except TimeoutError as error:
        raise LatePage(f"{doing}: the page gave no answer within {DEADLINE_S:g} s") from error
    except Error as error:
        raise BrowserFault(f"{doing}: {str(error).splitlines()[0]}") from error


def _virtual_ms(seconds: float | None) -> int:
    return round(1000 * min(1.0 if seconds is None else seconds, WAIT_LIMIT_S))
