"""Independent parts of a computation at once, each on its share of torch's threads.

The operations of a small model are too short for several threads: a product of a few thousand rows is twice as fast on two,
norms, activations and attention hardly are, and threads wait for each other after every one. Whole micro-batches, or halves
of a batch of episodes, need not wait.
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, wait
from itertools import chain, islice
from typing import TypeVar

import torch

from agentenv.core.concurrency.forks import in_forked_processes
from agentenv.core.concurrency.threads import DaemonThreads

T = TypeVar("T")
R = TypeVar("R")

MOST_PARTS = 4
"""Parts at once: each has the memory of a whole one."""
_DENORMAL = 5e-324
"""A thread that flushes such numbers takes it for 0."""
_START_S = 60.0  # for the threads of a pool to be there


class _OfThread(threading.local):
    """What is known of the present thread."""

    computes_part = False


class _Pools:
    """Threads of Python that compute parts, each with a share of torch's threads of its own.

    Torch has a number of threads for each thread of Python, and one for those that it meets for the first time, which is
    the last number that any thread has set. So a thread gets its share once, and the caller's number is set again right
    after: otherwise a sampler that starts while a learner computes would keep a share for good, and cut its batches
    otherwise.
    Threads are kept, because in new ones every operation of the first seconds is slower.
    """

    def __init__(self) -> None:
        self.of_thread = _OfThread()
        self.forget()

    def forget(self) -> None:
        """Drops all pools: a forked process has none of their threads."""
        self._lock = threading.Lock()
        self._pools: dict[tuple[int, int], DaemonThreads] = {}

    def of(self, parts: int) -> DaemonThreads:
        """``parts`` threads that share what the calling thread has of torch's."""
        whole = torch.get_num_threads()
        key = parts, max(1, whole // parts)
        with self._lock:
            if key not in self._pools:
                try:
                    self._pools[key] = self._started(*key)
                finally:
                    torch.set_num_threads(whole)
            return self._pools[key]

    def _started(self, parts: int, share: int) -> DaemonThreads:
        pool = DaemonThreads(parts, f"{parts}-parts", replaces=False)
        there = threading.Barrier(parts + 1, timeout=_START_S)

        def begin() -> None:
            self.of_thread.computes_part = True
            torch.get_num_threads()  # only a thread that torch has met keeps what is set
            torch.set_num_threads(share)
            there.wait()

        try:
            for _ in range(parts):
                pool.submit(begin)
            there.wait()
        except BaseException:
            there.abort()
            pool.shutdown()
            raise
        return pool


_POOLS = _Pools()
in_forked_processes(_POOLS.forget)


def parts_at_once(most: int = MOST_PARTS) -> int:
    """How many parts are computed at once, of ``most`` that there are: one for each of torch's threads, four at most.

    A part of a computation is not cut again.
    """
    if _POOLS.of_thread.computes_part:
        return 1
    return max(1, min(most, torch.get_num_threads(), MOST_PARTS))


def side_by_side(work: Callable[[T], R], items: Iterable[T], parts: int) -> Generator[R, None, None]:
    """Results of ``work`` for each of ``items``, in their order, ``parts`` of them computed at once.

    What torch keeps for each thread, such as whether gradients are recorded, ``work`` sets for itself. Floating-point
    settings are those of the caller. A caller that may stop before the end closes the generator: parts compute until then.

    Args:
        work: Is called in threads of its own where ``parts`` is above 1 and there are several items.
        items: Taken one after the other by the caller's thread, no more than two for each part ahead.
        parts: As of ``parts_at_once``; within a part it is 1, whatever is said.

    Raises:
        Exception: what ``work`` raised for the first of the items for which it did; those that run end first.
    """
    rest = iter(items)
    first = list(islice(rest, 2)) if parts > 1 and not _POOLS.of_thread.computes_part else []
    if len(first) < 2:
        yield from map(work, chain(first, rest))
        return
    # Torch tells nobody whether the caller flushes denormal numbers, so it is tried on one.
    flushes = _DENORMAL * 1.0 == 0.0

    def carry_out(item: T) -> R:
        torch.set_flush_denormal(flushes)
        return work(item)

    waiting: deque[Future[R]] = deque()
    pool = _POOLS.of(parts)
    try:
        for item in chain(first, rest):
            waiting.append(pool.submit(carry_out, item))
            # Two items for each part keep every thread busy while the caller takes a result; more would only hold memory.
            if len(waiting) > 2 * parts:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        # What runs still reads weights and caches that the caller may change as soon as it goes on.
        wait(waiting)
