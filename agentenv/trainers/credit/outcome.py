"""Credit of a whole trajectory: one score from the outcomes of its group, on every token. Pure functions.

What is said of bias, here and in the modules of turns and trees, holds for the mean over trajectories of the sum over their
tokens. Sizes are those on the tabular problem of ``tests/trainers/credit/test_bias.py`` in groups of three: the gradient's
component along the exact one, in units of it, and the length of the rest ("aside"); without bias 1 and 0.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.trainers.credit.group_statistics import (
    Singleton,
    Values,
    has_zero_variance,
    on_all_tokens,
    others_mean,
    rewards_of,
    standardize,
    weighted_baseline,
)


def group_relative(
    group: Sequence[Trajectory], *, epsilon: float = 1e-6, singleton: Singleton = "zero"
) -> list[Values]:
    """GRPO: the standardised outcome (Shao et al. 2024). Statistics count trajectories, never rows or tokens.

    Biased: each group's gradient is divided by its own deviation, which weighs groups of rare outcomes up.
    Measured: .536 along, .031 aside.

    Args:
        group: Valid trajectories.
        epsilon: Added to the deviation; 1e-6 as verl, 1e-4 as TRL.
        singleton: ``reward`` gives a group of one its reward, as verl does.
    """
    return on_all_tokens(group, standardize(rewards_of(group), epsilon=epsilon, singleton=singleton))


def dr_grpo(group: Sequence[Trajectory], *, singleton: Singleton = "zero") -> list[Values]:
    """R - mean (Dr.GRPO, Liu et al. 2025): the exact gradient times (G - 1) / G, because the mean holds the member itself.

    Args:
        group: Valid trajectories.
        singleton: ``reward`` gives a group of one its reward.
    """
    return on_all_tokens(group, standardize(rewards_of(group), scale="none", singleton=singleton))


def leave_one_out(group: Sequence[Trajectory]) -> list[Values]:
    """R minus the mean of the other members (RLOO, Ahmadian et al. 2024, eq. 8). Unbiased."""
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    scores = np.zeros_like(rewards) if has_zero_variance(rewards) else rewards - others_mean(rewards)
    return on_all_tokens(group, scores)


def median_centered(group: Sequence[Trajectory], *, floor: float = 0.5, epsilon: float = 0.0) -> list[Values]:
    """MC-GRPO: (R - median) / scale, scale = max(MAD + epsilon, floor), MAD = median |R - median|, unscaled.

    Sample one member more than is trained (G + 1, odd): the one at the median gets 0 and leaves the backward pass. Of an
    even number the lower median is taken. Without a floor the MAD of binary rewards is 0 and the minority gets
    1 / epsilon; with neither, a MAD of 0 scales nothing. Biased: the median depends on the member itself.
    Measured: .915 along, .069 aside.

    Args:
        group: Valid trajectories.
        floor: Least scale; 0 with ``epsilon=1e-3`` is the published code.
        epsilon: Added to the MAD.
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    if has_zero_variance(rewards):
        return on_all_tokens(group, np.zeros_like(rewards))
    centred = rewards - _lower_median(rewards)
    scale = max(_lower_median(np.abs(centred)) + epsilon, floor)
    return on_all_tokens(group, centred / (scale or 1.0))


def optimal_baseline(
    group: Sequence[Trajectory], *, norm: Literal["logits", "length"] = "logits"
) -> list[Values]:
    """VCPO's OPOB: R - sum g^2 R / sum g^2, g the gradient norm of the trajectory's log-prob, which varies least.

    Gradients are not there when credit is given. g^2 is that in the logits, where tokens do not share parameters and all
    that was not sampled is one token: 2 sum (1 - p)^2 over the trained tokens, p as recorded. Importance weights are 1:
    corrections are the objective's. Biased: the baseline holds the member itself, the more of it the less likely it was.
    Measured: .695 along, .084 aside (``length`` .699, .078).

    Args:
        group: Valid trajectories.
        norm: ``length`` takes g^2 for the number of trained tokens.
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    if has_zero_variance(rewards):
        return on_all_tokens(group, np.zeros_like(rewards))
    baseline = weighted_baseline(rewards.tolist(), [1.0] * len(group), [_norm(t, norm) for t in group])
    return on_all_tokens(group, rewards - baseline)


def _norm(trajectory: Trajectory, norm: Literal["logits", "length"]) -> float:
    """Of the gradient of the trajectory's log-prob, up to a factor; tokens of another context have no p here and count 1."""
    away = 1 - np.exp(
        np.where(trajectory.context_mismatch, -np.inf, trajectory.logprobs)[trajectory.loss_mask]
    )
    return float(np.sqrt(len(away) if norm == "length" else np.sum(away**2)))


def _lower_median(values: Values) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])
