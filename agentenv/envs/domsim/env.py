"""``agentenv/DomSim-v0``: a simulated desktop with eight apps and fifty kinds of tasks.

The state consists of Python values, so a step takes a fraction of a millisecond and a fork copies a few dictionaries. The
policy sees the UI tree, pixels, or both. When it ends the episode, the whole database is compared with the task's end state:
side effects such as another order, a deleted mail or a locked bank account make the result wrong. An infeasible task is
right if the episode is terminated with failure.
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
"""Number of worlds from which an environment without tasks draws."""


@dataclass
class DomSimState:
    """All that changes within an episode."""

    desktop_task: DesktopTask
    world: World
    view: DesktopView
    turns: int = 0
    past: list[tuple[Screen, str]] = field(default_factory=list)
    """Earlier screens with the policy's reply to each, if every observation is a whole context."""


class DomSim(Env[DomSimState]):
    """Acts on a simulated desktop; the reward is 1 if the final database is as the task requires, otherwise 0."""

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
        """Makes an environment over tasks.

        Args:
            tasks: Tasks with ``template`` and ``seed`` in ``data``, as ``generate_domsim_tasks`` makes them; None draws a
                template and a world for each episode.
            tree: Whether the policy sees the UI tree.
            pixels: Whether the policy sees an image of the screen (extra ``gui``).
            places: Whether the UI tree contains the position of each element.
            pointing: How the expert and the example in the prompt refer to elements; a policy may always use both ways.
            window: With None, each screen is shown once and stays in the context. With a number, every observation is a
                whole context with that many of the newest screens, as in ``agentenv/SemiOnlineGUI-v0``.
            max_steps: Number of actions after which the episode is cut.
            thoughts: How the expert writes its thoughts: in one sentence, or in the ``parts`` of EvoCUA's first training
                data (goal, observation, reflection, self-verification, termination). In a quarter of the latter episodes, it
                makes a click that does nothing.
            prompt: The opening message. It must contain ``{goal}``, and may contain ``{actions}`` and ``{example}``.
            render_mode: ``ansi``, ``rgb_array`` or None.

        Raises:
            ConfigurationError: the prompt lacks ``{goal}``, there is neither tree nor pixels, or ids are used without a
                tree.
            UnknownName: there is no such value of ``thoughts``.
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
        """Generates tasks that the expert can solve; see `generate_domsim_tasks`."""
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
        """Returns the tasks given to the constructor; empty if it draws a world for each episode."""
        return self._tasks or ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``, or a task drawn with the seed.

        Raises:
            DatasetError: the task lacks a template or a seed.
            UnknownName: its template does not exist.
        """
        super().reset(seed=seed, options=options)
        task: Task = (options or {}).get("task") or self._draw_task()
        if not {"template", "seed"} <= task.data.keys():
            raise DatasetError(f"task {task.id!r} names no template and no seed of the desktop")
        desktop_task = DesktopTask(task.data["template"], str(task.data["seed"]))
        world = desktop_task.start.__deepcopy__({})
        self.state = DomSimState(desktop_task, world, DESKTOP.view(world))
        return self._observation(), {"task_id": task.id, "goal": desktop_task.goal}

    def _draw_task(self) -> Task:
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
        """Returns the new messages, or the whole context; ``feedback`` is the result of the last action."""
        state, screen = self.state, self.screen()
        before = f"\n{feedback}\n" if feedback else "\n"
        if self._window is None and state.turns:
            return (self._format.message(screen, before),)
        goal = opening(state.desktop_task.goal, KINDS, self._pointing, self._prompt)
        if self._window is None:
            return (self._format.message(screen, goal),)
        return self._format.context(goal, state.past, screen, self._window, before if feedback else "")

    def screen(self) -> Screen:
        """Returns the present screen, with pixels if the policy sees them."""
        screen = self.state.view.screen
        return screen.with_image(png(screen)) if self._format.pixels else screen

    def step(self, action: str) -> Step:
        """Executes the action in ``action``.

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
        """Returns a key of the task and the world, including the page and its form, but not the actions that led there."""
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
        """Returns the UI tree; if the policy sees pixels, the picture is in the message."""
        return ScreenScene(self.state.view.screen)

    def expert(self) -> Sequence[str]:
        """Plays the template's plan; with thoughts in parts, some episodes include a mistake if there are enough steps."""
        task, slip = self.state.desktop_task, None
        deeds = [Deed(*move) for move in solve(task)]
        if not self._in_parts:
            thoughts = [sentence_of(deed.action, deed.widget) for deed in deeds]
        else:
            if len(deeds) < self._max_steps:
                deeds, slip = with_slip(deeds, task.goal)
            thoughts = reasoning(deeds, task.goal, slip)
        return [self._action_text_of(deed, thought) for deed, thought in zip(deeds, thoughts, strict=True)]

    def _action_text_of(self, deed: Deed, thought: str) -> str:
        action = pointed(deed.action, deed.view.screen) if self._pointing == "coordinate" else deed.action
        return action_text(action, thought)

    def render(self) -> "str | NDArray[np.uint8]":
        """Returns the UI tree, or the picture as uint8[448, 672, 3]."""
        if self.render_mode != "rgb_array":
            return f"{self.state.desktop_task.goal} [{self.state.turns} turns]\n{self.state.view.screen.as_text()}"
        import numpy as np

        return np.asarray(draw(self.state.view.screen), dtype=np.uint8).copy()
