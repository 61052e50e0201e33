"""Micro-batches at once: one that fails, weights that are frozen or watched, and products in bfloat16."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentenv.policies.fakes import random_model
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def some_rows(count: int = 24) -> list[TrainingRow]:
    rng, rows = np.random.default_rng(0), []
    for _ in range(count):
        ids = rng.integers(0, 257, int(rng.integers(8, 40)))
        mask = np.arange(len(ids)) >= 4
        never = np.zeros(len(ids), dtype=bool)
        credit = np.full(len(ids), rng.normal())
        rows.append(TrainingRow(ids, mask, np.where(mask, -5.0, 0.0), never, credit, int(mask.sum())))
    return rows


def learner(**objective: Any) -> Learner:
    model = random_model(257, seed=1, context=64, spread=0.2)
    return Learner(model, Objective(micro_tokens=160, **objective), learning_rate=1.0)


def gradients(made: Learner, threads: int) -> list[Tensor | None]:
    torch.set_num_threads(threads)
    made.model.zero_grad()
    made.accumulate(some_rows())
    return [None if p.grad is None else p.grad.clone() for p in made.model.parameters()]


def test_who_interrupts_an_update_leaves_no_batch_computing() -> None:
    """The error is held, as by whoever reports it: what it holds in turn must not be what still computes."""
    made = learner()
    compute, computing = made._part, set()

    def slow(*given: Any, **how: Any) -> Any:
        computing.add(threading.get_ident())
        time.sleep(0.05)
        found = compute(*given, **how)
        computing.discard(threading.get_ident())
        return found

    def interrupted(gradients: Sequence[Tensor | None] | None) -> None:
        raise KeyboardInterrupt

    made._part, made._add = slow, interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt) as held:
        made.accumulate(some_rows())
    assert held.value is not None
    assert not computing
    time.sleep(0.1)
    assert not computing  # nothing has begun since
    assert torch.get_num_threads() == 4


def test_weights_that_are_frozen_later_have_no_gradient_on_any_number_of_threads() -> None:
    made = learner()
    assert made.batches_at_once == 4
    made.model.model.embed_tokens.requires_grad_(False)
    alone, at_once = gradients(made, 1), gradients(made, 4)
    assert at_once[0] is None
    for one, other in zip(alone, at_once, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


def test_who_watches_gradients_is_told_of_each_on_any_number_of_threads() -> None:
    made = learner()
    told: list[int] = []
    made.model.lm_head.weight.register_post_accumulate_grad_hook(lambda weight: told.append(1))
    gradients(made, 1)
    alone = len(told)
    gradients(made, 4)
    assert alone > 1
    assert len(told) == 2 * alone


def test_products_in_bfloat16_give_the_gradients_of_one_after_the_other() -> None:
    """Autocast remembers rounded weights for the whole process, whichever thread has rounded them."""
    made = learner(precision="bfloat16")
    assert made.batches_at_once == 4
    for one, other in zip(gradients(made, 1), gradients(made, 4), strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_what_is_cut_does_not_depend_on_the_threads(threads: int) -> None:
    made = learner(padding=1.0)
    torch.set_num_threads(threads)
    found = list(made._micro_batches(some_rows()))
    assert len(found) % 4 == 0
    assert max(packed.ids.numel() for packed in found) <= 160
