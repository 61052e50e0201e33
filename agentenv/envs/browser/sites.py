"""What a browser may load: a site is a folder of files served without a network, and how an episode begins on it."""

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
"""Where every site seems to live; the name exists nowhere (RFC 2606)."""


@dataclass(frozen=True)
class PageFacts:
    """What a validator learns of a page, read where the page's scripts cannot reach."""

    url: str
    title: str
    text: str
    """The visible text."""
    fields: dict[str, Any]
    """Values of form fields by name or id; of boxes whether they are checked."""
    storage: dict[str, str]
    """The page's local storage."""
    answers: tuple[str, ...] = ()
    """What the policy said with ``answer``."""
    ended: bool = False
    """Whether the policy has ended the episode with ``terminate``."""


Validator = Callable[[PageFacts], float | None]
"""The reward in [0, 1] once the task is decided, None before that. A None at the end counts as 0."""


@dataclass(frozen=True)
class Site:
    """A folder of files, and what makes an episode of one of its pages."""

    folder: Path
    width: int = 1008
    height: int = 756
    navigates: bool = True
    """Whether links may lead to other pages of the site."""
    strict: bool = False
    """Whether only the scripts that stand in the files run, so that nothing typed into the page ever does."""
    begin: str = ""
    """A JavaScript function of ``report`` that begins an episode in a loaded page and calls ``report(reward)`` once; where
    empty, loading the page is the beginning."""
    goal: str = ""
    """Selector of the element whose text is the goal; where empty, the task's question is."""
    ignored: str = ""
    """Selector of what the UI tree leaves out."""
    style: str = ""
    """CSS added to every page."""
    nonce: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def read(self, url: str) -> tuple[bytes, dict[str, str]] | None:
        """Body and headers of ``url``, or None where the site has no such file."""
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
# What moves on its own and is judged by reaction time: excluded from the suite by its authors too.
TIMED = frozenset({"chase-circle", "moving-items", "simon-says", "stock-market"})


@functools.cache
def miniwob() -> Site:
    """The pages of the ``miniwob`` package (Shi et al. 2017, Liu et al. 2018; Farama Foundation, MIT licence).

    Time limits are lifted, the display of rewards is hidden, and the reward is the page's own before any discount for time.

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
    """One task a page, sorted by name, without the four that are played against the clock.

    Raises:
        MissingExtra: the package ``miniwob`` is not installed.
    """
    names = sorted(path.stem for path in (miniwob().folder / "miniwob").glob("*.html"))
    return tuple(miniwob_task(name) for name in names if name not in TIMED)


def miniwob_task(name: str, seed: int | None = None, split: str = "") -> Task:
    """The task of one page, such as ``click-button``.

    Its goal stands in the page and differs from seed to seed; where ``seed`` is None, every episode draws one.
    """
    page = {"page": f"miniwob/{name}.html"}
    if seed is None:
        return Task(f"miniwob/{name}", "", split=split, data=page)
    return Task(f"miniwob/{name}/{seed}", "", split=split, data=page | {"seed": seed})


def page_of(site: Site, task: Task) -> str:
    """The address of a task's page.

    Raises:
        ConfigurationError: the task names no page of the site, or neither has a goal.
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
