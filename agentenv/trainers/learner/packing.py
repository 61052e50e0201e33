"""From rows to tensors: rows of one prompt may stand behind a single copy of it ("shared-prefix packing").

A strip is what one line of a forward pass holds: the prompt, then the rest ("tail") of each of its rows. A tail sees
the prompt and itself and counts its positions from the end of the prompt, so every token gets the hidden state that it
has in its own row, and the prompt's gradient is the sum over the rows.

Where attention is computed by a kernel that knows where sequences end, a micro-batch is a single line of all its strips, one
behind the other, without padding: flex attention keeps prompts shared, and flash attention takes every row apart.

Shapes: B strips of one micro-batch, T tokens, N trained tokens of the micro-batch. A token is predicted from the one
before it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentenv.core.images import PlacedImage, rope_positions
from agentenv.core.trajectory import Trajectory

Ints = NDArray[np.int64]
Layout = Literal["padded", "shared_line", "line", "rows"]
"""Strips padded to one length; all strips in one line; all rows in one line, each with a prompt of its own; or rows side by
side in the order in which they come, for a model that reads each by itself, and where all have one length anyway."""

_SHAPES = (
    8  # multiples of a share of ``micro_tokens`` that a line is filled up to: each length is compiled anew
)
_BLOCK = 128  # tokens of a block of flex attention


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
    images: tuple[PlacedImage, ...] = ()
    """What some of the ids stand for, with their places."""
    clip_margin: float | None = None
    """How much further the ratio may rise above 1 than fall below it; None leaves that to the loss."""

    @cached_property
    def trained(self) -> Ints:
        """Places of the trained tokens."""
        return np.flatnonzero(self.mask)

    @property
    def prompt(self) -> tuple[bytes, tuple[PlacedImage, ...]]:
        """What stands before the first trained token."""
        # Images belong to it: the ids that stand for two different images are the same.
        end = int(self.trained[0])
        return self.ids[:end].tobytes(), tuple(image for image in self.images if image.end <= end)


def rows_of(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[NDArray[np.float64]],
    *,
    keep_zero_variance: bool = False,
    version: int | None = None,
) -> list[TrainingRow]:
    """The rows that carry a gradient: some trained token with an advantage other than 0.

    Args:
        trajectories: Valid ones.
        advantages: float64[T] for each.
        keep_zero_variance: Keep rows whose advantages are all 0; a penalty towards a reference acts on them too.
        version: Of the weights at the start of the update; None takes every token for theirs.
    """
    rows = []
    for trajectory, values in zip(trajectories, advantages, strict=True):
        trained = int(trajectory.loss_mask.sum())
        for part, images in zip(trajectory.row_slices, trajectory.row_images, strict=True):
            mask = trajectory.loss_mask[part]
            if (mask & (keep_zero_variance | (values[part] != 0))).any():
                # Tokens that no policy sampled have version -1, and no age: they are never trained.
                sampled = trajectory.policy_version[part]
                rows.append(
                    TrainingRow(
                        trajectory.ids[part],
                        mask,
                        trajectory.logprobs[part],
                        trajectory.context_mismatch[part],
                        values[part],
                        sequence_tokens=trained,
                        age=None
                        if version is None
                        else np.where(sampled < 0, 0, np.maximum(version - sampled, 0)),
                        images=images,
                    )
                )
    return rows


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
    def images(self) -> tuple[PlacedImage, ...]:
        """The images of the shared tokens, then those of each tail, with their places in the strip."""
        found = [image for image in self.rows[0].images if image.end <= self.shared]
        start = self.shared
        for row in self.rows:
            found += [i.moved(start - self.shared) for i in row.images if i.start >= self.shared]
            start += len(row.ids) - self.shared
        return tuple(found)

    @cached_property
    def turns(self) -> Ints:
        """Positions in time, height and width of each token in its own row, int64[3, T]."""
        # Of whole rows, because the positions after an image depend on its size, and so on everything before.
        rows = [rope_positions(len(row.ids), row.images) for row in self.rows]
        return np.concatenate([rows[0][:, : self.shared], *(row[:, self.shared :] for row in rows)], axis=1)

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
            # The first trained token of a tail is predicted from the last shared one, which stands once for all rows.
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
    # [B, T]; None where no strip holds several rows, and attention is plainly causal.
    positions: Tensor | None
    attends: Tensor | None  # bool[B, 1, T, T]: query, key
    line: Tensor | None = None  # int64[2, T] where B is 1: strip and row of each token, row -1 where shared
    bounds: Tensor | None = (
        None  # int32[R + 1] where R rows stand apart in a line: their beginnings, and the end
    )
    longest: int = 0  # tokens of the longest of these rows
    images: tuple[tuple[PlacedImage, ...], ...] = ()  # of each strip; empty where no strip has any
    turns: Tensor | None = None  # int64[3, B, T], positions in time, height and width where there are images
    clip_margin: Tensor | None = None  # [N], not a number where a row has none; None where no row has one

    def to(self, device: torch.device) -> "Packed":
        """The same micro-batch with its tensors on ``device``."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        # Not `dataclasses.asdict`, which would copy every row of the members.
        there: dict[str, Any] = {name: _sent(v, device) for name, v in held.items() if isinstance(v, Tensor)}
        return replace(self, **there)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the host does not wait until a card has come to it."""
    if device.type != "cuda":
        return tensor.to(device)
    # Only what is in pinned memory travels while the host goes on. torch keeps such memory until it has been read.
    return tensor.pin_memory().to(device, non_blocking=True)


def strips_of(rows: Sequence[TrainingRow], micro_tokens: int, *, blocks: bool = False) -> list[PackedRows]:
    """Puts rows of one prompt into a strip where that attends to fewer pairs of tokens than the rows apart.

    For rows of equal length the strip then also has at most 1/sqrt(rows) of their tokens. A strip never exceeds
    ``micro_tokens``.

    Args:
        rows: Of the whole step.
        micro_tokens: Most tokens of a strip of several rows.
        blocks: Whether attention leaves out blocks of tokens that may not look at each other, as flex attention does. Two
            tails then cost nothing, and a strip always attends to fewer pairs than its rows apart.
    """
    by_prompt: dict[tuple[bytes, tuple[PlacedImage, ...]], list[TrainingRow]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, []).append(row)
    strips = []
    for group in by_prompt.values():
        shared = int(group[0].trained[0])
        together = shared + sum(len(row.ids) - shared for row in group)
        # Attention takes the square of the length: one long strip of short prompts would cost more than its rows apart.
        fewer = blocks or together**2 < sum(len(row.ids) ** 2 for row in group)
        if len(group) > 1 and together <= micro_tokens and fewer:
            strips.append(PackedRows(tuple(group), shared))
        else:
            strips += [PackedRows((row,), len(row.ids)) for row in group]
    return strips


def micro_batches(
    rows: Sequence[TrainingRow],
    micro_tokens: int,
    padding: float = 1.0,
    layout: Layout = "padded",
    multiple: int = 1,
) -> Iterator[Packed]:
    """Strips of like length together, as many as fit once padded, or as many as fit into a line; at least one.

    Args:
        rows: Of the whole step.
        micro_tokens: Most tokens of a batch, padding included.
        padding: Largest share of padding in a batch, and so in the step; a line has none but at its end.
        layout: How strips become tensors; where some row has an image, they are padded.
        multiple: The number of batches is brought up to a multiple of this, where there are strips enough: parts that are
            computed at once wait for each other at the end, and a third batch on two threads leaves one of them idle.
    """
    layout = "padded" if any(row.images for row in rows) else layout
    # A card computes two halves faster than a full line and the few rows that had no room in it.
    evenly = multiple > 1 or layout in ("line", "shared_line")
    apart = [PackedRows((row,), len(row.ids)) for row in rows]
    alone = layout in ("line", "rows")
    strips = apart if alone else strips_of(rows, micro_tokens, blocks=layout == "shared_line")
    if layout == "padded":
        # Strips of one row first: they need no mask of their own, and a batch of them alone stays plainly causal.
        strips = sorted(strips, key=lambda strip: (len(strip.rows) > 1, len(strip.ids)))
    limit = padding if layout == "padded" else None
    cut = partial(_evenly_cut, multiple=multiple) if evenly else _cut
    for batch in cut(strips, micro_tokens, limit):
        yield _packed(batch, micro_tokens, layout)


def _evenly_cut(
    strips: Sequence[PackedRows], micro_tokens: int, padding: float | None, multiple: int
) -> list[list[PackedRows]]:
    """The fewest batches, a multiple of ``multiple`` where possible, the largest of them as small as that number allows."""
    found = _cut(strips, micro_tokens, padding)
    most = math.ceil(len(found) / multiple) * multiple
    if not found:
        return found
    # Fewer tokens give more batches, so the least budget that gives no more than ``most`` is found by bisection.
    low, high = 1, micro_tokens
    while low < high:
        middle = (low + high) // 2
        cut = _cut(strips, middle, padding)
        if len(cut) <= most:
            found, high = cut, middle
        else:
            low = middle + 1
    return found


def _cut(strips: Sequence[PackedRows], micro_tokens: int, padding: float | None) -> list[list[PackedRows]]:
    """Strips in their order, as many together as have no more than ``micro_tokens``; one that has more stands alone.

    Args:
        strips: In the order of their length where they are padded.
        micro_tokens: Most tokens of a batch.
        padding: Largest share of padding in a batch; None for a line, which has none.
    """
    batches: list[list[PackedRows]] = []
    real = 0  # tokens of the batch that is being filled
    for strip in strips:
        length = len(strip.ids)
        # Strips of several rows need a mask of their own, so they are not mixed with strips of one row.
        fits = bool(batches) and (padding is None or (len(batches[-1][0].rows) > 1) == (len(strip.rows) > 1))
        if fits:
            passed = real + length if padding is None else (len(batches[-1]) + 1) * length
            fits = passed <= micro_tokens and passed - real - length <= (padding or 0.0) * passed
        if fits:
            batches[-1].append(strip)
            real += length
        else:
            batches.append([strip])
            real = length
    return batches


def _packed(batch: Sequence[PackedRows], micro_tokens: int, layout: Layout) -> Packed:
    if layout in ("padded", "rows"):
        return pack(batch)
    # Flex attention compiles a kernel for every length, so lines come in a few lengths, in whole blocks.
    unit = 1 if layout == "line" else max(_BLOCK, micro_tokens // _SHAPES // _BLOCK * _BLOCK)
    return pack_line(batch, unit, shared=layout == "shared_line")


def _padding(batch: Sequence[PackedRows]) -> int:
    """Tokens that fill the strips up to the longest."""
    lengths = [len(strip.ids) for strip in batch]
    return len(lengths) * max(lengths) - sum(lengths)


def pack(batch: Sequence[PackedRows]) -> Packed:
    """The tensors of one micro-batch of padded strips."""
    before = [strip.before for strip in batch]
    shared = any(len(strip.rows) > 1 for strip in batch)
    seen = tuple(strip.images for strip in batch)
    return Packed(
        **_trained(batch),
        ids=_padded([strip.ids for strip in batch]),
        strips=torch.from_numpy(np.repeat(np.arange(len(batch)), [len(places) for places in before])),
        before=torch.from_numpy(np.concatenate(before)),
        padding=_padding(batch),
        positions=_padded([strip.positions for strip in batch]) if shared else None,
        attends=_attends(_padded([strip.owners for strip in batch])) if shared else None,
        images=seen if any(seen) else (),
        turns=torch.stack([_padded(lines) for lines in zip(*(strip.turns for strip in batch), strict=True)])
        if any(seen)
        else None,
    )


def pack_line(batch: Sequence[PackedRows], unit: int = 1, *, shared: bool = True) -> Packed:
    """The tensors of one micro-batch whose strips stand in a single line.

    Args:
        batch: The strips.
        unit: The line is filled up to a multiple of so many tokens; what fills it looks at itself alone.
        shared: Whether attention needs to know the strip and the row of each token, as rows of a strip share a prompt.
    """
    lengths = [len(strip.ids) for strip in batch]
    starts = np.cumsum([0, *lengths[:-1]])
    # What fills the line is a strip of its own, so that no real token looks at it.
    spare = -sum(lengths) % unit
    filled = np.arange(spare)
    line = np.stack(
        [
            np.repeat(np.arange(len(batch) + 1), [*lengths, spare]),
            np.concatenate([*(strip.owners for strip in batch), np.zeros_like(filled)]),
        ]
    )
    before = np.concatenate([strip.before + start for strip, start in zip(batch, starts, strict=True)])
    return Packed(
        **_trained(batch),
        ids=torch.from_numpy(np.concatenate([*(strip.ids for strip in batch), np.zeros_like(filled)]))[None],
        strips=torch.zeros(len(before), dtype=torch.long),
        before=torch.from_numpy(before),
        padding=spare,
        positions=torch.from_numpy(np.concatenate([*(strip.positions for strip in batch), filled]))[None],
        attends=None,
        line=torch.from_numpy(line) if shared else None,
        bounds=None if shared else torch.tensor([*starts, sum(lengths)], dtype=torch.int32),
        longest=0 if shared else max(lengths),
    )


def _trained(batch: Sequence[PackedRows]) -> dict[str, Any]:
    """What ``Packed`` holds of the trained tokens, whatever the layout."""
    rows = [row for strip in batch for row in strip.rows]
    counts = torch.tensor([len(row.trained) for row in rows])
    proximal = [row.proximal for row in rows if row.proximal is not None]

    # A tensor holds numbers alone, so that not a number stands for None.
    margins = [math.nan if row.clip_margin is None else row.clip_margin for row in rows]

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values).repeat_interleave(counts)

    def pick(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(row, name)[row.trained] for row in rows]))

    return {
        "targets": pick("ids"),
        "old": pick("logprobs"),
        "mismatch": pick("mismatch"),
        "advantages": pick("advantages"),
        "members": tuple(rows),
        "rows": spread(range(len(rows))),
        "sequence_tokens": spread([row.sequence_tokens or len(row.trained) for row in rows]),
        "age": torch.from_numpy(np.concatenate([_ages(row)[row.trained] for row in rows])),
        "proximal": torch.from_numpy(np.concatenate(proximal)) if len(proximal) == len(rows) else None,
        "clip_margin": None if all(map(math.isnan, margins)) else spread(margins),
    }


def _ages(row: TrainingRow) -> Ints:
    return np.zeros_like(row.ids) if row.age is None else row.age


def _padded(lines: Sequence[Ints]) -> Tensor:
    padded = np.zeros((len(lines), max(map(len, lines))), dtype=np.int64)
    for place, line in enumerate(lines):
        padded[place, : len(line)] = line
    return torch.from_numpy(padded)


def _attends(owners: Tensor) -> Tensor:
    """bool[B, 1, T, T] from owners [B, T]: each token sees the shared ones and its own row's, up to itself."""
    # A lower triangle is enough, because the shared tokens stand before all tails and each tail is in its own order.
    visible = (owners[:, None, :] == -1) | (owners[:, None, :] == owners[:, :, None])
    return visible.tril()[:, None]
