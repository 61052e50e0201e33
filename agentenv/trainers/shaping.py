"""Terms of the reward that training adds; evaluation and the figures of a step show the reward without them."""

from collections.abc import Sequence
from dataclasses import replace

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason

_ANSWERS = (EndReason.ANSWERED, EndReason.SUBMITTED)


def overlong_penalty(
    tokens: int, *, limit: int, buffer: int, factor: float = 1.0, floor: float = -1.0
) -> float:
    """DAPO's soft length penalty (Yu et al. 2025, eq. 13): 0 up to limit - buffer, then down by ``factor`` a buffer.

    Args:
        tokens: Length of the episode.
        limit: Where the penalty reaches ``-factor``.
        buffer: Tokens over which it grows; 0 gives none.
        factor: Its size at the limit.
        floor: Least value in units of ``factor``; the published code has none beyond the limit, the paper -1.
    """
    if not buffer:
        return 0.0
    return factor * max(min(-(tokens - (limit - buffer)) / buffer, 0.0), floor)


def shape_rewards(
    group: Sequence[Trajectory],
    *,
    limit: int,
    overlong_buffer: int = 0,
    overlong_factor: float = 1.0,
    answer_penalty: float = 0.0,
) -> list[Trajectory]:
    """The trajectories with the penalties in the outcome and in the last turn's reward; themselves where there are none.

    Args:
        group: Valid trajectories.
        limit: Tokens that one row may hold.
        overlong_buffer: See ``overlong_penalty``; counts the longest row.
        overlong_factor: See ``overlong_penalty``.
        answer_penalty: Subtracted from an episode that ended without an answer (Search-R1++): an F1 reward alone makes
            silence as good as a wrong answer.
    """
    shaped = []
    for trajectory in group:
        longest = max((part.stop - part.start for part in trajectory.row_slices), default=0)
        penalty = overlong_penalty(longest, limit=limit, buffer=overlong_buffer, factor=overlong_factor)
        penalty -= answer_penalty * (trajectory.end_reason not in _ANSWERS)
        shaped.append(_paid(trajectory, penalty) if penalty else trajectory)
    return shaped


def _paid(trajectory: Trajectory, amount: float) -> Trajectory:
    turns = trajectory.turns
    if turns:
        turns = (*turns[:-1], replace(turns[-1], reward=turns[-1].reward + amount))
    return replace(trajectory, reward=trajectory.reward + amount, turns=turns)
