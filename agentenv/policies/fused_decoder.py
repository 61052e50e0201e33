"""The forward pass of small Llama-like models on a CPU, in fewer and larger operations than their modules make of it.

It gives the same logits but for the order of sums. Of the last layer it computes keys and values of every token, and all
else for the tokens alone whose logits are wanted. ``require_support`` compares it with the model's own ``forward`` when a
policy is loaded, as it compares every way of passing tokens through a model.

Shapes: B rows, T tokens of a row, N picked tokens, Q of them in the row that has most, K positions that are looked at,
H hidden size, G heads, D size of a head, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from agentenv.policies.fused_layers import gated, interleaved, project

_FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM")
_LARGEST = 2**25
"""Weights of the largest model whose matrices are joined: the copies cost time and memory, and larger models spend their
time in products."""


@dataclass(frozen=True)
class _Layer:
    """The matrices of one layer."""

    queries: int
    """Heads of queries."""
    keys: int
    """Heads of keys, and of values."""
    width: int
    qkv: Tensor
    bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor
    eps: tuple[float, float]

    def heads(
        self, hidden: Tensor, turns: Tensor, sizes: tuple[int, ...], first: int, turned: int
    ) -> tuple[Tensor, ...]:
        """Queries, keys or values [..., g, D] of each g of ``sizes``, from the head ``first`` on."""
        rows = slice(first * self.width, (first + sum(sizes)) * self.width)
        bias = None if self.bias is None else self.bias[rows]
        return project(hidden, self.qkv[rows], bias, turns, sizes, turned, self.eps[0])

    def rest(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """What leaves the layer [N, H], from what entered it and what attention [N, G D] gave."""
        return gated(torch.addmm(hidden, attended, self.out.T), self.gate_up, self.down, self.eps[1])

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attention of queries [B, T, G, D] over keys and values [B, G, K, D]: [B, T, G, D]."""
        found = scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=self.queries != self.keys,
        )
        return found.transpose(1, 2)


@dataclass(frozen=True)
class _Picked:
    """Tokens whose logits are wanted, and their places [B, Q] in the last layer's attention."""

    rows: Tensor  # [N]
    places: Tensor  # [N]
    slots: Tensor  # [N]
    mask: Tensor  # [B, 1, Q, K]

    @classmethod
    def of(
        cls, rows: Tensor, places: Tensor, batch: int, keys: int, mask: Tensor | None, like: Tensor
    ) -> "_Picked":
        """The picked tokens of ``batch`` rows that look at ``keys`` positions, as ``mask`` or their order says."""
        counts = torch.bincount(rows, minlength=batch)
        order = torch.argsort(rows, stable=True)
        slots = torch.empty_like(rows)
        slots[order] = torch.arange(len(rows)) - (counts.cumsum(0) - counts)[rows[order]]
        if mask is None:
            later = torch.arange(keys) > places[:, None]
            seen = like.new_zeros(later.shape).masked_fill_(later, float("-inf"))
        else:
            seen = mask.expand(batch, -1, -1, -1)[rows, 0, places]
        # What fills a row up to the longest looks everywhere, so that it is finite; nothing is read from it.
        held = like.new_zeros((batch, int(counts.max()), keys))
        held[rows, slots] = seen
        return cls(rows, places, slots, held[:, None])


class FusedDecoder:
    """A model's weights joined for a few passes; they are those of the moment at which it was made."""

    def __init__(self, model: Any) -> None:
        """Joins the matrices; gradients reach the model's own weights."""
        self.model = model
        self.layers = [_joined(layer) for layer in model.model.layers]

    def logits_at(
        self,
        ids: Tensor,
        rows: Tensor,
        places: Tensor,
        *,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
    ) -> Tensor:
        """Logits [N, V]; see ``agentenv.policies.forward.logits_at``."""
        hidden = self.model.model.embed_tokens(ids)
        positions = torch.arange(ids.shape[1])[None] if position_ids is None else position_ids
        turns = self._turns(hidden, positions).expand(len(ids), -1, -1, -1)
        mask = None
        if attention_mask is not None:
            # As what is added to scores and not as bool, because the shared prompts are scored without sdpa.
            zeros = hidden.new_zeros(attention_mask.shape)
            mask = zeros.masked_fill_(~attention_mask, float("-inf"))
        *before, last = enumerate(self.layers)
        for number, layer in before:
            hidden = _whole(layer, number, hidden, turns, mask, cache)
        # While a batch is decoded every token is wanted, and to pick them would only cost operations.
        if ids.shape[1] == 1 and len(rows) == len(ids):
            hidden = _whole(last[1], last[0], hidden, turns, mask, cache)[rows, places]
        else:
            hidden = _at_places(*last, hidden, turns, mask, cache, rows, places)
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden))
        return logits

    def _turns(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """What tokens are turned by, complex [B or 1, T, 1, D / 2], as the model's rotary embedding says."""
        cosines, sines = self.model.model.rotary_emb(hidden, positions)
        half = cosines.shape[-1] // 2
        return torch.complex(cosines[..., :half].contiguous(), sines[..., :half].contiguous())[:, :, None]


def fused_decoder(model: Any) -> FusedDecoder | None:
    """The decoder of ``model`` where it computes what the model's own modules do; None for models that it does not know."""
    if type(model).__name__ not in _FAMILIES or not type(model).__module__.startswith("transformers."):
        return None
    config = model.config
    plain = (
        model.device.type == "cpu"
        and model.dtype in (torch.float32, torch.float64)
        and not torch.is_autocast_enabled("cpu")
        and config._attn_implementation == "sdpa"
        and config.hidden_act == "silu"
        # Its frequencies are those of the longest row of the last pass, of whichever thread.
        and getattr(model.model.rotary_emb, "rope_type", "default") != "longrope"
        and set(getattr(config, "layer_types", None) or ("full_attention",)) == {"full_attention"}
        and len(model.model.layers) == config.num_hidden_layers
        and sum(weight.numel() for weight in model.model.layers.parameters()) <= _LARGEST
    )
    # Not the output layer: another thread may have it pick places right now, and it is called as a module here.
    if not plain or any(map(_is_changed, (model, *model.model.modules()))):
        return None
    home = type(model).__module__
    if type(model.model).__module__ != home:
        return None
    return FusedDecoder(model) if all(_is_plain(layer, home) for layer in model.model.layers) else None


def _is_plain(layer: Any, home: str) -> bool:
    """Whether ``layer`` holds plain matrices, with biases where they are looked for: no adapters, no quantized weights.

    All else in it is of the module ``home`` of transformers, and so no other norm.
    """
    attention, inner = layer.self_attn, layer.mlp
    products = (attention.o_proj, inner.gate_proj, inner.up_proj, inner.down_proj)
    readers = (attention.q_proj, attention.k_proj, attention.v_proj)
    parts = (layer, attention, inner, layer.input_layernorm, layer.post_attention_layernorm)
    return (
        type(inner.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and attention.scaling == attention.head_dim**-0.5
        and not (attention.training and attention.attention_dropout)
        and all(type(product) is nn.Linear for product in (*products, *readers))
        and all(product.bias is None for product in products)
        and len({reader.bias is None for reader in readers}) == 1
        and all(type(part).__module__ == home for part in parts)
    )


def _is_changed(module: nn.Module) -> bool:
    """Whether ``module`` computes otherwise than its class says: by hooks, checkpoints or compilation."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return "forward" in vars(module) or module._compiled_call_impl is not None or any(hooks)


def _joined(layer: Any) -> _Layer:
    attention, inner = layer.self_attn, layer.mlp
    width = int(attention.head_dim)
    reads, turns = layer.input_layernorm, (attention.q_proj, attention.k_proj)
    matrices = [interleaved(product.weight, width) for product in turns] + [attention.v_proj.weight]
    bias = None
    if attention.q_proj.bias is not None:
        bias = torch.cat([*(interleaved(product.bias, width) for product in turns), attention.v_proj.bias])
    gate_up = torch.cat([inner.gate_proj.weight, inner.up_proj.weight])
    return _Layer(
        queries=len(attention.q_proj.weight) // width,
        keys=len(attention.k_proj.weight) // width,
        width=width,
        # The weight of the norm is part of the matrix, so that the normalised states are not multiplied once more.
        qkv=torch.cat(matrices) * reads.weight,
        bias=bias,
        out=attention.o_proj.weight,
        gate_up=gate_up * layer.post_attention_layernorm.weight,
        down=inner.down_proj.weight,
        eps=(reads.variance_epsilon, layer.post_attention_layernorm.variance_epsilon),
    )


def _kept(cache: Any, number: int, keys: Tensor, values: Tensor) -> Iterator[Tensor]:
    """Keys and values [B, G, K, D], those of the cache as well where there is one."""
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    yield from (keys, values) if cache is None else cache.update(keys, values, number)


def _attend_shared(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, rows: int, tokens: int
) -> Tensor:
    """Computes ``_Layer.attend`` for one query a row; the first ``tokens`` are read once for ``rows`` neighbours.

    Decoding is bounded by how fast keys and values are read.
    """
    batch, _, heads, width = queries.shape
    groups = (batch // rows, rows, heads)
    # Scaled before the product, which has as many numbers as there are positions.
    asked = queries.view(*groups, width).transpose(1, 2) * width**-0.5  # [B / rows, G, rows, D]
    alone = asked.transpose(1, 2).reshape(batch, heads, 1, width)
    common = (asked @ keys[::rows, :, :tokens].mT).transpose(1, 2).reshape(batch, heads, 1, tokens)
    scores = torch.cat([common, alone @ keys[:, :, tokens:].mT], dim=-1).add_(mask)
    shares = torch.softmax(scores, dim=-1)
    common = shares[..., :tokens].reshape(*groups, tokens).transpose(1, 2) @ values[::rows, :, :tokens]
    found = shares[..., tokens:] @ values[:, :, tokens:]
    return found.transpose(1, 2) + common.transpose(1, 2).reshape(batch, 1, heads, width)


def _whole(
    layer: _Layer, number: int, hidden: Tensor, turns: Tensor, mask: Tensor | None, cache: Any
) -> Tensor:
    """A layer for every token: hidden states [B, T, H] in and out."""
    sizes = (layer.queries, layer.keys, layer.keys)
    queries, keys, values = layer.heads(hidden, turns, sizes, 0, 2)
    keys, values = _kept(cache, number, keys, values)
    shared = getattr(cache, "shared", None)
    if shared is None or mask is None or hidden.shape[1] > 1 or layer.queries != layer.keys:
        attended = layer.attend(queries, keys, values, mask)
    else:
        attended = _attend_shared(queries, keys, values, mask, *shared)
    found = layer.rest(hidden.flatten(0, 1), attended.flatten(2).flatten(0, 1))
    return found.view_as(hidden)


def _at_places(
    number: int,
    layer: _Layer,
    hidden: Tensor,
    turns: Tensor,
    mask: Tensor | None,
    cache: Any,
    rows: Tensor,
    places: Tensor,
) -> Tensor:
    """The last layer, whose result [N, H] is wanted for the tokens at ``places`` of ``rows`` alone."""
    keys, values = layer.heads(hidden, turns, (layer.keys, layer.keys), layer.queries, 1)
    keys, values = _kept(cache, number, keys, values)
    # Keys and values of every token are needed, because the picked ones look at them; queries only of the picked
    # ones.
    picked = _Picked.of(rows, places, len(hidden), keys.shape[2], mask, hidden.detach())
    asking = hidden[rows, places]
    (asked,) = layer.heads(asking, turns[rows, places], (layer.queries,), 0, 1)
    shape = (len(hidden), picked.mask.shape[2], *asked.shape[1:])
    queries = asked.new_zeros(shape).index_put((rows, picked.slots), asked)
    attended = layer.attend(queries, keys, values, picked.mask)[rows, picked.slots]
    return layer.rest(asking, attended.flatten(1))
