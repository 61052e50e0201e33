"""The description of an episode that is to be played, and its state while it is played."""

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import Field

from agentenv.core.conversation import Conversation
from agentenv.core.env import Env
from agentenv.core.images import PlacedImage
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn, placed_in
from agentenv.core.types import EndReason, FinishReason, Observation, Task, TurnTokens
from agentenv.core.validation import Frozen
from agentenv.errors import ContextTooSmall, EnvFault, Fault

_ERROR_CHARS = 20_000  # stored characters of an error
_UNPLAYED = "unplayed"  # key in the info of an episode whose prompt left no room for a turn
_STEP_INFO = ("turn", "tool_results", "valid", "end_reason", "reward_parts")


class EpisodeBudgets(Frozen):
    """Budgets and sampling of an episode, as a configuration file has them too."""

    context_tokens: int = Field(512, ge=1)
    """Largest number of tokens of prompt, actions and observations together, in one row."""
    turn_tokens: int = Field(48, ge=1)
    """Largest number of tokens that the policy samples in one turn."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 always takes the most likely token. The loss divides logits by the same number."""
    deadline_s: float = Field(600.0, gt=0)
    """Seconds that one call of the policy or the environment may take. The time that it waits for a batch is not counted."""
    deterministic: bool = True
    """Whether batches are formed by episode index and not by arrival: equal seeds then give equal files."""


class RolloutConfig(EpisodeBudgets):
    """How episodes are played: their budgets and sampling, and what the environment and the caller add."""

    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; 1 samples from the whole distribution."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn. They stay part of it."""

    @classmethod
    def of(cls, budgets: EpisodeBudgets, *, temperature: float, stop: tuple[str, ...]) -> "RolloutConfig":
        """``budgets`` at another temperature, with the strings that end a turn."""
        shared = budgets.model_dump(include=set(EpisodeBudgets.model_fields))
        return cls(**shared | {"temperature": temperature, "stop": stop})


@dataclass(frozen=True)
class EpisodeSpec:
    """An episode that is to be played: its environment, its task and its seed."""

    env: Env[Any]
    task: Task
    seed: int
    group_id: str = ""
    gate: Callable[["EpisodeState"], bool] | None = None
    """Called after each turn. If it returns False, the episode ends as ``aborted`` and is not trained."""
    guidance: str = ""
    """Text that the strategy ``plain`` puts before the first turn and cuts out of the record."""
    prefix: Trajectory | None = None
    """Turns that the strategy ``plain`` begins the episode with, as they are recorded."""


@dataclass
class EpisodeState:
    """The state of an episode that is being played. ``close`` turns it into a ``Trajectory``."""

    spec: EpisodeSpec
    episode: str
    prompt: Observation = ()
    ids: list[int] = field(default_factory=list)
    """Token ids of the current row."""
    row: int = 0
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    policy_seconds: float = 0.0
    """Seconds that the last call of the policy took."""
    finish: FinishReason = FinishReason.STOP
    """How the last turn that was sampled ended."""
    conversation: Conversation | None = None
    """The messages so far, if the chat format is ``native``: the template renders the next prompt from all of them."""
    tools_changed: bool = False
    """Whether a later context declared other tools than an earlier one."""
    ended: Trajectory | None = None
    """The finished trajectory; None while the episode is running."""

    @property
    def reward(self) -> float:
        """Sum of the rewards so far, rounded to 12 decimals, so that 0.7 + 0.2 + 0.1 is exactly 1."""
        return round(sum(turn.reward for turn in self.turns), 12)

    @property
    def images(self) -> tuple[PlacedImage, ...]:
        """The images of the current row, with their places in it."""
        return placed_in([segment for segment in self.segments if segment.row == self.row])

    @property
    def sampled(self) -> TurnTokens:
        """The token counts of the next turn, without guidance tokens, which are cut out of the record."""
        row = [s for s in self.segments if s.row == self.row and s.kind is not SegmentKind.INJECTED]
        own = [s for s in row if s.kind is SegmentKind.POLICY and s.turn == len(self.turns)]
        completion = sum(len(s.ids) for s in own)
        prompt = sum(len(s.ids) for s in row) - completion
        return TurnTokens(prompt, completion, self.finish is FinishReason.LENGTH)

    def copy(self) -> "EpisodeState":
        """A copy of the state that an episode can return to. The environment is not copied."""
        # Segments and turns are immutable, so that copies of the lists are enough.
        return replace(self, ids=[*self.ids], segments=[*self.segments], turns=[*self.turns])

    def add(self, kind: SegmentKind, ids: Sequence[int], turn: int, **extra: Any) -> None:
        """Appends a segment to the current row. Without ids nothing is appended."""
        if ids:
            self.segments.append(Segment(kind, tuple(ids), turn, row=self.row, **extra))
            self.ids.extend(ids)

    def reopen(self, ids: Sequence[int], turn: int, images: tuple[PlacedImage, ...] = ()) -> None:
        """Starts a new row with ``ids`` and ``images``, because the new prompt does not extend the current row."""
        self.row += 1
        self.ids = []
        self.add(SegmentKind.PROMPT, ids, turn, images=images)

    def cut(self, end: EndReason, info: dict[str, Any], error: str = "") -> None:
        """Ends an episode that its environment has not ended, with the reward for giving up (``Env.cut_reward``).

        If the environment fails to compute that reward, the episode ends as a failure of the environment.
        """
        try:
            further = cut_reward(self.spec.env) if self.turns else 0.0
        except Exception as failure:
            self.fail(EndReason.ENV_FAULT, failure)
            return
        if further:
            self.turns[-1] = replace(self.turns[-1], reward=self.turns[-1].reward + further)
        self.close(self.reward, end, info, error)

    def close(self, reward: float, end: EndReason, info: dict[str, Any], error: str = "") -> None:
        """Ends the episode."""
        self.ended = Trajectory(
            task=self.spec.task,
            segments=tuple(self.segments),
            turns=tuple(self.turns),
            reward=0.0 if end.is_fault else reward,
            end_reason=end,
            prompt=self.prompt,
            tools=None if self.conversation is None or self.tools_changed else self.conversation.tools,
            valid=not end.is_fault,
            error=error,
            reports_searches=self.spec.env.reports_searches,
            group_id=self.spec.group_id,
            id=self.episode,
            info={key: value for key, value in info.items() if key not in _STEP_INFO},
        )

    def refuse(self, error: ContextTooSmall) -> None:
        """Ends the episode before its first turn, because its prompt leaves no room for one."""
        self.close(0.0, EndReason.ENV_FAULT, {_UNPLAYED: True}, f"{type(error).__name__}: {error}")

    def fail(self, end: EndReason, error: Exception) -> None:
        """Ends the episode through an infrastructure failure."""
        self.close(0.0, end, {}, _describe(error))


def failed_episode(spec: EpisodeSpec, episode: str, error: Exception) -> Trajectory:
    """Returns the trajectory of an episode that an infrastructure failure ended before its environment existed."""
    state = EpisodeState(spec, episode)
    state.fail(EndReason.ENV_FAULT, error)
    assert state.ended is not None
    return state.ended


def cut_reward(env: Env[Any]) -> float:
    """Returns the additional reward of the episode in ``env`` if it is cut now.

    Raises:
        EnvFault: the environment returned something other than a finite number.
    """
    further = float(env.cut_reward())
    if not math.isfinite(further):
        raise EnvFault(f"{type(env).__name__}.cut_reward() gave {further}; it must be a number")
    return further


def never_fitted(trajectory: Trajectory) -> bool:
    """Whether the prompt of an episode left no room for a turn, so that the policy was never asked."""
    return bool(trajectory.info.get(_UNPLAYED))


def _describe(error: Exception) -> str:
    """The text of ``error``, shortened and encoded so that it can be written to a file."""
    known = isinstance(error, Fault)
    text = (
        f"{type(error).__name__}: {error}" if known else "".join(traceback.format_exception(error))
    ).strip()
    text = replace_surrogates(text)
    return (
        text if len(text) <= _ERROR_CHARS else f"{text[: _ERROR_CHARS // 2]} ... {text[-_ERROR_CHARS // 2 :]}"
    )


def replace_surrogates(text: str) -> str:
    """Replaces every lone surrogate in ``text`` by a question mark, because no file and no tokenizer accepts one."""
    return text.encode("utf-8", "replace").decode()
