"""Credit: from the rewards of a group of trajectories to one number per token. Pure functions.

Shapes: G trajectories of one group, T tokens of one trajectory. An estimator takes the valid trajectories of one group and
gives one float64[T] array each; tokens outside the loss mask get a value as well and the learner ignores it. Faults never
arrive here: they are in neither the loss nor the statistics.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Trajectory
from agentenv.errors import UnknownName

Values = NDArray[np.float64]
Estimator = Callable[[Sequence[Trajectory]], list[Values]]

_FLAT = 1e-8  # rewards closer than this are equal: float noise divided by a tiny scale would become a signal


def standardize(rewards_G: Sequence[float], *, epsilon: float = 1e-6) -> Values:
    """(R - mean) / (std + epsilon) with the unbiased standard deviation (GRPO, Shao et al. 2024, section 4.1.2).

    Args:
        rewards_G: Outcome rewards of one group.
        epsilon: Added to the standard deviation; verl takes 1e-6, TRL 1e-4.

    Returns:
        float64[G]; all 0 for a group of one and for a group of equal rewards.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if is_flat(rewards):
        return np.zeros_like(rewards)
    values: Values = (rewards - rewards.mean()) / (rewards.std(ddof=1) + epsilon)
    return values


def is_flat(rewards_G: Sequence[float] | Values) -> bool:
    """Whether a group carries no signal: fewer than two members, or equal rewards."""
    return len(rewards_G) < 2 or float(np.ptp(rewards_G)) < _FLAT


def group_relative(group: Sequence[Trajectory]) -> list[Values]:
    """GRPO: the standardised outcome reward on every token. Statistics count trajectories, never rows or tokens."""
    scores = standardize([trajectory.reward for trajectory in group])
    return [np.full(len(t.ids), score) for t, score in zip(group, scores, strict=True)]


ESTIMATORS: Mapping[str, Estimator] = {
    "group_relative": group_relative,
}


def get_estimator(name: str) -> Estimator:
    """The estimator registered under ``name``.

    Raises:
        UnknownName: no such estimator.
    """
    if name not in ESTIMATORS:
        raise UnknownName.among("advantage estimator", name, ESTIMATORS)
    return ESTIMATORS[name]
