"""Redundant steps: those that lead back to where an episode has been before and show nothing new on the way.

EvoCUA (Xue et al. 2026, arXiv:2601.15876) lets a judge find the redundant steps of successful episodes and leaves them out
of what is learned. Here the record tells them: the anchor key of a turn names the state in which it was chosen, and turns
between two visits of one state are redundant if every state between was met before the first of these visits. A way there
and back that shows a page for the first time is none, because the policy may have read what it needed. Pure functions.

Shapes: T tokens of an episode.
"""

from collections.abc import Sequence

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import Values, on_turns


def redundant_turns(states: Sequence[str | None]) -> list[bool]:
    """For each turn whether it is on a way from a state back to it that leads through known states alone.

    Args:
        states: Keys of the states in which the turns were chosen; None where a state has no key, which is never known.
    """
    found, turn = [False] * len(states), 0
    while turn < len(states):
        # What was seen up to here; a way through a state that is new may have shown what was needed.
        known, end = set(states[: turn + 1]) - {None}, turn
        for later in range(turn + 1, len(states)):
            if states[later] not in known:
                break
            # The last return counts, so that several loops from one state are one redundant way.
            end = later if states[later] == states[turn] else end
        found[turn:end] = [True] * (end - turn)
        turn = max(end, turn + 1)
    return found


def redundant_in(trajectory: Trajectory) -> list[bool]:
    """`redundant_turns` of an episode; of a task that cannot be done all turns but the last, which says so (EvoCUA)."""
    if trajectory.info.get("infeasible"):
        return [turn < len(trajectory.turns) - 1 for turn in range(len(trajectory.turns))]
    return redundant_turns([turn.anchor_key for turn in trajectory.turns])


def without_redundant(trajectory: Trajectory, values_T: Values) -> Values:
    """``values_T`` with 0 in place of the positive credit of redundant turns; a failure is blamed for them as before.

    Args:
        trajectory: An episode.
        values_T: Credit of each token.
    """
    redundant = redundant_in(trajectory)
    if not any(redundant):
        return values_T
    tokens = on_turns(trajectory, [float(one) for one in redundant]) > 0
    # Blame stays: a detour of a failed episode is part of how it failed.
    return np.where(tokens & (values_T > 0), 0.0, values_T)
