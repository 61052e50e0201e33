"""A tokenizer that needs no vocabulary, and models that know nothing: for scripted policies and tests."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

END_OF_TURN = "<|im_end|>"


class ByteTokenizer:
    """Ids 0 to 255 are UTF-8 bytes, 256 is the end of a turn; has what the chat formats ask for."""

    eos_token = END_OF_TURN
    eos_token_id = 256

    def __init__(self, *, chat: bool = False) -> None:
        """Without ``chat`` there is no chat template, as with some base models."""
        self.chat_template = "chatml" if chat else None

    def __len__(self) -> int:
        return 257

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The bytes of ``text``; the end-of-turn mark is one id. No special token is ever added."""
        pieces = re.split(f"({re.escape(END_OF_TURN)})", text)
        ids: list[int] = []
        for piece in pieces:
            ids += [self.eos_token_id] if piece == END_OF_TURN else piece.encode()
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; incomplete characters become U+FFFD."""
        mark = END_OF_TURN.encode()
        return b"".join(mark if i == self.eos_token_id else bytes([i]) for i in ids).decode(errors="replace")

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
    ) -> str:
        """ChatML, the format of the Qwen family."""
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}{END_OF_TURN}\n" for m in conversation)
        return text + "<|im_start|>assistant\n" * add_generation_prompt


def chat_tokenizer(template: str, *, eos: str, special: Iterable[str] = (), added: Iterable[str] = ()) -> Any:
    """A tokenizer of bytes with a chat template, loaded as those of models are.

    Args:
        template: In Jinja.
        eos: The token that ends a text.
        special: Further control tokens.
        added: Further tokens of one id, which decode to plain text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=eos, clean_up_tokenization_spaces=False
    )
    fast.add_tokens([token for token in special if token != eos], special_tokens=True)
    fast.add_tokens([*added])
    fast.chat_template = template
    return fast


def random_model(
    vocabulary: int = 257,
    *,
    layers: int = 2,
    width: int = 32,
    inner: int = 48,
    context: int = 256,
    seed: int = 0,
    spread: float = 0.3,
    tied: bool = False,
    eos: int = 256,
    pad: int | None = None,
) -> Any:
    """A Qwen2 with random weights, over the ids of ``ByteTokenizer`` unless told otherwise.

    Args:
        vocabulary: Number of ids.
        layers: Layers.
        width: Of the hidden state, a multiple of 8; heads are 8 wide, and two of them hold keys.
        inner: Of the feed-forward part.
        context: Positions.
        seed: Of the weights; the global generator of torch is seeded with it.
        spread: Deviation of the weights; 0.3 gives peaked distributions, where flat ones would hide mistakes.
        tied: Whether the output shares the embeddings.
        eos: Id that ends a turn.
        pad: Id of padding.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 8,
        num_key_value_heads=2,
        intermediate_size=inner,
        max_position_embeddings=context,
        initializer_range=spread,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return Qwen2ForCausalLM(config).eval()


def random_policy(folder: Path | str, texts: Iterable[str], **shape: Any) -> tuple[Any, Any]:
    """Writes a random model of width 16 with a tokenizer of ``texts`` for ``hf:FOLDER``; ``shape`` as of ``random_model``.

    Returns:
        Model and tokenizer.
    """
    from agentenv.policies.tiny import build_tokenizer

    tokenizer = build_tokenizer(texts)
    shape = {"layers": 1, "width": 16, "inner": 32, "context": 1200, "spread": 0.02} | shape
    model = random_model(len(tokenizer), eos=tokenizer.eos_token_id, pad=tokenizer.pad_token_id, **shape)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
