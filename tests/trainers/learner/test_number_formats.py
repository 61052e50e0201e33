"""Number formats of a model in bfloat16: what is multiplied, and how large tensors in float32 become.

A constant in float32 beside tensors in bfloat16 makes a product of a card several times slower, and nothing else shows it.
The formats are the same on the processor.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentenv.core.types import Sampling
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.logprobs import token_logprobs

Make = Callable[..., Any]
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu"}
# As they are called where nothing asks for gradients.
PRODUCTS |= {
    "linear",
    "matmul",
    "scaled_dot_product_attention",
}
WORDS = 300


class Formats(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the number formats of what is multiplied, and the most values of a tensor in float32 or float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: Counter[torch.dtype] = Counter()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS:
            self.products.update(one.dtype for one in args[:3] if isinstance(one, Tensor))
        wide = (one for one in tree_leaves(made) if isinstance(one, Tensor) and one.dtype.itemsize > 2)
        self.largest = max([self.largest, *(one.numel() for one in wide if one.is_floating_point())])
        return made


def rows(lengths: tuple[int, ...] = (40, 60, 33)) -> list[TrainingRow]:
    rng, made = np.random.default_rng(0), []
    for length in lengths:
        zeros, mask = np.zeros(length, np.float32), np.arange(length) > 4
        ids = rng.integers(0, WORDS, length)
        made.append(TrainingRow(ids, mask, zeros, mask & False, rng.normal(size=length)))
    return made


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("settings", [{}, {"kl_coefficient": 0.1, "entropy_coefficient": 0.01}])
def test_a_learner_multiplies_in_the_format_of_its_model(
    qwen: Make, adapted: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward, backward and the step, whose float32 copies are moved and not multiplied."""
    # Few logits at a time, as for a large vocabulary.
    monkeypatch.setattr(
        "agentenv.trainers.learner.learner.token_logprobs", partial(token_logprobs, whole=8 * WORDS)
    )
    model, reference = (qwen(seed=seed, vocabulary=WORDS).bfloat16() for seed in (1, 2))
    model = adapt(model, rank=2, alpha=4) if adapted else model
    objective = Objective(proximal="recompute", **settings)
    known = reference if objective.needs_reference else None
    learner = Learner(model, objective, learning_rate=1e-3, reference=known)
    given = rows()
    learner.step(given)
    with Formats() as formats:
        learner.step(given)
    assert set(formats.products) == {torch.bfloat16}
    # No matrix of logits [128, 300] in float32. The largest tensor is the float32 copy of the embedding's gradient.
    assert formats.largest <= max(8 * WORDS, WORDS * 32)
    assert formats.largest < sum(len(row.trained) for row in given) * WORDS


def test_a_sampler_multiplies_in_the_format_of_its_model(qwen: Make) -> None:
    policy = HFPolicy(qwen().bfloat16(), ByteTokenizer())
    formats = Formats()
    forward = policy._forward

    def noting(*given: Any, **named: Any) -> Tensor:
        with formats:
            return forward(*given, **named)

    policy._forward = noting  # type: ignore[method-assign]

    async def two() -> None:
        await asyncio.gather(*(policy.generate(list(range(5, 5 + n)), Sampling(4, seed=n)) for n in (9, 12)))

    asyncio.run(two())
    assert set(formats.products) == {torch.bfloat16}
