"""The second optimizer of the same weights: moments of its own, float32 copies in common, a state that survives a resume."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from agentenv.errors import CheckpointMismatch
from agentenv.trainers.learner.optimizers import SecondMoments, make_optimizer
from agentenv.trainers.learner.settings import MemorySettings

SETTINGS = MemorySettings()


def weights(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor([1.0, 1.0], dtype=dtype, requires_grad=True)


def first_of(weight: Tensor) -> Any:
    return make_optimizer([weight], SETTINGS, learning_rate=0.1, weight_decay=0.0)


def move(optimizer: Any, weight: Tensor, gradient: tuple[float, float]) -> None:
    weight.grad = torch.tensor(gradient, dtype=weight.dtype)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def saved(moments: SecondMoments) -> dict[str, Any]:
    """What a checkpoint gives back."""
    file = io.BytesIO()
    torch.save(moments.state_dict(), file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def test_its_first_step_knows_nothing_of_the_other_steps() -> None:
    """Adam's first step is the step size against the sign of the gradient; with the moments of the first it would go up."""
    weight = weights()
    first = first_of(weight)
    for _ in range(5):
        move(first, weight, (-100.0, -100.0))
    before = weight.detach().clone()
    held = {name: value.clone() for name, value in first.state_dict()["state"][0].items()}
    second = SecondMoments().beside(first, [weight], SETTINGS, 0.01)
    move(second, weight, (1.0, -1.0))
    assert (weight - before).tolist() == pytest.approx([-0.01, 0.01], abs=1e-6)
    assert all(torch.equal(value, held[name]) for name, value in first.state_dict()["state"][0].items())
    assert first.param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(dtype: torch.dtype) -> None:
    """Both optimizers take turns; the second one's state is loaded before it has made a step."""
    whole, resumed = [], []
    weight = weights(dtype)
    first, moments = first_of(weight), SecondMoments()
    for step in range(4):
        move(first, weight, (1.0, 0.5))
        move(moments.beside(first, [weight], SETTINGS, 0.05), weight, (9.0**step, -(0.3**step)))
        whole.append(weight.tolist())
        if step == 1:
            kept = weight.detach().clone(), first.state_dict(), saved(moments)
            kept = (kept[0], torch.load(_bytes(kept[1]), weights_only=True), kept[2])
    again = kept[0].clone().requires_grad_()
    first, moments = first_of(again), SecondMoments()
    first.load_state_dict(kept[1])
    moments.load_state_dict(kept[2])
    assert saved(moments).keys() == kept[2].keys()  # a checkpoint before its next step holds it still
    for step in (2, 3):
        move(first, again, (1.0, 0.5))
        move(moments.beside(first, [again], SETTINGS, 0.05), again, (9.0**step, -(0.3**step)))
        resumed.append(again.tolist())
    assert resumed == whole[2:]


def _bytes(state: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_small_steps_add_up_in_the_copies_of_the_first() -> None:
    """In bfloat16 a step of 1/1024 is rounded away; ten of them are seen, made by turns."""
    weight = weights(torch.bfloat16)
    first, moments = (
        make_optimizer([weight], SETTINGS, learning_rate=1 / 1024, weight_decay=0.0),
        SecondMoments(),
    )
    for _ in range(5):
        move(first, weight, (1.0, 1.0))
        move(moments.beside(first, [weight], SETTINGS, 1 / 1024), weight, (1.0, 1.0))
    assert weight.tolist() == pytest.approx([1 - 10 / 1024] * 2, abs=2e-3)


def test_a_state_of_other_weights_is_refused() -> None:
    one, other = weights(), torch.zeros(3, requires_grad=True)
    moments, again = SecondMoments(), SecondMoments()
    move(moments.beside(first_of(one), [one], SETTINGS, 0.1), one, (1.0, 1.0))
    again.load_state_dict(saved(moments))
    both = make_optimizer([one, other], SETTINGS, learning_rate=0.1, weight_decay=0.0)
    with pytest.raises(CheckpointMismatch):
        again.beside(both, [one, other], SETTINGS, 0.1)
