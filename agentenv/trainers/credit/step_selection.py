"""Which turns of a group are trained at all: those in which the policy was least sure. Pure functions.

Shapes: G trajectories of one group, T tokens of one trajectory.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import SegmentKind, Trajectory

SHARE = 0.8
"""Share of the turns of a group that are trained (DART, Li et al. 2025, arXiv:2509.23866)."""


def turn_entropies(trajectory: Trajectory) -> dict[int, float]:
    """The entropy of each turn in nats a token, estimated by the mean of -log p over its own sampled tokens.

    Tokens that are not trained, or were sampled in another context, tell nothing; a turn without others is left out.
    """
    own = trajectory.loss_mask & ~trajectory.context_mismatch
    turns = trajectory.turn_index[own]
    # The sampled tokens alone are recorded, not the distributions; the mean of -log p estimates the entropy.
    surprises = -trajectory.logprobs[own].astype(np.float64)
    return {int(turn): float(surprises[turns == turn].mean()) for turn in np.unique(turns)}


def low_entropy_turns(group: Sequence[Trajectory], share: float = SHARE) -> list[list[int]]:
    """For each of G the turns that are not among the ``share`` of highest entropy in the group.

    Args:
        group: Valid trajectories.
        share: Of the turns whose entropy is known, within (0, 1], rounded up; a tie at the edge is kept, and so is a turn
            of unknown entropy.
    """
    entropies = [turn_entropies(trajectory) for trajectory in group]
    ordered = sorted((value for known in entropies for value in known.values()), reverse=True)
    # Without a turn of known entropy no turn is below the edge, and all are trained.
    edge = ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0
    # Strictly below, so that ties at the edge stay in, whatever their order.
    return [[turn for turn, value in known.items() if value < edge] for known in entropies]


def high_entropy_tokens(group: Sequence[Trajectory], share: float) -> list[NDArray[np.bool_]]:
    """bool[T] for each of G: whether a token belongs to none of `low_entropy_turns`."""
    low = low_entropy_turns(group, share)
    return [~np.isin(trajectory.turn_index, turns) for trajectory, turns in zip(group, low, strict=True)]


def without_turns(trajectory: Trajectory, turns: Collection[int]) -> Trajectory:
    """``trajectory`` with none of the tokens of ``turns`` trained: neither a loss nor a penalty acts on them."""
    segments = (
        replace(s, trained=False) if s.kind is SegmentKind.POLICY and s.turn in turns else s
        for s in trajectory.segments
    )
    return replace(trajectory, segments=tuple(segments)) if turns else trajectory
