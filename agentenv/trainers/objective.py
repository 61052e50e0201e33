"""The loss, as pure functions over tokens.

Shapes: N trained tokens of one or more rows, flattened; observation and prompt tokens are not among them.
"""

import torch
from torch import Tensor

_LOG_RATIO_BOUND = 20.0


def clipped_surrogate(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float = 10.0,
) -> Tensor:
    """PPO's clipped loss per token with separate bounds (DAPO, Yu et al. 2025, eq. 8) and a dual clip (Ye et al. 2020).

    With ratio r = exp(logprob - old): max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), and for A < 0 at most
    -A dual_clip.

    Args:
        logprobs_N: Log-probs under the weights that are trained; the gradient flows through them.
        old_logprobs_N: Log-probs under the weights that sampled.
        advantages_N: One value a token.
        clip_low: How far the ratio may fall below 1.
        clip_high: How far it may rise above 1.
        dual_clip: Bound on the ratio where the advantage is negative.

    Returns:
        float[N], to be minimised.
    """
    ratio = (logprobs_N - old_logprobs_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND).exp()
    unclipped = -advantages_N * ratio
    clipped = -advantages_N * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(unclipped, clipped)
    return torch.where(advantages_N < 0, torch.minimum(losses, -advantages_N * dual_clip), losses)


def kl_k3(logprobs_N: Tensor, reference_logprobs_N: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(policy || reference) per token: exp(d) - d - 1 with d = reference - logprob."""
    difference = (reference_logprobs_N - logprobs_N).clamp(-_LOG_RATIO_BOUND, _LOG_RATIO_BOUND)
    return difference.exp() - difference - 1
