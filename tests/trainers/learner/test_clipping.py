"""Norms of gradients in bfloat16 have the digits of float32, and gradients are scaled by a factor that has them too.

Of tensors of one device, of one that refuses tensors of the processor, and shared out over two processes. In float32 all is
as torch computes it.
"""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentenv.trainers.learner.clipping import clip_gradients

SIZES = [[10_000_000], [1000] * 1000, [1_000_000] + [3000] * 300]


def weights(sizes: list[int], dtype: torch.dtype = torch.bfloat16, scale: float = 0.01) -> list[Tensor]:
    torch.manual_seed(0)
    made = [torch.zeros(size, dtype=dtype, requires_grad=True) for size in sizes]
    for weight in made:
        weight.grad = torch.randn(weight.shape).mul_(scale).to(dtype)
    return made


def gradients(held: list[Tensor]) -> list[Tensor]:
    """Copies of them."""
    return [one.grad.clone() for one in held if one.grad is not None]


def exact_norm(held: list[Tensor]) -> float:
    """In float64, a million numbers at a time."""
    parts = (part for one in gradients(held) for part in torch.split(one, 1_000_000))
    return math.sqrt(sum(part.double().square().sum().item() for part in parts))


@pytest.mark.parametrize("sizes", SIZES, ids=["one", "many", "unequal"])
@pytest.mark.parametrize("scale", [0.01, 0.00034])
def test_norm_and_factor_of_rounded_gradients_are_not_rounded(sizes: list[int], scale: float) -> None:
    held = weights(sizes, scale=scale)
    wanted = exact_norm(held)
    bound = 0.7 * wanted
    assert clip_gradients(held, bound).item() == pytest.approx(wanted, rel=1e-3)
    # Each product is rounded by itself, upwards or downwards.
    assert exact_norm(held) == pytest.approx(bound, rel=1e-3)


def test_a_norm_below_the_bound_changes_no_gradient() -> None:
    held = weights([1000, 30])
    wanted, before = exact_norm(held), gradients(held)
    assert clip_gradients(held, 10.0).item() == pytest.approx(wanted, rel=1e-5)
    assert all(map(torch.equal, before, gradients(held)))


@pytest.mark.parametrize("bound", [0.1, 100.0])
def test_in_float32_all_is_as_torch_computes_it(bound: float) -> None:
    ours, theirs = (weights([700, 30, 1], torch.float32) for _ in range(2))
    assert torch.equal(clip_gradients(ours, bound), torch.nn.utils.clip_grad_norm_(theirs, bound))
    assert all(map(torch.equal, gradients(ours), gradients(theirs)))


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the most values of a tensor in float32 or float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        wide = [one.numel() for one in tree_leaves(made) if isinstance(one, Tensor) and one.itemsize >= 4]
        self.most = max([self.most, *wide])
        return made


def test_no_gradient_is_copied() -> None:
    held = weights([5000] * 20)
    with Largest() as largest:
        clip_gradients(held, 1e-3)
    assert largest.most <= 20


def test_a_separate_device_is_not_waited_for(fake_device: str, device_waits: "Counter[str]") -> None:
    there = [torch.zeros(4, dtype=torch.bfloat16).to(fake_device).requires_grad_() for _ in range(2)]
    there[0].grad = given = torch.full((4,), 3.0, dtype=torch.bfloat16).to(
        fake_device
    )  # the other one has none
    device_waits.clear()
    norm = clip_gradients(there, 1.0)
    assert not device_waits
    assert norm.item() == 6.0
    assert given.cpu().tolist() == pytest.approx([0.5] * 4, rel=1e-2)


def test_without_gradients_the_norm_is_0() -> None:
    assert clip_gradients([torch.zeros(3, requires_grad=True)], 1.0).item() == 0.0


WORKER = """
import os, sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from agentenv.trainers.learner.clipping import clip_gradients

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3)).bfloat16()
fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))
model(torch.ones(2, 7, dtype=torch.bfloat16)).sum().backward()
whole = [one.grad.full_tensor().double() for one in model.parameters()]
wanted = sum(one.square().sum() for one in whole).sqrt().item()
found = clip_gradients(model.parameters(), 0.5).full_tensor()
after = sum(one.grad.full_tensor().double().square().sum() for one in model.parameters()).sqrt().item()
print(found.dtype, wanted > 1, abs(found.item() / wanted - 1) < 1e-5, abs(after / 0.5 - 1) < 2e-3)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_gradients_that_are_shared_out_have_one_norm(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    words = [[sys.executable, "-c", WORKER, store, str(rank)] for rank in range(2)]
    children = [subprocess.Popen(one, stdout=subprocess.PIPE, text=True) for one in words]
    try:
        said = [child.communicate(timeout=120)[0].split() for child in children]
    finally:
        for child in children:
            child.kill()
    assert said == [["torch.float32", "True", "True", "True"]] * 2
