"""Micro-batches as a single line: log-probs and gradients of padded ones, no padding, no matrix of all pairs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.line_attention import line_attention, rule
from agentenv.trainers.learner.logprobs import layout_of, token_logprobs
from agentenv.trainers.learner.packing import Layout, PackedRows, TrainingRow, micro_batches, pack_line

WINDOWED = {
    "use_sliding_window": True,
    "sliding_window": 6,
    "layer_types": ["full_attention", "sliding_attention"],
}


def row(prompt: int, tail: int, seed: int) -> TrainingRow:
    """A prompt that equal numbers share, and a tail of its own whose every second token is trained."""
    rng = np.random.default_rng(seed)
    ids = np.concatenate([np.arange(prompt) % 90, rng.integers(0, 90, tail)])
    mask = np.arange(len(ids)) >= prompt
    mask[prompt + 1 :: 2] = False
    zeros = np.zeros(len(ids))
    return TrainingRow(ids, mask, zeros.astype(np.float32), zeros.astype(np.bool_), zeros)


ROWS = [row(20, 5, 0), row(20, 7, 1), row(20, 3, 2), row(9, 8, 3), row(13, 4, 4), row(13, 9, 5)]


def scored(model: Any, layout: Layout, micro_tokens: int) -> tuple[dict[bytes, Tensor], Tensor, list[int]]:
    """Log-probs of each row, the gradient of their weighted sum, and the padding of each micro-batch."""
    model.zero_grad()
    found, padding = {}, []
    for batch in micro_batches(ROWS, micro_tokens, 1.0, layout):
        logprobs = token_logprobs(model, batch, 0.9)[0]
        counts = [len(member.trained) for member in batch.members]
        parts = logprobs.split(counts)  # type: ignore[no-untyped-call]
        for member, mine in zip(batch.members, parts, strict=True):
            found[member.ids.tobytes()] = mine.detach()
        sum((mine * torch.arange(1.0, len(mine) + 1)).sum() for mine in parts).backward()
        padding.append(batch.padding)
    return found, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]), padding


def test_a_line_of_blocks_shares_prompts_that_padded_strips_read_again() -> None:
    """Four rows of a prompt of 10 and tails of 10: a strip of 50 has 2500 pairs, and the rows apart have 1600."""
    rows = [row(10, 10, seed) for seed in range(4)]
    (line,) = micro_batches(rows, 1000, 1.0, "shared_line")
    (padded,) = micro_batches(rows, 1000, 1.0, "padded")
    assert line.ids.numel() - line.padding == 10 + 4 * 10
    assert padded.ids.numel() == 4 * 20
    assert line.ids[0, :50].tolist() == [*rows[0].ids, *(i for other in rows[1:] for i in other.ids[10:])]


@pytest.mark.parametrize("layout", ["line", "shared_line"])
@pytest.mark.parametrize("micro_tokens", [40, 1000])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [("qwen2", {}), ("qwen2", WINDOWED), ("gemma2", {"attn_logit_softcapping": None})],  # no line knows caps
    ids=str,
)
def test_a_line_gives_what_padded_strips_give(
    layout: Layout, micro_tokens: int, kind: str, changes: dict[str, Any]
) -> None:
    model = tiny_model(kind, **changes).double().eval()
    # From 5.24 on transformers refuses to set it for Gemma 2, with caps or without.
    model.config._attn_implementation = "sdpa"
    wanted, slopes, _ = scored(model, "padded", 1000)
    found, ours, padding = scored(model, layout, micro_tokens)
    assert found.keys() == wanted.keys()
    for name, logprobs in found.items():
        torch.testing.assert_close(logprobs, wanted[name], rtol=0, atol=1e-5)
    torch.testing.assert_close(ours, slopes, rtol=0, atol=1e-5 * float(slopes.abs().max()))
    if layout == "line":
        assert set(padding) == {0}


def test_who_may_look_at_whom_by_hand() -> None:
    """Two rows behind a prompt of two, then a row of two on its own, then a token that fills the line."""
    strips = [PackedRows((row(2, 1, 0), row(2, 2, 1)), 2), PackedRows((row(1, 1, 2),), 2)]
    packed = pack_line(strips, 4)
    assert packed.line is not None
    assert packed.positions is not None
    assert packed.line.tolist() == [[0, 0, 0, 0, 0, 1, 1, 2], [-1, -1, 0, 1, 1, -1, -1, 0]]
    assert packed.positions.tolist() == [[0, 1, 2, 2, 3, 0, 1, 0]]
    assert (packed.ids.shape, packed.padding) == ((1, 8), 1)
    assert packed.before.tolist() == [1, 1, 5]
    may = rule(tiny_model("qwen2").config, "full_attention", packed.line, packed.positions[0])
    seen = create_mask(may, None, None, 8, 8, device="cpu")[0, 0].int().tolist()
    assert seen == [
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 0, 0],
        [1, 1, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 1],
    ]


def test_flex_attention_gets_blocks_with_the_same_pairs_for_each_kind_of_layer() -> None:
    flex = tiny_model("qwen2", attn_implementation="flex_attention", **WINDOWED)
    dense = tiny_model("qwen2", **WINDOWED)
    (batch,) = micro_batches(ROWS, 1000, 1.0, layout_of(flex))
    assert batch.line is not None
    assert batch.positions is not None
    blocks = line_attention(flex, batch.line, batch.positions)
    masks = line_attention(dense, batch.line, batch.positions)
    assert blocks.keys() == masks.keys() == {"full_attention", "sliding_attention"}
    size = batch.ids.shape[1]
    for kind, mask in masks.items():
        assert isinstance(blocks[kind], BlockMask)
        again = create_mask(blocks[kind].mask_mod, None, None, size, size, device="cpu")
        assert torch.equal(again, mask)
    assert not torch.equal(*masks.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@torch.no_grad()
def test_flex_attention_computes_what_sdpa_computes() -> None:
    """The forward pass alone, which is what torch compiles for a CPU."""
    flex = tiny_model("qwen2", attn_implementation="flex_attention", **WINDOWED).eval()
    dense = tiny_model("qwen2", **WINDOWED).eval()
    dense.load_state_dict(flex.state_dict())
    (batch,) = micro_batches(ROWS, 1000, 1.0, layout_of(flex))
    found, wanted = (token_logprobs(model, batch, 1.0)[0] for model in (flex, dense))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("attention", "layout"), [("sdpa", "padded"), ("eager", "padded"), ("flex_attention", "shared_line")]
)
def test_the_attention_of_a_model_decides_its_layout(attention: str, layout: str) -> None:
    model = tiny_model("qwen2", attn_implementation=attention)
    assert layout_of(model) == layout
    model.config._attn_implementation = "flash_attention_2"
    assert layout_of(model) == "line"


def test_lines_for_flex_attention_have_few_lengths() -> None:
    rows = [row(10, tail, tail) for tail in range(2, 80)]
    sizes = {batch.ids.shape[1] for batch in micro_batches(rows, 2048, 1.0, "shared_line")}
    assert all(size % 256 == 0 for size in sizes)
    assert sum(batch.padding for batch in micro_batches(rows, 2048, 1.0, "line")) == 0
