"""The two halves of a fused layer: their values and gradients against the same steps one by one, and by hand."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")

from torch import Tensor  # noqa: E402

from agentenv.policies.fused_layers import gated, interleaved, project  # noqa: E402

EPS = 1e-6


def random(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def unit(hidden: Tensor) -> Any:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + EPS)


def halves(heads: Tensor, cosines: Tensor, sines: Tensor) -> Any:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosines + torch.cat([-second, first], dim=-1) * sines


def test_a_projection_by_hand() -> None:
    """(3, 4) has the root mean square 5 / sqrt(2), and a quarter turn takes (a, b) to (-b, a)."""
    hidden = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    turns = torch.tensor([[[1j]]], dtype=torch.complex128)
    turned, kept = project(
        hidden, torch.eye(2, dtype=torch.float64).repeat(2, 1), None, turns, (1, 1), 1, 0.0
    )
    scale = math.sqrt(2) / 5
    assert turned.flatten().tolist() == pytest.approx([-4 * scale, 3 * scale])
    assert kept.flatten().tolist() == pytest.approx([3 * scale, 4 * scale])


def test_a_gated_half_by_hand() -> None:
    """With u = (1, 1), gate 1 and up 2 of it: silu(1) * 2 is added once to the first component and twice to the second."""
    hidden = torch.tensor([[2.0, 2.0]], dtype=torch.float64)
    gate_up = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    down = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    inner = 2 / (1 + math.exp(-1))
    assert gated(hidden, gate_up, down, 0.0).tolist()[0] == pytest.approx([2 + inner, 2 + 2 * inner])


@pytest.mark.parametrize("biased", [True, False])
def test_a_projection_has_the_values_and_gradients_of_its_steps(biased: bool) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = random(2, 3, 6), random(20, 6), random(20) if biased else None
    angles = torch.rand(2, 3, 1, 2, dtype=torch.float64)
    turns = torch.polar(torch.ones_like(angles), angles)
    both = torch.cat([angles, angles], dim=-1)
    plain = torch.nn.functional.linear(unit(hidden), weight, bias).unflatten(-1, (5, 4))
    wanted = [halves(plain[..., :4, :], both.cos(), both.sin()), plain[..., 4:, :]]
    turning = torch.cat([interleaved(weight[:16], 4), weight[16:]])
    shifts = torch.cat([interleaved(bias[:16], 4), bias[16:]]) if bias is not None else None
    *found, values = project(hidden, turning, shifts, turns, (3, 1, 1), 2, EPS)
    # Halves side by side are the same numbers in another order.
    order = torch.tensor([0, 2, 1, 3])
    torch.testing.assert_close(torch.cat(found, dim=-2)[..., order], wanted[0])
    torch.testing.assert_close(values, wanted[1])
    slopes = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    inputs = [one for one in (hidden, weight, bias) if one is not None]
    ours = torch.autograd.grad(
        (torch.cat([*found, values], -2) * torch.cat([slopes[..., :4, order], slopes[..., 4:, :]], -2)).sum(),
        inputs,
    )
    theirs = torch.autograd.grad((torch.cat(wanted, -2) * slopes).sum(), inputs)
    torch.testing.assert_close(ours, theirs)


def test_a_gated_half_has_the_values_and_gradients_of_its_steps() -> None:
    torch.manual_seed(0)
    hidden, gate_up, down = random(7, 6), random(10, 6), random(6, 5)
    found = gated(hidden, gate_up, down, EPS)
    gate, up = (unit(hidden) @ gate_up.T).chunk(2, dim=-1)
    wanted = hidden + (torch.nn.functional.silu(gate) * up) @ down.T
    torch.testing.assert_close(found, wanted)
    slopes = torch.randn(7, 6, dtype=torch.float64)
    inputs = [hidden, gate_up, down]
    torch.testing.assert_close(
        torch.autograd.grad((found * slopes).sum(), inputs),
        torch.autograd.grad((wanted * slopes).sum(), inputs),
    )
