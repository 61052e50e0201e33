"""What a forward pass keeps for the backward pass, in the memory of the host until it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_SMALLEST = 2**16
"""Values of a tensor that is worth the way."""


@contextmanager
def offloaded_activations() -> Iterator[None]:
    """Within the block tensors that autograd keeps go to the host, but for weights, small ones, and what is there anyway."""
    with torch.autograd.graph.saved_tensors_hooks(_pack, _unpack):
        yield


def _pack(tensor: Tensor) -> Any:
    # What autograd keeps of a weight is often a view of it, such as its transpose; to copy that would move the model
    # itself.
    weight = isinstance(tensor._base if tensor._base is not None else tensor, torch.nn.Parameter)
    if weight or tensor.device.type == "cpu" or tensor.numel() < _SMALLEST:
        return tensor
    if tensor.device.type != "cuda":
        return tensor.device, tensor.cpu()
    # Only a copy to or from pinned memory runs beside the computation. Both ways are on the stream of the
    # computation, so that the way back cannot begin before the way there has ended.
    there = torch.empty(tensor.shape, dtype=tensor.dtype, layout=tensor.layout, pin_memory=True)
    return tensor.device, there.copy_(tensor, non_blocking=True)


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed, Tensor):
        return packed
    device, there = packed
    moved: Tensor = there.to(device, non_blocking=True)
    return moved
