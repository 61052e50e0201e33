"""``agentenv/Browser-v0``: tasks in a real Chromium without a network, on MiniWoB pages or any local page.

Every episode has its own browser context, with a seeded clock and seeded randomness. A step ends when the page is idle, and
not after a fixed delay. The policy is told about events of the page (errors, dialogs, refused actions, blocked requests). A
failure of the browser is a fault. A snapshot is the episode's history, and restoring replays it.
"""

import asyncio
import io
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from agentenv.core.env import AsyncEnv
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.snapshot import Snapshot
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.envs.browser import miniwob_experts, miniwob_forms  # noqa: F401  # register their experts
from agentenv.envs.browser.browser_session import BrowserSession, BrowserStep
from agentenv.envs.browser.driver import Driver, shared_driver
from agentenv.envs.browser.experts import EXPERTS, rehearse
from agentenv.envs.browser.page import Notes, PageHangs
from agentenv.envs.browser.sites import Site, Validator, miniwob, miniwob_task, miniwob_tasks, page_of
from agentenv.envs.gui.actions import STOP, Action, ActionKind, action_text, parse_reply
from agentenv.envs.gui.observation import PROMPT, ScreenFormat, opening
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Screen
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, SnapshotError, check_known

if TYPE_CHECKING:
    from numpy.typing import NDArray

T = TypeVar("T")
SPLITS = ("train", "dev", "test")
SEEDS = 2**31
"""Number of possible seeds of a page."""

KINDS = (
    ActionKind.CLICK,
    ActionKind.DOUBLE_CLICK,
    ActionKind.LONG_PRESS,
    ActionKind.HOVER,
    ActionKind.DRAG,
    ActionKind.TYPE,
    ActionKind.SELECT,
    ActionKind.KEY,
    ActionKind.SCROLL,
    ActionKind.WAIT,
    ActionKind.ANSWER,
    ActionKind.TERMINATE,
)
"""The actions that are possible on a page. None of them evaluates a script or enters an address."""
STOPPED = {"navigation": "NavigationBlocked", "network": "NetworkBlocked", "popup": "PopupBlocked"}
SENTENCES = {
    "error": "The page reports an error: {}",
    "alert": "The page says: {}",
    "confirm": "The page asks, and OK is chosen: {}",
    "prompt": "The page asks for a text and keeps its own: {}",
    "navigation": "The way to {} is closed.",
    "network": "There is no network for {}.",
    "popup": "No window is opened for {}.",
}


@dataclass
class BrowserState:
    """All that changes within an episode."""

    task: Task
    goal: str
    seed: int
    session: BrowserSession
    seen: BrowserStep
    answers: tuple[str, ...] = ()
    turns: int = 0


class Browser(AsyncEnv[BrowserState]):
    """Acts on a page until the page or the validator decides the task."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # type: ignore[misc]
    capability: ClassVar[StateCapability] = StateCapability.REPLAY
    stop: ClassVar[tuple[str, ...]] = STOP
    reads_thoughts: ClassVar[bool] = True
    no_expert: ClassVar[str] = "not every page has an expert; EXPERTS lists those that do"

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        site: Site | None = None,
        validator: Validator | None = None,
        tree: bool = True,
        pixels: bool = False,
        places: bool = True,
        max_steps: int = 20,
        prompt: str = PROMPT,
        driver: Driver | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment over tasks.

        Args:
            tasks: Tasks with ``data["page"]``, a file of the site; None uses all pages of MiniWoB without a time limit.
            site: The folder of the pages; None uses MiniWoB.
            validator: Gives the reward for pages that give none themselves. It is called after every action.
            tree: Whether the policy sees the UI tree.
            pixels: Whether the policy sees an image of the screen.
            places: Whether the UI tree contains the position of each element.
            max_steps: Number of actions after which the episode is cut.
            prompt: The opening message. It must contain ``{goal}``, and may contain ``{actions}`` and ``{example}``.
            driver: The browser driver; None uses the one that all environments of this process share.
            render_mode: ``ansi``, ``rgb_array`` or None.

        Raises:
            MissingExtra: playwright or miniwob is not installed.
            ConfigurationError: there is no Chromium, no ``{goal}`` in the prompt, nothing to see, or nothing that gives the
                reward.
        """
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "goal")
        if max_steps < 1 or not (tree or pixels):
            raise ConfigurationError(
                f"max_steps={max_steps} must be at least 1, and tree={tree} or pixels={pixels} must be true"
            )
        self._site = site or miniwob()
        if not self._site.begin and validator is None:
            raise ConfigurationError("these pages give no reward themselves; pass a validator")
        self._tasks = tuple(miniwob_tasks() if tasks is None and site is None else tasks or ())
        self._validator, self._format = validator, ScreenFormat(tree=tree, pixels=pixels, places=places)
        self._max_steps, self._prompt = max_steps, prompt
        self._driver = driver or shared_driver()

    @classmethod
    def make_tasks(
        cls, n: int, *, seed: int = 0, split: str = "train", pages: Sequence[str] | None = None
    ) -> Sequence[Task]:
        """Makes tasks from the pages of MiniWoB in turn, each with its own seed; different splits share no seed.

        Args:
            n: Number of tasks.
            seed: Selects the seeds of the pages.
            split: ``train``, ``dev`` or ``test``.
            pages: Names such as ``click-button``; None uses those that have an expert.

        Raises:
            UnknownName: there is no such split or page.
        """
        check_known("split", split, SPLITS)
        known = [task.id.partition("/")[2] for task in miniwob_tasks()]
        names = sorted(Path(page).stem for page in EXPERTS) if pages is None else list(pages)
        for name in names:
            check_known("page", name, known)
        seeds = np.random.default_rng(seed).integers(SEEDS // len(SPLITS), size=n)
        return tuple(
            miniwob_task(names[i % len(names)], int(one) * len(SPLITS) + SPLITS.index(split), split)
            for i, one in enumerate(seeds)
        )

    def held_tasks(self) -> Sequence[Task]:
        """Returns the tasks that were given to the constructor, or its default tasks."""
        return self._tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Opens the page of ``options["task"]``, or of a task drawn with the seed.

        Raises:
            DatasetError: there are no tasks.
            ConfigurationError: the task's page does not exist.
            BrowserFault: the browser does not start, or broke.
        """
        await super().areset(seed=seed, options=options)
        task = self.choose_task(options)
        if task is None:
            raise DatasetError(
                "this environment was given no task: give it `tasks`, or options['task'] at reset"
            )
        drawn_seed = int(self.np_random.integers(SEEDS))
        address, page_seed = page_of(self._site, task), int(task.data.get("seed", drawn_seed))
        session = BrowserSession(self._driver, self._site, images=self._format.pixels)
        seen = await self._on_driver(session.open(address, page_seed))
        goal = task.question or seen.goal
        self.state = BrowserState(task, goal, page_seed, session, seen)
        pointing = "id" if self._format.tree else "coordinate"
        before = opening(goal, KINDS, pointing, self._prompt)
        return (self._screen_message(before),), {"task_id": task.id, "goal": goal}

    async def _on_driver(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._driver.submit(coroutine))

    def _screen_message(self, before: str) -> Message:
        return self._format.message(self.screen(), before)

    def screen(self) -> Screen:
        """Returns the present screen, with pixels if the policy sees them."""
        return self.state.seen.screen

    def scene(self) -> ScreenScene:
        """Returns the last screen of the page."""
        return ScreenScene(self.screen())

    async def astep(self, action: str) -> Step:
        """Executes the action in ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            BrowserFault: the browser or the page broke.
        """
        self.check_running(action)
        state = self.state
        state.turns += 1
        reply = parse_reply(action, KINDS)
        if reply.action is None:
            wrong = ToolResult("none", ToolStatus.FORMAT_ERROR, reply.error, "no action")
            return self._next_step(reply.error, (wrong,), valid=False)
        done = reply.action
        if done.kind is ActionKind.ANSWER:
            state.answers += (done.text,)
        try:
            notes = await self._execute(done)
            results = (result_of(done, notes),)
            if notes.looping:
                return self.result((), end=EndReason.TIME_LIMIT, truncated=True, tool_results=results)
            verdict = await self._verdict(notes, ended=done.kind is ActionKind.TERMINATE)
        # caused by the policy's action, so it must not be a fault that excludes the episode
        except PageHangs:
            hung = ToolResult(str(done.kind), ToolStatus.TIMEOUT, error_class="PageHangs")
            return self.result((), end=EndReason.TIME_LIMIT, truncated=True, tool_results=(hung,))
        if verdict is not None:
            return self.result((), reward=verdict, end=EndReason.SUBMITTED, tool_results=results)
        return self._next_step(results[0].text, results)

    async def _execute(self, action: Action) -> Notes:
        """Executes ``action`` on the page; an action that concerns only the environment does nothing there."""
        if action.kind in (ActionKind.ANSWER, ActionKind.TERMINATE):
            return Notes()
        self.state.seen = await self._on_driver(self.state.session.act(action))
        return self.state.seen.notes

    def _next_step(self, feedback: str, results: tuple[ToolResult, ...], *, valid: bool = True) -> Step:
        if self.state.turns >= self._max_steps:
            return self.result(
                (), end=EndReason.TURN_LIMIT, truncated=True, valid=valid, tool_results=results
            )
        before = f"\n{feedback}\n" if feedback else "\n"
        return self.result((self._screen_message(before),), valid=valid, tool_results=results)

    async def _verdict(self, notes: Notes, *, ended: bool) -> float | None:
        """Returns the reward once the task is decided or the policy has ended the episode; None before."""
        verdict = None if notes.reward is None else min(1.0, max(0.0, notes.reward))
        if self._validator is not None:
            facts = await self._on_driver(self.state.session.facts(self.state.answers, ended=ended))
            verdict = self._validator(facts)
        return 0.0 if verdict is None and ended else verdict

    def restore(self, snapshot: Snapshot) -> None:
        """Returns to ``snapshot`` on a new page by replay.

        Raises:
            SnapshotError: the snapshot belongs to another environment or was released.
            ReplayDivergence: the page showed something else than before; the episode is then over.
            BrowserFault: the browser or the page broke.
        """
        try:
            super().restore(snapshot)
        except SnapshotError as error:
            if isinstance(error.__cause__, EnvFault):
                self._over = True
                raise error.__cause__ from error
            raise

    def fork(self, n: int = 1) -> list[Self]:
        """Makes ``n`` copies with pages of their own, brought to the same state by replay.

        Raises:
            ReplayDivergence: a page showed something else than before.
            BrowserFault: the browser or a page broke.
        """
        try:
            return super().fork(n)
        except SnapshotError as error:
            if isinstance(error.__cause__, EnvFault):
                raise error.__cause__ from error
            raise

    def expert(self) -> Sequence[str] | None:
        """Returns the actions of the page's expert, which plays on a page of its own; None if the page has no expert."""
        state = self.state
        acting = EXPERTS.get(state.task.data["page"])
        if acting is None:
            return None
        session = BrowserSession(self._driver, self._site, images=False)
        address = page_of(self._site, state.task)
        playing = rehearse(session, address, state.seed, acting, self._max_steps)
        return [action_text(action, "I go on.") for action in self._driver.submit(playing).result()[0]]

    def render(self) -> "str | NDArray[np.uint8]":
        """Returns the UI tree, or the picture as uint8[height, width, 3]."""
        state = self.state
        if self.render_mode != "rgb_array":
            return f"{state.goal} [{state.turns} turns]\n{state.seen.screen.as_text()}"
        from PIL import Image

        with Image.open(io.BytesIO(self._driver.submit(state.session.screenshot()).result())) as picture:
            return np.asarray(picture.convert("RGB"), dtype=np.uint8).copy()


def result_of(action: Action, notes: Notes) -> ToolResult:
    """Returns the result of an action as the policy sees it."""
    lines = [notes.refused] if notes.refused else []
    lines += [SENTENCES[kind].format(text) for kind, text in notes.events]
    kinds = [kind for kind, _ in notes.events]
    stopped = next((STOPPED[kind] for kind in kinds if kind in STOPPED), "")
    text = "\n".join(lines)
    if notes.looping:
        return ToolResult(str(action.kind), ToolStatus.TIMEOUT, text, "DialogLoop")
    kind = "Refused" if notes.refused else stopped or ("PageError" if "error" in kinds else "")
    status = ToolStatus.ERROR if kind else ToolStatus.OK
    return ToolResult(str(action.kind), status, text, kind)
