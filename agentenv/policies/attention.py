"""Attention kernels for models whose masks agentenv computes itself.

The passes of the sampler have a mask [B, 1, Q, K] of their own. Flash attention takes none and flex attention takes none of
that form, so these passes are computed by sdpa, and those of the learner (`line_attention`) by the faster kernel.
transformers picks an attention function by name: under the name of the kernel stands a function that looks
at the mask first. Under ``varlen`` stands the flash attention that comes with torch itself, for rows that lie one behind
the other in a line.

Shapes: B rows, Q tokens that are fed, K that they may look at, H heads of queries, S heads of keys and values, D size of a
head, T tokens of a line, R rows in it.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

VARLEN = "varlen"
"""The name under which transformers finds torch's own attention to rows of a line."""
_SERVED: set[str] = set()
_UNKNOWN = ("s_aux", "softcap", "position_bias", "sinks")
"""Options of layers that the kernel does not compute: attention sinks, soft-capped scores and position biases."""


class _CudnnAttention:
    """Whether sdpa may take cuDNN, which torch keeps for the whole process; several threads may leave it out at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._without = 0
        self._before = True

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Within the block sdpa takes other kernels."""
        switch: Any = torch.backends.cuda
        with self._lock:
            if not self._without:
                self._before = switch.cudnn_sdp_enabled()
                switch.enable_cudnn_sdp(False)
            self._without += 1
        try:
            yield
        finally:
            with self._lock:
                self._without -= 1
                if not self._without:
                    switch.enable_cudnn_sdp(self._before)


_CUDNN = _CudnnAttention()


@contextmanager
def for_any_shape(device: torch.device) -> Iterator[None]:
    """Within the block sdpa takes kernels that compute whatever shapes they are given.

    On Hopper and newer cards torch prefers cuDNN, which prepares a kernel for every new number of rows, new tokens and keys.
    The prompts of a batch of episodes hardly ever have the same twice.
    """
    if device.type != "cuda":
        yield
        return
    with _CUDNN.left_out():
        yield


def serve_masks(name: str) -> None:
    """Lets the attention that transformers knows as ``name`` be computed by sdpa where a pass has a mask of its own."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if name == "eager" or name in _SERVED:
        return
    masked = by_length(sdpa_attention_forward)
    if name == VARLEN:
        _know_masks_of_varlen()
        ALL_ATTENTION_FUNCTIONS.register(
            name, by_bounds(_varlen_kernel(), by_mask(sdpa_attention_forward, masked))
        )
    else:
        ALL_ATTENTION_FUNCTIONS.register(name, by_mask(ALL_ATTENTION_FUNCTIONS[name], masked))
    _SERVED.add(name)


def _know_masks_of_varlen() -> None:
    """Passes without bounds get the masks that they get for sdpa, which computes them."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    ALL_MASK_ATTENTION_FUNCTIONS.register(VARLEN, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def packs_rows(name: str) -> bool:
    """Whether the attention that transformers knows as ``name`` is given where the rows of a line begin."""
    return name == VARLEN or name.startswith("flash_attention")


def fits_varlen(config: Any) -> bool:
    """Whether torch's own kernel computes the attention of a decoder: one without soft caps, sinks and chunks."""
    others = ("attn_logit_softcapping", "attention_chunk_size", "kv_lora_rank", "position_bias")
    # Layers with a state would carry it from one row to the next.
    if not {"full_attention", "sliding_attention"}.issuperset(getattr(config, "layer_types", None) or ()):
        return False
    return config.model_type != "gpt_oss" and not any(getattr(config, name, None) for name in others)


def line_inputs(name: str, ids: Tensor, bounds: Tensor, longest: int) -> dict[str, Any]:
    """What ``forward`` takes so that the attention ``name`` knows where the rows of a line begin.

    Args:
        name: One that ``packs_rows``.
        ids: int64[1, T].
        bounds: int32[R + 1].
        longest: Tokens of the longest row.
    """
    ends: dict[str, Any] = {f"cu_seq_lens_{side}": bounds for side in "qk"}
    if name == VARLEN:
        # A mask of four dimensions is passed on as it is. Without one, transformers makes that of all pairs [T, T] for sdpa.
        ends["attention_mask"] = ids.new_empty(1, 1, 0, 0)
    return ends | {f"max_length_{side}": longest for side in "qk"}


def _varlen_kernel() -> Callable[..., Any]:
    """The function of torch for rows of a line; 2.11 lets heads share keys unasked, later ones do not."""
    from torch.nn.attention.varlen import varlen_attn

    asks = "enable_gqa" in inspect.signature(varlen_attn).parameters
    return partial(varlen_attn, enable_gqa=True) if asks else varlen_attn


def by_bounds(kernel: Callable[..., Any], others: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers: rows of a line are computed by ``kernel``, and other passes by ``others``.

    The kernel is flash attention (Dao 2023, arXiv:2307.08691) with the signature of ``torch.nn.attention.varlen``: heads
    [T, H, D] and keys [T, S, D] of rows that begin at bounds int32[R + 1]. A window counts the token itself, the kernel's
    does not.
    """

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        bounds, longest = options.get("cu_seq_lens_q"), options.get("max_length_q")
        if bounds is None:
            return others(module, query, key, value, attention_mask, **options)
        if strange := [name for name in _UNKNOWN if options.get(name) is not None]:
            raise NotImplementedError(f"torch's own attention to rows of a line knows no {strange[0]}")
        # Under autocast, norms of queries and keys give float32, which sdpa rounds and the kernel would refuse; values come
        # from a product.
        line = [part[0].transpose(0, 1).to(value.dtype) for part in (query, key, value)]
        window = options.get("sliding_window")
        back = -1 if window is None else window - 1
        scale = options.get("scaling")
        found = kernel(*line, bounds, bounds, longest, longest, scale=scale, window_size=(back, 0))
        return found[None], None

    return attend


def by_mask(kernel: Callable[..., Any], masked: Callable[..., Any]) -> Callable[..., Any]:
    """An attention function of transformers that is ``masked`` where there is a mask [B, 1, Q, K], and else ``kernel``."""

    def attend(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        own = isinstance(attention_mask, Tensor) and attention_mask.dim() == 4
        return (masked if own else kernel)(module, query, key, value, attention_mask, **options)

    return attend


def by_length(masked: Callable[..., Any]) -> Callable[..., Any]:
    """Computes as ``masked`` does, which is sdpa; a single new token whose heads share keys is computed by ``one_token``."""

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
