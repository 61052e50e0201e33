"""What is minimised, as pure functions over tokens. No function here knows a model or an optimiser.

Shapes: N trained tokens of the rows of one micro-batch, flattened row after row; R rows, S sequences. Observation and
prompt tokens are not among the N, so no mask is needed. Log-probs are of three policies: ``logprobs`` of the weights that
are trained, ``proximal`` of the weights at the start of the update, ``behaviour`` of those that sampled.

A sequence is a row where ratios are formed (rows of one trajectory stand in contexts of their own) and a trajectory where
losses are averaged.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from agentenv.core.options import bind_options, own_part
from agentenv.errors import ConfigurationError

_LOG_RATIO_BOUND = 20.0


@dataclass(frozen=True)
class Tokens:
    """What a surrogate may look at."""

    logprobs: Tensor
    """[N]: log-probs of the trained tokens, through which the gradient flows."""
    proximal: Tensor
    """[N]: log-probs that the ratio is formed with."""
    advantages: Tensor
    """[N]: credit of each token."""
    rows: Tensor
    """int64[N]: the row of each token within the micro-batch."""
    off_context: Tensor
    """bool[N]: whether a token was sampled under another context; its ``proximal`` is then the learner's own."""
    clip_margin: Tensor | None = None
    """[N]: see ``ppo_clip``; not a number where there is none."""

    @property
    def ratio(self) -> Tensor:
        """[N]: trained over proximal probability."""
        return bounded_ratio(self.logprobs, self.proximal)


class Surrogate(NamedTuple):
    """Loss of each token, and where a bound on the ratio was passed."""

    losses: Tensor
    """float[N]: to be minimised."""
    clipped: Tensor
    """bool[N]: where a bound on the ratio was passed."""


def bounded_ratio(numerator_N: Tensor, denominator_N: Tensor) -> Tensor:
    """Exponential of a difference of log-probs, bounded to keep a lost token finite."""
    # e^20 is 5e8: far outside of every clip, and its product with an advantage still fits into float32.
    return (numerator_N - denominator_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND).exp()


def row_sums(values_N: Tensor, rows_N: Tensor) -> Tensor:
    """[N]: for each token the sum over its row; rows are numbered from 0 on, without gaps."""
    # As many as there are tokens, which are no fewer than rows: to ask for the largest number would be a wait for a card.
    sums = values_N.new_zeros(len(rows_N))
    return sums.index_add(0, rows_N, values_N)[rows_N]


def row_means(values_N: Tensor, rows_N: Tensor) -> Tensor:
    """[N]: for each token the mean over its row."""
    return row_sums(values_N, rows_N) / row_sums(torch.ones_like(values_N), rows_N)


def ppo_clip(
    tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float = 10.0
) -> Surrogate:
    """Clips the ratio r, with separate bounds below and above, and bounds the loss of bad tokens.

    PPO, Schulman et al. 2017, arXiv:1707.06347; separate bounds: DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 8; dual clip:
    Ye et al. 2020, arXiv:1912.09729. The loss is max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), and at most
    -A dual_clip where A < 0.

    Args:
        tokens: The micro-batch; where a token has a ``clip_margin``, its ratio may rise ``clip_low`` plus that above 1.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1, where the token has no margin of its own.
        dual_clip: Bound on the ratio where the advantage is negative.
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    high: float | Tensor = 1 + clip_high
    if tokens.clip_margin is not None:
        margin = tokens.clip_margin.to(ratio.dtype)
        high = torch.where(margin.isnan(), 1 + clip_high, 1 + clip_low + margin)
    unclipped = -advantages * ratio
    # Two clamps, because a tensor of upper bounds cannot stand beside a number as lower bound.
    clipped = -advantages * ratio.clamp(min=1 - clip_low).clamp(max=high)
    losses = torch.maximum(unclipped, clipped)
    losses = dual_clipped(losses, advantages, dual_clip)
    return Surrogate(losses, _outside(ratio, 1 - clip_low, high))


def dual_clipped(losses_N: Tensor, advantages_N: Tensor, bound: float) -> Tensor:
    """[N]: the losses, at most -A bound where A < 0 (Ye et al. 2020, arXiv:1912.09729)."""
    # There the clipped loss grows with the ratio without end, so that one stale token could decide a step.
    return torch.where(advantages_N < 0, torch.minimum(losses_N, -advantages_N * bound), losses_N)


def gspo(
    tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4, dual_clip: float | None = None
) -> Surrogate:
    """Clips one ratio for each row: the geometric mean of the ratios of its trained tokens.

    GSPO, Zheng et al. 2025, arXiv:2507.18071, eq. 5-7, which has no dual clip; DART names one of 10.

    Args:
        tokens: The micro-batch; log-ratios above 10 are bounded.
        clip_low: How far the row's ratio may fall below 1.
        clip_high: How far it may rise above 1.
        dual_clip: Bound on the row's ratio where the advantage is negative; None sets none.
    """
    mean = row_means(tokens.logprobs.detach() - tokens.proximal, tokens.rows)
    # Its value is the row's, its gradient the token's own: the mean over the row then has the gradient of the ratio.
    ratio = (tokens.logprobs - tokens.logprobs.detach() + mean).clamp(max=10.0).exp()
    losses = torch.maximum(
        -tokens.advantages * ratio, -tokens.advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    )
    if dual_clip is not None:
        losses = dual_clipped(losses, tokens.advantages, dual_clip)
    return Surrogate(losses, _outside(ratio, 1 - clip_low, 1 + clip_high))


def cispo(
    tokens: Tokens,
    *,
    convention: Literal["verl", "trl"] = "verl",
    clip_low: float = 0.2,
    clip_high: float | None = None,
) -> Surrogate:
    """Weighs -A log p by the clipped ratio, which carries no gradient, so that no token loses its gradient.

    CISPO, MiniMax-M1 2025, arXiv:2506.13585, eq. 4.

    Args:
        tokens: The micro-batch.
        convention: ``verl`` bounds the ratio to [1 - clip_low, 1 + clip_high]; ``trl`` to at most ``clip_high`` itself and
            not from below, so that 5 there is 4 here.
        clip_low: See ``convention``.
        clip_high: See ``convention``; None is .28 for ``verl`` and 5 for ``trl``.
    """
    given = clip_high if clip_high is not None else {"verl": 0.28, "trl": 5.0}[convention]
    low, high = (1 - clip_low, 1 + given) if convention == "verl" else (0.0, given)
    ratio = tokens.ratio.detach()
    return Surrogate(
        -ratio.clamp(low, high) * tokens.advantages * tokens.logprobs, _outside(ratio, low, high)
    )


def opmd(tokens: Tokens, *, tau: float = 1.0) -> Surrogate:
    """Weighs the log-prob by the advantage, without a ratio or a bound: -A log p / (1 + tau).

    R3L, Shi et al. 2026, arXiv:2601.03715.

    Args:
        tokens: The micro-batch.
        tau: Temperature of the mirror descent that it approximates.
    """
    losses = -tokens.advantages * tokens.logprobs / (1 + tau)
    return Surrogate(losses, torch.zeros_like(losses, dtype=torch.bool))


def probability_mask(
    tokens: Tokens, *, mask_low: float = 0.2, mask_high: float = 0.2, weight: float = 1e-3
) -> Surrogate:
    """Drops tokens whose probability has already moved far in the direction of their advantage.

    prime-rl, described with INTELLECT-3, 2025, arXiv:2512.16144. The loss is -A r on the tokens that remain, plus
    weight * (log r)^2 on all of them.

    Args:
        tokens: The micro-batch.
        mask_low: A token of negative advantage is dropped if its probability has fallen by more than this.
        mask_high: A token of positive advantage is dropped if its probability has risen by more than this.
        weight: Weight of the squared log-ratio.
    """
    # In probability and not in ratio: a rare token may double without moving anything.
    moved = tokens.logprobs.detach().exp() - tokens.proximal.exp()
    dropped = torch.where(tokens.advantages > 0, moved > mask_high, moved < -mask_low)
    losses = -tokens.advantages * tokens.ratio * ~dropped
    return Surrogate(losses + weight * (tokens.logprobs - tokens.proximal).square(), dropped)


def guided_clip(
    tokens: Tokens,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 10.0,
    shape: float = 0.1,
) -> Surrogate:
    """Shapes the probability of tokens that were sampled in another context: -A p / (p + shape); others get PPO's loss.

    Critique-GRPO, Zhang et al. 2025, arXiv:2506.03106.

    Args:
        tokens: The micro-batch.
        clip_low: As in ``ppo_clip``.
        clip_high: As in ``ppo_clip``.
        dual_clip: As in ``ppo_clip``.
        shape: The smaller, the more an unlikely token is pushed; the slope at p = 0 is 1 / shape.
    """
    own = ppo_clip(tokens, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    shaped = -tokens.advantages * shaped_probability(tokens.logprobs, shape)
    return Surrogate(torch.where(tokens.off_context, shaped, own.losses), own.clipped & ~tokens.off_context)


def shaped_probability(logprobs_N: Tensor, shape: float = 0.1) -> Tensor:
    """Critique-GRPO's weight of an off-policy token: p / (p + shape)."""
    probability = logprobs_N.exp()
    return probability / (probability + shape)


def _outside(ratio_N: Tensor, low: float, high: float | Tensor) -> Tensor:
    ratio = ratio_N.detach()
    return (ratio < low) | (ratio > high)


Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant", "token_sum"]


class Entry(NamedTuple):
    """A row of the registry."""

    function: Callable[..., Surrogate]
    aggregation: Aggregation = "token_mean"
    """Where the configuration names none."""


OBJECTIVES: Mapping[str, Entry] = {
    "ppo_clip": Entry(ppo_clip),
    "gspo": Entry(gspo, "sequence_mean"),
    "cispo": Entry(cispo),
    "opmd": Entry(opmd),
    "probability_mask": Entry(probability_mask),
    "guided_clip": Entry(guided_clip),
}
OTHER_NAMES: Mapping[str, str] = {
    "grpo": "ppo_clip",
    "ppo": "ppo_clip",
    "vanilla": "ppo_clip",
    "regular": "ppo_clip",
}
"""What TRL, verl and SkyRL call some of them, for errors: ``grpo`` would otherwise be taken for a misspelt ``gspo``."""


def get_objective(name: str, options: Mapping[str, Any] | None = None) -> Callable[[Tokens], Surrogate]:
    """The objective registered under ``name``, or the function ``module:function``, with ``options`` filled in.

    Raises:
        UnknownName: no such objective, or no such option of it.
        ConfigurationError: an option's value is of another type, or no function of that name can be imported.
    """
    kind = "objective"
    if name in OBJECTIVES:
        return bind_options(kind, name, OBJECTIVES[name].function, options or {})
    own = bind_options(kind, name, own_part(kind, name, OBJECTIVES, OTHER_NAMES), options or {})
    return partial(_checked_losses, name, own)


def usual_aggregation(name: str) -> Aggregation:
    """How the token losses of an objective become one number where the configuration does not say it."""
    return OBJECTIVES[name].aggregation if name in OBJECTIVES else "token_mean"


def _checked_losses(name: str, objective: Callable[[Tokens], Any], tokens: Tokens) -> Surrogate:
    """The losses of an objective of the user, one number for each token.

    Raises:
        ConfigurationError: it returned something else.
    """
    given = objective(tokens)
    parts = tuple(given) if isinstance(given, tuple) else ()
    shape = tokens.logprobs.shape
    if len(parts) != 2 or not all(isinstance(part, Tensor) and part.shape == shape for part in parts):
        raise ConfigurationError(
            f"the objective {name!r} returned {reprlib.repr(given)}; it must return a Surrogate of two tensors of the shape "
            f"{tuple(shape)}: the loss of each token, and whether it was clipped"
        )
    return Surrogate(*parts)


def token_weights(aggregation: Aggregation, sequence_tokens_N: Tensor) -> Tensor | None:
    """[N]: the weight of each token before the division by ``denominator``; None for 1.

    Args:
        aggregation: ``sequence_mean`` weighs a token by one over the trained tokens of its trajectory.
        sequence_tokens_N: Trained tokens of each token's trajectory.
    """
    return 1 / sequence_tokens_N if aggregation == "sequence_mean" else None


def denominator(aggregation: Aggregation, *, tokens: int, sequences: int, length: int) -> float:
    """What the weighted sum over the whole optimiser step is divided by, whatever the micro-batches.

    Args:
        aggregation: How token losses become one number.
        tokens: Trained tokens of the step, those of dropped or rejected ones included.
        sequences: Trajectories of the step with a trained token.
        length: The constant of ``constant`` (Dr.GRPO).
    """
    sizes: dict[Aggregation, float] = {
        "token_mean": tokens,
        "sequence_mean": sequences,
        "sequence_sum": sequences,
        "constant": sequences * length,
        "token_sum": 1,
    }
    return max(sizes[aggregation], 1)


KL = Literal["k1", "k2", "k3", "k3_corrected"]


def kl_penalty(
    logprobs_N: Tensor, reference_logprobs_N: Tensor, kind: KL = "k3", ratio_N: Tensor | None = None
) -> Tensor:
    """Estimates of KL(policy || reference) per token (Schulman 2020).

    With d = reference - logprob: k1 = -d; k2 = d^2 / 2; k3 = exp(d) - d - 1. As losses: the expected gradient of k1 is 0 on
    policy, that of k2 is the KL's, that of k3 is not; ``k3_corrected`` multiplies k3 by the ratio, which carries a gradient
    and repairs it.

    Args:
        logprobs_N: Of the trained weights.
        reference_logprobs_N: Of the reference.
        kind: Which estimate.
        ratio_N: Trained over proximal probability, for ``k3_corrected``.
    """
    # A token that the trained weights have given up would make exp in k3 infinite, and with it the loss of the step.
    difference = (reference_logprobs_N - logprobs_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
    if kind == "k1":
        return -difference
    if kind == "k2":
        return difference.square() / 2
    k3 = difference.exp() - difference - 1
    return k3 * ratio_N if kind == "k3_corrected" and ratio_N is not None else k3


def mastered_tokens(
    logprobs_N: Tensor,
    entropies_N: Tensor,
    advantages_N: Tensor,
    rows_N: Tensor,
    *,
    probability: float = 0.99,
    entropy: float = 0.2,
) -> Tensor:
    """bool[N]: tokens of good episodes that the policy is sure of already, in rows of low entropy.

    The dynamic masking of well-mastered positive tokens of UloRL, Du et al. 2025, arXiv:2507.19766, eq. 9 and 10: p >= tau,
    reward 1, and a mean entropy of the output below sigma. Credit above 0 stands for reward 1, which it is in groups of
    outcomes 0 and 1. The loss of such a token is 0, and the denominator keeps it.

    Args:
        logprobs_N: Of the trained weights.
        entropies_N: Of the distributions that the tokens are from.
        advantages_N: Values of the estimator.
        rows_N: The row of each token.
        probability: The paper's tau.
        entropy: The paper's sigma, in nats.
    """
    sure = logprobs_N.detach().exp() >= probability
    low = row_means(entropies_N.detach(), rows_N) < entropy
    return sure & low & (advantages_N > 0)


def asymmetric_penalty(
    advantages_N: Tensor,
    logprobs_N: Tensor,
    reference_logprobs_N: Tensor,
    rows_N: Tensor,
    *,
    alpha: float,
    cap: float,
    scale: Literal["mean", "sum", "sqrt"] = "mean",
) -> Tensor:
    """Multiplies negative advantages by 1 + alpha softplus(c), so that overconfident errors are pushed down harder.

    ACE, 2026, arXiv:2602.21420; c is the sum of log p - log p_ref over the row there, and at most ``cap`` here. The default,
    the mean, is this project's choice: the sum over a long row would be hundreds of nats.

    Args:
        advantages_N: Values of the estimator.
        logprobs_N: Of the trained weights; no gradient flows through c.
        reference_logprobs_N: Of the reference.
        rows_N: The row of each token.
        alpha: Strength.
        cap: Bound on c.
        scale: What the sum is divided by: the number of the row's tokens, nothing, or the root of that number.
    """
    gains = logprobs_N.detach() - reference_logprobs_N
    sizes = row_sums(torch.ones_like(gains), rows_N)
    below = {"mean": sizes, "sum": torch.ones_like(sizes), "sqrt": sizes.sqrt()}[scale]
    confidence = (row_sums(gains, rows_N) / below).clamp(max=cap)
    factor = 1 + alpha * torch.nn.functional.softplus(confidence)
    return torch.where(advantages_N < 0, advantages_N * factor, advantages_N)
