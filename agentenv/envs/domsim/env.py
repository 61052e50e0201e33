"""``agentenv/DomSim-v0``: a miniature desktop with eight apps, fifty kinds of task, and consequences.

Everything is Python values: a step takes a fraction of a millisecond and a fork is a copy of a few dictionaries. What the
policy sees is the UI tree, pixels, or both. The episode ends when it says so, and the whole database is then compared with
what the task wants: an order that was also placed, a mail that was also deleted, a bank account that was locked all count.
A task that cannot be done is right where the episode is terminated with failure.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentenv.core.env import Env
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.types import EndReason, Info, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.envs.domsim.desktop import KINDS
from agentenv.envs.domsim.raster import draw, png
from agentenv.envs.domsim.reasoning import Deed, reasoning, sentence_of, with_slip
from agentenv.envs.domsim.records import Conjunction
from agentenv.envs.domsim.tasks import DESKTOP, TEMPLATES, DesktopTask, generate_domsim_tasks, solve
from agentenv.envs.domsim.world import DesktopView, World
from agentenv.envs.gui.actions import STOP, ActionKind, action_text, parse_reply
from agentenv.envs.gui.observation import PROMPT, ScreenFormat, opening
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Screen, pointed
from agentenv.errors import ConfigurationError, DatasetError, check_known

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pointing = Literal["id", "coordinate"]
Thoughts = Literal["sentence", "parts"]
WORLDS = 2**31
"""Worlds from which an environment without tasks draws."""


@dataclass
class DomSimState:
    """All that changes within an episode."""

    desktop_task: DesktopTask
    world: World
    view: DesktopView
    turns: int = 0
    past: list[tuple[Screen, str]] = field(default_factory=list)
    """Earlier screens with what was said on each, where contexts are built from them."""


class DomSim(Env[DomSimState]):
    """Look, act, terminate; reward 1 where the database is then as the task wants it, else 0."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 2}  # type: ignore[misc]
    stop: ClassVar[tuple[str, ...]] = STOP
    reads_thoughts: ClassVar[bool] = True
    client_data: ClassVar[Mapping[str, Any]] = {"template": str, "seed": str | int}

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        tree: bool = True,
        pixels: bool = False,
        places: bool = True,
        pointing: Pointing = "id",
        window: int | None = None,
        max_steps: int = 30,
        thoughts: Thoughts = "sentence",
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Builds an environment over tasks.

        Args:
            tasks: Tasks with ``template`` and ``seed`` in ``data``, as ``generate_domsim_tasks`` makes them; None draws a
                template and a world for each episode.
            tree: Whether the policy sees the UI tree.
            pixels: Whether it sees the screen's image (extra ``gui``).
            places: Whether the UI tree says where each element is.
            pointing: How the expert and the prompt's example point at things; a policy may always do both.
            window: None shows a screen once and keeps it; a number makes every observation a whole context with that many of
                the newest screens, as ``agentenv/SemiOnlineGUI-v0`` does.
            max_steps: Actions before the episode is cut.
            thoughts: How the expert thinks: in one sentence, or in the ``parts`` with which EvoCUA begins (goal,
                observation, reflection, self-verification, termination), a quarter of its episodes with a click that does
                nothing.
            prompt: Opening message; must hold ``{goal}``; ``{actions}`` and ``{example}`` are filled too.
            render_mode: ``ansi``, ``rgb_array`` or None.

        Raises:
            ConfigurationError: no ``{goal}`` in the prompt, neither tree nor pixels, or ids without a tree.
            UnknownName: no such ``thoughts``.
        """
        check_known("form of thoughts", thoughts, ("sentence", "parts"))
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "goal")
        if max_steps < 1 or (window is not None and window < 1):
            raise ConfigurationError(
                f"max_steps={max_steps} must be at least 1, and so must window={window}, unless it is None"
            )
        if not tree and (not pixels or pointing == "id"):
            raise ConfigurationError(
                f"without the tree, pixels={pixels} must be true and pointing={pointing!r} must be 'coordinate'"
            )
        self._tasks = tuple(tasks) if tasks is not None else None
        self._format = ScreenFormat(tree=tree, pixels=pixels, places=places)
        self._pointing, self._window = pointing, window
        self._max_steps, self._prompt, self._in_parts = max_steps, prompt, thoughts == "parts"

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        templates: Sequence[str] = tuple(TEMPLATES),
        joined: int = 1,
        conjunction: Conjunction = "and",
        infeasible: float = 0.0,
        apart_from: Mapping[str, Any] | None = None,
    ) -> Sequence[Task]:
        """Tasks that the expert has proved; see `generate_domsim_tasks`."""
        return generate_domsim_tasks(
            n,
            seed=seed,
            split=split,
            templates=templates,
            joined=joined,
            conjunction=conjunction,
            infeasible=infeasible,
            apart_from=apart_from,
        )

    def held_tasks(self) -> Sequence[Task]:
        """The tasks that it was given; none where it draws a world for each episode."""
        return self._tasks or ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn by the seed.

        Raises:
            DatasetError: the task has no template or no seed.
            UnknownName: its template does not exist.
        """
        super().reset(seed=seed, options=options)
        task: Task = (options or {}).get("task") or self._drawn()
        if not {"template", "seed"} <= task.data.keys():
            raise DatasetError(f"task {task.id!r} names no template and no seed of the desktop")
        desktop_task = DesktopTask(task.data["template"], str(task.data["seed"]))
        world = desktop_task.start.__deepcopy__({})
        self.state = DomSimState(desktop_task, world, DESKTOP.view(world))
        return self._observation(), {"task_id": task.id, "goal": desktop_task.goal}

    def _drawn(self) -> Task:
        if self._tasks is not None:
            if not self._tasks:
                raise DatasetError(
                    "this environment was given no task: give it `tasks`, or options['task'] at reset"
                )
            return self._tasks[int(self.np_random.integers(len(self._tasks)))]
        template = list(TEMPLATES)[int(self.np_random.integers(len(TEMPLATES)))]
        seed = str(self.np_random.integers(WORLDS))
        return Task(f"{template}/{seed}", "", data={"template": template, "seed": seed})

    def _observation(self, feedback: str = "") -> Observation:
        """What the policy sees now: what is new, or all of its context; ``feedback`` came of the last action."""
        state, screen = self.state, self.screen()
        before = f"\n{feedback}\n" if feedback else "\n"
        if self._window is None and state.turns:
            return (self._format.message(screen, before),)
        goal = opening(state.desktop_task.goal, KINDS, self._pointing, self._prompt)
        if self._window is None:
            return (self._format.message(screen, goal),)
        return self._format.context(goal, state.past, screen, self._window, before if feedback else "")

    def screen(self) -> Screen:
        """What is on the screen, with pixels where the policy sees them."""
        screen = self.state.view.screen
        return screen.with_image(png(screen)) if self._format.pixels else screen

    def step(self, action: str) -> Step:
        """Carries out the one action of ``action``.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
        """
        self.check_running(action)
        state = self.state
        reply = parse_reply(action, KINDS)
        state.turns += 1
        if self._window is not None:
            state.past.append((self.screen(), action))
        if reply.action is not None and reply.action.kind is ActionKind.TERMINATE:
            done = state.desktop_task.passed(state.world, reply.action.text)
            details: dict[str, Any] = {"infeasible": True} if state.desktop_task.impossible else {}
            return self.result((), reward=float(done), end=EndReason.SUBMITTED, **details)
        wrong = reply.error
        if reply.action is not None:
            wrong = DESKTOP.act(state.world, state.view, reply.action)
            state.view = DESKTOP.view(state.world)
        name = str(reply.action.kind) if reply.action else "none"
        status = ToolStatus.OK if not wrong else ToolStatus.ERROR if reply.action else ToolStatus.FORMAT_ERROR
        result = ToolResult(
            name, status, wrong, "" if not wrong else "no effect" if reply.action else "no action"
        )
        common: dict[str, Any] = {"valid": reply.action is not None, "tool_results": (result,)}
        if state.turns >= self._max_steps:
            return self.result((), end=EndReason.TURN_LIMIT, truncated=True, **common)
        return self.result(self._observation(wrong), **common)

    def anchor_key(self) -> str:
        """Task and world, the page and what stands in its form included; the way to it does not matter."""
        world = self.state.world
        form = (
            world.page,
            sorted(world.fields.items()),
            world.focus,
            world.replacing,
            world.opened,
            world.dialog,
        )
        content = (self.state.desktop_task.goal, sorted(world.data.items()), form, world.scroll, world.answer)
        return hashlib.sha256(repr(content).encode("utf-8", "backslashreplace")).hexdigest()[:16]

    def scene(self) -> ScreenScene:
        """The UI tree; a picture of it is in the message where the policy sees pixels."""
        return ScreenScene(self.state.view.screen)

    def expert(self) -> Sequence[str]:
        """The template's plan, played; with thoughts in parts sometimes with a slip, where there is time for one."""
        task, slip = self.state.desktop_task, None
        deeds = [Deed(*move) for move in solve(task)]
        if not self._in_parts:
            thoughts = [sentence_of(deed.action, deed.widget) for deed in deeds]
        else:
            if len(deeds) < self._max_steps:
                deeds, slip = with_slip(deeds, task.goal)
            thoughts = reasoning(deeds, task.goal, slip)
        return [self._written(deed, thought) for deed, thought in zip(deeds, thoughts, strict=True)]

    def _written(self, deed: Deed, thought: str) -> str:
        action = pointed(deed.action, deed.view.screen) if self._pointing == "coordinate" else deed.action
        return action_text(action, thought)

    def render(self) -> "str | NDArray[np.uint8]":
        """The UI tree, or the picture as uint8[448, 672, 3]."""
        if self.render_mode != "rgb_array":
            return f"{self.state.desktop_task.goal} [{self.state.turns} turns]\n{self.state.view.screen.as_text()}"
        import numpy as np

        return np.asarray(draw(self.state.view.screen), dtype=np.uint8).copy()
