"""An episode: what it needs to begin, and its record while it is played."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentenv.core.env import Env
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Observation, Task
from agentenv.errors import ContextTooSmall, Fault

_ERROR_CHARS = 20_000  # of an error that is kept
_UNPLAYED = "unplayed"  # in the info of an episode whose prompt left no room for a turn
_STEP_INFO = ("turn", "tool_results", "valid", "end_reason")


@dataclass(frozen=True)
class RolloutConfig:
    """Budgets and sampling of an episode."""

    context_tokens: int = 4096
    """Tokens that prompt, actions and observations of one row may take together."""
    turn_tokens: int = 500
    """Tokens that the policy may sample in one turn."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """1 keeps the whole distribution."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn and stay part of it."""
    deadline_s: float = 600.0
    """Seconds that one call of policy or environment may take; the wait for a batch is not counted."""
    deterministic: bool = True
    """Batches are formed by episode index, never by arrival, so that equal seeds give equal files."""


@dataclass(frozen=True)
class EpisodeSpec:
    """One episode to run: an environment of its own, what it is about, and its seed."""

    env: Env[Any]
    task: Task
    seed: int
    group_id: str = ""
    gate: Callable[["EpisodeState"], bool] | None = None
    """Asked after each turn whether the episode goes on; one that does not ends as ``aborted``, which is not trained."""


@dataclass
class EpisodeState:
    """An episode under way: everything needed to go on, or to close it as a ``Trajectory``."""

    spec: EpisodeSpec
    episode: str
    prompt: Observation = ()
    ids: list[int] = field(default_factory=list)
    """The present row."""
    row: int = 0
    segments: list[Segment] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    policy_seconds: float = 0.0
    """Seconds that the last sample took."""
    ended: Trajectory | None = None
    """The finished trajectory, once the episode is over."""

    @property
    def reward(self) -> float:
        """Sum of the rewards so far."""
        return sum(turn.reward for turn in self.turns)

    def copy(self) -> "EpisodeState":
        """The episode as it stands, to come back to; the environment is not copied."""
        return replace(self, ids=[*self.ids], segments=[*self.segments], turns=[*self.turns])

    def add(self, kind: SegmentKind, ids: Sequence[int], turn: int, **extra: Any) -> None:
        """Appends ids to the present row; nothing is recorded for no ids."""
        if ids:
            self.segments.append(Segment(kind, tuple(ids), turn, row=self.row, **extra))
            self.ids.extend(ids)

    def reopen(self, ids: Sequence[int], turn: int) -> None:
        """Opens a new row on ``ids``, which did not extend the present one."""
        self.row += 1
        self.ids = []
        self.add(SegmentKind.PROMPT, ids, turn)

    def close(self, reward: float, end: EndReason, info: dict[str, Any], error: str = "") -> None:
        """Ends the episode."""
        self.ended = Trajectory(
            task=self.spec.task,
            segments=tuple(self.segments),
            turns=tuple(self.turns),
            reward=0.0 if end.is_fault else reward,
            end_reason=end,
            prompt=self.prompt,
            valid=not end.is_fault,
            error=error,
            reports_searches=self.spec.env.reports_searches,
            group_id=self.spec.group_id,
            id=self.episode,
            info={key: value for key, value in info.items() if key not in _STEP_INFO},
        )

    def refuse(self, error: ContextTooSmall) -> None:
        """Ends the episode before its first turn: its prompt leaves no room for one."""
        self.close(0.0, EndReason.ENV_FAULT, {_UNPLAYED: True}, f"{type(error).__name__}: {error}")

    def fail(self, end: EndReason, error: Exception) -> None:
        """Ends the episode through an infrastructure failure."""
        self.close(0.0, end, {}, _describe(error))


def never_fitted(trajectory: Trajectory) -> bool:
    """Whether the prompt of an episode left no room for a turn, so that nobody was asked anything."""
    return bool(trajectory.info.get(_UNPLAYED))


def _describe(error: Exception) -> str:
    """``error`` in text that can be written to a file, whatever it says and however much."""
    known = isinstance(error, Fault)
    text = (
        f"{type(error).__name__}: {error}" if known else "".join(traceback.format_exception(error))
    ).strip()
    text = replace_surrogates(text)
    return (
        text if len(text) <= _ERROR_CHARS else f"{text[: _ERROR_CHARS // 2]} ... {text[-_ERROR_CHARS // 2 :]}"
    )


def replace_surrogates(text: str) -> str:
    """``text`` with a question mark for every lone surrogate, which no file and no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
