"""Muon in float32, for devices that do not multiply in bfloat16 themselves.

``torch.optim.Muon`` rounds what it orthogonalizes to bfloat16. A processor without such products emulates them, which takes
tens of times as long as products in float32: most of a supervised step of a small policy.

Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks",
https://kellerjordan.github.io/posts/muon/.

Shapes: M rows and N columns of a matrix of weights.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

_ITERATIONS = 5
_LINEAR, _CUBIC, _QUINTIC = 3.4445, -4.7750, 2.0315
_SMALLEST_NORM = 1e-7


def orthogonalized(matrix_MN: Tensor) -> Tensor:
    """The matrix with its singular vectors, and with singular values near 1 in place of its own.

    Five iterations of Newton-Schulz. Each replaces every singular value s by 3.4445 s - 4.7750 s^3 + 2.0315 s^5, beginning
    with s over the Frobenius norm. They end between 0.68 and 1.14 where they began above 0.01, and 0 stays 0.

    Args:
        matrix_MN: Any matrix in float32.

    Returns:
        A matrix of the same shape.
    """
    wide: Tensor = matrix_MN if matrix_MN.shape[0] <= matrix_MN.shape[1] else matrix_MN.T
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.T
        wide = _LINEAR * wide + (_CUBIC * gram + _QUINTIC * gram @ gram) @ wide
    return wide if matrix_MN.shape[0] <= matrix_MN.shape[1] else wide.T


class Muon(torch.optim.Optimizer):
    """Steps along the orthogonalized momentum of matrices; what ``torch.optim.Muon`` does, up to its rounding.

    Args:
        matrices: Weights in float32 with two dimensions.
        lr: Step size; a matrix with more rows than columns moves by sqrt(M / N) times as much.
        momentum: Share of the momentum that is kept; the gradient is blended in once more (Nesterov).
    """

    def __init__(self, matrices: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Moves every matrix that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                kept = state.setdefault("momentum", torch.zeros_like(weight))
                kept.lerp_(weight.grad, 1 - group["momentum"])
                direction = orthogonalized(weight.grad.lerp(kept, group["momentum"]))
                rows, columns = weight.shape
                weight.add_(direction, alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)))
