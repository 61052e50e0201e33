"""The two halves of a decoder layer as single operations, with their gradients written out by hand.

A layer of a small model spends a third of its time on small operations, each of which reads and writes every hidden state.
Here each half is one operation that keeps what its gradient needs and no more. With the root mean square s of a hidden
state h, and u = h / s, the gradient of a function of u is

    d/dh = (g - u mean(u g)) / s,        g = d/du,

and that of the gated product a = silu(x) y is (d silu(x) / dx y, silu(x)) times the one with respect to a.

The weight of a norm multiplies the columns of the matrix that reads what was normalised, so it is part of that matrix. The
two numbers that rotary embeddings turn by one angle stand side by side, as a complex number, which is a matter of the order
of the matrix's rows.

Shapes: B rows, T tokens of a row, N tokens of all rows, H hidden size, G heads, D size of a head, I inner size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, silu


def project(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    turns: Tensor,
    sizes: tuple[int, ...],
    turned: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """Normalises, multiplies and turns: what attention reads, [..., g, D] for each g of ``sizes``.

    Args:
        hidden: [..., H].
        weight: [G D, H], in the order of ``interleaved`` where heads are turned.
        bias: [G D]; None is none.
        turns: complex [..., 1, D / 2], by which the position of each token turns its heads.
        sizes: Heads of each part of the result, G together.
        turned: Parts that are turned; those after them are not.
        eps: What the norm adds to the mean of the squares.
    """
    parts: tuple[Tensor, ...] = _Project.apply(hidden, weight, bias, turns, sizes, turned, eps)  # type: ignore[no-untyped-call]
    return parts


def gated(hidden: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
    """The second half of a layer: ``hidden`` [N, H] plus down(silu(gate(u)) up(u)).

    Args:
        hidden: [N, H].
        gate_up: [2 I, H], the two matrices one above the other.
        down: [H, I].
        eps: What the norm adds to the mean of the squares.
    """
    out: Tensor = _Gated.apply(hidden, gate_up, down, eps)  # type: ignore[no-untyped-call]
    return out


def interleaved(weight: Tensor, width: int) -> Tensor:
    """Rows of ``weight`` [G D, ...] in the order in which the halves of a head of ``width`` stand side by side."""
    return weight.reshape(-1, 2, width // 2, *weight.shape[1:]).transpose(1, 2).flatten(0, 2)


def _normalised(hidden: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The hidden states over their root mean squares, and what they were multiplied with [..., 1]."""
    # By the norm, which reads the states once and makes no tensor of their squares.
    squares = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).square_()
    scale = squares.div_(hidden.shape[-1]).add_(eps).rsqrt_()
    return hidden * scale, scale


def _norm_slopes(slopes: Tensor, unit: Tensor, scale: Tensor) -> Tensor:
    """The gradient with respect to hidden states from that with respect to the normalised ones, which is used up."""
    along = (slopes * unit).mean(-1, keepdim=True)
    return slopes.addcmul_(unit, along, value=-1).mul_(scale)


def _turn_(heads: Tensor, turns: Tensor) -> None:
    torch.view_as_complex(heads.view(*heads.shape[:-1], -1, 2)).mul_(turns)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        turns: Tensor,
        sizes: tuple[int, ...],
        turned: int,
        eps: float,
    ) -> tuple[Tensor, ...]:
        unit, scale = _normalised(hidden, eps)
        width = 2 * turns.shape[-1]
        heads = linear(unit, weight, bias).view(*hidden.shape[:-1], -1, width)
        ctx.turned = sum(sizes[:turned])
        _turn_(heads[..., : ctx.turned, :], turns)
        ctx.save_for_backward(unit, scale, weight, turns)
        return torch.split(heads, list(sizes), dim=-2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale, weight, turns = ctx.saved_tensors
        heads = torch.cat(slopes, dim=-2)
        # A turn by an angle is undone by its conjugate, which is its transpose.
        _turn_(heads[..., : ctx.turned, :], turns.conj())
        flat = heads.flatten(-2).flatten(0, -2)
        weights = flat.T @ unit.flatten(0, -2)
        found = _norm_slopes((flat @ weight).view_as(unit), unit, scale)
        return found, weights, flat.sum(0) if ctx.needs_input_grad[2] else None, None, None, None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, gate_up: Tensor, down: Tensor, eps: float) -> Tensor:
        unit, scale = _normalised(hidden, eps)
        both = linear(unit, gate_up)
        gate, up = both.chunk(2, dim=-1)
        # Kept for the backward pass, where the gradient of the matrix `down` needs it; what it was made of is kept as
        # well.
        inner = silu(gate).mul_(up)
        ctx.save_for_backward(unit, scale, both, inner, gate_up, down)
        return torch.addmm(hidden, inner, down.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        unit, scale, both, inner, gate_up, down = ctx.saved_tensors
        gate, up = both.chunk(2, dim=-1)
        inner_slopes = slopes @ down
        both_slopes = torch.empty_like(both)
        gates, ups = both_slopes.chunk(2, dim=-1)
        # Before the slopes are multiplied by `up` in place, which this half of the gradient does not contain.
        torch.mul(silu(gate), inner_slopes, out=ups)
        torch.ops.aten.silu_backward(inner_slopes.mul_(up), gate, grad_input=gates)
        found = _norm_slopes(both_slopes @ gate_up, unit, scale).add_(slopes)
        return found, both_slopes.T @ unit, slopes.T @ inner, None
