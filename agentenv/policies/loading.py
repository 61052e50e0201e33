"""From a folder to a model on its device: weights are read once, in the number format in which they are used."""

from pathlib import Path
from typing import Any

from agentenv.core.io.model_files import LOCAL, check_model_files, check_model_folder
from agentenv.errors import CheckpointMismatch, ConfigurationError, first_line
from agentenv.policies.attention import VARLEN, serve_masks
from agentenv.policies.compute import Compute, ComputeSettings
from agentenv.policies.forward import caps_scores, text_config
from agentenv.policies.line_probe import take_varlen
from agentenv.policies.lora import base_and_adapter, merged_into
from agentenv.policies.output_head import logit_tail
from agentenv.policies.soundness import first_not_finite, not_finite
from agentenv.policies.tokenizer_files import read_tokenizer

_VERSIONS = 32
"""Most versions of a layer that torch compiles."""


def load_model(path: Path, settings: ComputeSettings) -> tuple[Any, Any]:
    """Model and tokenizer of a local folder; a LoRA adapter's weights are added to those of its base.

    Args:
        path: The folder.
        settings: Where the model computes, and how.

    Raises:
        CheckpointMismatch: the folder holds no model, weights of another architecture, or some that are not finite.
        ConfigurationError: the model cannot compute as ``settings`` say.
        MissingExtra: the folder holds an adapter, and peft is not installed.
    """
    compute = settings.resolved()
    base, adapter = base_and_adapter(path)
    check_model_folder(path, base)
    if not (base / "config.json").exists() and (base / "policy").is_dir():
        raise CheckpointMismatch(f"{base} holds a run and no model; its trained policy is {base / 'policy'}")
    check_model_files(base)
    model, tokenizer = _read(path, base, compute)
    model = moved(model, compute.device)
    chosen = settings.attention != "auto"
    if not chosen and caps_scores(model):
        model.set_attn_implementation("eager")
    elif chosen or compute.attention != "sdpa":  # else each model takes the best that it can
        _attend(model, compute, chosen=chosen)
    model = merged_into(model, adapter) if adapter else model
    if (name := first_not_finite(model.named_parameters())) is not None:
        raise not_finite(path, name)
    return model.eval(), tokenizer


def compile_layers(model: Any) -> None:
    """Lets torch compile every layer at its first pass, once for all layers and for passes of any shape.

    What stands around the layers is not compiled: the hooks with which logits are picked differ from pass to pass. A copy of
    the model is not compiled.
    """
    logit_tail(model)  # a pass of its own over two tokens, which would take a version otherwise
    decoder = model.get_decoder()
    decoder.register_forward_pre_hook(_allow_versions)
    model.get_input_embeddings().register_forward_hook(_with_gradient)
    for layer in decoder.layers:
        layer.compile(dynamic=True)


def has_compiled_layers(model: Any) -> bool:
    """Whether ``compile_layers`` was called for ``model``; a copy of it has none."""
    layers = getattr(model.get_decoder(), "layers", ()) if hasattr(model, "get_decoder") else ()
    return any(layer._compiled_call_impl is not None for layer in layers)


def _with_gradient(_: Any, __: Any, embedded: Any) -> Any:
    """Lets what enters the first layer need a gradient wherever that of the other layers does.

    Above frozen embeddings, as with adapters, it would need none, and the first layer would take a version of its own: half
    a minute and more, for a few products that are saved in one layer.
    """
    import torch

    if not torch.is_grad_enabled() or embedded.requires_grad:
        return embedded
    # A copy, because some models write into what was embedded, such as images, and torch refuses that for a leaf.
    return embedded.requires_grad_().clone()


def _allow_versions(*_: Any) -> None:
    """Sets what torch compiles of a layer, before each pass since later versions of torch keep it for each thread."""
    import torch

    # Sizes that are equal by chance, such as those of a batch and of a head, would be taken for one, and the version would
    # serve no other batch.
    torch.fx.experimental._config.use_duck_shape = False
    config = torch._dynamo.config
    if not config.allow_unspec_int_on_nn_module:
        # Sampling and learning, with and without gradients, adapters and masks, take a version each; beyond eight torch
        # would go on without compiling.
        config.cache_size_limit = max(config.cache_size_limit, _VERSIONS)
        # Each layer knows its number, by which it finds its part of the cache. It would take a version for each number.
        config.allow_unspec_int_on_nn_module = True


def moved(model: Any, device: Any) -> Any:
    """``model`` on ``device``; weights that were one tensor stay one, which torch does not see to on every device."""
    if model.device == device:
        return model
    model = model.to(device)
    model.tie_weights()
    return model


def hide_progress_bars() -> None:
    """Keeps transformers from drawing a bar whenever it reads or writes weights."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _read(path: Path, base: Path, compute: Compute) -> tuple[Any, Any]:
    hide_progress_bars()
    read = "model"
    try:
        model, report = _class_of(base).from_pretrained(
            str(base), dtype=compute.dtype, output_loading_info=True, use_safetensors=True, **LOCAL
        )
        read = "tokenizer"
        tokenizer = read_tokenizer(base)
    except Exception as error:  # a damaged file makes each library raise something of its own
        said = first_line(error).removesuffix(":")
        raise CheckpointMismatch(f"{path} holds no {read} that can be loaded: {said}") from error
    if len(tokenizer) <= len(tokenizer.all_special_tokens):  # made of nothing, for want of files
        raise CheckpointMismatch(
            f"{path} holds no tokenizer that can be loaded: save it beside the model (tokenizer.save_pretrained)"
        )
    if report["missing_keys"] or report["unexpected_keys"]:
        odd = sorted(report["missing_keys"] or report["unexpected_keys"])[:3]
        raise CheckpointMismatch(f"the weights in {path} are of another architecture than its config: {odd}")
    return model, tokenizer


def _class_of(base: Path) -> Any:
    """What opens the model in ``base``: transformers has a class of its own for most vision-language models."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )

    kind = AutoConfig.from_pretrained(str(base), **LOCAL).model_type
    if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or kind not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


def _attend(model: Any, compute: Compute, *, chosen: bool) -> None:
    """Sets the attention of ``model``; one that it does not have is refused where it was chosen by name."""
    name = {"flex": "flex_attention"}.get(compute.attention, compute.attention)
    serve_masks(name)
    reason = ""
    try:
        if name == VARLEN:
            reason = take_varlen(model)
        else:
            model.set_attn_implementation(name)
    except (ValueError, ImportError) as error:
        reason = first_line(error)
    if chosen and text_config(model)._attn_implementation != name:
        raise ConfigurationError(
            f"models of the type {model.config.model_type!r} cannot compute compute.attention={compute.attention!r}: set it "
            f"to 'auto'. {reason}".strip()
        )
