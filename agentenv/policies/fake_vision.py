"""A small random vision-language model with its tokenizer and its image processor, for tests of what images change."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from agentenv.policies.tiny import BEGIN, END, PAD, build_tokenizer

Kind = Literal["qwen2_5_vl", "qwen3_vl"]

_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As that of Qwen2.5-VL, without its usual system message."""
_PATCH = {"qwen2_5_vl": 14, "qwen3_vl": 16}
_CONTEXT = 4096


def vision_tokenizer(texts: Iterable[str] = ()) -> Any:
    """A tokenizer whose template shows images as Qwen's do."""
    tokenizer = build_tokenizer(texts, names=("think", "action"))
    tokenizer.add_special_tokens({"extra_special_tokens": [PAD, BEGIN, END, *_VISION]})
    tokenizer.chat_template = _TEMPLATE
    tokenizer.model_max_length = _CONTEXT
    return tokenizer


def vision_processor(kind: Kind = "qwen2_5_vl", *, most_tokens: int = 16) -> Any:
    """An image processor that makes at most ``most_tokens`` tokens of a picture."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    side = 2 * _PATCH[kind]
    size = {"shortest_edge": 4 * side**2, "longest_edge": most_tokens * side**2}
    return Qwen2VLImageProcessorPil(size=size, patch_size=_PATCH[kind], temporal_patch_size=2, merge_size=2)


def vision_model(
    tokenizer: Any, kind: Kind = "qwen2_5_vl", *, seed: int = 0, spread: float = 0.1, width: int = 32
) -> Any:
    """A random model of two layers below a vision tower of two blocks.

    Args:
        tokenizer: Of ``vision_tokenizer``.
        kind: The model type.
        seed: Of the weights; the global generator of torch is seeded with it.
        spread: Deviation of the weights.
        width: Of the hidden state, four heads wide, and a multiple of 32.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    tokens = {
        name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, _VISION, strict=True)
    }
    head = width // 4
    text: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 16) * 16,
        "hidden_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head,
        "intermediate_size": 64,
        "max_position_embeddings": _CONTEXT,
        "initializer_range": spread,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [head // 4, head // 8, head // 8],
        },
    }
    vision: dict[str, Any] = {
        "depth": 2,
        "hidden_size": max(32, width // 2),
        "out_hidden_size": width,
        "num_heads": 2,
        "intermediate_size": 64,
        "patch_size": _PATCH[kind],
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "initializer_range": spread,
    }
    if kind == "qwen2_5_vl":
        vision |= {"window_size": 56, "fullatt_block_indexes": [1]}
    else:
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(seed)
    return AutoModelForImageTextToText.from_config(config).eval()


def vision_policy(folder: Path, texts: Iterable[str] = (), kind: Kind = "qwen2_5_vl", **shape: Any) -> Any:
    """Writes a random vision-language model with tokenizer and image processor for ``hf:FOLDER``.

    Args:
        folder: Where to.
        texts: What the tokenizer is trained on.
        kind: The model type.
        shape: ``seed``, ``spread`` and ``width`` as of ``vision_model``, ``most_tokens`` as of ``vision_processor``.

    Returns:
        The model.
    """
    tokenizer = vision_tokenizer(texts)
    most = {name: shape.pop(name) for name in ("most_tokens",) if name in shape}
    model = vision_model(tokenizer, kind, **shape)
    for part in (model, tokenizer, vision_processor(kind, **most)):
        part.save_pretrained(folder)
    return model
