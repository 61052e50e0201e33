"""The device of the tests itself: it refuses what a GPU refuses, and counts where a program would wait for a GPU."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

HERE = torch.arange(6.0).view(2, 3)


def refused() -> dict[str, Callable[[Tensor], Any]]:
    """What fails on CUDA, of a tensor [2, 3] there and tensors of the processor."""
    rows = torch.tensor([0, 1])
    return {
        "sum": lambda there: there + HERE,
        "product": lambda there: there @ HERE.T,
        "joined": lambda there: torch.cat([there, HERE]),
        "picked": lambda there: there.gather(-1, rows[:, None]),
        "chosen by a mask": lambda there: torch.where(HERE > 1, there, 0.0),
        "added in place": lambda there: HERE.clone().add_(there),
        "indexed from there": lambda there: HERE[there[:, 0].long() // 3],
        "values from the processor": lambda there: there.index_put_((rows,), HERE),
        "values from there": lambda there: HERE.clone().index_put_((rows,), there),
        "array": lambda there: there.numpy(),
        "array of it": np.asarray,
        "copy that is not waited for": lambda there: there.to("cpu", non_blocking=True),
        "copy into the processor that is not waited for": lambda there: HERE.clone().copy_(
            there, non_blocking=True
        ),
        "factory": lambda there: there * torch.ones(3),
    }


@pytest.mark.parametrize("what", refused())
def test_what_a_gpu_refuses_is_refused(fake_device: str, what: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        refused()[what](HERE.to(fake_device))


def test_what_a_gpu_allows_is_allowed(fake_device: str) -> None:
    """Numbers and indices of the processor, copies either way, and factories that name the device."""
    there = HERE.to(fake_device)
    assert (there * torch.tensor(2.0)).device.type == fake_device
    assert torch.equal(there[torch.tensor([1, 0])].cpu(), HERE[[1, 0]])
    assert torch.equal((there + torch.ones(3, device=fake_device)).cpu(), HERE + 1)
    assert torch.equal(HERE.clone().copy_(there), HERE)
    assert torch.where(there > 1, 1.0, there).device.type == fake_device


@pytest.mark.parametrize(
    ("waits", "work"),
    [
        ({}, lambda there: there.softmax(-1).argmax(-1)),
        ({}, lambda there: there[there.argmin(-1), :2]),
        ({"tolist": 1}, lambda there: there.tolist()),
        ({"_local_scalar_dense": 1}, lambda there: there.sum().item()),
        ({"_local_scalar_dense": 1}, lambda there: bool(there.isfinite().all())),
        ({"_to_copy": 1}, lambda there: there.cpu()),
        ({"nonzero": 1}, lambda there: (there > 1).nonzero()),
        ({"index": 1}, lambda there: there[there > 1]),
        ({"upload": 1}, lambda there: torch.tensor([1, 2], device=there.device)),
        ({"upload": 1}, lambda there: there[[1, 0]]),
    ],
)
def test_where_a_program_waits_is_counted(
    fake_device: str, device_waits: "Counter[str]", waits: dict[str, int], work: Callable[[Tensor], Any]
) -> None:
    there = HERE.to(fake_device)
    device_waits.clear()
    work(there)
    assert device_waits == waits
