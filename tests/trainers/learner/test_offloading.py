"""Optimizer and activations in the memory of the host, on the second device of the tests: the same steps, from elsewhere."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.policies.loading import moved
from agentenv.trainers.learner import offloading
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.optimizers import MasterWeights


def rows() -> list[TrainingRow]:
    rng = np.random.default_rng(0)
    made = []
    for length in (40, 60, 200):
        mask = np.arange(length) > 4
        zeros = np.zeros(length, np.float32)
        made.append(
            TrainingRow(rng.integers(0, 256, length), mask, zeros, mask & False, rng.normal(size=length))
        )
    return made


def trained(model: Any, **settings: Any) -> tuple[Learner, list[torch.Tensor]]:
    """The learner, and the weights after two steps."""
    learner = Learner(model, Objective(proximal="recompute", **settings), learning_rate=1e-2)
    for _ in range(2):
        learner.step(rows())
    return learner, [weight.detach().cpu() for weight in model.parameters()]


@pytest.mark.parametrize("setting", ["offload_optimizer", "offload_activations"])
def test_offloading_changes_no_weight(qwen: Callable[..., Any], fake_device: str, setting: str) -> None:
    torch.set_num_threads(1)
    device = torch.device(fake_device, 0)
    _, wanted = trained(moved(qwen(), device))
    learner, found = trained(moved(qwen(), device), **{setting: True})
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    hosted = isinstance(learner.optimizer, MasterWeights)
    assert hosted == (setting == "offload_optimizer")
    if hosted:
        state = learner.optimizer.state_dict()["state"].values()
        assert {value.device.type for mine in state for value in mine.values()} == {"cpu"}


def test_what_is_kept_goes_to_the_host_but_for_weights_and_small_tensors(fake_device: str) -> None:
    large = torch.ones(2**16, device=fake_device)
    weight = torch.nn.Parameter(torch.ones(2**9, 2**8, device=fake_device))
    packed = offloading._pack(large)
    assert isinstance(packed, tuple)
    assert packed[1].device.type == "cpu"
    back = offloading._unpack(packed)
    assert back.device == large.device
    assert torch.equal(back.cpu(), large.cpu())
    for kept in (weight, weight.t(), large[:100], large.cpu()):
        assert offloading._pack(kept) is kept
        assert offloading._unpack(kept) is kept


def test_on_the_cpu_offloading_does_nothing(qwen: Callable[..., Any]) -> None:
    torch.set_num_threads(1)
    learner, found = trained(qwen(), offload_optimizer=True, offload_activations=True)
    _, wanted = trained(qwen())
    assert type(learner.optimizer) is torch.optim.AdamW
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
