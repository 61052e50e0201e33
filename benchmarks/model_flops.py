"""Shapes of the Qwen2.5 family, the arithmetic that training them needs, and the peak rates of cards: for the utilisation.

Model FLOP utilisation (PaLM, arXiv:2204.02311, section 4.1) is the arithmetic that the model needs for the observed tokens a
second, over what the card could do at most. Only what the mathematics needs is counted: what is computed a second time to
save memory is not, nor are masked halves of attention. A multiplication and an addition are two operations.

Shapes: T tokens of one row, N trained tokens of it, L layers, H hidden size, V vocabulary.
"""

import re
from dataclasses import dataclass
from typing import Any

PEAK_BFLOAT16 = {
    "B200": 2250e12,
    "H200": 989.4e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165.2e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 operations a second by a part of the card's name, from NVIDIA's data sheets (without sparsity)."""


@dataclass(frozen=True)
class ModelShape:
    """What decides how much arithmetic a decoder with grouped key/value heads and a gated feed-forward part needs."""

    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    inner: int
    vocabulary: int = 151_936
    tied: bool = True

    @property
    def layer_parameters(self) -> int:
        """Entries of the matrices of all layers; biases and norms are left out."""
        width = self.hidden // self.heads
        projections = 2 * self.hidden * self.hidden + 2 * self.hidden * width * self.key_value_heads
        return self.layers * (projections + 3 * self.hidden * self.inner)

    @property
    def parameters(self) -> int:
        """Entries of all matrices, the embeddings once where the output shares them."""
        return self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    def config(self, context: int) -> Any:
        """A configuration of transformers with this shape."""
        from transformers import Qwen2Config

        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.key_value_heads,
            intermediate_size=self.inner,
            max_position_embeddings=context,
            rope_theta=1e6,
            tie_word_embeddings=self.tied,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )


QWEN = {
    "0.5B": ModelShape(hidden=896, layers=24, heads=14, key_value_heads=2, inner=4864),
    "1.5B": ModelShape(hidden=1536, layers=28, heads=12, key_value_heads=2, inner=8960),
    "3B": ModelShape(hidden=2048, layers=36, heads=16, key_value_heads=2, inner=11008),
}
"""Qwen2.5 (arXiv:2412.15115, table 1)."""

TINY = {"tiny": ModelShape(hidden=64, layers=2, heads=4, key_value_heads=2, inner=128, vocabulary=1152)}
"""For the test of the kit."""


def lora_parameters(shape: ModelShape, rank: int) -> int:
    """Entries of adapters of ``rank`` on every matrix of the layers: rank times (inputs + outputs) for each."""
    h, i = shape.hidden, shape.inner
    kv = h // shape.heads * shape.key_value_heads
    sides = 2 * (h + h) + 2 * (h + kv) + 2 * (h + i) + (i + h)
    return shape.layers * rank * sides


def training_flops(shape: ModelShape, tokens: int, trained: int, *, rank: int = 0) -> int:
    """Operations of one forward and backward pass over a row of ``tokens`` tokens, ``trained`` of which are predicted.

    A matrix of P entries takes 2 P a token forward, 2 P for the gradient of its input and 2 P for its own, which a frozen
    one does not need. The output layer is applied to trained tokens alone. Causal attention takes 2 T^2 H forward in
    each layer (half of two products of 2 T^2 H each) and twice that backward.

    Args:
        shape: Of the model.
        tokens: T.
        trained: N.
        rank: Of LoRA adapters, which alone are trained then; 0 trains every matrix.
    """
    passes = 2 if rank else 3
    matrices = 2 * passes * (shape.layer_parameters * tokens + shape.vocabulary * shape.hidden * trained)
    adapters = 6 * lora_parameters(shape, rank) * tokens
    attention = 3 * 2 * tokens * tokens * shape.hidden * shape.layers
    return matrices + adapters + attention


def shared_line_time(shape: ModelShape, tokens: int, prompt: int, rows: int, *, efficiency: float) -> float:
    """Time of a step on rows that share their prompt in one line, as a share of the time of the rows apart.

    Both run at the card's rate but for attention within the line, whose kernel reaches ``efficiency`` times what the kernel
    of the rows apart does. A line of a prompt of p tokens and n tails of t tokens has p + n t tokens, and attention to
    p^2 / 2 + n (p t + t^2 / 2) pairs of tokens, of which each takes 12 H a layer forward and backward; tails are trained.

    Args:
        shape: Of the model.
        tokens: p + t, of each row.
        prompt: p.
        rows: n.
        efficiency: Of flex attention against flash attention.
    """
    tail = tokens - prompt
    words = 6 * shape.vocabulary * shape.hidden * rows * tail
    pair, matrices = 12 * shape.hidden * shape.layers, 6 * shape.layer_parameters
    apart = matrices * rows * tokens + pair * rows * tokens**2 / 2
    pairs = prompt**2 / 2 + rows * (prompt * tail + tail**2 / 2)
    together = matrices * (prompt + rows * tail) + pair * pairs / efficiency
    return (together + words) / (apart + words)


def peak_of(card: str) -> float | None:
    """Dense bfloat16 operations a second of the card of that name; None where it is not in the table."""
    words = set(re.split(r"[^A-Za-z0-9]+", card))
    fitting = [name for name in PEAK_BFLOAT16 if words.issuperset(name.split())]
    return PEAK_BFLOAT16[max(fitting, key=len)] if fitting else None
