"""From rows to tensors: rows of one prompt may stand behind a single copy of it ("shared-prefix packing").

A strip is what one line of a forward pass holds: the prompt, then the rest ("tail") of each of its rows. A tail sees
the prompt and itself and counts its positions from the end of the prompt, so every token gets the hidden state that it
has in its own row, and the prompt's gradient is the sum over the rows.

Shapes: B strips of one micro-batch, T tokens, N trained tokens of the micro-batch. A token is predicted from the one
before it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TrainingRow:
    """One token sequence to train on; some token of it is trained, and the first is not."""

    ids: Ints
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    mismatch: NDArray[np.bool_]
    advantages: NDArray[np.float64]
    sequence_tokens: int = 0
    """Trained tokens of the trajectory that the row is of; 0 where it is the only row."""
    age: Ints | None = None
    """Versions between the weights that sampled each token and those at the start of the update; None is none."""
    proximal: NDArray[np.float32] | None = None
    """Log-probs of the trained tokens under the weights at the start of the update, where they were computed."""

    @cached_property
    def trained(self) -> Ints:
        """Places of the trained tokens."""
        return np.flatnonzero(self.mask)


@dataclass(frozen=True)
class PackedRows:
    """Rows that share their first ``shared`` tokens; a row on its own shares all of them."""

    rows: tuple[TrainingRow, ...]
    shared: int

    @cached_property
    def ids(self) -> Ints:
        """The shared tokens, then the tail of each row."""
        return np.concatenate(
            [self.rows[0].ids[: self.shared], *(row.ids[self.shared :] for row in self.rows)]
        )

    @cached_property
    def positions(self) -> Ints:
        """Position of each token in its own row."""
        tails = [np.arange(self.shared, len(row.ids)) for row in self.rows]
        return np.concatenate([np.arange(self.shared), *tails])

    @cached_property
    def owners(self) -> Ints:
        """Which row each token belongs to; -1 for the shared ones."""
        counts = [len(row.ids) - self.shared for row in self.rows]
        return np.repeat(np.arange(-1, len(counts)), [self.shared, *counts])

    @cached_property
    def before(self) -> Ints:
        """Place in the strip of the token before each trained token, row after row."""
        places, start = [], self.shared
        for row in self.rows:
            last = row.trained - 1
            places.append(np.where(last < self.shared, last, last - self.shared + start))
            start += len(row.ids) - self.shared
        return np.concatenate(places)


@dataclass(frozen=True)
class Packed:
    """A micro-batch: its trained tokens flattened, its strips padded behind, where no real token looks."""

    ids: Tensor  # [B, T]
    strips: Tensor  # [N], of each trained token
    before: Tensor  # [N], place of the token before
    targets: Tensor  # [N]
    old: Tensor  # [N]
    mismatch: Tensor  # [N]
    advantages: Tensor  # [N]
    members: tuple[TrainingRow, ...]  # in the order of their tokens
    rows: Tensor  # int64[N], place among the members
    sequence_tokens: Tensor  # [N], trained tokens of the trajectory
    age: Tensor  # int64[N]
    proximal: Tensor | None  # [N]
    padding: int  # tokens of [B, T] that belong to no strip
    positions: (
        Tensor | None
    )  # [B, T]; None where no strip holds several rows, and attention is plainly causal
    attends: Tensor | None  # bool[B, 1, T, T]: query, key

    def to(self, device: torch.device) -> "Packed":
        """The same micro-batch with its tensors on ``device``."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        there: dict[str, Any] = {name: v.to(device) for name, v in held.items() if isinstance(v, Tensor)}
        return replace(self, **there)


def strips_of(rows: Sequence[TrainingRow], micro_tokens: int) -> list[PackedRows]:
    """Puts rows of one prompt into a strip where that attends to fewer pairs of tokens than the rows apart.

    For rows of equal length the strip then also has at most 1/sqrt(rows) of their tokens. A strip never exceeds
    ``micro_tokens``.
    """
    by_prompt: dict[bytes, list[TrainingRow]] = {}
    for row in rows:
        by_prompt.setdefault(row.ids[: row.trained[0]].tobytes(), []).append(row)
    strips = []
    for group in by_prompt.values():
        shared = int(group[0].trained[0])
        together = shared + sum(len(row.ids) - shared for row in group)
        if len(group) > 1 and together <= micro_tokens and together**2 < sum(len(r.ids) ** 2 for r in group):
            strips.append(PackedRows(tuple(group), shared))
        else:
            strips += [PackedRows((row,), len(row.ids)) for row in group]
    return strips


def micro_batches(rows: Sequence[TrainingRow], micro_tokens: int, padding: float = 1.0) -> Iterator[Packed]:
    """Strips of like length together, as many as fit once padded; at least one.

    Args:
        rows: Of the whole step.
        micro_tokens: Most tokens of a batch, padding included.
        padding: Largest share of padding in a batch, and so in the step.
    """
    batch: list[PackedRows] = []
    strips = sorted(strips_of(rows, micro_tokens), key=lambda strip: (len(strip.rows) > 1, len(strip.ids)))
    for strip in strips:
        if batch and not _fits([*batch, strip], micro_tokens, padding):
            yield pack(batch)
            batch = []
        batch.append(strip)
    if batch:
        yield pack(batch)


def _fits(batch: Sequence[PackedRows], micro_tokens: int, padding: float) -> bool:
    """Whether strips in the order of their length may be one micro-batch; those of several rows need a mask of their own."""
    padded = len(batch) * len(batch[-1].ids)
    alike = (len(batch[0].rows) > 1) == (len(batch[-1].rows) > 1)
    return alike and padded <= micro_tokens and _padding(batch) <= padding * padded


def _padding(batch: Sequence[PackedRows]) -> int:
    """Tokens that fill the strips up to the longest."""
    lengths = [len(strip.ids) for strip in batch]
    return len(lengths) * max(lengths) - sum(lengths)


def pack(batch: Sequence[PackedRows]) -> Packed:
    """The tensors of one micro-batch."""
    rows = [row for strip in batch for row in strip.rows]
    before = [strip.before for strip in batch]
    shared = any(len(strip.rows) > 1 for strip in batch)
    counts = torch.tensor([len(row.trained) for row in rows])
    proximal = [row.proximal for row in rows if row.proximal is not None]

    def spread(values: Sequence[int]) -> Tensor:
        return torch.tensor(values).repeat_interleave(counts)

    def pick(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(row, name)[row.trained] for row in rows]))

    return Packed(
        ids=_padded([strip.ids for strip in batch]),
        strips=torch.from_numpy(np.repeat(np.arange(len(batch)), [len(places) for places in before])),
        before=torch.from_numpy(np.concatenate(before)),
        targets=pick("ids"),
        old=pick("logprobs"),
        mismatch=pick("mismatch"),
        advantages=pick("advantages"),
        members=tuple(rows),
        rows=spread(range(len(rows))),
        sequence_tokens=spread([row.sequence_tokens or len(row.trained) for row in rows]),
        age=torch.from_numpy(np.concatenate([_ages(row)[row.trained] for row in rows])),
        proximal=torch.from_numpy(np.concatenate(proximal)) if len(proximal) == len(rows) else None,
        padding=_padding(batch),
        positions=_padded([strip.positions for strip in batch]) if shared else None,
        attends=_attends(_padded([strip.owners for strip in batch])) if shared else None,
    )


def _ages(row: TrainingRow) -> Ints:
    return np.zeros_like(row.ids) if row.age is None else row.age


def _padded(lines: Sequence[Ints]) -> Tensor:
    padded = np.zeros((len(lines), max(map(len, lines))), dtype=np.int64)
    for place, line in enumerate(lines):
        padded[place, : len(line)] = line
    return torch.from_numpy(padded)


def _attends(owners: Tensor) -> Tensor:
    """bool[B, 1, T, T] from owners [B, T]: each token sees the shared ones and its own row's, up to itself."""
    visible = (owners[:, None, :] == -1) | (owners[:, None, :] == owners[:, :, None])
    return visible.tril()[:, None]
