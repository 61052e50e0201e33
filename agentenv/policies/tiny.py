"""The tiny policy: a Qwen2 of about 2 M parameters with its own tokenizer, small enough to train on two cores.

Its weights are package data in ``tiny/`` beside this file; ``agentenv warmstart`` makes them from nothing.
"""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

PAD, BEGIN, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
TAGS = ("search", "read", "information", "answer", "think")
VOCABULARY = 1024
CONTEXT_TOKENS = 1024

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def shipped_weights() -> Path:
    """The folder of the weights that come with the package."""
    return Path(str(files("agentenv.policies") / "tiny"))


def build_tokenizer(texts: Iterable[str], names: Sequence[str] = TAGS) -> Any:
    """A byte-level BPE of ``VOCABULARY`` pieces, digits apart and each tag of ``names`` one piece, trained on ``texts``.

    Text is cut as Qwen2 cuts it, because loaders use that way for every Qwen2 folder, whatever its tokenizer file says.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    tags = [tag for name in names for tag in (f"<{name}>", f"</{name}>")]
    tokenizer = Tokenizer(models.BPE())
    like = Qwen2Tokenizer().backend_tokenizer
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = (
        like.normalizer,
        like.pre_tokenizer,
        like.decoder,
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, clean_up_tokenization_spaces=False
    )
    fast.add_tokens(tags)
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = CONTEXT_TOKENS
    return fast


def build_model(tokenizer: Any, *, layers: int = 4, heads: int = 6, inner: int = 512) -> Any:
    """A fresh model: layers of ``heads`` heads of 32, a feed-forward part of width ``inner``, tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=32 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=inner,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)
