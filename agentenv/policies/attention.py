"""Attention beside masks of our own.

The passes of the sampler have a mask [B, 1, Q, K] of their own. Flash attention takes none and flex attention takes none of
that form, so these passes are computed by sdpa, and those of the learner (`line_attention`) by the faster kernel.
transformers picks an attention function by name: under the name of the kernel stands a function that looks
at the mask first.

Shapes: B rows, Q tokens that are fed, K that they may look at, H heads of queries, S heads of keys and values, D size of a
head.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_SERVED: set[str] = set()


def serve_masks(name: str) -> None:
    """Lets the attention that transformers knows as ``name`` be computed by sdpa where a pass has a mask of its own."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name == "eager" or name in _SERVED:
        return
    kernel = ALL_ATTENTION_FUNCTIONS[name]
    ALL_ATTENTION_FUNCTIONS.register(name, by_mask(kernel, by_length(sdpa_attention_forward)))
    _SERVED.add(name)


def by_mask(kernel: Callable[..., Any], masked: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that is ``masked`` where there is a mask [B, 1, Q, K], and else ``kernel``."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        own = isinstance(attention_mask, Tensor) and attention_mask.dim() == 4
        return (masked if own else kernel)(module, query, key, value, attention_mask, **options)

    return attend


def by_length(masked: Callable[..., Any]) -> Callable[..., Any]:
    """As ``masked``, which is sdpa; a single new token whose heads share keys is computed by ``one_token``."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        more = options.get("position_bias") is not None or options.get("cache") is not None
        alone = query.shape[2] == 1 and query.shape[1] > key.shape[1] and attention_mask.shape[1] == 1
        if more or options.get("dropout") or not alone:
            return masked(module, query, key, value, attention_mask, **options)
        return one_token(query, key, value, attention_mask, options.get("scaling")), None

    return attend


def one_token(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """Attention [B, 1, H, D] of one token to keys that groups of heads share (GQA, Ainslie et al. 2023).

    With a mask, sdpa is otherwise given every key H / S times: at each token the whole cache would be copied. A single token
    has one mask for all heads, so the heads of a group may stand in the place of several tokens.

    Args:
        query: [B, H, 1, D].
        key: [B, S, K, D].
        value: [B, S, K, D].
        mask: [B, 1, 1, K], bool or what is added to scores.
        scaling: Of the scores; None is that of sdpa.
    """
    rows, heads, _, width = query.shape
    # Heads of one group are neighbours, so that this is a view and nothing is copied.
    groups = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    found = scaled_dot_product_attention(groups, key, value, attn_mask=mask, scale=scaling)
    return found.reshape(rows, 1, heads, found.shape[-1])
