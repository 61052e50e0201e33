"""A base in 4 bits: what it holds, how near it computes, adapters over it, and the weights that are written."""

import copy
import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the train extra")
if (
    importlib.util.find_spec("bitsandbytes") is None
):  # importing it takes seconds, in each process that collects the tests
    pytest.skip("needs the quantized extra", allow_module_level=True)

from agentenv.policies.export import write_weights  # noqa: E402
from agentenv.policies.fakes import ByteTokenizer, random_model  # noqa: E402
from agentenv.policies.hf import HFPolicy  # noqa: E402
from agentenv.policies.lora import adapt, trained_state  # noqa: E402
from agentenv.policies.quantized import is_quantized, quantize, weight_of  # noqa: E402

IDS = torch.arange(40).reshape(2, 20)


def wide(**changes: Any) -> Any:
    """A random model whose layers have whole blocks of 64 inputs."""
    return random_model(**{"width": 64, "inner": 128, "spread": 0.1} | changes)


def logprobs(model: Any) -> Any:
    with torch.no_grad():
        return torch.log_softmax(model(input_ids=IDS, use_cache=False).logits.float(), -1)


def test_linear_layers_are_rounded_to_16_values_of_a_block() -> None:
    model = wide()
    plain = copy.deepcopy(model)
    assert quantize(model) is model
    packed = {name for name, layer in model.named_modules() if is_quantized(layer)}
    linear = {name for name, layer in plain.named_modules() if isinstance(layer, torch.nn.Linear)}
    assert packed == linear - {"lm_head"}
    name = "model.layers.0.mlp.up_proj"
    whole, layer = plain.get_submodule(name).weight, model.get_submodule(name)
    found = weight_of(layer)
    assert layer.weight.dtype == torch.uint8
    assert layer.weight.numel() == whole.numel() / 2
    assert (found.dtype, found.shape) == (whole.dtype, whole.shape)
    for block, exact in zip(found.reshape(-1, 64), whole.reshape(-1, 64), strict=True):
        assert len(block.unique()) <= 16
        assert (block - exact).abs().max() <= 0.16 * exact.abs().max()  # half of the widest gap, .304
    assert weight_of(model.lm_head) is model.lm_head.weight


def test_layers_without_whole_blocks_stay_as_they_are() -> None:
    """Bitsandbytes 0.50 gets them wrong on a CPU: their blocks go over the ends of rows."""
    model = quantize(wide(inner=96))
    packed = {name.rpartition(".")[2] for name, layer in model.named_modules() if is_quantized(layer)}
    assert packed == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"}


def test_it_computes_with_the_rounded_weights_and_no_others() -> None:
    model, rounded = quantize(wide()), wide()
    for name, layer in model.named_modules():
        if is_quantized(layer):
            with torch.no_grad():
                rounded.get_submodule(name).weight.copy_(weight_of(layer))
    first = logprobs(model)
    torch.testing.assert_close(first, logprobs(rounded), rtol=0, atol=1e-4)
    assert torch.equal(first, logprobs(model))  # a pass does not change the weights


def test_adapters_over_it_are_trained_alone_and_written_merged(tmp_path: Path) -> None:
    model = adapt(quantize(wide()), rank=4, alpha=8, seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    assert len(weights) == len(trained_state(model))
    optimizer = torch.optim.Adam(weights, lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=IDS, use_cache=False).logits[..., 3].sum().backward()
        optimizer.step()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == trained_state(model).keys()
    write_weights(model, tmp_path)
    tokenizer = ByteTokenizer()
    from transformers import AutoModelForCausalLM

    written = AutoModelForCausalLM.from_pretrained(str(tmp_path), dtype=torch.float32)
    assert not any(is_quantized(layer) for layer in written.modules())
    torch.testing.assert_close(logprobs(written.eval()), logprobs(model), rtol=0, atol=1e-3)
    assert HFPolicy(model, tokenizer).model is model


def test_a_kernel_from_a_model_hub_is_not_missed() -> None:
    """On some processors bitsandbytes warns of it when it is imported, which sentence-transformers does in every run."""
    from bitsandbytes.backends.cpu import ops

    assert not ops.logger.isEnabledFor(logging.WARNING)
    assert ops.logger.isEnabledFor(logging.ERROR)
