"""Who moves the weights: float32 copies of rounded ones, 8-bit moments, states that come back to the bit."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from agentenv.errors import ConfigurationError
from agentenv.policies.lora import adapt
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.optimizers import MasterWeights, make_optimizer
from agentenv.trainers.learner.settings import MemorySettings

RATE = 1e-4


def weights(dtype: torch.dtype = torch.bfloat16, count: int = 3, size: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for _ in range(count)]


def gradients(seed: int, count: int = 3, size: int = 5) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator).to(torch.bfloat16) for _ in range(count)]


def moved(optimizer: Any, held: Sequence[Tensor], seeds: Sequence[int]) -> None:
    for seed in seeds:
        for weight, gradient in zip(held, gradients(seed, len(held), len(held[0])), strict=True):
            weight.grad = gradient.to(weight.dtype)
        optimizer.step()


def made(held: Sequence[Tensor], **settings: Any) -> Any:
    return make_optimizer(held, MemorySettings(**settings), learning_rate=RATE, weight_decay=0.01)


@pytest.mark.parametrize(("master", "left"), [(True, 1 - 100 * RATE), (False, 1.0)])
def test_small_steps_add_up_in_the_copies_and_are_lost_without_them(master: bool, left: float) -> None:
    """Under a constant gradient Adam moves by the step size; next to 1 bfloat16 has 1 - 1/256, 1 - 2/256, 1 - 3/256."""
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    settings = MemorySettings(master_weights=master)
    optimizer = make_optimizer([weight], settings, learning_rate=RATE, weight_decay=0.0)
    for _ in range(100):
        weight.grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.step()
    assert weight.item() == torch.tensor(left).to(torch.bfloat16).item()
    if master:
        assert optimizer.copies[0].item() == pytest.approx(left, abs=1e-5)


@pytest.mark.parametrize("bucket", [1, 10, 100])
def test_the_copies_move_as_weights_in_float32_do(bucket: int) -> None:
    rounded, whole = weights(), [w.detach().float().requires_grad_() for w in weights()]
    plain = torch.optim.AdamW(whole, lr=RATE, weight_decay=0.01)
    optimizer = MasterWeights(
        rounded, lambda held: torch.optim.AdamW(held, lr=RATE, weight_decay=0.01), bucket=bucket
    )
    moved(optimizer, rounded, range(4))
    moved(plain, whole, range(4))
    for one, master, other in zip(rounded, optimizer.copies, whole, strict=True):
        assert torch.equal(master, other)
        assert torch.equal(one, other.to(torch.bfloat16))
        assert master.grad is None


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("kind", ["adamw", "adamw_8bit"])
def test_a_state_comes_back_to_the_bit(before: int, kind: str) -> None:
    if kind == "adamw_8bit":
        pytest.importorskip("bitsandbytes", reason="needs the quantized extra")
    one, other = weights(size=5000), weights(size=5000)
    first = made(one, optimizer=kind)
    moved(first, one, range(before))
    with torch.no_grad():
        for weight in other:
            weight.zero_()
    second = made(other, optimizer=kind)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    for optimizer, held in ((first, one), (second, other)):
        moved(optimizer, held, range(10, 13))
    for a, b in zip([*one, *first.copies], [*other, *second.copies], strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one[0], weights(size=5000)[0])


def test_copies_of_weights_that_are_shared_out_over_processes_move(tmp_path: Path) -> None:
    """No list of such tensors is copied by torch, and under torchrun weights in bfloat16 are such."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        plain, shared = weights(), [distribute_tensor(one.detach(), mesh, [Shard(0)]) for one in weights()]
        first, second = made(plain), made([one.requires_grad_() for one in shared])
        moved(first, plain, range(3))
        for seed in range(3):
            for weight, gradient in zip(shared, gradients(seed), strict=True):
                weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
            second.step()
        for one, other in zip([*shared, *second.copies], [*plain, *first.copies], strict=True):
            assert torch.equal(one.full_tensor(), other)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_of_another_device_does_not_choose_the_kernels(dtype: torch.dtype) -> None:
    """Adam's step is one kernel on a card, and its state says so; a device without that kernel takes up the state too."""
    held = weights(dtype)
    optimizer = made(held)
    moved(optimizer, held, range(2))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0] |= {"fused": True, "foreach": False, "lr": 0.5}
    optimizer.load_state_dict(state)
    (group,) = optimizer.param_groups
    assert (group["fused"], group["foreach"], group["lr"]) == (None, None, 0.5)


def test_a_state_without_copies_is_refused() -> None:
    held = weights()
    plain = made(held, master_weights=False)
    moved(plain, held, range(2))
    with pytest.raises(ValueError, match="float32 copy"):
        made(weights()).load_state_dict(plain.state_dict())


def test_moments_in_8_bits_move_weights_nearly_as_those_in_32() -> None:
    pytest.importorskip("bitsandbytes", reason="needs the quantized extra")
    one, other = weights(torch.float32, 1, 5000), weights(torch.float32, 1, 5000)
    start, rough, exact = one[0].detach().clone(), made(one, optimizer="adamw_8bit"), made(other)
    moved(rough, one, range(5))
    moved(exact, other, range(5))
    assert {value.dtype for value in rough.state[one[0]].values() if isinstance(value, Tensor)} == {
        torch.uint8,
        torch.float32,
    }
    near, far = one[0].detach() - start, other[0].detach() - start
    assert torch.nn.functional.cosine_similarity(near, far, dim=0) > 0.98
    assert not torch.equal(near, far)


@pytest.mark.parametrize(
    ("dtype", "lora", "copied"),
    [(torch.float32, False, False), (torch.bfloat16, False, True), (torch.bfloat16, True, True)],
)
def test_only_rounded_weights_that_are_trained_have_copies(
    qwen: Callable[..., Any], dtype: torch.dtype, lora: bool, copied: bool
) -> None:
    """Adapters have the number format of their base."""
    model = qwen().to(dtype)
    model = adapt(model, rank=2, alpha=4) if lora else model
    learner = Learner(model, Objective(), learning_rate=RATE)
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {dtype}
    assert isinstance(learner.optimizer, MasterWeights) == copied


@pytest.mark.parametrize("change", ["--memory.optimizer adamw_4bit", "--memory.optimizer 8"])
def test_an_unknown_optimizer_is_named(change: str) -> None:
    with pytest.raises(ConfigurationError, match=r"memory\.optimizer"):
        override(TrainConfig(), change.split())
