"""Back to an earlier turn of an episode: by the snapshot taken there, or by replay where memory cannot be copied."""

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentenv.core.rollout import Start, within
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Turn
from agentenv.core.types import Observation, StateCapability
from agentenv.errors import ConfigurationError, EnvFault, ReplayDivergence, SnapshotError


@dataclass
class Rewinder:
    """Brings the environment of one episode back to the beginning of one of its turns."""

    start: Start
    deadline_s: float
    """Seconds that a snapshot, a restore or one replayed action may take."""
    _snapshots: list[Snapshot | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.start.env.capability is StateCapability.NONE:
            raise ConfigurationError(
                f"{type(self.start.env).__name__} can neither be captured nor replayed; a strategy that goes back needs "
                "the capability replay at least"
            )

    async def mark(self) -> None:
        """Keeps the present state as that of the next turn; a state that refuses to be captured is left to replay.

        Raises:
            EnvFault: the capture took longer than the deadline.
        """
        snapshot = None
        if self.start.env.capability >= StateCapability.MEMORY:
            taking = asyncio.to_thread(self.start.env.snapshot)
            with contextlib.suppress(SnapshotError):
                snapshot = await within(self.deadline_s, taking, EnvFault("the environment's snapshot"))
        self._snapshots.append(snapshot)

    async def back_to(self, turn: int, opening: Observation, turns: Sequence[Turn]) -> None:
        """Brings the environment to the beginning of ``turn``.

        Args:
            turn: Less than the number of marks.
            opening: What opened the episode.
            turns: Its turns; those before ``turn`` are replayed where there is no snapshot.

        Raises:
            ReplayDivergence: the replay showed something else than the record, or ended.
            EnvFault: the environment failed or missed the deadline.
            SnapshotError: the snapshot could not be brought back.
        """
        snapshot = self._snapshots[turn]
        if snapshot is not None:
            restoring = asyncio.to_thread(self.start.env.restore, snapshot)
            await within(self.deadline_s, restoring, EnvFault("the environment's restore"))
        else:
            await self._replay(opening, turns[:turn])

    async def _replay(self, opening: Observation, turns: Sequence[Turn]) -> None:
        env, task = self.start.env, self.start.task
        resetting = env.areset(seed=self.start.seed, options={"task": task})
        shown, _ = await within(self.deadline_s, resetting, EnvFault("the environment's reset"))
        _compare("the opening", shown, opening)
        for number, turn in enumerate(turns):
            step = await within(self.deadline_s, env.astep(turn.action), EnvFault("the environment's step"))
            _compare(f"turn {number}", step.observation, turn.observation)
            if step.terminated or step.truncated:
                raise ReplayDivergence(f"turn {number} ended the replay and not the record")

    async def release(self) -> None:
        """Frees every snapshot."""
        for snapshot in self._snapshots:
            if snapshot is not None:
                await asyncio.to_thread(snapshot.release)
        self._snapshots.clear()


def observation_hash(observation: Observation) -> str:
    """Twelve hexadecimal digits of what was observed, roles and images included."""
    digest = hashlib.sha256()
    for message in observation:
        digest.update(repr((message.role, message.content)).encode())
    return digest.hexdigest()[:12]


def _compare(place: str, shown: Observation, recorded: Observation) -> None:
    hashes = observation_hash(shown), observation_hash(recorded)
    if hashes[0] != hashes[1]:
        raise ReplayDivergence(f"{place} of the replay shows {hashes[0]} and the record {hashes[1]}")
