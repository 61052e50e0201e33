"""Back to an earlier turn of an episode: by the snapshot taken there, or by replay where memory cannot be copied."""

import hashlib
from dataclasses import dataclass, field

from agentenv.core.acting import require_rewindable
from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    RolloutConfig,
    capture,
    opening_of,
    release,
    rewind,
    step_env,
)
from agentenv.core.snapshot import Snapshot
from agentenv.core.types import EndReason, Observation, StateCapability
from agentenv.errors import ReplayDivergence, SnapshotRefused


@dataclass
class Rewinder:
    """Brings the environment of one episode back to the beginning of one of its turns.

    Raises:
        ConfigurationError: the environment can neither be captured nor replayed.
    """

    start: EpisodeSpec
    config: RolloutConfig
    """Its deadline bounds a snapshot, a restore and each replayed action."""
    _snapshots: list[Snapshot | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_rewindable(self.start.env)

    async def mark(self, state: EpisodeState) -> None:
        """Keeps the state in which the next turn of ``state`` begins; a failure ends the episode.

        A state that refuses to be captured is left to replay.
        """
        possible = self.start.env.capability >= StateCapability.MEMORY
        self._snapshots.append(await capture(state, self.config.deadline_s) if possible else None)

    async def back_to(self, state: EpisodeState) -> None:
        """Brings the environment to where ``state`` stands, at the beginning of its next turn; a failure ends it.

        A replay that shows something else than the record is a fault (``ReplayDivergence``) and no state to go on from.

        Raises:
            SnapshotRefused: a program kept the state from being captured, and the replay differs from the record. That
            is the program's doing and no fault, and the episode cannot go back.
        """
        snapshot = self._snapshots[len(state.turns)]
        if snapshot is not None:
            await rewind(state, snapshot, self.config.deadline_s)
            return
        try:
            await self._replay(state)
        except ReplayDivergence as error:
            if self.start.env.capability >= StateCapability.MEMORY:
                raise SnapshotRefused(f"the episode cannot go back: {error}") from error
            state.fail(EndReason.ENV_FAULT, error)
        except Exception as error:
            state.fail(EndReason.ENV_FAULT, error)

    async def _replay(self, state: EpisodeState) -> None:
        _compare("the opening", await opening_of(self.start, self.config), state.prompt)
        for number, turn in enumerate(state.turns):
            step, _ = await step_env(self.start.env, turn.action, self.config)
            _compare(f"turn {number}", step.observation, turn.observation)
            if step.terminated or step.truncated:
                raise ReplayDivergence(
                    f"the replay ended with turn {number}, and the recorded episode went on after it"
                )

    async def release(self) -> None:
        """Frees every snapshot."""
        snapshots, self._snapshots = self._snapshots, []
        for snapshot in snapshots:
            if snapshot is not None:
                await release(snapshot, self.config.deadline_s)


def observation_hash(observation: Observation) -> str:
    """Twelve hexadecimal digits of what was observed, roles and images included."""
    digest = hashlib.sha256()
    for message in observation:
        digest.update(repr((message.role, message.content)).encode())
    return digest.hexdigest()[:12]


def _compare(place: str, observed: Observation, recorded: Observation) -> None:
    hashes = observation_hash(observed), observation_hash(recorded)
    if hashes[0] != hashes[1]:
        raise ReplayDivergence(f"{place} of the replay shows {hashes[0]} and the record {hashes[1]}")
