"""A layer with an adapter: its output and gradients are those of the formula, without passes over the whole output."""

import copy
import pickle
from typing import Any

import pytest
import torch
from peft.tuners.lora import Linear
from torch.utils._python_dispatch import TorchDispatchMode

from agentenv.policies.fakes import random_model
from agentenv.policies.lora import adapt, without_adapters
from agentenv.policies.quantized import quantize, weight_of

SCALE = 8 / 4


def layer_of(model: Any, place: str) -> Any:
    """The adapted layer at ``place``, whose B is not 0."""
    layer = model.get_submodule(f"base_model.model.model.layers.0.{place}")
    with torch.no_grad():
        torch.nn.init.normal_(layer.lora_B["default"].weight, generator=torch.Generator().manual_seed(1))
    return layer


@pytest.mark.parametrize("place", ["self_attn.q_proj", "mlp.down_proj"])  # with a bias and without
@pytest.mark.parametrize("shape", [(2, 3), (5,), (), (2, 0)])  # the last as of experts without a token
def test_output_and_gradients_are_those_of_the_formula(place: str, shape: tuple[int, ...]) -> None:
    layer = layer_of(adapt(random_model().double(), rank=4, alpha=8), place)
    down, up, base = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.base_layer
    inputs = torch.randn(*shape, base.in_features, dtype=torch.float64, requires_grad=True)
    found = layer(inputs)
    wanted = base(inputs) + SCALE * (inputs @ down.T @ up.T)
    assert found.shape == wanted.shape
    assert torch.allclose(found, wanted, atol=1e-12)
    weights = [inputs, down, up]
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), weights),
        torch.autograd.grad(wanted.square().sum(), weights),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-10)


def test_inputs_without_a_gradient_reach_the_adapter_alone() -> None:
    """As in the first layer of a model, below which nothing is trained."""
    layer = layer_of(adapt(random_model(), rank=4, alpha=8), "self_attn.q_proj")
    inputs = torch.randn(3, layer.base_layer.in_features)
    layer(inputs).sum().backward()
    assert inputs.grad is None
    assert layer.lora_A["default"].weight.grad.abs().sum() > 0


def test_over_4_bits_it_is_the_same_formula() -> None:
    pytest.importorskip("bitsandbytes")
    model = adapt(quantize(random_model(width=64, inner=128)), rank=4, alpha=8)
    layer = layer_of(model, "self_attn.q_proj")
    down, up, base = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.base_layer
    inputs = torch.randn(2, 3, base.in_features, requires_grad=True)
    found = layer(inputs)
    wanted = torch.nn.functional.linear(inputs, weight_of(base), base.bias) + SCALE * (inputs @ down.T @ up.T)
    assert torch.allclose(found, wanted, atol=1e-4)
    found, wanted = (torch.autograd.grad(outputs.square().sum(), inputs)[0] for outputs in (found, wanted))
    assert torch.allclose(found, wanted, atol=1e-3)


class Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the sums and products, element by element, of tensors of at least ``size`` numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.add, torch.ops.aten.mul, torch.ops.aten.add_):
            self.found += [str(func)] if result.numel() >= self.size else []
        return result


def test_the_output_is_passed_over_by_matrix_products_alone() -> None:
    """The layer of peft adds and scales [tokens, out] on the way there, and scales it on the way back."""
    layer = layer_of(adapt(random_model(), rank=4, alpha=8), "mlp.gate_proj")
    inputs = torch.randn(2, 50, layer.base_layer.in_features)  # without a gradient, whose parts are added up
    with Sums(100 * layer.base_layer.out_features) as sums:
        layer(inputs).backward(torch.ones(2, 50, layer.base_layer.out_features))
    assert sums.found == []
    with Sums(100 * layer.base_layer.out_features) as sums:
        Linear.forward(layer, inputs).backward(torch.ones(2, 50, layer.base_layer.out_features))
    assert sums.found == ["aten.mul.Tensor", "aten.add.Tensor", "aten.mul.Tensor"]


def test_it_is_copied_and_pickled_with_its_layer() -> None:
    """A copy that computed with the weights of the first would hide that it never changes."""
    model = adapt(random_model(), rank=4, alpha=8)
    layer = layer_of(model, "self_attn.q_proj")
    inputs = torch.randn(2, 3, layer.base_layer.in_features)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(inputs), layer(inputs))
        with torch.no_grad():
            other.lora_B["default"].weight.zero_()
        assert torch.equal(other(inputs), layer.base_layer(inputs))
        assert not torch.equal(layer(inputs), layer.base_layer(inputs))


def test_a_layer_that_a_model_keeps_in_float32_stays_there() -> None:
    """Some models keep a few layers in float32 and give them inputs in it; the adapters have the format of the model."""
    layer = layer_of(adapt(random_model(), rank=4, alpha=8), "self_attn.q_proj")
    inputs = torch.randn(2, 3, layer.base_layer.in_features)
    wanted = layer(inputs)
    layer.lora_A.bfloat16(), layer.lora_B.bfloat16()
    found = layer(inputs)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.1)


def test_under_autocast_it_has_the_number_format_of_autocast() -> None:
    layer = layer_of(adapt(random_model(), rank=4, alpha=8), "self_attn.q_proj")
    inputs = torch.randn(2, 3, layer.base_layer.in_features)
    wanted = layer(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(inputs)
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.1)


def test_without_adapters_it_is_the_layer_itself() -> None:
    model = adapt(random_model(), rank=4, alpha=8)
    layer = layer_of(model, "self_attn.q_proj")
    inputs = torch.randn(2, 3, layer.base_layer.in_features)
    with without_adapters(model):
        assert torch.equal(layer(inputs), layer.base_layer(inputs))
    assert not torch.equal(layer(inputs), layer.base_layer(inputs))
