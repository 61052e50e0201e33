"""Muon in float32: singular values by hand, a step by hand, the steps of torch's, and where it is taken."""

import math

import pytest
import torch
from torch import Tensor, nn

from agentenv.policies.fakes import random_model
from agentenv.trainers.warmstart import supervised
from agentenv.trainers.warmstart.muon import Muon, orthogonalized


def five_times(value: float) -> float:
    """What becomes of a singular value, in Python's own numbers."""
    for _ in range(5):
        value = 3.4445 * value - 4.7750 * value**3 + 2.0315 * value**5
    return value


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2)])
def test_singular_values_follow_the_polynomial_and_singular_vectors_stay(shape: tuple[int, int]) -> None:
    """3 and 4 have the Frobenius norm 5, so the iterations begin with 0.6 and 0.8."""
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(0))).Q
    left, right = turn[: shape[0], : shape[0]], turn[: shape[1], : shape[1]]
    left, right = torch.linalg.qr(left).Q, torch.linalg.qr(right).Q

    def with_values(*values: float) -> Tensor:
        middle = torch.zeros(shape)
        middle[0, 0], middle[1, 1] = values
        product: Tensor = left @ middle @ right.T
        return product

    found = orthogonalized(with_values(3.0, 4.0))
    torch.testing.assert_close(found, with_values(five_times(0.6), five_times(0.8)), atol=1e-4, rtol=0)


def test_singular_values_end_near_one_and_nothing_stays_nothing() -> None:
    values = torch.linalg.svdvals(orthogonalized(torch.diag(torch.logspace(-2, 0, 64))))
    assert 0.5 < values.min() < values.max() < 1.21
    assert orthogonalized(torch.zeros(3, 4)).abs().max() == 0


def test_a_first_step_goes_along_the_gradient_and_further_for_more_rows_than_columns() -> None:
    weights = [torch.ones(4, 1, requires_grad=True), torch.ones(1, 4, requires_grad=True)]
    still = torch.ones(2, 2, requires_grad=True)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
        weight.grad.view(-1)[2] = -7.0
    Muon([*weights, still], lr=0.1).step()
    for weight, reach in zip(weights, (math.sqrt(4), 1.0), strict=True):
        wanted = torch.ones(4)
        wanted[2] += 0.1 * reach * five_times(1.0)
        torch.testing.assert_close(weight.detach().view(-1), wanted)
    assert torch.equal(still.detach(), torch.ones(2, 2))


@pytest.mark.parametrize("shape", [(12, 20), (20, 12)])
def test_steps_are_those_of_torch_up_to_its_rounding(shape: tuple[int, int]) -> None:
    """The second step and the third depend on the momentum."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.zeros(shape))
    theirs = nn.Parameter(torch.zeros(shape))
    optimizers = Muon([ours], lr=1.0), torch.optim.Muon([theirs], lr=1.0, weight_decay=0.0)
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert theirs.norm() > 4
    assert (ours - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.parametrize("own", [True, False])
def test_torchs_is_taken_where_the_processor_multiplies_in_bfloat16(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    monkeypatch.setattr(supervised, "multiplies_bfloat16", lambda _: own)
    (matrices, _), (rest, _) = supervised._optimizers(random_model(257, seed=0, context=64))
    assert isinstance(matrices, torch.optim.Muon if own else Muon)
    assert isinstance(rest, torch.optim.AdamW)
