"""SOP, the semi-online measure of a policy (UI-S1, Lu et al. 2025): how far it follows the expert on its own history.

An episode is played greedily and without patches. PG is the mean share of the expert's steps before the first mismatch, TSR
is the share of episodes without a mismatch, and the score is their mean. A text that cannot be parsed is a mismatch at its
step. Episodes that end by an infrastructure failure are excluded and counted as faults.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.envs.semi_online import SemiOnlineGUI
from agentenv.errors import ConfigurationError

MAX_FAULTS = 0.005
"""Share of episodes with an infrastructure failure above which a measurement is void."""


@dataclass(frozen=True)
class Sop:
    """The measure over several episodes."""

    progress: float
    """PG."""
    success: float
    """TSR."""
    n: int
    """Number of episodes that count."""
    n_infra_error: int
    """Number of episodes excluded because of an infrastructure failure."""

    @property
    def score(self) -> float:
        """Mean of progress and success."""
        return (self.progress + self.success) / 2

    @property
    def void(self) -> bool:
        """Whether too many episodes met an infrastructure failure."""
        return self.n_infra_error > MAX_FAULTS * (self.n + self.n_infra_error)


def matched_steps(trajectory: Trajectory) -> int:
    """Counts the turns before the first mismatch."""
    return next((i for i, turn in enumerate(trajectory.turns) if not turn.valid), len(trajectory.turns))


def sop(trajectories: Sequence[Trajectory]) -> Sop:
    """Measures played episodes of ``agentenv/SemiOnlineGUI-v0``.

    Raises:
        ConfigurationError: no episode counts.
    """
    counted = [trajectory for trajectory in trajectories if trajectory.valid]
    if not counted:
        raise ConfigurationError(
            f"none of {len(trajectories)} episodes can be measured: all were infrastructure failures"
        )
    lengths = [len(trajectory.task.data["recording"].steps) for trajectory in counted]
    shares = [matched_steps(t) / length for t, length in zip(counted, lengths, strict=True)]
    return Sop(
        progress=sum(shares) / len(shares),
        success=sum(share == 1 for share in shares) / len(shares),
        n=len(shares),
        n_infra_error=len(trajectories) - len(shares),
    )


async def measure_sop(
    tasks: Sequence[Task], policy: Policy, chat: ChatFormat, config: RolloutConfig, **options: object
) -> Sop:
    """Plays each task once, without patches, and measures the episodes.

    Args:
        tasks: Tasks with recordings.
        policy: The policy that acts; pass a greedy ``config``.
        chat: How messages become ids.
        config: Budgets and sampling.
        **options: Options of the environment.

    Raises:
        ConfigurationError: no episode counts.
    """
    env = SemiOnlineGUI(tasks=tasks, patch_budget=0, **options)  # type: ignore[arg-type]
    specs = [EpisodeSpec(twin, task, 0) for twin, task in zip(env.fork(len(tasks)), tasks, strict=True)]
    return sop(await rollout(specs, policy, chat, config, name="sop"))
