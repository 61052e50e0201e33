"""What a browser may load: a site is a folder of files served without a network, with the way to start an episode."""

import functools
import importlib.util
import mimetypes
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, MissingExtra

ORIGIN = "http://agentenv.test"
"""The origin of every site. The name is reserved and never resolves (RFC 2606)."""


@dataclass(frozen=True)
class PageFacts:
    """What a validator learns about a page, read where the page's scripts cannot interfere."""

    url: str
    title: str
    text: str
    """The visible text."""
    fields: dict[str, Any]
    """Values of form fields by name or id; for checkboxes, whether they are checked."""
    storage: dict[str, str]
    """The page's local storage."""
    answers: tuple[str, ...] = ()
    """The policy's texts of ``answer`` actions."""
    ended: bool = False
    """Whether the policy has ended the episode with ``terminate``."""


Validator = Callable[[PageFacts], float | None]
"""Returns the reward in [0, 1] once the task is decided, and None before. None at the end counts as 0."""


@dataclass(frozen=True)
class Site:
    """A folder of files, and how an episode starts on one of its pages."""

    folder: Path
    width: int = 1008
    height: int = 756
    navigates: bool = True
    """Whether links may lead to other pages of the site."""
    strict: bool = False
    """Whether only scripts in the files may run, so that nothing typed into the page is ever executed."""
    begin: str = ""
    """A JavaScript function of ``report`` that starts an episode in a loaded page and calls ``report(reward)`` once. If it
    is empty, loading the page starts the episode."""
    goal: str = ""
    """CSS selector of the element whose text is the goal; if empty, the task's question is the goal."""
    ignored: str = ""
    """CSS selector of elements that the UI tree leaves out."""
    style: str = ""
    """CSS added to every page."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def read(self, url: str) -> tuple[bytes, dict[str, str]] | None:
        """Returns body and headers of ``url``; None if the site has no such file."""
        place = urlsplit(url)
        if f"{place.scheme}://{place.netloc}" != ORIGIN:
            return None
        body = _content(self.folder, unquote(place.path).lstrip("/"))
        if body is None:
            return None
        kind = mimetypes.guess_type(place.path)[0] or "text/html"
        headers = {"Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind}
        if self.strict and kind == "text/html":
            body = body.replace(b"<script", f'<script nonce="{self.nonce}"'.encode())
            headers["Content-Security-Policy"] = f"script-src 'nonce-{self.nonce}'; object-src 'none'"
        return body, headers


@functools.lru_cache(maxsize=512)
def _content(folder: Path, name: str) -> bytes | None:
    path = (folder / name).resolve()
    return path.read_bytes() if path.is_relative_to(folder.resolve()) and path.is_file() else None


MINIWOB_BEGIN = """report => {
    core.EPISODE_MAX_TIME = 2e9;
    const end = core.endEpisode;
    let told = false;
    const guarded = (reward, proportional, reason) => {
        if (!told && core.EP_TIMER !== null) { told = true; report(String(Number(reward))); }
        return end(reward, proportional, reason);
    };
    Object.defineProperty(core, "endEpisode", {value: guarded, writable: false, configurable: false});
    core.startEpisodeReal();
}"""
_HUD = "#reward-display, #click-canvas, #sync-task-cover"
# Pages with moving elements that measure reaction time. The authors of the suite exclude them too.
TIMED = frozenset({"chase-circle", "moving-items", "simon-says", "stock-market"})


@functools.cache
def miniwob() -> Site:
    """Returns the site with the pages of the package ``miniwob`` (Shi et al. 2017, Liu et al. 2018; Farama, MIT licence).

    Time limits are removed and the display of rewards is hidden. The reward is that of the page before its time discount.

    Raises:
        MissingExtra: the package is not installed.
    """
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise MissingExtra.of("miniwob", "gui")
    return Site(
        folder=Path(found.submodule_search_locations[0], "html"),
        width=336,
        height=224,
        navigates=False,
        strict=True,
        begin=MINIWOB_BEGIN,
        goal="#query",
        ignored=f"#query, {_HUD}",
        style=f"{_HUD} {{display: none !important}}",
    )


def miniwob_tasks() -> tuple[Task, ...]:
    """Returns one task per page, sorted by name, without the four pages that measure reaction time.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    names = sorted(path.stem for path in (miniwob().folder / "miniwob").glob("*.html"))
    return tuple(miniwob_task(name) for name in names if name not in TIMED)


def miniwob_task(name: str, seed: int | None = None, split: str = "") -> Task:
    """Returns the task of one page, such as ``click-button``.

    Its goal is on the page and depends on the seed. If ``seed`` is None, every episode draws one.
    """
    page = {"page": f"miniwob/{name}.html"}
    if seed is None:
        return Task(f"miniwob/{name}", "", split=split, data=page)
    return Task(f"miniwob/{name}/{seed}", "", split=split, data=page | {"seed": seed})


def page_of(site: Site, task: Task) -> str:
    """Returns the address of a task's page.

    Raises:
        ConfigurationError: the task names no page of the site, or neither the page nor the task has a goal.
    """
    page = task.data.get("page")
    address = f"{ORIGIN}/{page}"
    if not isinstance(page, str) or site.read(address) is None:
        raise ConfigurationError(
            f"task {task.id!r}: {site.folder} has no page {page!r}; name one in data['page']"
        )
    if not (site.goal or task.question):
        raise ConfigurationError(f"task {task.id!r} has no question, and its site says no goal")
    return address
