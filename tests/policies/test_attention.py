"""Attention beside masks of our own: one new token whose heads share keys, by the kernel of transformers and by ours."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from agentenv.core.types import Sampling
from agentenv.policies.attention import by_length, for_any_shape
from agentenv.policies.decoding import Request
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.hf import HFPolicy
from agentenv.policies.output_head import LogitTail, logits_after

attend = by_length(sdpa_attention_forward)


def given(heads: int, shared: int, tokens: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and the mask of three rows of unequal lengths; keys are a part of longer memory."""
    torch.manual_seed(heads + tokens)
    query, memory = torch.randn(3, heads, tokens, 8), torch.randn(2, 3, shared, 40, 8)
    mask = torch.arange(21) <= torch.tensor([20, 3, 0])[:, None, None, None] + torch.arange(tokens)[:, None]
    return query, memory[0, :, :, :21], memory[1, :, :, :21], mask


@pytest.mark.parametrize("added", [False, True], ids=["bool", "added to scores"])
@pytest.mark.parametrize(("heads", "shared", "tokens"), [(14, 2, 1), (4, 1, 1), (4, 4, 1), (4, 2, 3)])
def test_it_is_what_transformers_computes(heads: int, shared: int, tokens: int, added: bool) -> None:
    query, key, value, mask = given(heads, shared, tokens)
    if added:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    module = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=True)
    for scaling in (None, 0.3):
        wanted, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
        found, weights = attend(module, query, key, value, mask, scaling=scaling)
        assert weights is None
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how many values the largest tensor has that got memory of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [one.untyped_storage()._cdata for one in tree_leaves(args) if isinstance(one, Tensor)]
        if isinstance(made, Tensor) and made.untyped_storage()._cdata not in given:
            self.values = max(self.values, made.numel())
        return made


def test_no_token_copies_the_cache() -> None:
    """Four heads share two heads of keys: repeated, the 200 keys of a layer would be 2 x 200 x 4 x 8 values."""
    policy = HFPolicy(random_model(257, context=256), ByteTokenizer())
    ids = [65 + i % 20 for i in range(200)]
    (first,) = policy._batch([Request(ids, Sampling(1, seed=1), "a")])
    # Slots are long enough from here on.
    policy._batch([Request([*ids, *first.ids], Sampling(1, seed=1), "a")])
    with Largest() as largest:
        policy._batch([Request([*ids, *first.ids, 66][:202], Sampling(1, seed=1), "a")])
    assert largest.values < 200 * 4 * 8


def test_kernels_for_any_shape_are_asked_for_until_the_last_thread_is_done() -> None:
    """Torch has one switch for the process: a thread that ends first must not turn it for the others."""
    card, inside, ended = torch.device("cuda", 0), threading.Event(), threading.Event()
    allowed: Any = torch.backends.cuda.cudnn_sdp_enabled
    before, seen = allowed(), list[bool]()

    def other() -> None:
        with for_any_shape(card):
            inside.set()
            ended.wait(30)
            seen.append(allowed())

    def fails() -> None:
        with for_any_shape(card):
            thread.start()
            inside.wait(30)
            seen.append(allowed())
            raise RuntimeError("a pass that fails")

    thread = threading.Thread(target=other)
    with pytest.raises(RuntimeError):
        fails()
    ended.set()
    thread.join(30)
    assert (before, seen) == (True, [False, False])
    assert allowed()
    with for_any_shape(torch.device("cpu")):
        assert allowed()


def test_prompts_and_scores_ask_for_kernels_for_any_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, now, seen = HFPolicy(random_model(257), ByteTokenizer()), list[torch.device](), list[int]()
    forward = policy.model.forward

    @contextmanager
    def noting(device: torch.device) -> Iterator[None]:
        now.append(device)
        yield
        now.pop()

    def counting(*given: Any, **named: Any) -> Any:
        seen.append(len(now))
        return forward(*given, **named)

    monkeypatch.setattr("agentenv.policies.hf.for_any_shape", noting)
    monkeypatch.setattr("agentenv.policies.hf.fused_decoder", lambda model: None)
    monkeypatch.setattr("agentenv.policies.forward.fused_decoder", lambda model: None)
    monkeypatch.setattr(policy.model, "forward", counting)
    asyncio.run(policy.generate([65, 66, 67], Sampling(1, seed=1)))
    few = asyncio.run(policy.score([65, 66, 67]))
    monkeypatch.setattr("agentenv.policies.hf.logits_after", partial(logits_after, whole=300))
    monkeypatch.setattr(
        "agentenv.policies.output_head._known", WeakKeyDictionary({policy.model: LogitTail()})
    )
    assert asyncio.run(policy.score([65, 66, 67])) == pytest.approx(few, abs=1e-5)
    assert seen == [1, 1, 1]
