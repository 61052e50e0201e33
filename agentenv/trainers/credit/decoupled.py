"""Credit where an episode earns several rewards: each is compared by itself before they are added up. Pure functions.

Shapes: G trajectories of one group.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import (
    Values,
    deviation_of,
    noting_deviation,
    on_all_tokens,
    standardize,
)

REST = "rest"
"""The part of a reward that its environment does not name."""


def reward_parts(trajectory: Trajectory) -> dict[str, float]:
    """What an episode has earned by each of its rewards; ``rest`` is the outcome less all that its turns name."""
    parts: Counter[str] = Counter()
    for turn in trajectory.turns:
        parts.update(turn.reward_parts)
    return {**parts, REST: trajectory.reward - sum(parts.values())}


def decoupled_sums(
    group: Sequence[Trajectory], weights: Mapping[str, float], *, epsilon: float = 1e-6
) -> Values:
    """float64[G]: the sum over the rewards of weight times (r - mean) / (std + epsilon), each over the group (GDPO).

    An episode without a certain reward has earned 0 by it. A reward that is equal in the whole group adds nothing.
    """
    earned = [reward_parts(trajectory) for trajectory in group]
    names = dict.fromkeys(name for parts in earned for name in parts)
    columns = {name: [parts.get(name, 0.0) for parts in earned] for name in names}
    sums = np.zeros(len(group))
    for name, column in columns.items():
        sums += weights.get(name, 1.0) * standardize(column, epsilon=epsilon)
    return sums


def decoupled(
    group: Sequence[Trajectory],
    *,
    weights: Mapping[str, float] = {},
    scale: Literal["batch", "none"] = "none",
    epsilon: float = 1e-6,
) -> list[Values]:
    """Standardises each reward of an episode over the group by itself and adds them up.

    GDPO, Liu et al. 2026, arXiv:2601.05242. Where rewards are added up first, as in ``group_relative``, the one that varies
    most decides, and different combinations of equal sum have equal credit. The sums of every group have mean 0, so that
    those of the step have too, and standardising them over the step is to divide by their deviation.
    Biased: mean and deviations include the member itself. Measured with one reward: .536 along, .031 aside.

    Args:
        group: Valid trajectories; ``Turn.reward_parts`` has the rewards of their turns by name.
        weights: Of the rewards by name, 1 where none is named; ``rest`` is what no name stands for, such as a penalty on
            long episodes.
        scale: ``batch`` divides by the deviation of these sums over the step, as published.
        epsilon: Added to each standard deviation.

    Raises:
        ConfigurationError: ``scale="batch"`` outside a training run, where nothing is known of other groups.
    """
    sums = decoupled_sums(group, weights, epsilon=epsilon)
    if scale == "batch" and group:
        sums = sums / (deviation_of(group[0], "decoupled") + epsilon)
    return on_all_tokens(group, sums)


def with_decoupled_deviation(
    groups: Sequence[Sequence[Trajectory]], *, weights: Mapping[str, float] = {}, epsilon: float = 1e-6
) -> list[list[Trajectory]]:
    """``groups`` with the deviation of the sums of the whole step noted in every trajectory.

    Raises:
        ConfigurationError: a weight is of a reward that no episode of the step names.
    """
    earned = {name for group in groups for one in group for name in reward_parts(one)}
    if earned and (unknown := sorted(weights.keys() - earned)):
        raise ConfigurationError(
            f"loss.estimator_options.weights names the rewards {unknown}, and the episodes earn only {sorted(earned)}"
        )
    sums = np.concatenate(
        [np.zeros(0), *(decoupled_sums(group, weights, epsilon=epsilon) for group in groups)]
    )
    return noting_deviation(groups, sums)
