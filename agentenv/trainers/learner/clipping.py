"""The norm of all gradients, and their scaling down to a bound.

In bfloat16 a norm has two to three digits and so has the factor that comes of it, which all gradients would share.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_ROUNDED = (torch.bfloat16, torch.float16)
_LEAST = 1e-6  # added to the norm, as torch does, so that none is divided by 0


def clip_gradients(weights: Iterable[Tensor], most: float) -> Tensor:
    """Scales the gradients of ``weights`` down to the norm ``most`` where theirs is larger; gives the norm they had.

    Norm and factor of gradients in 16 bits are in float32, without a copy of the gradients.
    """
    weights = list(weights)
    gradients: list[Any] = [weight.grad for weight in weights if weight.grad is not None]
    if not any(gradient.dtype in _ROUNDED for gradient in gradients):
        return torch.nn.utils.clip_grad_norm_(weights, most)
    # One by one: torch 2.14 fails at the norms of a list in another type where gradients are shared out.
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    # By hand, because torch has a function for this step alone from 2.6 on only.
    torch._foreach_mul_(gradients, (most / (norm + _LEAST)).clamp(max=1.0))
    return norm
