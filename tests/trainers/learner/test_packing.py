"""Shared-prefix packing: what a strip holds, when rows go into one, and gradients equal to those of the rows apart."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.packing import PackedRows, TrainingRow, micro_batches, pack, strips_of

Make = Callable[..., Any]


def row(prompt: Sequence[int], tail: Sequence[int], trained: Sequence[int]) -> TrainingRow:
    """A row of ``prompt`` and ``tail``; ``trained`` are places in the tail, the first of them 0."""
    ids = np.array([*prompt, *tail], dtype=np.int64)
    mask = np.zeros(len(ids), dtype=bool)
    mask[np.array(trained) + len(prompt)] = True
    scores = np.linspace(-1, 1, len(ids))
    return TrainingRow(
        ids, mask, np.zeros(len(ids), dtype=np.float32), np.zeros(len(ids), dtype=bool), scores
    )


def test_a_strip_holds_the_prompt_once() -> None:
    prompt = (5, 6, 7)
    packed = pack([PackedRows((row(prompt, (1, 2), (0, 1)), row(prompt, (3, 4, 8), (0, 2))), shared=3)])
    assert packed.ids.tolist() == [[5, 6, 7, 1, 2, 3, 4, 8]]
    assert packed.positions is not None
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 5]]
    # 1 and 3 follow the prompt's last token at place 2, 2 follows 1 at place 3, 8 follows 4 at place 6
    assert packed.targets.tolist() == [1, 2, 3, 8]
    assert packed.before.tolist() == [2, 3, 2, 6]


def test_a_tail_sees_the_prompt_and_itself() -> None:
    prompt = (5, 6)
    packed = pack([PackedRows((row(prompt, (1, 2), (0,)), row(prompt, (3, 4), (0,))), shared=2)])
    assert packed.attends is not None
    assert packed.attends[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


def test_rows_are_packed_where_fewer_pairs_are_attended_to() -> None:
    """Two rows of 10 + 1 tokens: 12^2 = 144 < 2 * 11^2 = 242; two of 1 + 10: 21^2 = 441 > 242."""
    long_prompt = [row(range(10), (1,), (0,)), row(range(10), (2,), (0,))]
    long_tails = [row((0,), range(10), (0,)), row((0,), range(10), (0, 3))]
    assert [len(s.rows) for s in strips_of(long_prompt, micro_tokens=100)] == [2]
    assert [len(s.rows) for s in strips_of(long_tails, micro_tokens=100)] == [1, 1]
    assert [len(s.rows) for s in strips_of(long_prompt, micro_tokens=11)] == [1, 1]


def test_rows_of_other_prompts_are_apart() -> None:
    rows = [row((*range(10), last), (1,), (0,)) for last in (1, 2, 1)]
    assert sorted(len(strip.rows) for strip in strips_of(rows, micro_tokens=100)) == [1, 2]


def test_rows_alone_need_no_mask() -> None:
    (packed,) = micro_batches([row((0,), (1, 2, 3), (0,)), row((1,), (1, 2), (0,))], micro_tokens=100)
    assert packed.attends is None
    assert packed.positions is None


def test_a_bound_on_padding_is_kept_and_says_where_to_cut() -> None:
    """Rows of 4, 4, 5 and 8 tokens: 4 + 4 + 5 pad 2 of 15, and 8 would bring that to 11 of 32."""
    rows = [row((place,), range(length - 1), (0,)) for place, length in enumerate((8, 4, 5, 4))]

    def lengths(padding: float) -> list[list[int]]:
        return [
            [len(one.ids) for one in packed.members]
            for packed in micro_batches(rows, micro_tokens=100, padding=padding)
        ]

    assert lengths(1.0) == lengths(11 / 32) == [[4, 4, 5, 8]]
    assert lengths(11 / 33) == lengths(2 / 15) == [[4, 4, 5], [8]]
    assert lengths(0.1) == lengths(0.0) == [[4, 4], [5], [8]]
    (packed,) = micro_batches(rows, micro_tokens=100)
    assert packed.padding == 11


def test_a_bound_on_padding_leaves_the_gradient_as_it_is(qwen: Make) -> None:
    """In float64, with a penalty and a mean over sequences: only the order of sums differs, by 1e-10 at most."""
    model, rng = in_float64(qwen(16)), np.random.default_rng(1)
    rows = [
        row((place % 16,), rng.integers(16, size=rng.integers(3, 30)).tolist(), (0, 2)) for place in range(24)
    ]
    reference = in_float64(qwen(16, seed=3))
    found, shares = [], []
    for padding in (1.0, 0.05, 0.0):
        model.zero_grad()
        objective = Objective(aggregation="sequence_mean", kl_coefficient=0.1, padding=padding)
        learner = Learner(model, objective, learning_rate=1.0, reference=reference)
        shares.append(learner.accumulate(rows)["padding_share"])
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
    assert shares[0] > 0.3
    assert 0 < shares[1] <= 0.05
    assert shares[2] == 0
    assert found[0].abs().max() > 0.01
    for bounded in found[1:]:
        torch.testing.assert_close(bounded, found[0], rtol=0, atol=1e-10)


def test_gradients_are_those_of_the_rows_apart(qwen: Make) -> None:
    """Three prompts in float64: rows of one group behind a shared prompt, and a row alone, in one step."""
    model = in_float64(qwen(16))
    rng = np.random.default_rng(0)
    rows = []
    for length, tails in ((20, 5), (12, 4), (2, 1)):
        prompt = rng.integers(16, size=length).tolist()
        for _ in range(tails):
            tail = rng.integers(16, size=rng.integers(2, 6)).tolist()
            rows.append(row(prompt, tail, sorted({0, int(rng.integers(len(tail)))})))
    assert sorted(len(strip.rows) for strip in strips_of(rows, 1000)) == [1, 4, 5]
    together, apart = gradient(model, rows, micro_tokens=1000), gradient(model, rows, micro_tokens=1)
    assert apart.abs().max() > 0.01
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-10)


def in_float64(model: Any) -> Any:
    """``model`` in float64 throughout: transformers computes its own norms in float32 whatever the model's dtype."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name.endswith("norm"):
                norm = nn.RMSNorm(child.weight.shape, eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(module, name, norm)
    return model.double()


def gradient(model: Any, rows: Sequence[TrainingRow], micro_tokens: int) -> Tensor:
    """The gradient of all parameters as one vector."""
    model.zero_grad()
    Learner(model, Objective(micro_tokens=micro_tokens), learning_rate=1.0).accumulate(rows)
    return torch.cat([p.grad.flatten() for p in model.parameters()]).clone()
