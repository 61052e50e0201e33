"""Credit of a whole trajectory: one score from the outcomes of its group, on every token. Pure functions.

Statements about bias, here and in the modules of turns and trees, hold for the mean over trajectories of the sum over their
tokens. Their sizes were computed on the tabular problem of ``tests/trainers/credit/test_bias.py`` in groups of three.
"Along" is the component of the expected gradient along the exact one, in units of the exact one. "Aside" is the length of
the rest. An unbiased estimator has 1 along and 0 aside.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.group_statistics import (
    Singleton,
    Values,
    deviation_of,
    has_zero_variance,
    on_all_tokens,
    others_mean,
    rewards_of,
    standardize,
    weighted_baseline,
)

MEASURED = "importance_weight_and_norm"
"""Where the trainer notes what it has measured, in the info of a trajectory."""
LOG_RATIOS = "log_ratios_to_reference"
"""Where it notes log pi - log ref of every trained token, float64[T] with 0 elsewhere."""


def group_relative(
    group: Sequence[Trajectory],
    *,
    epsilon: float = 1e-6,
    scale: Literal["std", "batch"] = "std",
    singleton: Singleton = "zero",
) -> list[Values]:
    """Standardises the outcome within its group: (R - mean) / (std + epsilon).

    GRPO, Shao et al. 2024, arXiv:2402.03300, section 4.1.2. Statistics count trajectories, never rows or tokens.
    Biased: the gradient of each group is divided by its own deviation, which gives groups of rare outcomes more weight.
    Measured: .536 along, .031 aside.

    Args:
        group: Valid trajectories.
        epsilon: Added to the deviation; 1e-6 as verl, 1e-4 as TRL.
        scale: ``batch`` divides by the deviation of the rewards of the whole step, which is the same for all groups, as
            Think2SQL does (Papicchio et al. 2025).
        singleton: ``reward`` gives a group of one its reward, as verl does.

    Raises:
        ConfigurationError: ``scale="batch"`` outside a training run, where nothing is known of other groups.
    """
    deviation = deviation_of(group[0], "group_relative") if scale == "batch" and group else None
    scores = standardize(rewards_of(group), epsilon=epsilon, deviation=deviation, singleton=singleton)
    return on_all_tokens(group, scores)


def dr_grpo(group: Sequence[Trajectory], *, singleton: Singleton = "zero") -> list[Values]:
    """Subtracts the mean reward of the group and divides by nothing: R - mean.

    Dr. GRPO, Liu et al. 2025, arXiv:2503.20783. The result is the exact gradient times (G - 1) / G, because the mean
    includes the member itself.

    Args:
        group: Valid trajectories.
        singleton: ``reward`` gives a group of one its reward.
    """
    return on_all_tokens(group, standardize(rewards_of(group), scale="none", singleton=singleton))


def leave_one_out(group: Sequence[Trajectory]) -> list[Values]:
    """Subtracts the mean reward of the other members of the group. Unbiased.

    RLOO, Ahmadian et al. 2024, arXiv:2402.14740, eq. 8.
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    # Equal rewards give exactly 0: the difference of two rounded means could be 1e-17, which is a gradient all the same.
    scores = np.zeros_like(rewards) if has_zero_variance(rewards) else rewards - others_mean(rewards)
    return on_all_tokens(group, scores)


def median_centered(group: Sequence[Trajectory], *, floor: float = 0.5, epsilon: float = 0.0) -> list[Values]:
    """Subtracts the median reward of the group and divides by the median absolute deviation (MAD).

    MC-GRPO, Kim 2026, arXiv:2601.22582: (R - median) / scale with scale = max(MAD + epsilon, floor) and the unscaled
    MAD = median |R - median|. The floor is this project's.
    Sample one member more than is to be trained, an odd number G + 1: the member at the median gets 0 and leaves the
    backward pass (``median_member``). Of an even number the lower median is taken. Without a floor the MAD of binary rewards
    is 0, and the minority gets 1 / epsilon; without floor and epsilon, a MAD of 0 divides by nothing.
    Biased: the median depends on the member itself. Measured: .915 along, .069 aside.

    Args:
        group: Valid trajectories.
        floor: Least scale; 0 with ``epsilon=1e-3`` is the published code.
        epsilon: Added to the MAD.
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    if has_zero_variance(rewards):
        return on_all_tokens(group, np.zeros_like(rewards))
    # The lower median is the reward of a member, so one member always has exactly 0 and can leave the backward pass.
    centred = rewards - _lower_median(rewards)
    scale = max(_lower_median(np.abs(centred)) + epsilon, floor)
    # Without floor and epsilon the MAD is 0 wherever most rewards are equal.
    return on_all_tokens(group, centred / (scale or 1.0))


def median_member(rewards_G: Sequence[float]) -> int:
    """The place of the member that leaves the backward pass: the first whose reward is the lower median (MC-GRPO)."""
    return list(rewards_G).index(_lower_median(np.asarray(rewards_G, dtype=np.float64)))


def optimal_baseline(
    group: Sequence[Trajectory],
    *,
    norm: Literal["gradient", "logits", "length"] = "logits",
    scale: Literal["none", "std"] = "none",
) -> list[Values]:
    """Subtracts the baseline that minimises the variance of the gradient: R - sum w^2 g^2 R / sum w^2 g^2.

    OPOB of VCPO, Huang et al. 2026, arXiv:2602.17616; g is the norm of the gradient of the trajectory's log-prob, and w its
    importance weight. With ``norm="gradient"`` the trainer measures both before it assigns credit, by a forward and a
    backward pass over each trajectory. The other norms are this project's and cost nothing: w is 1, and ``logits`` takes g^2
    in the logits, as if tokens shared no parameters and everything that was not sampled were one token: 2 sum (1 - p)^2 over
    the trained tokens, with the recorded p.
    Biased: the baseline includes the member itself, with the more weight the less likely it was.
    Measured: .695 along, .084 aside (``length`` .699, .078).

    Args:
        group: Valid trajectories.
        norm: ``gradient`` is the published one; ``length`` takes g^2 for the number of trained tokens.
        scale: ``std`` divides by the population deviation of the group, as the released recipes do.

    Raises:
        ConfigurationError: ``norm="gradient"`` and nothing was measured.
    """
    rewards = np.asarray(rewards_of(group), dtype=np.float64)
    if has_zero_variance(rewards):
        return on_all_tokens(group, np.zeros_like(rewards))
    weights, norms = [1.0] * len(group), [_norm(t, norm) for t in group]
    if norm == "gradient":
        # The importance weight corrects for a sampler that is a few versions older than the learner.
        weights, norms = map(list, zip(*(measured(t) for t in group), strict=True))
    baseline = weighted_baseline(rewards.tolist(), weights, norms)
    # The population deviation, as the released recipes have it, where `standardize` takes the unbiased one.
    return on_all_tokens(group, (rewards - baseline) / (rewards.std() if scale == "std" else 1.0))


def reinforce_pp(
    group: Sequence[Trajectory], *, kl_coefficient: float = 0.0, epsilon: float = 1e-8
) -> list[Values]:
    """Subtracts from the outcome the penalty that is still to come, and standardises over all tokens of the group.

    REINFORCE++, Hu 2025, arXiv:2501.03262: A_t = R - kl_coefficient sum over k >= t of (log pi_k - log ref_k), then
    (A - mean) / std over all trained tokens, with the population deviation. Where self-play compares episodes over the whole
    step, the group is the batch of one role or agent (Multi-Agent Evolve, CoMAS). With ``kl_coefficient`` the trainer
    measures both log-probs before it assigns credit, by a forward pass of each model.
    Biased: mean and deviation include the member itself, and count its tokens, so that long trajectories weigh more there.
    Measured: .728 along, .119 aside.

    Args:
        group: Valid trajectories.
        kl_coefficient: Weight of the penalty towards the initial policy, which is part of the return here.
        epsilon: Least variance.

    Raises:
        ConfigurationError: ``kl_coefficient`` is above 0 and nothing was measured.
    """
    returns = [
        np.full(len(t.ids), t.reward) - kl_coefficient * _later_penalties(t, kl_coefficient) for t in group
    ]
    # Only trained tokens count: those of the environment were not chosen, and long observations would lead the mean.
    trained = np.concatenate(
        [np.zeros(0), *(own[t.loss_mask] for own, t in zip(returns, group, strict=True))]
    )
    if has_zero_variance(trained):
        return [np.zeros_like(own) for own in returns]
    # The bound is on the variance: the deviation is at least its root, 1e-4 by default.
    scale = np.sqrt(max(float(trained.var()), epsilon))
    return [(own - trained.mean()) / scale for own in returns]


def _later_penalties(trajectory: Trajectory, coefficient: float) -> Values:
    """float64[T]: the sum of log pi - log ref from each token on."""
    if not coefficient:
        return np.zeros(len(trajectory.ids))
    if LOG_RATIOS not in trajectory.info:
        raise ConfigurationError(
            "reinforce_pp with a kl_coefficient needs the log-probs of the reference, which the trainer measures; nothing "
            f"was measured of trajectory {trajectory.id!r}: take kl_coefficient=0 outside a training run"
        )
    # A penalty that was paid before a token cannot have been caused by it, so each token carries only later ones.
    sums: Values = np.cumsum(trajectory.info[LOG_RATIOS][::-1])[::-1]
    return sums


def measured(trajectory: Trajectory) -> tuple[float, float]:
    """Importance weight and gradient norm of a trajectory, as the trainer has measured them.

    Raises:
        ConfigurationError: the trainer has measured nothing.
    """
    if MEASURED not in trajectory.info:
        raise ConfigurationError(
            "optimal_baseline with norm='gradient' needs what the trainer measures, and nothing was measured of trajectory "
            f"{trajectory.id!r}: take norm='logits' outside a training run"
        )
    weight, norm = trajectory.info[MEASURED]
    return weight, norm


def _norm(trajectory: Trajectory, norm: Literal["gradient", "logits", "length"]) -> float:
    """Norm of the gradient of the trajectory's log-prob, up to a factor; tokens of another context have no p and count 1."""
    # exp(-inf) is 0, so that a token without a log-prob of this context counts as if it were unlikely.
    away = 1 - np.exp(
        np.where(trajectory.context_mismatch, -np.inf, trajectory.logprobs)[trajectory.loss_mask]
    )
    return float(np.sqrt(len(away) if norm == "length" else np.sum(away**2)))


def _lower_median(values_G: Values) -> float:
    return float(np.sort(values_G)[(len(values_G) - 1) // 2])
