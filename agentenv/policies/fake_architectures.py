"""A small random model of any causal language model of transformers, for tests of what depends on the architecture."""

from contextlib import suppress
from typing import Any

VOCABULARY = 99
WINDOW = 6
"""Tokens that a layer with a sliding window looks at."""
CONTEXT = 64

_WIDTH, _HEADS, _KEY_HEADS, _LAYERS = 32, 4, 2, 2
_SIZES: dict[str, Any] = {
    **dict.fromkeys(
        ("vocab_size", "vocab_size_per_layer_input", "text_vocab_size", "audio_vocab_size"), VOCABULARY
    ),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "model_dim"), _WIDTH),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers", "num_decoder_layers"), _LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), _HEADS),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _KEY_HEADS),
    **dict.fromkeys(("head_dim", "attention_head_dim", "kv_channels", "d_kv"), _WIDTH // _HEADS),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dim_feedforward"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "ffn_hidden_size", "d_inner"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), CONTEXT),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("sliding_window", "window_size", "attention_chunk_size"), WINDOW),
    **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank",), 16),
    "qk_rope_head_dim": 4,
    "rotary_dim": 4,
    "logits_scaling": 8.0,
    **dict.fromkeys(("expand", "mamba_expand"), 1),
    "mamba_d_ssm": _WIDTH,
    "mamba_n_heads": _HEADS,
    "mamba_d_head": _WIDTH // _HEADS,
    **dict.fromkeys(
        ("keep_window_size", "local_attention", "attention_window_size", "index_block_size"), WINDOW
    ),
    "hidden_size_per_layer_input": 8,
    "word_embed_proj_dim": _WIDTH,
    "initializer_range": 0.3,
    "init_std": 0.3,
    **dict.fromkeys(
        ("dropout", "attention_dropout", "hidden_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0
    ),
}
_MOST = 20_000_000  # parameters; beyond, rounding alone moves log-probs by more than is compared
_SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id")


def architectures() -> list[str]:
    """The model types of every causal language model in transformers."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_model(model_type: str, **changes: Any) -> Any:
    """A random model of this type with two layers of width 32, and with windows of ``WINDOW`` tokens where it has some.

    Args:
        model_type: One of ``architectures()``.
        changes: Values of the configuration.

    Raises:
        Exception: the architecture cannot be made so small; whatever it raises.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from agentenv.policies.forward import caps_scores

    kind = CONFIG_MAPPING[model_type]
    values = _values(kind) | {"is_decoder": True} | changes
    count = 0
    # First without numbers, because those of a part that stays large take half a minute; not every model can be made so.
    with suppress(Exception), torch.device("meta"):
        count = _parameters(AutoModelForCausalLM.from_config(kind(**values)))
    if count <= _MOST:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(kind(**values)).eval()
        count = _parameters(model)
    if count > _MOST:
        raise ValueError(f"{model_type} has {count} parameters however small its configuration is made")
    with torch.no_grad():  # some types begin with zeros, which would hide what is done to them
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
    if caps_scores(model):  # as it is loaded from a folder
        model.set_attn_implementation("eager")
    return model


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _fits(name: str, standard: Any) -> bool:
    """Whether a size takes the place of the standard value."""
    if standard is None:
        return name in ("head_dim", "num_key_value_heads", "audio_vocab_size")
    return isinstance(standard, int | float)


def _values(kind: Any) -> dict[str, Any]:
    """What makes a configuration of the class ``kind`` small."""
    made = kind()
    standard = made.to_dict()
    values = {name: _SIZES[name] for name in standard if name in _SIZES and _fits(name, standard[name])}
    if kinds := standard.get("layer_types"):
        both = list(dict.fromkeys(kinds))
        values["layer_types"] = [both[i % len(both)] for i in range(max(_LAYERS, len(both)))]
        if "num_hidden_layers" in values:
            values["num_hidden_layers"] = len(values["layer_types"])
    values |= {name: 0 if name == "pad_token_id" else 1 for name in _SPECIAL if name in standard}
    for name in getattr(kind, "sub_configs", {}):
        part: Any = getattr(made, name, None)
        if hasattr(part, "to_dict"):
            values[name] = _values(type(part)) | {"model_type": part.model_type}
    return values
