"""A reader of passages that knows nothing, for tests."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertTokenizerFast

from agentenv.policies.reader import ReaderPolicy
from agentenv.policies.reader_model import PassageReader, ReaderConfig


def random_reader(texts: Iterable[str], *, seed: int = 0, spread: float = 0.5, **sizes: Any) -> ReaderPolicy:
    """A reader of passages with random weights: two layers of width 16 over words of ``texts``.

    Args:
        texts: Whose words are its vocabulary.
        seed: Of the weights; the global generator of torch is seeded with it.
        spread: Deviation of the weights of the heads, so that actions differ in probability.
        sizes: Of ``ReaderConfig``.
    """
    torch.manual_seed(seed)
    known = re.findall(r"\w+|[^\w\s]", " ".join(texts).lower())
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = [*marks, *sorted({*known, *"abcdefghijklmnopqrstuvwxyz0123456789"})]
    vocabulary = {name: i for i, name in enumerate(names)}
    words = BertTokenizerFast(tokenizer_object=BertWordPieceTokenizer(vocabulary)._tokenizer)
    encoder = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=spread,
    )
    model = PassageReader(ReaderConfig(encoder.to_dict(), **({"frozen_layers": 0} | sizes)))
    for name, weights in model.named_parameters():
        if name.startswith(("spans", "page", "traits")):
            weights.data.normal_(std=spread)
    return ReaderPolicy(model.eval(), words)
