"""A model whose linear layers hold 4 bits a weight, as the frozen base of adapters (QLoRA, Dettmers et al. 2023).

Blocks of 64 weights share a scale and take one of the 16 values of NormalFloat; the scales themselves are held in 8 bits
(section 3). Layers are those of bitsandbytes, which round their weights and multiply in the number format that these had.
Embeddings and the output layer stay as they are, and layers whose inputs are no whole number of blocks: bitsandbytes 0.50
computes wrong numbers for these on a CPU.
"""

from typing import Any

from agentenv.errors import needs_extra
from agentenv.policies.lora import language_part

_BLOCK = 64


def quantize(model: Any) -> Any:
    """``model`` with its linear layers but the output layer in 4 bits, changed in place, on the device where they are.

    A vision tower stays as it is.

    Raises:
        MissingExtra: bitsandbytes is not installed.
    """
    import torch

    with needs_extra("quantized"):
        import bitsandbytes
    whole = model.get_output_embeddings()
    for parent in list(language_part(model).modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is torch.nn.Linear and layer is not whole and layer.in_features % _BLOCK == 0:
                setattr(parent, name, _in_4_bits(bitsandbytes.nn, layer))
    model.is_loaded_in_4bit = True  # what peft asks
    return model


def _in_4_bits(kinds: Any, layer: Any) -> Any:
    weight, bias = layer.weight, layer.bias
    made = kinds.Linear4bit(
        layer.in_features,
        layer.out_features,
        bias=bias is not None,
        compute_dtype=weight.dtype,
        compress_statistics=True,
        quant_type="nf4",
        # Without memory: its weights are put in below, and would otherwise stand there twice for a moment.
        device="meta",
    )
    made.weight = kinds.Params4bit(
        weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=made
    ).to(weight.device)
    made.bias = bias
    made.support_avx512bf16_for_cpu = (
        False  # it would pack the weights anew at the first pass, with coarser scales
    )
    return made.requires_grad_(False)


def weight_of(layer: Any) -> Any:
    """The weights of a linear layer, in the number format that it multiplies with."""
    state = getattr(layer.weight, "quant_state", None)
    if state is None:
        return layer.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, state)


def is_quantized(layer: Any) -> bool:
    """Whether a layer holds its weights in 4 bits."""
    return getattr(getattr(layer, "weight", None), "quant_state", None) is not None
