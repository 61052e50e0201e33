"""Flash attention over a line of rows, with functions of its signature in its place that compute on the CPU.

transformers' own way to the kernel is taken: what the kernel is given are the rows, and log-probs and gradients are those of
padded rows. What the kernel itself computes on a card is not tested here.
"""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from agentenv.errors import ConfigurationError
from agentenv.policies import attention
from agentenv.policies.attention import VARLEN, fits_varlen, serve_masks
from agentenv.policies.compute import Compute
from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.forward import require_support
from agentenv.policies.loading import _attend
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.logprobs import checkpoint_layers, layout_of, token_logprobs
from agentenv.trainers.learner.packing import micro_batches
from tests.trainers.learner.test_lines import ROWS, WINDOWED, row, scored

NAME = "flash_attention_2"


class Kernel:
    """Notes which sequences it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int]] = []

    def varlen(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        deterministic: bool = False,
    ) -> Tensor:
        """Heads [T, H, D] of sequences that lie one behind the other; a window has its bounds included."""
        assert causal
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
        assert type(max_seqlen_q) is type(max_seqlen_k) is int  # a tensor would be read from the device
        assert torch.equal(cu_seqlens_q, cu_seqlens_k)
        bounds = cu_seqlens_q.tolist()
        self.calls.append((bounds, max_seqlen_q))
        parts = [
            self._one(q[start:end], k[start:end], v[start:end], softmax_scale, window_size[0])
            for start, end in pairwise(bounds)
        ]
        return torch.cat(parts)

    def of_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> Tensor:
        """The same with the signature of ``torch.nn.attention.varlen``, which looks ahead by the second number."""
        assert enable_gqa
        assert window_size[1] == 0
        options: dict[str, Any] = {"softmax_scale": scale, "causal": True, "window_size": window_size}
        return self.varlen(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)

    def _one(self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int) -> Tensor:
        places = torch.arange(len(q))
        back = places[:, None] - places
        seen = (back >= 0) & ((back <= window) | (window < 0))
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        found = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale, enable_gqa=True)
        return found[0].transpose(0, 1)

    def plain(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """Heads [B, T, H, D] of sequences of one length."""
        bounds = torch.arange(0, q.shape[0] * q.shape[1] + 1, q.shape[1], dtype=torch.int32)
        flat: dict[str, Any] = {name: part.flatten(0, 1) for name, part in (("q", q), ("k", k), ("v", v))}
        ends: dict[str, Any] = {"cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
        longest: dict[str, Any] = {"max_seqlen_q": q.shape[1], "max_seqlen_k": q.shape[1]}
        return self.varlen(**flat, **ends, **longest, **options).view_as(q)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """What transformers takes for the library of flash attention."""
    from transformers import modeling_flash_attention_utils as flash

    made = Kernel()
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: (made.plain, made.varlen, None, None, None))
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    serve_masks(NAME)
    return made


@pytest.fixture
def torchs(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The same in the place of torch's own function."""
    from torch.nn.attention import varlen

    made = Kernel()
    monkeypatch.setattr(varlen, "varlen_attn", made.of_torch)
    monkeypatch.setattr(attention, "_SERVED", set())
    serve_masks(VARLEN)
    return made


@pytest.mark.parametrize("recomputed", [False, True], ids=["kept", "checkpointed"])
@pytest.mark.parametrize("name", [NAME, VARLEN])
def test_the_kernel_is_given_the_rows_and_their_lengths(
    name: str, recomputed: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first layer looks at everything before, the second at six tokens."""
    kernel = request.getfixturevalue("torchs" if name == VARLEN else "kernel")
    model = tiny_model("qwen2", **WINDOWED).double().eval()
    wanted, slopes, _ = scored(model, "padded", 1000)
    model.config._attn_implementation = name
    if name == VARLEN:  # a mask of all pairs would be as large as a padded one
        monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS, VARLEN, lambda *_, **__: pytest.fail("a mask"))
    assert layout_of(model) == "line"
    if recomputed:
        checkpoint_layers(model)
    found, ours, padding = scored(model, "line", 1000)
    for name_of_row, logprobs in found.items():
        torch.testing.assert_close(logprobs, wanted[name_of_row], rtol=0, atol=1e-10)
    # Norms are in float32.
    torch.testing.assert_close(ours, slopes, rtol=0, atol=1e-6 * float(slopes.abs().max()))
    assert padding == [0]
    lengths = [len(one.ids) for one in ROWS]
    bounds = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
    assert kernel.calls == [(bounds, max(lengths))] * (4 if recomputed else 2)


def test_rows_of_one_length_stand_side_by_side_for_the_plain_kernel(torchs: Kernel) -> None:
    alike = [row(4, 5 + place, place) for place in (0, 0, 0)]
    model = tiny_model("qwen2").double().eval()
    (padded,) = micro_batches(alike, 1000, 0.0, "padded")
    model.config._attn_implementation = VARLEN
    assert layout_of(model, alike) == "rows"
    assert layout_of(model, ROWS) == "line"
    (packed,) = micro_batches(alike, 1000, 0.0, "rows")
    assert (packed.ids.shape, packed.padding, packed.bounds, packed.attends) == ((3, 9), 0, None, None)
    learner = Learner(model, Objective(proximal="recompute"), learning_rate=1e-3)
    scored_rows = learner.with_proximal(alike)
    assert torchs.calls == []
    model.config._attn_implementation = "sdpa"
    with torch.no_grad():
        wanted, _ = token_logprobs(model, padded, 1.0)
    torch.testing.assert_close(
        torch.cat([torch.from_numpy(one.proximal) for one in scored_rows]).double(), wanted, rtol=0, atol=1e-6
    )
    windowed = tiny_model("qwen2", **WINDOWED)  # which would need a mask of all pairs
    windowed.config._attn_implementation = VARLEN
    assert layout_of(windowed, alike) == "line"


def test_a_row_alone_is_not_searched_for_others(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By transformers this is done in every layer, and a card would be waited for each time."""
    monkeypatch.setattr(
        "transformers.modeling_flash_attention_utils._is_packed_sequence", lambda *_: pytest.fail("a look")
    )
    alone = [row(4, 5, 0)]
    model = tiny_model("qwen2", attn_implementation="sdpa").double().eval()
    (packed,) = micro_batches(alone, 1000, 0.0, "rows")
    with torch.no_grad():
        wanted, _ = token_logprobs(model, packed, 1.0)
        model.config._attn_implementation = NAME
        assert layout_of(model, alone) == "rows"
        found, _ = token_logprobs(model, packed, 1.0)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    assert kernel.calls == [([0, 9], 9)] * model.config.num_hidden_layers


def test_passes_with_masks_of_their_own_are_no_work_of_the_kernel(kernel: Kernel) -> None:
    """Those of the sampler: the model is accepted, and only its plain pass is computed by the kernel."""
    model = tiny_model("qwen2").double().eval()
    model.config._attn_implementation = NAME
    require_support(model, 64)
    assert kernel.calls == [([0, 6], 6)] * model.config.num_hidden_layers


def test_torchs_own_kernel_computes_lines_alone(torchs: Kernel) -> None:
    """Every other pass is sdpa's, the plain one with its window too."""
    sliding = {**WINDOWED, "attn_implementation": "sdpa"}
    model, ids = tiny_model("qwen2", **sliding).double().eval(), torch.arange(12)[None] + 7
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits
        model.config._attn_implementation = VARLEN
        torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, wanted)
    require_support(model, 64)
    assert torchs.calls == []


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({}, True),
        ({"attn_logit_softcapping": 50.0}, False),
        ({"attention_chunk_size": 8192}, False),
        ({"kv_lora_rank": 512}, False),
        ({"model_type": "gpt_oss"}, False),
        ({"layer_types": ["full_attention", "sliding_attention"]}, True),
        ({"layer_types": ["linear_attention", "full_attention"]}, False),
    ],
)
def test_models_whose_attention_is_another_keep_theirs(settings: dict[str, Any], fits: bool) -> None:
    config = SimpleNamespace(**({"model_type": "qwen2", "attn_logit_softcapping": None} | settings))
    assert fits_varlen(config) == fits


def test_queries_that_a_norm_left_in_float32_are_rounded_as_for_sdpa() -> None:
    """So layer norms of queries and keys do under autocast."""
    seen: list[torch.dtype] = []

    def kernel(*parts: Any, **_: Any) -> Any:
        seen.extend(part.dtype for part in parts[:3])
        return parts[0]

    attend = attention.by_bounds(kernel, fails)
    wide = torch.zeros(1, 2, 6, 8)
    bounds = {"cu_seq_lens_q": torch.tensor([0, 6], dtype=torch.int32), "max_length_q": 6}
    attend(None, wide, wide, wide.bfloat16(), None, **bounds)
    assert seen == [torch.bfloat16] * 3
    with pytest.raises(NotImplementedError, match="s_aux"):
        attend(None, wide, wide, wide, None, s_aux=torch.zeros(2), **bounds)


def fails(*_: Any, **__: Any) -> Tensor:
    raise RuntimeError("no kernel for heads of this size\nand a trace")


@pytest.mark.parametrize(
    ("kind", "kernel", "says"),
    [
        ("qwen2", None, ""),
        ("nemotron", None, "attn_mask"),  # does not pass on where rows begin
        ("gemma2", None, "not the plain one"),
        ("qwen2", fails, "RuntimeError: no kernel for heads of this size"),
        # Each token sees itself alone.
        ("qwen2", lambda *args, **_: args[2].repeat_interleave(2, 1), "wrong by"),
    ],
)
def test_a_model_for_which_the_kernel_does_not_work_keeps_what_it_had(
    kind: str, kernel: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under ``auto`` it trains as before, and where the kernel was named one sentence says why it cannot."""
    from torch.nn.attention import varlen

    monkeypatch.setattr(varlen, "varlen_attn", kernel or Kernel().of_torch)
    monkeypatch.setattr(attention, "_SERVED", set())
    compute = Compute(torch.device("cpu"), torch.float32, VARLEN)
    model = tiny_model(kind).float().eval()
    before = model.config._attn_implementation
    _attend(model, compute, chosen=False)
    assert model.config._attn_implementation == (before if says else VARLEN)
    assert {parameter.grad for parameter in model.parameters()} == {None}
    scored(model, layout_of(model), 1000)  # a step of the learner
    if says:
        with pytest.raises(ConfigurationError, match=says) as refused:
            _attend(model, compute, chosen=True)
        assert "\n" not in str(refused.value)
        assert model.config._attn_implementation == before
