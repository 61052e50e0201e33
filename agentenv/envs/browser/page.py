"""One episode's page in a browser: opened, acted on, waited for, looked at.

What the page does is told in ``Notes``, for the policy; what breaks under us is a ``BrowserFault``.
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
"""Virtual milliseconds after which a page that never rests is looked at all the same."""
LEAST_MS = 20
"""Virtual milliseconds that every action takes."""
DRAWN = frozenset({"Image", "Font", "Stylesheet"})
"""Kinds of requests that change what is to be seen without a script."""
DRAWN_S = 2.0
"""Seconds after which the page is looked at without them."""
MAX_ROUNDS = 20  # of navigations and requests after one action
MAX_SAID = 500  # characters of an error of the page
MAX_NOTES = 20  # of what happened during one action
MAX_NOTE = 200  # characters of one
EVENTS = frozenset({"error", "alert", "confirm", "prompt", "navigation", "network", "popup"})
DEADLINE_S = 30.0
WAIT_LIMIT_S = 60.0  # of a wait or a long press, in virtual seconds
SCROLLED = 0.8  # of what is visible, by one scroll
DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


class PageRefused(Exception):
    """The page does not take this action; the sentence is for the policy."""


class PageHangs(Exception):
    """The page answers no more, and its browser does: an action has led to a script without end."""


class LatePage(BrowserFault):
    """The page did not answer in time."""


class BrokenPage(BrowserFault):
    """A script of ours failed on the page, which has changed what it relies on."""


@dataclass
class Notes:
    """What happened on the page during one action."""

    events: list[tuple[str, str]] = field(default_factory=list)
    """Kind (one of ``EVENTS``) and text on one line; what has the kind navigation, network or popup was stopped."""
    looping: bool = False
    """Whether the page opened dialogs without end."""
    reward: float | None = None
    """What the page gave, once the task was decided."""
    refused: str = ""
    """Why the action could not be carried out; empty where it was."""


@functools.cache
def _script(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def prelude(site: Site) -> str:
    """The script that runs first in every document of ``site``."""
    settings = (
        f"{{navigates: {json.dumps(site.navigates)}, style: {json.dumps(site.style)}, "
        f"begin: {site.begin or '() => {}'}}}"
    )
    before, _, after = _script("prelude.js").split("/*SITE*/")
    return before + settings + after


def tree(site: Site) -> str:
    """The script that reads documents of ``site`` from a world of its own."""
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
        self._world: tuple[int, int] = (-1, 0)  # the load it belongs to, and its id
        self._crashed = False
        self._answered = asyncio.Event()

    @classmethod
    async def open(cls, browser: Any, site: Site, address: str = "") -> "Tab":
        """A page in a new context, blank or loaded with ``address``, in which no episode has begun."""
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
        page.on("load", tab._loaded)
        page.on("download", tab._downloaded)
        page.on("crash", tab._crash)
        page.on("close", tab._crash)  # as it is where the browser dies: nothing is waited for any more
        context.on("page", tab._popup)
        tab._cdp = await context.new_cdp_session(page)
        tab._cdp.on("Runtime.bindingCalled", tab._report)
        tab._cdp.on("Network.requestWillBeSent", tab._asked)
        tab._cdp.on("Network.loadingFinished", tab._answer)
        tab._cdp.on("Network.loadingFailed", tab._answer)
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
            await tab._look("rehearse")  # the first look takes its time
        return tab

    async def begin(self, address: str, seed: int) -> None:
        """Begins an episode; ``address`` is loaded first, unless the page waits there."""
        # What the page keeps of it; as a larger number of JavaScript it would lose its last digits.
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
        # Going back would lead to the blank page from which every page is opened, and out of the site.
        await self._cdp.send("Page.resetNavigationHistory")

    # What the browser tells.

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
        except Exception:  # the page was closed meanwhile: nobody waits for the answer
            return
        finally:
            self._requests -= 1
            self._answered.set()

    def _note(self, kind: str, text: str) -> None:
        if len(self._notes.events) < MAX_NOTES:
            # On one line: the page could otherwise write lines like those of the UI tree.
            self._notes.events.append((kind, " ".join(text[:MAX_NOTE].split())))

    def _asked(self, event: dict[str, Any]) -> None:
        # Told in order with the values of our scripts, unlike what is asked of `_serve`.
        if event.get("type") in DRAWN:
            self._drawing.add(event["requestId"])

    def _answer(self, event: dict[str, Any]) -> None:
        self._drawing.discard(event["requestId"])
        self._answered.set()

    def _loaded(self, *_: Any) -> None:
        self._loads += 1
        self._answered.set()

    def _downloaded(self, download: Any) -> None:
        """Of a link to a file that the browser does not show: nothing is kept, and the page stays."""
        self._note("navigation", download.url)
        self._downloads += 1
        self._answered.set()

    def _crash(self, *_: Any) -> None:
        self._crashed = True
        self._answered.set()

    async def _popup(self, page: Any) -> None:
        if page is not self._page:
            self._note("popup", page.url)
            with contextlib.suppress(Exception):
                await page.close()

    def _report(self, event: dict[str, Any]) -> None:
        if self._notes.reward is None:
            self._notes.reward = float(event["payload"])

    # Acting.

    async def act(self, action: Action) -> Notes:
        """Carries ``action`` out and waits until the page rests.

        Raises:
            BrowserFault: the page crashed or did not come to rest within the deadline.
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
        """Does it; the virtual milliseconds that it takes at least.

        Raises:
            Refused: it cannot be done here.
        """
        mouse, keyboard = self._page.mouse, self._page.keyboard
        match action.kind:
            case ActionKind.CLICK:
                await mouse.click(*await self._place(action.id, action.point))
            case ActionKind.DOUBLE_CLICK:
                await mouse.dblclick(*await self._place(action.id, action.point))
            case ActionKind.HOVER:
                await mouse.move(*await self._place(action.id, action.point))
            case ActionKind.LONG_PRESS:
                await mouse.move(*await self._place(action.id, action.point))
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
        start, end = await self._place(action.id, action.point), await self._place(action.end_id, action.end)
        await mouse.move(*start)
        await mouse.down()
        await mouse.move(*end, steps=5)
        await mouse.up()

    async def _type(self, action: Action) -> None:
        if action.id is not None and not await self._look("focus", action.id):
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
        if complaint := await self._look(function, *given):
            raise PageRefused(complaint)

    async def _place(self, id: str | None, point: tuple[float, float] | None) -> tuple[float, float]:
        if point is not None:
            if not (0 <= point[0] < self.site.width and 0 <= point[1] < self.site.height):
                raise PageRefused(
                    f"{list(point)} lies outside of the {self.site.width}x{self.site.height} screen."
                )
            return point
        if (found := await self._look("place", id)) is None:
            raise PageRefused(f"There is no element {id} that can be seen.")
        return found[0], found[1]

    # Waiting.

    async def _settle(self, least_ms: int = LEAST_MS, first: str = "") -> None:
        """Waits until scripts, timers, requests and navigations rest: a condition, never a pause."""
        most_ms = SETTLE_MS
        for _ in range(MAX_ROUNDS):
            seen = self._loads, self._downloads
            call = f"{first}agentenv.settle({least_ms}, {most_ms})"
            reply = await self._evaluate(call, lost={"leaving": True})
            self._take_notes(reply)
            most_ms = SETTLE_MS
            if reply["leaving"]:
                await self._until(lambda seen=seen: (self._loads, self._downloads) != seen)
            elif self._drawing:
                await self._drawn()
                # No time passes on the page while a picture is on its way, as none does where it is there at once.
                most_ms = 0
            elif self._requests:
                await self._until(lambda: not self._requests)
            else:
                return
            least_ms, first = 0, ""

    async def _drawn(self) -> None:
        """Waits for pictures, fonts and styles; one that never comes holds nothing up for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAWN_S):
                await self._until(lambda: not self._drawing and not self._requests)
        self._drawing.clear()

    def _take_notes(self, reply: Any) -> None:
        """Takes note of what a script of ours in the page's own world says; its arrays are those that the page may change.

        Raises:
            BrokenPage: it is nothing that our script says.
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

    async def _until(self, condition: Any) -> None:
        while not condition():
            self._check()
            self._answered.clear()
            await self._answered.wait()

    def _check(self) -> None:
        if self._crashed:
            raise BrowserFault("the page crashed, or its browser is gone")

    async def _evaluate(self, expression: str, *, world: int | None = None, lost: Any = None) -> Any:
        """The value of ``expression``; ``lost`` where the document goes away meanwhile and ``lost`` is given."""
        from playwright.async_api import Error

        given: dict[str, Any] = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        if world is not None:
            given["contextId"] = world
        self._check()
        try:
            reply = await self._cdp.send("Runtime.evaluate", given)
        except Error as error:
            self._check()
            gone = "context was destroyed" in str(error) or "navigated" in str(error)
            if lost is not None and gone:
                return lost
            raise
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise BrokenPage(details.get("exception", {}).get("description", details["text"])[:MAX_SAID])
        return reply["result"].get("value")

    # Looking.

    async def _look(self, function: str, *given: Any) -> Any:
        """Calls a function of ``tree.js``."""
        from playwright.async_api import Error

        call = f"agentenvPage.{function}({', '.join(map(json.dumps, given))})"
        for _ in range(MAX_ROUNDS):
            try:
                return await self._evaluate(call, world=await self._own_world())
            except Error as error:
                # A script may put another document in the place of this one without a load.
                if "Cannot find context" not in str(error):
                    raise
                self._world = (-1, 0)
        raise BrokenPage("the page keeps replacing its document, so that it cannot be read")

    async def _own_world(self) -> int:
        """The id of the world in which ``tree.js`` stands in the present document."""
        if self._world[0] != self._loads:
            frames = await self._cdp.send("Page.getFrameTree")
            made = {"frameId": frames["frameTree"]["frame"]["id"], "worldName": WORLD}
            context = await self._cdp.send("Page.createIsolatedWorld", made)
            self._world = (self._loads, context["executionContextId"])
        return self._world[1]

    async def screen(self, *, image: bool) -> tuple[Screen, str]:
        """What is to be seen, the UI tree and, if asked for, the pixels; and the text of the site's goal element."""
        seen = await self._look("look", self.site.goal)
        elements = tuple(
            Element(id, role, text, Box(*box), value, tuple(states))
            for id, role, text, box, value, states in seen["rows"]
        )
        png = await self.screenshot() if image else None
        return Screen(seen["width"], seen["height"], seen["title"], elements, png), seen["goal"]

    async def screenshot(self) -> bytes:
        """The pixels, as a PNG."""
        shot = await self._cdp.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(shot["data"])

    async def facts(self, answers: tuple[str, ...], *, ended: bool) -> PageFacts:
        """What a validator learns, with what the policy said and whether it has ended the episode."""
        return PageFacts(**await self._look("facts"), answers=answers, ended=ended)

    async def close(self) -> None:
        """Ends page and context; whatever is wrong with them is their own business."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._context.close(), DEADLINE_S)


@contextlib.asynccontextmanager
async def guarded(doing: str) -> AsyncIterator[None]:
    """Gives the block a deadline and makes whatever breaks in the browser a fault.

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
