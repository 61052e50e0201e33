"""Declares the operators of torchvision whose compiled part was not loaded.

PyPI's torchvision is compiled for CUDA's torch, and a torch for CPUs cannot load that part. Without it two operators do not
exist, for which the Python part registers shapes when it is imported, and the import fails. Nothing that reads images calls
them. ``make test-vllm`` appends this file to ``torchvision/extension.py``, which is imported before they are used.
"""

from typing import Any

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

if not hasattr(torch.ops.torchvision, "nms"):
    _declared: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    """Kept, since its operators are gone with it."""
    for _schema in _SCHEMAS:
        _declared.define(_schema)
