"""Keys and values of the episodes of a policy, which stay where they are between the turns of an episode.

The rows of a batch are neighbouring slots of one tensor, in the order of the batch. After a batch its episodes keep their
slots. A row of the next batch whose slot is still its place goes on behind what it has, or behind as much of it as a
rewound prompt shares, and nothing is copied. Other rows are moved, because attention reads the rows of a batch side by side.
Episodes that a batch leaves out get a copy of their own before their slots are used for others.

Shapes: B rows of a batch, L layers, S slots, H heads of keys and values, C tokens that a slot has room for, D size of
a head.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from agentenv.policies.decoding import Cached, Row
from agentenv.policies.forward import CacheShape


class EpisodeCache:
    """Slots for the rows of a batch, and what every episode has cached there.

    ``held`` may lose episodes to another thread while a batch runs; everything else is for the thread of the batches.
    """

    def __init__(self, shape: CacheShape, context_tokens: int) -> None:
        """Holds nothing yet.

        Args:
            shape: What the model keeps of a token.
            context_tokens: Slots are not made longer ahead of need than this.
        """
        self.held: dict[str, Cached] = {}
        self._shape = shape
        self._context_tokens = context_tokens
        self._slots: Tensor | None = None
        self._released: set[str] = set()

    def opened(self, rows: Sequence[Row], first: Sequence[Row], tokens: int, model: Any) -> Tensor:
        """Slots [L, 2, S, H, C, D], S >= B, of which the leading ones hold what the rows ``first`` go on from.

        Args:
            rows: Of the batch. What their episodes had is no longer held: it is about to be written over.
            first: Those that are fed first; the others get copies of their slots later.
            tokens: Room that each row needs.
            model: Whose device and number format the slots have.
        """
        # Of this batch alone: a name that was released before it may begin anew.
        self._released.clear()
        asking = {row.request.episode for row in rows}
        for episode, cached in list(self.held.items()):
            if episode in asking:
                self.held.pop(episode, None)
            elif cached.slots is self._slots or cached.slots.shape[2] > 1:
                own = cached.slots[:, :, cached.slot, None, :, : len(cached.ids)].clone()
                cached.slots, cached.slot = own, 0
        # The batch has the slots until it closes: one that fails leaves them to nobody, whatever it has written there.
        slots, self._slots = self._with_room(len(rows), tokens, model), None
        known = [
            (place, row.cached, row.start) for place, row in enumerate(first) if row.cached and row.start
        ]
        moved = [one for one in known if one[1].slots is slots and one[1].slot != one[0]]
        # First within the slots, then from copies: a copy that is written first could overwrite what is about to be
        # moved.
        if moved:
            copy_slots(slots, [(cached.slot, place) for place, cached, _ in moved], max(n for *_, n in moved))
        for place, cached, start in known:
            if cached.slots is not slots:
                slots[:, :, place, :, :start] = cached.kv[:, :, :, :start]
        return slots

    def close(self, rows: Sequence[Row], slots: Tensor) -> None:
        """Keeps what the finished ``rows`` have in the open ``slots``, each at its place."""
        for place, row in enumerate(rows):
            episode = row.request.episode
            # An episode that was released meanwhile is over: nobody would release it again.
            if episode is not None and episode not in self._released and row.valid:
                ids = (row.ids + row.sampled)[: row.length - 1]  # the last sampled token was never fed
                self.held[episode] = Cached(ids, slots, place, row.images)
        # What is not finite would spread from there: 0 times it is not 0.
        if all(row.valid for row in rows) and (self.held or slots.device.type == "cpu"):
            self._slots = slots

    def release(self, episode: str) -> None:
        """Drops what ``episode`` has. The last one gives the memory of a GPU back, which a learner then has."""
        self._released.add(episode)
        self.held.pop(episode, None)
        slots = self._slots
        if not self.held and slots is not None and slots.device.type != "cpu":
            self._slots = None

    def clear(self) -> None:
        """Drops what all episodes have."""
        self.held.clear()

    def _with_room(self, count: int, tokens: int, model: Any) -> Tensor:
        """The slots, or new ones where ``count`` rows of ``tokens`` tokens have no room in them.

        They grow by half at least, so that an episode is not copied with every turn that makes it longer. New slots have the
        number and the length of the old ones, unless that takes twice the memory that was ever needed at once.
        """
        now = self._slots  # read once: another thread may give it up
        count_now, tokens_now = (0, 0) if now is None else (now.shape[2], now.shape[4])
        if now is not None and count <= count_now and tokens <= tokens_now:
            return now
        ahead = min(tokens_now * 3 // 2, self._context_tokens) if tokens > tokens_now else tokens_now
        size = max(count_now, count), max(tokens, ahead)
        if size[0] * size[1] > 2 * max(count_now * tokens_now, count * tokens):
            size = count, tokens
        layers, heads, width = self._shape
        shape = (layers, 2, size[0], heads, size[1], width)
        # Zeros, because masked places are multiplied by 0 and must be finite.
        return torch.zeros(shape, dtype=model.dtype, device=model.device)


def copy_slots(slots: Tensor, pairs: Sequence[tuple[int, int]], tokens: int) -> None:
    """Copies the first ``tokens`` tokens of slots [L, 2, S, H, C, D], for ``pairs`` of from where and to where.

    All of a layer are read before one is written, so slots may change places.
    """
    sources, targets = torch.tensor(list(zip(*pairs, strict=True)), device=slots.device)
    for layer in slots:  # one after the other, because what is read needs memory of its own
        layer[:, targets, :, :tokens] = layer[:, sources, :, :tokens]
