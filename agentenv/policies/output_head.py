"""The output layer of a causal language model apart from the rest, so that logits can be made for a few tokens at a time.

Between the output layer and the logits, some models scale them (Granite, Cohere) or bend them towards a bound (Gemma). The
constants are read from the model's configuration and compared once with the model's own ``forward``.

Shapes: B rows, T tokens, N picked places, n of them at a time, H hidden size, V vocabulary.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from agentenv.policies.lora import is_adapted

WHOLE = 2**26
"""Most float32 values of a matrix of logits [N, V] (256 MiB); larger ones are made a few tokens at a time."""
_FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
_DIVISORS = ("logits_scaling",)
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


@dataclass(frozen=True)
class LogitTail:
    """What a model does to the outputs of its output layer: logits = cap tanh(scale output / cap)."""

    scale: float = 1.0
    cap: float | None = None
    """None bends nothing."""

    def apply_(self, outputs: Tensor) -> Tensor:
        """Turns outputs [..., V] into logits, in place."""
        if self.scale != 1.0:
            outputs.mul_(self.scale)
        if self.cap is not None:
            outputs.div_(self.cap).tanh_().mul_(self.cap)
        return outputs


# Weak, so that a model that nobody uses any more is not kept for its constants.
_known: "WeakKeyDictionary[Any, LogitTail | None]" = WeakKeyDictionary()


def output_layer(model: Any) -> Any:
    """The layer that turns hidden states [..., H] into outputs [..., V], with its adapter where it has one."""
    return _base(model).get_output_embeddings()


def logit_tail(model: Any) -> LogitTail | None:
    """What follows the output layer of ``model``; None where this is not known, and only whole logits are right."""
    base = _base(model)
    if base not in _known:
        _known[base] = _compared(base)
    return _known[base]


def hidden_at(model: Any, ids: Tensor, rows: Tensor, places: Tensor, **inputs: Any) -> Tensor:
    """What the output layer of ``model`` reads [N, H] at ``places`` of ``rows``; it is given a single token itself.

    Passes of other threads through the same model are not touched.

    Args:
        model: A transformers causal language model, with adapters or without.
        ids: int64[B, T], what is fed.
        rows: int64[N].
        places: int64[N], of the tokens in what is fed.
        inputs: What else ``forward`` takes.
    """
    base = _base(model)
    read: list[Tensor] = []
    own = threading.get_ident()

    def take(_: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if threading.get_ident() != own:
            return args
        read.append(args[0][rows, places])
        # One token goes on, because `forward` wants logits: of the others no product with the vocabulary is made.
        return (args[0][:1, :1], *args[1:])

    with _hooked(base.get_output_embeddings().register_forward_pre_hook, take):
        base.forward(input_ids=ids, **inputs)
    return read[0]


def logits_of(
    model: Any, hidden: Tensor, temperature: float = 1.0, *, whole: int = WHOLE
) -> Iterator[Tensor]:
    """Logits over the temperature, float32[n, V], of what the output layer reads [N, H], for a few places at a time.

    Where ``logit_tail`` is not known, they are what the output layer gives.

    Args:
        model: A transformers causal language model, with adapters or without.
        hidden: As of ``hidden_at``.
        temperature: Logits are divided by it.
        whole: Most values of a matrix of logits.
    """
    layer, tail = output_layer(model), logit_tail(model) or LogitTail()
    chunk = max(1, whole // max(1, getattr(layer, "out_features", 0)))
    for read in torch.split(hidden, chunk):
        yield tail.apply_(layer(read).float()).div_(temperature)


def logits_after(
    model: Any, ids: Tensor, places: Tensor, temperature: float, *, whole: int = WHOLE, **inputs: Any
) -> Iterator[Tensor] | None:
    """Logits over the temperature, float32[n, V], after the tokens at ``places`` of a row, for a few places at a time.

    Args:
        model: A transformers causal language model, with adapters or without.
        ids: int64[1, T], what is fed.
        places: int64[N].
        temperature: Logits are divided by it.
        whole: Most values of a matrix of logits.
        inputs: What else ``forward`` takes.

    Returns:
        None where all logits are no larger than that, or only whole logits are right.
    """
    words = getattr(output_layer(model), "out_features", 0)
    if len(places) * words <= whole or logit_tail(model) is None:
        return None
    hidden = hidden_at(model, ids, torch.zeros_like(places), places, use_cache=False, **inputs)
    return logits_of(model, hidden, temperature, whole=whole)


@torch.no_grad()
def _compared(base: Any) -> LogitTail | None:
    config, layer = base.config.get_text_config(decoder=True), base.get_output_embeddings()
    named = {name: getattr(config, name, None) or getattr(base, name, None) for name in (*_FACTORS, *_CAPS)}
    scale = 1.0
    for name in _FACTORS:
        scale *= float(named[name] or 1.0)
    for name in _DIVISORS:
        scale /= float(getattr(config, name, None) or 1.0)
    cap = next((float(value) for name in _CAPS if (value := named[name])), None)
    made: list[Tensor] = []

    def keep(_: Any, __: Any, outputs: Tensor) -> None:
        made.append(outputs.clone())

    ids = torch.tensor([[7, 11]], device=layer.weight.device) % int(config.vocab_size)
    device = layer.weight.device.type
    # Without rounding, because both sides are compared by the precision of the weights.
    with _hooked(layer.register_forward_hook, keep), torch.autocast(device, enabled=False):
        logits = base.forward(input_ids=ids, use_cache=False).logits
    # Some models divide by the number that others multiply with.
    for tail in (LogitTail(scale, cap), LogitTail(1 / scale, cap)):
        if made and _equal(tail.apply_(made[0].double()), logits.double(), made[0].dtype):
            return tail
    return None


def _equal(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    rounding = 8 * torch.finfo(dtype).eps
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=rounding, atol=rounding)


@contextmanager
def _hooked(register: Any, hook: Any) -> Iterator[None]:
    """In it ``hook`` acts on the passes of this thread; those of others through the same model are not touched."""
    own = threading.get_ident()

    def ours(*given: Any) -> Any:
        if threading.get_ident() == own:
            return hook(*given)
        return given[1] if len(given) == 2 else None

    handle = register(ours)
    try:
        yield
    finally:
        handle.remove()


def _base(model: Any) -> Any:
    return model.get_base_model() if is_adapted(model) else model
