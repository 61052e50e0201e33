"""Shared-prefix packing: what a strip holds, when rows go into one, and gradients equal to those of the rows apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agentenv.core.images import PlacedImage
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.packing import (
    Layout,
    PackedRows,
    TrainingRow,
    micro_batches,
    pack,
    pack_line,
    strips_of,
)

Make = Callable[..., Any]
LAYOUTS: tuple[Layout, ...] = ("padded", "line", "shared_line")


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


def told(prompt: Sequence[int], tail: Sequence[int], trained: Sequence[int], **more: Any) -> TrainingRow:
    """A row whose every number says where it stands: log-prob -i / 8, credit i, age 10 + i."""
    plain = row(prompt, tail, trained)
    count = np.arange(len(plain.ids))
    given: dict[str, Any] = {
        "logprobs": (-count / 8).astype(np.float32),
        "mismatch": count % 2 == 1,
        "advantages": count.astype(np.float64),
        "age": 10 + count,
    }
    return replace(plain, **given | more)


def test_of_trained_tokens_everything_is_kept_in_their_order() -> None:
    """Of the first row places 2 and 4 are trained, of the second place 2, of the third, which is a strip of its own, 1."""
    shared = PackedRows(
        (
            told((5, 6), (1, 2, 3), (0, 2), sequence_tokens=9, proximal=np.array([-1.0, -2.0], np.float32)),
            told((5, 6), (4,), (0,), proximal=np.array([-3.0], np.float32)),
        ),
        2,
    )
    alone = told((7,), (8,), (0,), proximal=np.array([-4.0], np.float32))
    packed = pack([shared, PackedRows((alone,), 2)])
    assert packed.ids.tolist() == [[5, 6, 1, 2, 3, 4], [7, 8, 0, 0, 0, 0]]
    assert packed.strips.tolist() == [0, 0, 0, 1]
    assert packed.before.tolist() == [1, 3, 1, 0]
    assert packed.targets.tolist() == [1, 3, 4, 8]
    assert packed.old.tolist() == [-0.25, -0.5, -0.25, -0.125]
    assert packed.mismatch.tolist() == [False, False, False, True]
    assert packed.advantages.tolist() == [2.0, 4.0, 2.0, 1.0]
    assert packed.members == (*shared.rows, alone)
    assert packed.rows.tolist() == [0, 0, 1, 2]
    assert packed.sequence_tokens.tolist() == [9, 9, 1, 1]
    assert packed.age.tolist() == [12, 14, 12, 11]
    assert packed.proximal is not None
    assert packed.proximal.tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert packed.padding == 4
    assert packed.positions is not None
    assert packed.positions.tolist() == [[0, 1, 2, 3, 4, 2], [0, 1, 0, 0, 0, 0]]
    assert (packed.line, packed.images, packed.turns) == (None, (), None)
    there = packed.to(torch.device("meta"))
    assert {name for name, value in vars(there).items() if isinstance(value, Tensor)} == {
        name for name, value in vars(packed).items() if isinstance(value, Tensor)
    }
    assert all(value.is_meta for value in vars(there).values() if isinstance(value, Tensor))
    assert there.padding == 4


def test_without_ages_all_are_none_and_log_probs_of_some_rows_alone_are_none_of_all() -> None:
    rows = told((5,), (1,), (0,), age=None), told((6,), (2,), (0,), proximal=np.array([-1.0], np.float32))
    packed = pack([PackedRows((one,), 2) for one in rows])
    assert packed.age.tolist() == [0, 11]
    assert packed.proximal is None


def test_a_line_by_hand() -> None:
    """Strips of 5 and 2 tokens in a line that is filled up to a multiple of 4, of which the last one belongs to nobody."""
    shared = PackedRows((told((5, 6), (1, 2), (0, 1)), told((5, 6), (4,), (0,))), 2)
    alone = PackedRows((told((7,), (8,), (0,)),), 2)
    packed = pack_line([shared, alone], 4)
    assert packed.ids.tolist() == [[5, 6, 1, 2, 4, 7, 8, 0]]
    assert packed.positions is not None
    assert packed.positions.tolist() == [[0, 1, 2, 3, 2, 0, 1, 0]]
    assert packed.line is not None
    assert packed.line.tolist() == [[0, 0, 0, 0, 0, 1, 1, 2], [-1, -1, 0, 0, 1, -1, -1, 0]]
    assert packed.before.tolist() == [1, 2, 1, 5]
    assert packed.targets.tolist() == [1, 2, 4, 8]
    assert packed.strips.tolist() == [0, 0, 0, 0]
    assert (packed.padding, packed.attends) == (1, None)
    bare = pack_line([alone], shared=False)
    assert (bare.ids.tolist(), bare.padding, bare.line) == ([[7, 8]], 0, None)


@pytest.mark.parametrize(
    ("layout", "micro_tokens", "lengths", "paddings"),
    [
        ("line", 7, [[4], [2, 3]], [0, 0]),  # and not six tokens and three
        ("line", 9, [[4, 2, 3]], [0]),
        ("line", 1, [[4], [2], [3]], [0, 0, 0]),
        ("padded", 7, [[2, 3], [4]], [1, 0]),
        ("shared_line", 3000, [[4, 2, 3]], [256 - 9]),
        ("shared_line", 9, [[4, 2, 3]], [128 - 9]),
    ],
)
def test_strips_are_put_together_as_the_layout_asks(
    layout: Any, micro_tokens: int, lengths: list[list[int]], paddings: list[int]
) -> None:
    rows = [row((place,), range(length - 1), (0,)) for place, length in enumerate((4, 2, 3))]
    found = list(micro_batches(rows, micro_tokens, layout=layout))
    assert [[len(one.ids) for one in packed.members] for packed in found] == lengths
    assert [packed.padding for packed in found] == paddings
    assert all((packed.line is not None) == (layout == "shared_line") for packed in found)


@pytest.mark.parametrize(
    ("multiple", "micro_tokens", "padding", "lengths"),
    [
        (1, 9, 1.0, [[3, 3, 3], [3, 3, 3], [4]]),
        # Seven rows in four batches: 6 tokens are the least budget.
        (2, 9, 1.0, [[3, 3], [3, 3], [3, 3], [4]]),
        (4, 9, 1.0, [[3, 3], [3, 3], [3, 3], [4]]),
        # 12 tokens, also with the filled places of the second batch.
        (2, 100, 1.0, [[3, 3, 3, 3], [3, 3, 4]]),
        (4, 100, 0.0, [[3, 3], [3, 3], [3, 3], [4]]),  # rows of another length stand apart
        (8, 9, 1.0, [[3]] * 6 + [[4]]),  # no more batches than rows
        (4, 2, 1.0, [[3]] * 6 + [[4]]),
    ],
)
def test_the_number_of_batches_is_brought_up_to_a_multiple(
    multiple: int, micro_tokens: int, padding: float, lengths: list[list[int]]
) -> None:
    rows = [row((place,), range(2 if place < 6 else 3), (0,)) for place in range(7)]
    found = list(micro_batches(rows, micro_tokens, padding, multiple=multiple))
    assert [[len(one.ids) for one in packed.members] for packed in found] == lengths


def test_no_rows_are_no_batches() -> None:
    assert not list(micro_batches([], 100, multiple=4))


def test_rows_of_a_prompt_share_it_in_every_layout_but_a_line() -> None:
    rows = [row(range(10), (place,), (0,)) for place in (1, 2)]
    tokens = {layout: next(micro_batches(rows, 100, layout=layout)).ids.shape[1] for layout in LAYOUTS}
    assert tokens == {"padded": 12, "line": 22, "shared_line": 128}


def image(start: int, name: bytes = b"x") -> PlacedImage:
    return PlacedImage(name, start, 1, 2)


def test_images_are_padded_and_keep_their_places_in_strip_and_row() -> None:
    """A prompt of four tokens with an image at 1, and a second image at place 5 of the second row."""
    first = replace(row((0, 9, 9, 0), (1, 2), (0, 1)), images=(image(1),))
    second = replace(row((0, 9, 9, 0), (3, 9, 9), (0,)), images=(image(1), image(5)))
    (packed,) = micro_batches([first, second], 100, layout="line")
    assert packed.ids.tolist() == [[0, 9, 9, 0, 1, 2, 3, 9, 9]]
    assert [[one.start for one in strip] for strip in packed.images] == [[1, 7]]
    assert packed.turns is not None
    # The image takes columns 0 and 1 at position 1, and what follows begins at 1 + 2.
    assert packed.turns.tolist() == [
        [[0, 1, 1, 3, 4, 5, 4, 5, 5]],
        [[0, 1, 1, 3, 4, 5, 4, 5, 5]],
        [[0, 1, 2, 3, 4, 5, 4, 5, 6]],
    ]
    alike = [replace(one, images=(image(1, name),)) for one, name in ((first, b"a"), (first, b"b"))]
    assert len(strips_of(alike, 100)) == 2  # the same ids stand for other images
    assert len(strips_of([alike[0], alike[0]], 100)) == 1


def test_a_strip_takes_as_many_tokens_as_a_batch_and_not_one_more() -> None:
    rows = [row(range(10), (place,), (0,)) for place in (1, 2)]
    assert [len(strip.rows) for strip in strips_of(rows, 12)] == [2]
    assert [len(strip.rows) for strip in strips_of(rows, 11)] == [1, 1]
    even = [row((0,), (1, 2, 3), (0,)), row((0,), (4, 5, 6), (0,))]  # 7^2 = 49 > 2 * 4^2
    assert [strip.shared for strip in strips_of(even, 100)] == [4, 4]


def test_strips_of_several_rows_are_never_padded_together_with_rows_alone() -> None:
    pair = [row(range(10), (place,), (0,)) for place in (1, 2)]
    found = list(micro_batches([*pair, row((77,), range(11), (0,))], 100))
    assert [len(packed.members) for packed in found] == [1, 2]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_margins_stand_with_the_tokens_of_their_rows(layout: Layout) -> None:
    """Two tokens of the first row, one of the second, which has none, and one of the third."""
    rows = [row((5, 6), (1, 2), (0, 1)), row((5, 7), (3,), (0,)), row((5, 8), (4,), (0,))]
    marked = [replace(rows[0], clip_margin=0.06), rows[1], replace(rows[2], clip_margin=0.0)]
    (packed,) = micro_batches(marked, 999, layout=layout)
    assert packed.clip_margin is not None
    by_target = dict(zip(packed.targets.tolist(), packed.clip_margin.tolist(), strict=True))
    assert by_target == pytest.approx({1: 0.06, 2: 0.06, 3: float("nan"), 4: 0.0}, nan_ok=True)
    (plain,) = micro_batches(rows, 999, layout=layout)
    assert plain.clip_margin is None
