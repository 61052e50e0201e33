"""``agentenv/SemiOnlineGUI-v0``: an online episode over an expert's recording (UI-S1, Lu et al. 2025, algorithm 1).

The policy acts on recorded screens and keeps its own history. If its action matches the expert's, the recording contains the
result. If not, the result is unknown: the patch module replaces the action in the history by the expert's, as often as the
budget allows, and the episode continues with the expert's next screen; then it ends.

Every observation is a whole context (system message, own history, newest screens), and starts a new row of the record unless
it extends the previous one. Text of a patch occurs only in contexts of later turns, and is never trained. The failing turn
itself is trained as it was sampled, with its low reward and ``valid`` false.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from agentenv.core.env import AsyncEnv
from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.types import EndReason, Info, Observation, Step, Task, ToolResult, ToolStatus
from agentenv.data.splits import in_split
from agentenv.envs.gui.actions import STOP, ActionKind, ParsedAction, action_text, parse_reply
from agentenv.envs.gui.matching import MatchResult, get_matcher
from agentenv.envs.gui.observation import PROMPT, ScreenFormat, opening
from agentenv.envs.gui.recordings import RecordedStep, Recording, expert_action, load_recordings
from agentenv.envs.gui.rewards import Weights, step_reward
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Screen, at_caret, pointed
from agentenv.envs.gui.thoughts import OFF_POLICY, ON_POLICY, ThoughtWriter, policy_thoughts
from agentenv.errors import ConfigurationError, DatasetError

Patch = Literal["thought_free", "off_policy", "on_policy"]
UNLIMITED = -1
"""A patch budget without a limit."""


class PastTurn(NamedTuple):
    """One turn of the history."""

    text: str
    """The text in later contexts: the policy's own or, if patched, the expert's."""
    patched: bool


@dataclass
class SemiOnlineState:
    """All that changes within an episode."""

    recording: Recording
    budget: int
    patch: Patch
    history: list[PastTurn] = field(default_factory=list)
    patches: int = 0

    @property
    def step(self) -> RecordedStep:
        """The present step of the recording."""
        return self.recording.steps[len(self.history)]

    @property
    def followed_share(self) -> float:
        """Share of the recording that was followed before the first mismatch."""
        followed = next((i for i, turn in enumerate(self.history) if turn.patched), len(self.history))
        return followed / len(self.recording.steps)


class SemiOnlineGUI(AsyncEnv[SemiOnlineState]):
    """Imitate on recorded screens; each turn is rewarded for format, type and exactness; ``valid`` is True for a match."""

    stop: ClassVar[tuple[str, ...]] = STOP
    reads_thoughts: ClassVar[bool] = True
    scorers: ClassVar[tuple[str, ...]] = ("sop", "sop_pg", "sop_tsr", "reward")
    reward_options: ClassVar[frozenset[str]] = frozenset({"weights"})
    client_options: ClassVar[Mapping[str, Any]] = {"patch_budget": int, "patch_variant": Patch}

    def __init__(
        self,
        *,
        tasks: Sequence[Task] | None = None,
        matcher: str = "agentenv",
        patch: Patch = "thought_free",
        patch_budget: int = 1,
        thoughts: ThoughtWriter | None = None,
        weights: Weights = "published",
        kinds: Sequence[str] = tuple(ActionKind),
        by_id: bool = True,
        pixels: bool = False,
        places: bool = True,
        window: int = 2,
        reveal_gold: bool = False,
        prompt: str = PROMPT,
        render_mode: str | None = None,
    ) -> None:
        """Makes an environment over recordings.

        Args:
            tasks: Tasks with ``data["recording"]``; None records DomSim's expert on several tasks.
            matcher: A preset of ``MATCHERS``.
            patch: The text of a patch: ``thought_free`` is the action only; ``off_policy`` adds the recorded thought or,
                with ``thoughts``, one written from goal, screen and action; ``on_policy`` adds a thought that the policy
                itself writes from its context, with the action as a hint (`policy_thoughts`).
            patch_budget: Number of patches per episode; 0 ends it at the first mismatch, -1 (``UNLIMITED``) never.
            thoughts: Writes thoughts; see ``patch``. Without it, the policy of the episode loop writes those of
                ``on_policy``.
            weights: The weights of the reward; see `step_reward`.
            kinds: The kinds of actions that the policy may use.
            by_id: Whether the prompt's example and the patches refer to element ids, if the policy sees a tree.
            pixels: Whether the policy sees only images, resized (extra ``gui``).
            places: Whether the UI tree contains the position of each element.
            window: Number of newest screens that stay in the context; the texts of the history all stay.
            reveal_gold: Whether ``info`` contains the expert's action.
            prompt: The system message. It must contain ``{goal}``, and may contain ``{actions}`` and ``{example}``.
            render_mode: ``ansi`` or None.

        Raises:
            ConfigurationError: a number is out of range, ``{goal}`` is missing, or ``thoughts`` or ``on_policy`` is combined
                with ``pixels``.
            UnknownName: there is no such matcher.
        """
        super().__init__(render_mode=render_mode)
        require_placeholder(prompt, "goal")
        _check_numbers(window, patch_budget)
        _refuse_pixels(patch, thoughts, pixels=pixels)
        self._tasks = None if tasks is None else tuple(tasks)
        self._match, self._weights = get_matcher(matcher), weights
        self._patch, self._budget, self._thoughts = patch, patch_budget, thoughts
        self._policy: tuple[Policy, ChatFormat] | None = None
        self._seed = 0
        self._kinds, self._by_id, self._window = tuple(map(ActionKind, kinds)), by_id and not pixels, window
        self._format = ScreenFormat(tree=not pixels, pixels=pixels, places=places)
        self._reveal_gold, self._prompt = reveal_gold, prompt

    @classmethod
    def make_tasks(
        cls,
        n: int,
        *,
        seed: int = 0,
        split: str = "train",
        recordings: str = "",
        templates: Sequence[str] = (),
        screenshots: str = "",
        pixels: bool = False,
    ) -> Sequence[Task]:
        """Makes tasks of the recordings in a file, or of recordings of DomSim's expert.

        Args:
            n: The largest number of tasks.
            seed: Selects the tasks of DomSim.
            split: The split. Different splits share no recording of a file and no world of DomSim.
            recordings: The file; empty records DomSim.
            templates: Templates of DomSim's tasks; empty uses all.
            screenshots: The folder of the file's screenshots; empty loads none.
            pixels: Whether DomSim is recorded with pictures.
        """
        if not recordings:
            return domsim_recordings(n, seed=seed, split=split, templates=tuple(templates), pixels=pixels)
        folder = Path(screenshots) if screenshots else None
        loaded = load_recordings(Path(recordings), screenshots=folder)
        held = [item for item in loaded if in_split(item.id, split)]
        return [item.task(split) for item in held[:n]]

    def use_policy(self, policy: Policy, chat: ChatFormat) -> None:
        """Keeps the acting policy, for the thoughts of ``on_policy`` patches."""
        self._policy = (policy, chat)

    def held_tasks(self) -> Sequence[Task]:
        """Returns the recordings given to the constructor, or some of DomSim's expert, made at the first call."""
        if self._tasks is None:
            pixels = self._format.pixels
            self._tasks = tuple(domsim_recordings(8, seed=0, split="train", templates=(), pixels=pixels))
        return self._tasks

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Opens ``options["task"]``, or a recording drawn with the seed.

        ``options["patch_budget"]`` and ``options["patch_variant"]`` (the text of a patch) apply to this episode.

        Raises:
            ConfigurationError: ``on_policy`` is combined with ``pixels``, or a budget is out of range.
            DatasetError: the task has no recording, or one without screenshots although the policy sees pixels.
        """
        await super().areset(seed=seed, options=options)
        chosen = options or {}
        budget, patch = chosen.get("patch_budget", self._budget), chosen.get("patch_variant", self._patch)
        _check_numbers(self._window, budget)
        _refuse_pixels(patch, self._thoughts, pixels=self._format.pixels)
        self._seed = seed or 0
        task = self.choose_task(options)
        if task is None or not isinstance(task.data.get("recording"), Recording):
            whose = f"task {task.id!r} has" if task else "this environment was given no task, so there is"
            raise DatasetError(f"{whose} no recording: give it tasks with data['recording']")
        steps = task.data["recording"].steps
        if self._format.pixels and any(step.screen.image is None for step in steps):
            raise DatasetError(
                f"the recording of task {task.id!r} has no screenshots, and pixels is true: name their folder in the option "
                "screenshots of the tasks, record with pixels=true, or set pixels=false"
            )
        self.state = SemiOnlineState(task.data["recording"], budget, patch)
        return self._context(), {"task_id": task.id, "goal": task.question}

    def screen(self) -> Screen:
        """Returns the present recorded screen, in pixels as shown."""
        step = self.state.step
        return step.screen.at_size(*step.display_size)

    def scene(self) -> ScreenScene:
        """Returns the recorded screen with the expert's action."""
        step, screen = self.state.step, self.screen()
        x, y = screen.width / step.gold.size[0], screen.height / step.gold.size[1]
        boxes = tuple(box.scaled(x, y) for box in step.gold.boxes)
        return ScreenScene(screen, expert_action(step), boxes)

    async def astep(self, action: str) -> Step:
        """Compares ``action`` with the expert's; continues with or without a patch, or ends the episode.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: the writer of thoughts failed; the policy cannot cause this.
        """
        self.check_running(action)
        state, step = self.state, self.state.step
        reply = parse_reply(action, self._kinds)
        verdict = self._verdict(reply, step)
        reward = step_reward(reply, verdict, weights=self._weights, annotation=step.annotation)
        segment, spent = state.patches, 0 <= state.budget <= state.patches
        if verdict.exact:
            state.history.append(PastTurn(action, patched=False))
        elif not spent:
            state.history.append(PastTurn(await self._write_patch(step), patched=True))
            state.patches += 1
        end = self._end(reply, verdict, spent)
        status = (
            ToolStatus.OK if verdict.exact else ToolStatus.ERROR if reply.action else ToolStatus.FORMAT_ERROR
        )
        details = self._step_details(reply, verdict, step, segment)
        result = ToolResult(
            str(reply.action.kind) if reply.action else "none",
            status,
            details["reason"],
            "" if verdict.exact else "mismatch",
        )
        if end:
            details["solved"] = end is EndReason.SUBMITTED and state.patches == 0
        observation = () if end else self._context()
        return self.result(
            observation, reward=reward, end=end, valid=verdict.exact, tool_results=(result,), **details
        )

    def _verdict(self, reply: ParsedAction, step: RecordedStep) -> MatchResult:
        if reply.action is None:
            return MatchResult(False, False, reply.error)
        screen = self.screen()
        predicted = at_caret(pointed(reply.action, screen), screen)
        return self._match(predicted, step.gold_at_caret, step.display_size)

    def _end(self, reply: ParsedAction, verdict: MatchResult, spent: bool) -> EndReason | None:
        if not verdict.exact and spent:
            return EndReason.PATCH_BUDGET if reply.action else EndReason.PARSE_ERROR
        finished = len(self.state.history) == len(self.state.recording.steps)
        return EndReason.SUBMITTED if finished else None

    def _step_details(
        self, reply: ParsedAction, verdict: MatchResult, step: RecordedStep, segment: int
    ) -> dict[str, Any]:
        state = self.state
        details = {
            "parse_ok": reply.action is not None,
            "format_ok": reply.format_ok,
            "type_match": verdict.type_ok,
            "exact": verdict.exact,
            "reason": verdict.reason,
            "patched": not verdict.exact and state.patches > segment,
            "patches_used": state.patches,
            "segment_id": segment,
            "step_reward": verdict.exact / len(state.recording.steps),
            "followed_share": state.followed_share,
        }
        return details | ({"gold_action": step.gold.action} if self._reveal_gold else {})

    async def _write_patch(self, step: RecordedStep) -> str:
        """Returns F(a*, thought): the expert's turn as it will appear in the history."""
        action, patch = expert_action(step, by_id=self._by_id), self.state.patch
        if patch == "thought_free":
            return action_text(action)
        writer = self._thoughts
        if patch == "on_policy" and writer is None:
            if self._policy is None:
                raise ConfigurationError(
                    "patch='on_policy' has no policy that could write thoughts: play the episode with run_episode, or "
                    "give thoughts=policy_thoughts(policy, chat)"
                )
            writer = policy_thoughts(*self._policy, seed=self._seed)
        if writer is None:
            return action_text(action, step.thought)
        bare = action_text(action).removeprefix("<think></think>")
        if patch == "off_policy":
            seen = self.screen().as_text()
            prompt = OFF_POLICY.format(goal=self.state.recording.goal, screen=seen, action=bare)
        else:
            context = "\n\n".join(message.text for message in self._context())
            prompt = ON_POLICY.format(context=context, action=bare)
        written = writer(prompt)
        return action_text(action, (await written if inspect.isawaitable(written) else written).strip())

    def _context(self) -> Observation:
        """Returns the whole context: system message, own history and newest screens."""
        state = self.state
        pointing = "id" if self._by_id else "coordinate"
        system = opening(state.recording.goal, self._kinds, pointing, self._prompt)
        screens = [
            step.screen.at_size(*step.display_size)
            for step in state.recording.steps[: len(state.history) + 1]
        ]
        past = [(screen, turn.text) for screen, turn in zip(screens, state.history, strict=False)]
        return self._format.context(system, past, screens[-1], self._window)

    def expert(self) -> Sequence[str]:
        """Returns the recorded actions with their thoughts."""
        return [
            action_text(expert_action(step, by_id=self._by_id), step.thought or "The next step.")
            for step in self.state.recording.steps
        ]

    def render(self) -> str:
        """Shows the goal and the progress of the episode."""
        state = self.state
        return f"{state.recording.goal} [{len(state.history)} of {len(state.recording.steps)}, {state.patches} patched]"


def _check_numbers(window: int, patch_budget: int) -> None:
    if window < 1 or patch_budget < UNLIMITED:
        raise ConfigurationError(
            f"window={window} must be at least 1 and patch_budget={patch_budget} at least {UNLIMITED}"
        )


def _refuse_pixels(patch: Patch, thoughts: ThoughtWriter | None, *, pixels: bool) -> None:
    if pixels and (patch == "on_policy" or thoughts is not None):
        raise ConfigurationError(
            "thoughts can only be written from the text of a screen: leave thoughts out, or set pixels=false"
        )


def domsim_recordings(
    n: int, *, seed: int, split: str, templates: tuple[str, ...], pixels: bool = False
) -> list[Task]:
    """Makes ``n`` tasks of recordings of DomSim's expert; equal arguments give equal tasks."""
    from agentenv.envs.domsim.env import DomSim
    from agentenv.envs.gui.recorder import record

    env = DomSim(pixels=pixels)
    options: dict[str, Any] = {"templates": templates} if templates else {}
    tasks = DomSim.make_tasks(n, seed=seed, split=split, **options)
    return [record(env, task).task(split) for task in tasks]
