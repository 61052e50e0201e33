"""A tokenizer that needs no download."""

from typing import Any

import pytest


@pytest.fixture
def byte_tokenizer() -> Any:
    """One token a byte, and the marks of ChatML."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(
        [AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>", "<pad>")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<pad>")
