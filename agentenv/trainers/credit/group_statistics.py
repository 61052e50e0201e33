"""Statistics of one group, from which every estimator is made. Pure functions.

Shapes: G trajectories of one group, T tokens of one trajectory, K turns of one trajectory, N of any shape.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError

Values = NDArray[np.float64]
Singleton = Literal["zero", "reward"]
"""What a group of one gives: nothing to compare with is 0; verl takes mean 0 and deviation 1, so the reward itself."""
Scale = Literal["std", "none"]

CREDIT_WEIGHT = "credit_weight"
"""What the credit of a trajectory is multiplied by, in its info; a task sampler may put it there."""

BATCH_DEVIATION = "batch_deviation"
"""Where the trainer notes the standard deviation of the rewards of the whole step, in the info of a trajectory."""

_ZERO_VARIANCE = (
    1e-8  # rewards closer than this are equal: float noise divided by a tiny scale would become a signal
)


def standardize(
    rewards_G: Sequence[float] | Values,
    *,
    epsilon: float = 1e-6,
    scale: Scale = "std",
    deviation: float | None = None,
    singleton: Singleton = "zero",
) -> Values:
    """(R - mean) / (std + epsilon) with the unbiased standard deviation (GRPO, Shao et al. 2024, section 4.1.2).

    Args:
        rewards_G: Rewards of one group.
        epsilon: Added to the standard deviation; verl takes 1e-6, TRL 1e-4.
        scale: ``none`` only subtracts the mean (Dr.GRPO).
        deviation: What stands in place of the group's own standard deviation; None computes that.
        singleton: What a group of one gives.

    Returns:
        float64[G]; all 0 for a group of equal rewards.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if len(rewards) == 1 and singleton == "reward":
        return rewards.copy()
    # Before the division: with an epsilon of 1e-6, float noise of 1e-17 would be small, and with 0 it would be a signal.
    if has_zero_variance(rewards):
        return np.zeros_like(rewards)
    centred: Values = rewards - rewards.mean()
    if scale == "none":
        return centred
    return centred / ((rewards.std(ddof=1) if deviation is None else deviation) + epsilon)


def with_batch_deviation(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """``groups`` with the unbiased standard deviation of all their rewards together noted in every trajectory."""
    return noting_deviation(groups, [reward for group in groups for reward in rewards_of(group)])


def noting_deviation(
    groups: Sequence[Sequence[Trajectory]], rewards: Sequence[float] | Values
) -> list[list[Trajectory]]:
    """``groups`` with the unbiased standard deviation of ``rewards``, those of a whole step, noted in every trajectory."""
    # A step of equal rewards gets 0 in place of noise; its groups have no variance either, so nothing is divided by it.
    deviation = 0.0 if has_zero_variance(rewards) else float(np.std(rewards, ddof=1))
    return [[replace(t, info=t.info | {BATCH_DEVIATION: deviation}) for t in group] for group in groups]


def deviation_of(trajectory: Trajectory, estimator: str) -> float:
    """What the trainer has noted of the rewards of the whole step, for ``estimator``.

    Raises:
        ConfigurationError: the trainer has noted nothing, as outside a training run.
    """
    if BATCH_DEVIATION not in trajectory.info:
        raise ConfigurationError(
            f"{estimator} with scale='batch' needs the rewards of the whole step, which the trainer notes; nothing was "
            f"noted of trajectory {trajectory.id!r}: take another scale outside a training run"
        )
    return float(trajectory.info[BATCH_DEVIATION])


def has_zero_variance(rewards_G: Sequence[float] | Values) -> bool:
    """Whether a group carries no signal: fewer than two members, or equal rewards."""
    return len(rewards_G) < 2 or float(np.ptp(rewards_G)) < _ZERO_VARIANCE


def without_noise(credit_N: Values) -> Values:
    """``credit_N`` with exactly 0 in place of what rounding leaves of equal rewards, which is a gradient all the same.

    Args:
        credit_N: Of members, of turns, or of the turns of members.
    """
    kept: Values = np.where(np.abs(credit_N) < _ZERO_VARIANCE, 0.0, credit_N)
    return kept


def others_mean(rewards_G: Sequence[float] | Values) -> Values:
    """float64[G]: for each member the mean of all the others; of a group of one, its own reward."""
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if len(rewards) < 2:
        return rewards.copy()
    # Sum minus own needs one pass where a mean for each member would need as many as there are members.
    means: Values = (rewards.sum() - rewards) / (len(rewards) - 1)
    return means


def weighted_baseline(
    rewards_G: Sequence[float], weights_G: Sequence[float], norms_G: Sequence[float]
) -> float:
    """VCPO's baseline of least variance for one group: sum w^2 g^2 R / sum w^2 g^2.

    Args:
        rewards_G: Outcomes.
        weights_G: Importance weights.
        norms_G: Gradient norms of each trajectory's log-prob.
    """
    shares = [(w * g) ** 2 for w, g in zip(weights_G, norms_G, strict=True)]
    total = sum(shares)
    # Without any gradient there is nothing whose variance a baseline could lower.
    return sum(s * r for s, r in zip(shares, rewards_G, strict=True)) / total if total else 0.0


def rewards_of(group: Sequence[Trajectory]) -> list[float]:
    """The outcome of each trajectory."""
    return [trajectory.reward for trajectory in group]


def turn_rewards(trajectory: Trajectory) -> list[float]:
    """The reward of each turn; a record without turns is one turn with the outcome."""
    return [turn.reward for turn in trajectory.turns] or [trajectory.reward]


def on_all_tokens(group: Sequence[Trajectory], scores_G: Sequence[float] | Values) -> list[Values]:
    """One score a trajectory, on each of its tokens."""
    return [np.full(len(t.ids), score, dtype=np.float64) for t, score in zip(group, scores_G, strict=True)]


def on_turns(trajectory: Trajectory, scores_K: Sequence[float] | Values) -> Values:
    """One score a turn, on each token of that turn: the action and the observation after it; the prompt has the first."""
    # A hand-made record may have tokens of later turns than it has scores; they share the last one.
    places = np.minimum(trajectory.turn_index, len(scores_K) - 1)
    values: Values = np.asarray(scores_K, dtype=np.float64)[places]
    return values
