"""Attention within one line of many sequences, some of which share their first tokens.

Flex attention takes the rule of who may look at whom as a mask of blocks (Dong et al. 2024): a block of 128 x 128 places
without a pair that may is left out, and no matrix of all pairs exists. Other kinds of attention get that matrix.

Shapes: T tokens of the line.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from agentenv.policies.forward import text_config

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of batch, head, place that looks and place that is looked at: whether it may."""


def line_attention(model: Any, line: Tensor, positions: Tensor) -> Any:
    """What ``model`` takes as its attention mask: one mask, or one for each kind of its layers.

    Args:
        model: Whose configuration says which layers look how far.
        line: int64[2, T], the group of sequences that each token is of, and its sequence there; -1 where all share it.
        positions: int64[1, T], of each token within its sequence.
    """
    from torch.nn.attention.flex_attention import create_block_mask, create_mask

    config, size = text_config(model), line.shape[1]
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not kinds:
        kinds = {"sliding_attention" if getattr(config, "sliding_window", None) else "full_attention": None}
    make: Callable[..., Any] = create_mask
    if config._attn_implementation == "flex_attention":
        make = torch.compile(create_block_mask) if line.device.type == "cuda" else create_block_mask
    masks = {
        kind: make(rule(config, kind, line, positions[0]), None, None, size, size, device=str(line.device))
        for kind in kinds
    }
    return next(iter(masks.values())) if len(masks) == 1 else masks


def rule(config: Any, kind: str, line: Tensor, positions: Tensor) -> Rule:
    """Which tokens a token attends to in layers of a kind: those before it, of its sequence or shared, within the window."""
    groups, sequences = line
    window = int(config.sliding_window) if kind == "sliding_attention" and config.sliding_window else 0
    chunk = int(config.attention_chunk_size) if kind == "chunked_attention" else 0

    def may(_: Tensor, __: Tensor, looks: Tensor, seen: Tensor) -> Tensor:
        own = (sequences[seen] == -1) | (sequences[seen] == sequences[looks])
        held: Tensor = (looks >= seen) & (groups[looks] == groups[seen]) & own
        if window:
            held = held & (positions[looks] - positions[seen] < window)
        if chunk:
            held = held & (positions[looks] // chunk == positions[seen] // chunk)
        return held

    return may
