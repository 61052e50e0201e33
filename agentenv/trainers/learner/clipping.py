"""The norm of all gradients, and their scaling down to a bound.

In bfloat16 a norm has two to three digits and so has the factor that comes of it, which all gradients would share.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_ROUNDED = (torch.bfloat16, torch.float16)


def clip_gradients(weights: Iterable[Tensor], most: float) -> Tensor:
    """Scales the gradients of ``weights`` down to the norm ``most`` where theirs is larger; gives the norm they had.

    Norm and factor of gradients in 16 bits are in float32, without a copy of the gradients.
    """
    weights = list(weights)
    norm = _norm([weight.grad for weight in weights if weight.grad is not None])
    torch.nn.utils.clip_grads_with_norm_(weights, most, norm)
    return norm


def _norm(gradients: list[Any]) -> Tensor:
    if not any(gradient.dtype in _ROUNDED for gradient in gradients):
        return torch.nn.utils.get_total_norm(gradients)
    norms = torch._foreach_norm(gradients, 2.0, dtype=torch.float32)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm
