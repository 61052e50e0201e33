"""The loss by hand: clipping on both sides, the dual clip, where the gradient is zero, bounds on the ratio, k3."""

import math

import pytest
import torch

from agentenv.trainers.losses import OBJECTIVES


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # loss = max(-A r, -A clip(r, .8, 1.28)); d loss / d logprob = -A r where r decides, else 0.
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.28, 0.0),  # the good action is likely enough
        (1.5, -1.0, 1.5, 1.5),  # the bad one grew: pull it back
        (0.7, -1.0, 0.8, 0.0),  # the bad action is rare enough
        (0.7, 1.0, -0.7, -0.7),  # the good one shrank: pull it back
        (12.0, -1.0, 10.0, 0.0),  # dual clip: one token may not blow the step up
        (12.0, -0.5, 5.0, 0.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, slope: float) -> None:
    new = torch.tensor([math.log(ratio) - 2.0], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-2.0], dtype=torch.float64)
    losses = clipped_surrogate(new, old, torch.tensor([advantage], dtype=torch.float64))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert losses.item() == pytest.approx(loss, abs=1e-12)
    assert new.grad.item() == pytest.approx(slope, abs=1e-12)


def test_bounds_are_arguments() -> None:
    new, old, one = torch.tensor([0.5]).log(), torch.zeros(1), torch.ones(1)
    assert clipped_surrogate(new, old, -one, clip_low=0.4).item() == pytest.approx(0.6)
    assert clipped_surrogate(-new, old, one, clip_high=0.9).item() == pytest.approx(-1.9)
    assert clipped_surrogate(-new, old, -one, dual_clip=1.5).item() == pytest.approx(1.5)


def test_an_absurd_ratio_stays_finite() -> None:
    new = torch.tensor([200.0, -200.0], requires_grad=True)
    losses = clipped_surrogate(new, torch.zeros(2), torch.tensor([-1.0, 1.0]))
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert torch.isfinite(losses).all()
    assert torch.isfinite(new.grad).all()


def test_k3() -> None:
    # d = -1.5 - -1 = -.5: exp(-.5) - (-.5) - 1 = .6065307 - .5 = .1065307
    new = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    penalty = kl_k3(new, torch.tensor([-1.5], dtype=torch.float64))
    penalty.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert penalty.item() == pytest.approx(0.1065307, abs=1e-7)
    # d penalty / d logprob = 1 - exp(d) = .3934693: it pulls the log-prob down to the reference
    assert new.grad.item() == pytest.approx(0.3934693, abs=1e-7)


def test_k3_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    gaps = torch.linspace(-30, 30, 61, dtype=torch.float64)
    penalties = kl_k3(gaps, torch.zeros(61, dtype=torch.float64))
    assert penalties[30] == 0
    assert bool((penalties[gaps != 0] > 0).all())
    assert torch.isfinite(penalties).all()
