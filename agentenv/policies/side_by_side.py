"""Independent parts of a computation at once, each on its share of torch's threads.

The operations of a small model are too short for several threads: a product of a few thousand rows is twice as fast on two,
norms, activations and attention hardly are, and threads wait for each other after every one. Whole micro-batches, or halves
of a batch of episodes, need not wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

_MOST = 4
"""Parts at once: each has the memory of a whole one."""
_DENORMAL = 5e-324
"""A thread that flushes such numbers takes it for 0."""


class _Threads:
    """Torch's threads while some computations have divided them; torch counts them for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dividing = 0
        self._all = 0
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def count(self) -> int:
        """All of them, whoever has divided them right now."""
        with self._lock:
            return self._all if self._dividing else torch.get_num_threads()

    @contextmanager
    def divided(self, parts: int) -> Iterator[tuple[ThreadPoolExecutor, int]]:
        """Inside, torch uses a ``parts``-th of them for each operation.

        Yields:
            ``parts`` threads of Python, and how many of torch's each has. They are kept, because in new ones every operation
            of the first seconds is slower.
        """
        with self._lock:
            if not self._dividing:
                self._all = torch.get_num_threads()
            self._dividing += 1
            share = max(1, self._all // parts)
            torch.set_num_threads(share)
            if parts not in self._pools:
                self._pools[parts] = ThreadPoolExecutor(parts, f"{parts}-parts")
            pool = self._pools[parts]
        try:
            yield pool, share
        finally:
            with self._lock:
                self._dividing -= 1
                # Each thread of Python has a setting of its own; parts of others set theirs again when they begin.
                torch.set_num_threads(self._all)


_THREADS = _Threads()


def parts_at_once(most: int = _MOST) -> int:
    """How many parts are computed at once, of ``most`` that there are: one for each of torch's threads, four at most."""
    return max(1, min(most, _THREADS.count(), _MOST))


def side_by_side(work: Callable[[T], R], items: Iterable[T], parts: int) -> Iterator[R]:
    """Results of ``work`` for each of ``items``, in their order, ``parts`` of them computed at once.

    What torch keeps for each thread, such as whether gradients are recorded, ``work`` sets for itself. Floating-point
    settings are those of the caller.

    Args:
        work: Is called in threads of its own where ``parts`` is above 1 and there are several items.
        items: Taken one after the other by the caller's thread, no more than two for each part ahead.
        parts: As of ``parts_at_once``.

    Raises:
        Exception: what ``work`` raised for the first of the items for which it did; those that run end first.
    """
    rest = iter(items)
    first = list(islice(rest, 2)) if parts > 1 else []
    if len(first) < 2:
        yield from map(work, chain(first, rest))
        return
    flushes = _DENORMAL * 1.0 == 0.0

    def carry_out(item: T, share: int) -> R:
        torch.set_num_threads(share)
        torch.set_flush_denormal(flushes)
        return work(item)

    waiting: deque[Future[R]] = deque()
    with _THREADS.divided(parts) as (pool, share):
        try:
            for item in chain(first, rest):
                waiting.append(pool.submit(carry_out, item, share))
                if len(waiting) > 2 * parts:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            wait(waiting)
