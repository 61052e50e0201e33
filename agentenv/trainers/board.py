"""The board of one game: what has been played so far, the question in play, and what it was refused for."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.envs.proposals import Proposal


@dataclass
class Board:
    """One game under way."""

    seed: Task
    """What it began with."""
    plays: dict[str, list[Trajectory]] = field(default_factory=dict)
    """The episodes of each move played so far, by place."""
    refused: list[Trajectory] = field(default_factory=list)
    """Proposer's episodes whose question was refused."""
    proposal: Proposal | None = None
    """The latest one."""
    task: Task | None = None
    """The question in play, with its gold where there is one."""
    pooled: bool = False
    """Whether it is one of the pool."""
    counts: Counter[str] = field(default_factory=Counter)
    """What happened how often."""

    def text(self, source: str, place: int) -> str:
        """The field ``MOVE.TAG`` of the episode at ``place``; empty where it was not written."""
        move, _, tag = source.partition(".")
        return field_of(self.plays[move][place], tag)

    def valid(self, move: str) -> list[Trajectory]:
        """The episodes of ``move`` that no fault of ours ended."""
        return [trajectory for trajectory in self.plays.get(move, ()) if trajectory.valid]

    @property
    def solve_rate(self) -> float | None:
        """Share of valid attempts that succeeded; a reward short of a success is none. None where nothing can be said."""
        attempts = self.valid("solve")
        return sum(bool(t.info.get("success")) for t in attempts) / len(attempts) if attempts else None


def field_of(trajectory: Trajectory, tag: str) -> str:
    """What a written turn put into ``tag``; empty where it did not."""
    return str(trajectory.info.get("fields", {}).get(tag, ""))


def actions_of(trajectory: Trajectory) -> str:
    """All that the policy itself wrote."""
    return "".join(turn.action for turn in trajectory.turns)


def mean_of(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return sum(values) / len(values) if values else None
