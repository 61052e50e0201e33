"""Log-probs of trained tokens under a model, and what a forward pass keeps for the backward pass.

Shapes: B rows of one micro-batch, T tokens, N trained tokens of the micro-batch, V vocabulary. A token at position t is
predicted from position t - 1.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from agentenv.errors import ConfigurationError
from agentenv.policies.attention import VARLEN, line_inputs, packs_rows
from agentenv.policies.forward import attention, logits_at, text_config
from agentenv.policies.line_attention import line_attention
from agentenv.policies.output_head import WHOLE, hidden_at, logit_tail, output_layer
from agentenv.policies.vision import PixelReader
from agentenv.trainers.learner.chunked import chunked_logprobs, whole_logprobs
from agentenv.trainers.learner.packing import Layout, Packed, TrainingRow


def scores_rows(model: Any) -> bool:
    """Whether ``model`` gives the logits of a row by itself, as a reader of passages does."""
    return hasattr(model, "row_logits")


def layout_of(model: Any, rows: Sequence[TrainingRow] = ()) -> Layout:
    """How ``rows`` are laid out for the attention of ``model``; padded where its kernel is not known.

    Rows that all have one length need no kernel that looks for their ends: the plain one is faster.
    """
    if scores_rows(model):
        return "rows"
    config = getattr(model, "config", None)
    name = "" if config is None else str(text_config(model)._attn_implementation)
    if packs_rows(name):
        # A window would need a mask of all pairs of tokens outside of a line.
        windowed = getattr(text_config(model), "sliding_window", None)
        return "rows" if len({len(row.ids) for row in rows}) == 1 and not windowed else "line"
    return "shared_line" if name == "flex_attention" else "padded"


def checkpoint_layers(model: Any) -> None:
    """Lets every layer of ``model`` keep its input alone for the backward pass, and compute the rest again there.

    Values and gradients stay the same; memory falls by about the number of tensors that a layer keeps, for one forward pass
    more. transformers' own switch works only in training mode, where dropout would act as well.
    """
    for layer in model.get_decoder().layers:
        layer.forward = _Checkpointed(layer.forward, compiled=layer._compiled_call_impl is not None)


class _Checkpointed:
    """A layer's ``forward`` that keeps its inputs alone; a compiled one is compiled within the checkpoint.

    torch compiles nothing of a layer whose ``forward`` is a checkpoint, and says so nowhere.
    """

    def __init__(self, forward: Callable[..., Any], *, compiled: bool) -> None:
        self._forward = forward
        self._compiled = compiled
        self._run = torch.compile(forward, dynamic=True) if compiled else forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # The reentrant kind gives no gradients where the input of a layer needs none, as under adapters over frozen
        # embeddings. Nothing in a layer is drawn by chance, so that the state of the generators need not be kept.
        return checkpoint(self._run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Checkpointed":
        # What is compiled belongs to the layer that was copied, and would compute with its weights.
        return _Checkpointed(copy.deepcopy(self._forward, memo), compiled=False)


def token_logprobs(
    model: Any,
    packed: Packed,
    temperature: float,
    *,
    entropy: bool = False,
    whole: int = WHOLE,
    image_reader: PixelReader | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [N] of the trained tokens, and on demand the entropy [N] of the distributions they are from.

    Args:
        model: A causal language model.
        packed: The micro-batch.
        temperature: Logits are divided by it.
        entropy: Whether it is wanted.
        whole: Most values of a matrix of logits.
        image_reader: Of the model's images; None where it reads text alone.

    Raises:
        ConfigurationError: there are images, and no reader.
    """
    if scores_rows(model):
        return _of_rows(model, packed, temperature, entropy=entropy)
    inputs: dict[str, Any] = {"use_cache": False}
    if packed.attends is not None and packed.positions is not None:
        masks = attention(model, packed.attends, packed.positions, packed.positions)
        inputs |= {"attention_mask": masks, "position_ids": packed.positions}
    elif packed.positions is not None:
        inputs |= {"position_ids": packed.positions} | _bounds(model, packed)
        if packed.line is not None:
            inputs["attention_mask"] = line_attention(model, packed.line, packed.positions)
    elif not packed.images:
        inputs |= _bounds(model, packed)
    ids = packed.ids
    if packed.images and image_reader is None:
        raise ConfigurationError(
            "an episode with images was given to a learner of text alone: train a policy that reads images"
        )
    if image_reader is not None:
        ids = image_reader.fed(ids, packed.images)
        inputs |= image_reader.inputs(packed.images, ids.device)
    if packed.turns is not None:
        inputs["position_ids"] = packed.turns
    # An output layer of another kind than a linear one has no such number, and its logits are made at once.
    words = getattr(output_layer(model), "out_features", 0)
    if len(packed.targets) * words > whole and (tail := logit_tail(model)) is not None:
        hidden = hidden_at(model, ids, packed.strips, packed.before, **inputs)
        layer = output_layer(model)
        chunk = max(1, whole // words)
        return chunked_logprobs(
            hidden, packed.targets, layer, tail, temperature, chunk=chunk, entropy=entropy
        )
    logits = logits_at(model, ids, packed.strips, packed.before, **inputs)
    return whole_logprobs(logits, packed.targets, temperature, entropy=entropy)


def _bounds(model: Any, packed: Packed) -> dict[str, Any]:
    """Where the rows of a line begin, for flash attention, which would read it from the positions in every layer.

    That would be several waits for the device a layer; here the lengths are known. A row that stands alone is a line too.
    """
    # A module without a configuration chooses no attention.
    name = str(text_config(model)._attn_implementation) if hasattr(model, "config") else ""
    if not packs_rows(name):
        return {}
    if packed.bounds is not None:
        return line_inputs(name, packed.ids, packed.bounds, packed.longest)
    rows, length = packed.ids.shape
    if rows > 1 or name == VARLEN:  # which leaves rows of one length to sdpa
        return {}
    bounds = torch.arange(2, dtype=torch.int32, device=packed.ids.device) * length
    return line_inputs(name, packed.ids, bounds, length)


def _of_rows(
    model: Any, packed: Packed, temperature: float, *, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Computes ``token_logprobs`` where the model itself applies the temperature; rows share what it has read."""
    cache = model.new_cache()
    logits = [
        model.row_logits(row.ids.tolist(), row.trained - 1, temperature=temperature, cache=cache)
        for row in packed.members
    ]
    return whole_logprobs(torch.cat(logits), packed.targets, 1.0, entropy=entropy)
