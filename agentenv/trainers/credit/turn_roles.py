"""Credit of turns by their roles: a tool that prepares is paid for what comes of it. Pure functions.

Shapes: G trajectories of one group, K turns of one trajectory.
"""

from collections.abc import Sequence

import numpy as np

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import ToolStatus
from agentenv.trainers.credit.group_statistics import (
    Values,
    on_turns,
    others_mean,
    rewards_of,
    without_noise,
)

FIRST = "first"
"""The role of a turn before which nothing was prepared, such as the first program of an episode."""


def role_rewards(turns_K: Sequence[Turn], shared: Sequence[str]) -> list[tuple[str, float]]:
    """Role and reward of each turn; the role is empty where no tool was called (after TraceCoder's three roles).

    A turn of another tool than the ``shared`` ones earns its own reward. A turn of a shared tool earns what the next such
    turn earns, and nothing where its call failed: a plan is worth its repair, and so are prints that do not change what the
    program does.
    """
    found: list[tuple[str, float]] = []
    coming = 0.0
    # Backwards, because a turn that prepares earns what the next turn of another tool will have earned.
    for turn in reversed(turns_K):
        called = turn.tool_results[0] if turn.tool_results else None
        if called is None or called.status is ToolStatus.FORMAT_ERROR:
            found.append(("", 0.0))
        elif called.name in shared:
            found.append((called.name, coming if called.status is ToolStatus.OK else 0.0))
        else:
            coming = turn.reward
            found.append((called.name, coming))
    prepared = False
    roles = found[::-1]
    for place, (role, reward) in enumerate(roles):
        # Programs before any preparation are a role of their own: they are compared with other first programs alone.
        prepared |= role in shared
        if role and not prepared:
            roles[place] = (FIRST, reward)
    return roles


def turn_roles(
    group: Sequence[Trajectory], *, shared: tuple[str, ...] = ("instrument", "plan")
) -> list[Values]:
    """Credits each turn with the reward of its role, minus the mean that the same role earns in the other episodes.

    TraceCoder, 2026, arXiv:2602.06875, has three roles and trains none of them; their rewards are this project's: a repair
    earns by how much the share of tests that pass has grown, the analysis before it as much, and the instrumentation as much
    where it kept what the program does. A role that no other episode has is compared with 0, which is no growth. A turn
    that called no tool has the credit of its episode, as in ``leave_one_out``. So it is unbiased where no tool is called;
    with roles it follows their own rewards and not the gradient of the episode's.

    Args:
        group: Valid trajectories.
        shared: Tools that are paid what the next call of another tool earns.
    """
    rewards = rewards_of(group)
    episode = np.asarray(rewards) - others_mean(rewards)
    played = [role_rewards(trajectory.turns, shared) for trajectory in group]
    values = []
    for place, (trajectory, mine) in enumerate(zip(group, played, strict=True)):
        others = [turns for other, turns in enumerate(played) if other != place]
        # The mean of the others and not of all, so that the baseline does not depend on the turn it is subtracted
        # from.
        scores = [reward - _mean_of(role, others) if role else float(episode[place]) for role, reward in mine]
        values.append(on_turns(trajectory, without_noise(np.array(scores or [float(episode[place])]))))
    return values


def _mean_of(role: str, episodes: Sequence[Sequence[tuple[str, float]]]) -> float:
    """What a turn of ``role`` earns on average, each episode with one counted once; 0 where none has one."""
    means = []
    for turns in episodes:
        if earned := [reward for name, reward in turns if name == role]:
            means.append(sum(earned) / len(earned))
    return sum(means) / len(means) if means else 0.0
