"""Off-policy corrections: weights and masks for tokens that other weights sampled than those that are updated.

Shapes as in ``losses.py``. A token whose recorded log-prob belongs to another context (``off_context``) enters none of the
ratios here; it may be weighted by itself, by name, with ``off_context_weights``.
"""

from typing import Literal

import torch
from torch import Tensor

from agentenv.trainers.learner.losses import bounded_ratio, row_means, row_sums

Level = Literal["token", "sequence", "geometric"]
Divergence = Literal["k1", "k2", "k3"]
Reduce = Literal["token", "sum", "mean", "max"]


def log_weights(proximal_N: Tensor, behaviour_N: Tensor, off_context_N: Tensor) -> Tensor:
    """[N]: proximal minus behaviour log-prob; 0 where the latter is of another context."""
    return torch.where(off_context_N, torch.zeros_like(proximal_N), proximal_N - behaviour_N)


def importance_weights(
    log_weights_N: Tensor,
    rows_N: Tensor,
    *,
    level: Level = "token",
    mode: Literal["truncate", "mask"] = "truncate",
    low: float = 0.0,
    high: float = 2.0,
) -> Tensor:
    """[N]: detached weights of the behaviour policy (decoupled PPO, Fu et al. 2025; TIS, Yao et al. 2025).

    Args:
        log_weights_N: See ``log_weights``.
        rows_N: The row of each token.
        level: One weight a token, the product over the row, or its geometric mean.
        mode: ``truncate`` bounds the weight to at most ``high``; ``mask`` makes it 0 outside [low, high] (IcePop with 0.5
            and 5 on tokens; TRL's sequence mask with 0 and 3 on sequences).
        low: Lower bound, for ``mask``.
        high: Upper bound.
    """
    # A weight corrects an expectation; a gradient through it would move the policy to change its own correction.
    logs = log_weights_N.detach()
    if level == "sequence":
        logs = row_sums(logs, rows_N)
    elif level == "geometric":
        logs = row_means(logs, rows_N)
    # The product over a long row overflows in exp without the bound.
    weights = bounded_ratio(logs, torch.zeros_like(logs))
    if mode == "truncate":
        return weights.clamp(max=high)
    return torch.where((weights < low) | (weights > high), torch.zeros_like(weights), weights)


def rejected(
    log_weights_N: Tensor,
    rows_N: Tensor,
    *,
    divergence: Divergence = "k3",
    reduce: Reduce = "mean",
    cap: float,
) -> Tensor:
    """bool[N]: tokens to leave out of the loss because policy and sampler differ too much; the denominator keeps them.

    Args:
        log_weights_N: See ``log_weights``.
        rows_N: The row of each token.
        divergence: Per token, with l the log-weight: k1 = -l; k2 = l^2 / 2; k3 = exp(l) - l - 1.
        reduce: Judge each token by itself, or its whole row by sum, mean or maximum.
        cap: Above this a token is rejected.
    """
    logs = log_weights_N.detach().clamp(-20.0, 20.0)
    values = {"k1": -logs, "k2": logs.square() / 2, "k3": logs.exp() - logs - 1}[divergence]
    if reduce == "sum":
        values = row_sums(values, rows_N)
    elif reduce == "mean":
        values = row_means(values, rows_N)
    elif reduce == "max":
        # -inf, so that the maximum over a row is that of its tokens even where all are negative, as k1 can be.
        highest = values.new_full((len(rows_N),), -torch.inf).scatter_reduce(0, rows_N, values, "amax")
        values = highest[rows_N]
    return values > cap


def off_context_weights(
    proximal_N: Tensor, behaviour_N: Tensor, off_context_N: Tensor, *, cap: float = 2.0
) -> Tensor:
    """[N]: min(p(token | its present context) / p(token | its first one), cap) on off-context tokens, 1 elsewhere.

    One weight a token: the product over a spliced turn has no useful variance.
    """
    weights = bounded_ratio(proximal_N, behaviour_N).detach().clamp(max=cap)
    return torch.where(off_context_N, weights, torch.ones_like(weights))


def interpolated(behaviour_N: Tensor, current_N: Tensor, age_N: Tensor, update: float) -> Tensor:
    """[N]: proximal log-probs without a forward pass (AReaL): behaviour + a (current - behaviour).

    a = age / (age + update), the share of the way from the sampling weights to the present ones at which the proximal
    weights stand; where they are the sampling weights, the behaviour itself. The published program takes update = 1 in every
    step of a batch, as if all of them were made.

    Args:
        behaviour_N: Of the sampling weights.
        current_N: Of the trained weights, without gradient.
        age_N: Versions between sampling and the start of this batch's updates.
        update: Versions since then; after k of the n optimiser steps of a batch k / n.
    """
    # Before the first step on fresh samples both are 0: the share is 0 then, and the proximal policy the sampler.
    share = (age_N / (age_N + update).clamp(min=1)).to(current_N.dtype)
    return behaviour_N + share * (current_N - behaviour_N)


def effective_sample_ratio(weights_S: Tensor) -> float:
    """(sum w)^2 / (S sum w^2): 1 for equal weights, 1/S where one sequence decides (VCPO)."""
    if not len(weights_S):
        return 1.0
    # Scaled by the largest, because the squares of large weights overflow, and the ratio does not depend on the scale.
    weights = weights_S.double() / weights_S.double().max()
    return float(weights.sum().square() / (len(weights) * weights.square().sum()))


def learning_rate_scale(
    ratio: float, *, base: float = 1.0, rule: Literal["sqrt", "linear"] = "sqrt"
) -> float:
    """VCPO's factor on the step size: sqrt(min(1, ratio / base)).

    Args:
        ratio: See ``effective_sample_ratio``.
        base: Ratio from which the step size is left alone.
        rule: ``linear`` omits the root.
    """
    share = min(1.0, ratio / base)
    return share**0.5 if rule == "sqrt" else share
