"""Whether a model computes the rows of a line by torch's own attention, which is tried before a run depends on it.

transformers asks a model nothing about an attention function that it did not bring itself. Some models do not pass on where
rows begin, some have heads of a size for which there is no kernel, some have no kernel for gradients on a card: whatever the
reason, a pass of two short rows shows it.

Shapes: R = 2 rows of 6 tokens, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from agentenv.errors import ConfigurationError
from agentenv.policies.attention import VARLEN, fits_varlen, line_inputs
from agentenv.policies.forward import probe, require_small, require_support, span, text_config


def take_varlen(model: Any) -> str:
    """Lets ``model`` attend to rows of a line by torch's own kernel, unless that fails or gives other log-probs.

    The attention of a vision tower stays what it was.

    Args:
        model: A transformers model that was just loaded, without adapters.

    Returns:
        Why its attention stays what it was; nothing where it has changed.
    """
    config = text_config(model)
    before = config._attn_implementation
    if before != "sdpa" or not fits_varlen(config):
        return "Its attention is not the plain one."
    ids = torch.stack([probe(model), probe(model).flip(0)])
    try:
        with torch.no_grad():
            plain = model.forward(input_ids=ids, use_cache=False).logits
        _set(model, VARLEN)
        if config._attn_implementation != VARLEN:
            return "It takes no attention function of others."
        gap = span(_line_logprobs(model, ids) - torch.log_softmax(plain.float(), -1))
        require_small(model, gap)
        require_support(model, 1)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # each architecture fails in a way of its own
        _set(model, before)
        return f"{type(error).__name__}: {error}".partition("\n")[0][:160]
    return ""


def _set(model: Any, name: str) -> None:
    config = text_config(model)
    parts = [key for key in model.config.sub_configs if getattr(model.config, key, None) is config]
    model.set_attn_implementation(dict.fromkeys(parts, name) if parts else name)


def _line_logprobs(model: Any, ids: Tensor) -> Tensor:
    """Log-probs [R, 6, V] of rows int64[R, 6] in one line, once a gradient has come back through the layers."""
    rows, size = ids.shape
    line = ids.reshape(1, -1)
    bounds = torch.arange(0, rows * size + 1, size, dtype=torch.int32, device=ids.device)
    positions = torch.arange(size, device=ids.device).repeat(rows)[None]
    weight = min(model.get_decoder().parameters(), key=Tensor.numel)
    with torch.enable_grad():
        inputs = line_inputs(VARLEN, line, bounds, size)
        logits = model.forward(input_ids=line, position_ids=positions, use_cache=False, **inputs).logits
    (slope,) = torch.autograd.grad(logits.float().square().mean(), weight, allow_unused=True)
    if slope is not None and not bool(slope.isfinite().all()):
        raise ConfigurationError("its gradients are not finite")
    return torch.log_softmax(logits.detach().float(), -1).reshape(rows, size, -1)
