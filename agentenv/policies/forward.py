"""One forward pass of any causal language model, as the sampler and the learner both need it.

The pass is the model's own ``forward``, so that whatever it does to its logits (scaling, soft-capping) is done here as well.
Attention masks are ours: rows of one batch stand at different lengths, and rows of one prompt share it. A model that then
computes something else than its ``forward`` does on the plain sequence is refused when it is loaded.

Shapes: B rows, Q tokens that are fed, K positions that they may look at, N picked places, V vocabulary, L layers, H heads of
keys and values, D size of a head.
"""

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache as cached
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agentenv.errors import ConfigurationError
from agentenv.policies.fused_decoder import FusedDecoder, fused_decoder
from agentenv.policies.lora import is_adapted

Attention = Tensor | Mapping[str, Tensor]
"""[B, 1, Q, K], bool or what is added to scores, or one such mask for each kind of layer."""

_TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-2}  # nats; halves of a number are rounded by far more
_ROUNDED = 0.5
_PROBE_WINDOW = 3
_OTHER_WINDOWS = (
    "attention_window_size",
    "index_block_size",
    "keep_window_size",
    "local_attention",
    "sliding_window_size",
    "window_size",
)
"""What configurations call windows that are applied within the layers, where the masks that they are given do not reach."""


class CacheShape(NamedTuple):
    """What a model keeps of a token: keys and values of one size in every layer."""

    layers: int
    heads: int
    width: int


class SharedPrompts(NamedTuple):
    """Neighbouring rows of a cache that begin with the same tokens: groups of ``rows``, alike in their first ``tokens``."""

    rows: int
    tokens: int


class RowCache:
    """A key/value cache whose rows stand at different lengths; has what transformers models ask of a cache."""

    def __init__(self, kv: Tensor, shared: SharedPrompts | None = None) -> None:
        self.kv = kv  # [L, 2, B, H, K, D]
        self.shared = shared  # None where nothing is known of rows that begin alike
        self.rows = torch.arange(kv.shape[2], device=kv.device)[:, None]
        self.positions = torch.zeros_like(self.rows)  # [B, Q], set before each forward

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes keys and values [B, H, Q, D] at ``positions`` and returns those of all positions."""
        layer = self.kv[layer_idx]
        layer[0][self.rows, :, self.positions] = keys.transpose(1, 2)
        layer[1][self.rows, :, self.positions] = values.transpose(1, 2)
        return layer[0], layer[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length that the model may assume when no positions are given; they always are."""
        return 0


class _Witness:
    """A cache that keeps nothing but the shapes that it is given."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.Size, torch.Size]] = {}

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        self.seen[layer_idx] = keys.shape, values.shape
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def autocast(device: torch.device, *, enabled: bool = True) -> torch.autocast:
    """Within the block matrices are multiplied in bfloat16, on devices for which torch can; on others nothing changes."""
    known = device.type in ("cpu", "cuda", "xpu", "mps")
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled and known)


def logits_at(
    model: Any,
    ids: Tensor,
    rows: Tensor,
    places: Tensor,
    *,
    cache: Any = None,
    decoder: FusedDecoder | None = None,
    **inputs: Any,
) -> Tensor:
    """Logits [N, V] of ``model.forward`` after the tokens at ``places`` of ``rows``; no others are computed.

    Passes of other threads through the same model are not touched: a checkpoint is looked at while episodes go on.

    Args:
        model: A transformers causal language model, with adapters or without.
        ids: int64[B, T], what is fed.
        rows: int64[N].
        places: int64[N], of the tokens in what is fed.
        cache: Keys and values of what was fed before; None is without.
        decoder: The model's, where one is at hand; None makes one of the present weights where the model allows it.
        inputs: What else ``forward`` takes.
    """
    decoder = decoder or fused_decoder(model)
    # Without a mask transformers reads from the positions where rows of a line begin, which the fused pass does not.
    line = inputs.get("position_ids") is not None and inputs.get("attention_mask") is None
    if decoder is not None and len(rows) and not line:
        return decoder.logits_at(ids, rows, places, cache=cache, **inputs)
    base = model.get_base_model() if is_adapted(model) else model
    if cache is not None:
        inputs[cache_argument(base.__class__)] = cache
    calls, own = 0, threading.get_ident()

    def pick(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        nonlocal calls
        if threading.get_ident() != own:
            return args
        calls += 1
        return (args[0][rows, places][None], *args[1:])

    hook = base.get_output_embeddings().register_forward_pre_hook(pick)
    try:  # not through ``__call__``, whose hooks gather the weights of a sharded model and have run
        logits: Tensor = base.forward(input_ids=ids, **inputs).logits
    finally:
        hook.remove()
    return logits[0] if calls else logits[rows, places]


@cached
def cache_argument(kind: type) -> str:
    """What ``forward`` of this class calls its cache: ``past_key_values``, or ``cache`` in transformers from 5.24 on."""
    return "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"  # type: ignore[attr-defined]


def attention(model: Any, visible: Tensor, queries: Tensor, keys: Tensor) -> Attention:
    """The masks of the layers of ``model``: what is visible, within the window of each kind of layer.

    Args:
        model: Whose configuration says which layers look how far.
        visible: bool[B, 1, Q, K].
        queries: int64[B, Q], positions of the tokens that are fed.
        keys: int64[B or 1, K], positions of what they may look at.
    """
    config = text_config(model)
    kinds = dict.fromkeys(getattr(config, "layer_types", None) or ())
    if not kinds:
        kinds = {"sliding_attention" if getattr(config, "sliding_window", None) else "full_attention": None}
    masks = {kind: _as_taken(model, visible & _reach(config, kind, queries, keys)) for kind in kinds}
    return next(iter(masks.values())) if len(masks) == 1 else masks


def _as_taken(model: Any, mask: Tensor) -> Tensor:
    """The mask as the model's attention takes it: bool, or what is added to the scores where it is computed step by step."""
    if text_config(model)._attn_implementation != "eager":
        return mask
    zeros = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device)
    return zeros.masked_fill(~mask, torch.finfo(model.dtype).min)


def _reach(config: Any, kind: str, queries: Tensor, keys: Tensor) -> Tensor:
    """bool[B, 1, Q, K]: which positions a layer of this kind may look at at all."""
    far, near = queries[:, None, :, None], keys[:, None, None, :]
    if kind == "sliding_attention" and config.sliding_window:
        return far - near < int(config.sliding_window)
    if kind == "chunked_attention" and config.attention_chunk_size:
        size = int(config.attention_chunk_size)
        return far // size == near // size
    return torch.ones((), dtype=torch.bool, device=queries.device)


def text_config(model: Any) -> Any:
    """The part of the model's configuration that is about text."""
    return model.config.get_text_config(decoder=True)


def caps_scores(model: Any) -> bool:
    """Whether the attention of ``model`` soft-caps its scores, as that of Gemma 2 does.

    transformers before 5.24 takes sdpa for such a model unless told otherwise, which leaves the caps out without a word.
    """
    return bool(getattr(text_config(model), "attn_logit_softcapping", None))


@torch.no_grad()
def require_support(model: Any, context_tokens: int) -> CacheShape:
    """What ``model`` keeps of a token, once it has been seen to compute here what its ``forward`` does on six tokens.

    Args:
        model: A transformers causal language model.
        context_tokens: Longest sequence that will be asked for.

    Raises:
        ConfigurationError: it cannot be sampled from or trained here; says why.
    """
    taken = text_config(model)._attn_implementation
    if caps_scores(model) and taken != "eager":
        raise ConfigurationError(
            f"models of the type {model.config.model_type!r} cap their attention scores, and {taken!r} does not do so here: "
            "set compute.attention to 'auto', or load the model with attn_implementation='eager'"
        )
    for window in _OTHER_WINDOWS:
        size = getattr(text_config(model), window, None)
        if isinstance(size, int) and 0 < size < context_tokens:
            raise refusal(
                model,
                f"their attention is limited by {window}={size}, which is not supported for contexts of {context_tokens} "
                "tokens",
            )
    try:
        with _narrow(text_config(model)):
            shape = _cache_shape(model)
            gap = _largest_gap(model, shape)
    except _Unsupported as error:
        raise refusal(model, str(error)) from error
    except Exception as error:  # each architecture fails in a way of its own
        reason = f"{type(error).__name__} {error}".partition("\n")[0][:160]
        raise refusal(
            model, f"a forward pass with positions, attention mask and cache from agentenv failed ({reason})"
        ) from error
    require_small(model, gap)
    return shape


def require_small(model: Any, gap: float) -> None:
    """Refuses ``model`` where its log-probs here are ``gap`` nats from its own ``forward``, and that is no rounding.

    Raises:
        ConfigurationError: it is refused.
    """
    if gap > _TOLERANCE.get(model.dtype, _ROUNDED):
        raise refusal(
            model,
            f"their log-probs would be wrong by {gap:.2g} nats, because they ignore the positions or masks that agentenv "
            "passes",
        )


class _Unsupported(Exception):
    """Why a model cannot be used."""


def refusal(model: Any, reason: str) -> ConfigurationError:
    """The error that says why ``model`` is refused."""
    return ConfigurationError(
        f"models of the type {model.config.model_type!r} can be neither sampled from nor trained here: {reason}. vllm:PATH "
        "may evaluate them"
    )


@contextmanager
def _narrow(config: Any) -> Iterator[None]:
    """Within the block windows are so narrow that the few tokens of the probe reach beyond them."""
    names = [name for name in ("sliding_window", "attention_chunk_size") if getattr(config, name, None)]
    held = {name: getattr(config, name) for name in names}
    try:
        for name in names:
            setattr(config, name, _PROBE_WINDOW)
        yield
    finally:
        for name, value in held.items():
            setattr(config, name, value)


def _cache_shape(model: Any) -> CacheShape:
    witness = _Witness()
    positions = torch.arange(2, device=model.device)[None]
    visible = torch.ones((1, 1, 2, 2), dtype=torch.bool, device=model.device).tril()
    base = model.get_base_model() if is_adapted(model) else model
    base.forward(
        input_ids=probe(model)[None, :2],
        attention_mask=attention(model, visible, positions, positions),
        position_ids=positions,
        use_cache=True,
        **{cache_argument(base.__class__): witness},
    )
    shapes = {shape for pair in witness.seen.values() for shape in pair}
    layers = len(witness.seen)
    if len(shapes) != 1 or set(witness.seen) != set(range(layers)):
        raise _Unsupported(
            "their cache holds something other than keys and values of one size in every layer"
        )
    _, heads, _, width = shapes.pop()
    if layers < int(text_config(model).num_hidden_layers):
        raise _Unsupported(
            f"only {layers} of their {text_config(model).num_hidden_layers} layers keep keys and values"
        )
    return CacheShape(layers, heads, width)


def _largest_gap(model: Any, shape: CacheShape) -> float:
    """Largest distance in log-prob from a plain pass: of rows of two lengths with a cache, and of rows that share a prompt.

    0 where the plain pass itself is not finite, which is seen elsewhere.
    """
    ids = probe(model)
    plain = torch.log_softmax(model.forward(input_ids=ids[None], use_cache=False).logits[0].float(), -1)
    if not bool(plain.isfinite().all()):
        return 0.0
    kv = torch.zeros(
        (shape.layers, 2, 2, shape.heads, 6, shape.width), dtype=model.dtype, device=model.device
    )
    fed = torch.stack([ids[:4], torch.cat([ids[:2], ids[:2]])])  # the second row is two tokens and padding
    places = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]], device=model.device)
    later = torch.tensor([[4, 2], [2, 3]], device=model.device)  # then the first row is rewound
    cached = [
        step(model, RowCache(kv[..., :4, :]), fed, places, torch.tensor([3, 1], device=model.device), seen=4),
        step(model, RowCache(kv), ids[[4, 2]][:, None], later[0][:, None], seen=5),
        step(model, RowCache(kv), ids[[2, 3]][:, None], later[1][:, None], seen=4),
    ]
    wanted = plain[[3, 1, 4, 2, 2, 3]]
    shared = _shared(model, ids)
    gaps = [torch.log_softmax(torch.cat(cached).float(), -1) - wanted, shared - plain[[3, 3]]]
    return max(span(gap) for gap in gaps)


def span(gap: Tensor) -> float:
    """The largest distance in ``gap``; infinite where one is not finite."""
    return float(gap.abs().max()) if bool(gap.isfinite().all()) else float("inf")


def _shared(model: Any, ids: Tensor) -> Tensor:
    """Log-probs [2, V] after two equal tails of two tokens that share a prompt of two."""
    positions = torch.tensor([[0, 1, 2, 3, 2, 3]], device=ids.device)
    owners = torch.tensor([[-1, -1, 0, 0, 1, 1]], device=ids.device)
    visible = ((owners[:, None, :] == -1) | (owners[:, None, :] == owners[:, :, None])).tril()[:, None]
    logits = logits_at(
        model,
        ids[[0, 1, 2, 3, 2, 3]][None],
        torch.tensor([0, 0], device=ids.device),
        torch.tensor([3, 5], device=ids.device),
        attention_mask=attention(model, visible, positions, positions),
        position_ids=positions,
        use_cache=False,
    )
    return torch.log_softmax(logits.float(), -1)


def probe(model: Any) -> Tensor:
    """Six ids, int64[6], that no tokenizer gives a meaning of its own."""
    return torch.tensor([7, 11, 3, 9, 5, 12], device=model.device) % int(text_config(model).vocab_size)


def step(
    model: Any,
    cache: RowCache,
    ids: Tensor,
    positions: Tensor,
    last: Tensor | None = None,
    *,
    seen: int,
    vision: Mapping[str, Tensor] | None = None,
    decoder: FusedDecoder | None = None,
) -> Tensor:
    """Feeds a cache more tokens.

    Args:
        model: A transformers causal language model.
        cache: Gets keys and values of the tokens.
        ids: int64[B, Q].
        positions: int64[B, Q].
        last: int64[B], of each row the token whose logits are wanted; None is the final one.
        seen: One more than the largest position; read from the device it would cost a wait for it.
        vision: What ``forward`` takes for images, with the positions that embeddings turn by in the place of ``positions``.
        decoder: See ``logits_at``.

    Returns:
        Logits [B, V].
    """
    # Attention reads as far as the longest row is filled, and not the room that the slots have.
    view = RowCache(cache.kv[:, :, :, :, :seen], cache.shared)
    view.positions = positions
    keys = torch.arange(seen, device=ids.device)
    # By positions and not by order: rows of a batch stand at different lengths, and behind its own a row has what
    # others left.
    visible = keys <= positions[:, None, :, None]
    rows = torch.arange(len(ids), device=ids.device)
    return logits_at(
        model,
        ids,
        rows,
        torch.full_like(rows, ids.shape[1] - 1) if last is None else last,
        attention_mask=attention(model, visible, positions, keys[None]),
        cache=view,
        use_cache=True,
        decoder=decoder,
        **{"position_ids": positions, **(vision or {})},
    )
