"""Combines concurrent requests of all running episodes into batches.

A `Batcher` collects the items that coroutines submit, passes them as one list to a synchronous function in a thread of its
own, and returns each result to its coroutine. There are two rules for when a batch is formed:

- by arrival (the default): an idle batcher takes all items that wait after one iteration of the event loop; while a batch
runs, further items collect for the next one;
- by episode index, inside a `DeterministicBatcher`: a batch is formed only when every live episode waits for one, in the
order of episode indices. Batches are then the same in every run, however long tools and threads take.

By convention retrievers have rank 0 and policies rank 1, so that a generation batch holds as many episodes
as possible.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from agentenv.core.concurrency.deadlines import Hold, hold_current
from agentenv.core.concurrency.threads import DaemonThreads
from agentenv.errors import ConfigurationError

_POLL_S = 0.001  # seconds between two checks for new items
_SKIPPED_WAITS = 8  # batches formed without waiting after one wait that brought no new item

In = TypeVar("In")
Out = TypeVar("Out")
Found = TypeVar("Found")

episode_index: ContextVar[int] = ContextVar("episode_index", default=0)
"""Index of the running episode within its rollout; set by `DeterministicBatcher.episode` or by the rollout loop."""


@dataclass(slots=True, eq=False)
class _Waiter(Generic[In, Out]):
    item: In
    answer: "asyncio.Future[Out]"
    index: int
    hold: Hold | None = None
    """In a deterministic batcher: the hold on the caller's deadline, which ends when the batch begins."""


@dataclass(slots=True)
class _Queue(Generic[In, Out]):
    """The items that one event loop has submitted to a batcher that forms batches by arrival."""

    waiters: "list[_Waiter[In, Out]]" = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None  # the event loop itself holds tasks only weakly
    last_batch_size: int = 0  # items of the last batch, plus those that waited at its end
    batch_s: float = 0.0  # duration of the last batch in seconds
    ended: float = 0.0  # time at which the last batch ended
    skip_waits: int = 0  # batches still to be formed without waiting, because an earlier wait was in vain


class Batcher(Generic[In, Out]):
    """Calls ``run`` with batches of the items that concurrent coroutines submit.

    One batch of a batcher runs at a time. A batcher is not bound to an event loop and may be used from several in turn.

    Args:
        run: Takes a list of items and returns as many results, in the same order. An exception among the results is raised
            only for the item at its place. ``run`` is called in a thread of the batcher.
        rank: In a `DeterministicBatcher`, the batcher with the lowest rank among those with waiting items runs first.
        max_batch: The largest number of items in a batch; None is no limit.
        timeout_s: Seconds from the start of a batch to its result, after which its waiters get a `TimeoutError`. The
            abandoned call keeps the thread until it returns. None waits for ever.
        max_wait: Between two batches formed by arrival: the longest wait for the callers of the last batch to submit again,
            as a share of that batch's duration. Without this wait, callers that submit again at once split into two halves
            that alternate, and batches have half the possible size. 0 never waits.
    """

    _created = itertools.count()

    def __init__(
        self,
        run: Callable[[list[In]], Sequence[Out | Exception]],
        *,
        rank: int = 0,
        max_batch: int | None = None,
        timeout_s: float | None = None,
        max_wait: float = 0.0,
    ) -> None:
        self.order = (rank, next(Batcher._created))
        self.max_batch = max_batch
        self.max_wait = max_wait
        self._run = run
        self._timeout_s = timeout_s
        # Not the shared pool, because OpenMP keeps one team of worker threads for every thread that calls it.
        self._thread = DaemonThreads(1, "batcher", replaces=False)
        # Weak references, so that a batcher that outlives a run does not keep the run's event loop alive.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[In, Out]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Returns all attributes except the thread and the waiting items."""
        own = ("order", "max_batch", "max_wait", "_run", "_timeout_s")
        return {name: self.__dict__[name] for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_run"], rank=state["order"][0], timeout_s=state["_timeout_s"])  # type: ignore[misc]
        self.max_batch, self.max_wait = state["max_batch"], state["max_wait"]

    async def submit(self, item: In) -> Out:
        """Waits for the result of ``item``, which is computed in one batch with the other waiting items.

        An episode of a `DeterministicBatcher` awaits one batcher at a time.

        Raises:
            Exception: whatever ``run`` raised for the batch, or returned for this item.
            TimeoutError: the batch took longer than ``timeout_s``.
        """
        loop = asyncio.get_running_loop()
        slot = _slot.get()
        if slot is not None and slot.live:
            waiting = slot.deterministic_batcher.wait(slot, self, item)
            if slot.deterministic_batcher.loop is loop:
                return await waiting
            # An environment runs on another event loop than its episode.
            return await asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(waiting, slot.deterministic_batcher.loop)
            )
        waiter = _Waiter[In, Out](item, loop.create_future(), episode_index.get())
        queue = self._queues.setdefault(loop, _Queue())
        queue.waiters.append(waiter)
        if queue.task is None:
            queue.task = loop.create_task(self._drain(queue))
        return await waiter.answer

    async def between_batches(self, work: Callable[[], Found]) -> Found:
        """Runs ``work`` in the thread of the batcher between two batches, and returns its result.

        Raises:
            Exception: ``work`` raised it.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _drain(self, queue: _Queue[In, Out]) -> None:
        try:
            while queue.waiters:
                await asyncio.sleep(0)  # items submitted in the same iteration of the loop share a batch
                await self._wait_for_more(queue)
                # The items are removed before the batch runs, because further items are submitted meanwhile.
                size = self.max_batch or len(queue.waiters)
                batch, queue.waiters = queue.waiters[:size], queue.waiters[size:]
                began = time.monotonic()
                await self.serve(batch)
                queue.ended = time.monotonic()
                queue.batch_s, queue.last_batch_size = queue.ended - began, len(batch) + len(queue.waiters)
        finally:
            # This is needed also if the batch failed or the loop ended: with a finished task in its place, the queue would
            # never be served again.
            queue.task = None

    async def _wait_for_more(self, queue: _Queue[In, Out]) -> None:
        """Waits a little for the callers of the last batch; if they do not return, skips the wait for some batches."""
        wanted = min(queue.last_batch_size, self.max_batch or queue.last_batch_size)
        if queue.skip_waits or not self.max_wait:
            queue.skip_waits = max(0, queue.skip_waits - 1)
            return
        deadline = queue.ended + self.max_wait * queue.batch_s
        while len(queue.waiters) < wanted and (now := time.monotonic()) < deadline:
            await asyncio.sleep(min(_POLL_S, deadline - now))
            if time.monotonic() >= deadline and len(queue.waiters) < wanted:
                queue.skip_waits = _SKIPPED_WAITS

    async def serve(self, waiters: list[_Waiter[In, Out]]) -> None:
        """Runs one batch. Every waiter that is still waiting gets its result, or the exception of the batch."""
        # A caller that was cancelled in the meantime needs no result, so its item is left out.
        waiters = [waiter for waiter in waiters if not waiter.answer.done()]
        if not waiters:
            return
        items = [waiter.item for waiter in waiters]
        for waiter in waiters:
            if waiter.hold is not None:
                waiter.hold.end()
        try:
            async with asyncio.timeout(self._timeout_s):
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self._results, items)
            if len(results) != len(items):
                raise RuntimeError(f"A batch of {len(items)} items came back with {len(results)} results.")
        except Exception as error:
            for waiter in waiters:
                if not waiter.answer.done():
                    waiter.answer.set_exception(error)
        else:
            for waiter, result in zip(waiters, results, strict=True):
                if waiter.answer.done():
                    continue
                if isinstance(result, Exception):
                    waiter.answer.set_exception(result)
                else:
                    waiter.answer.set_result(result)

    def _results(self, items: list[In]) -> Sequence[Out | Exception]:
        """Calls ``run`` with ``items``, in the thread of the batcher.

        Raises:
            RuntimeError: ``run`` raised something that is not an ``Exception``, such as ``SystemExit`` or a panic of a Rust
                library. It has to reach the waiters like any other error; the event loop would only lose it.
            Exception: ``run`` raised it.
        """
        try:
            return self._run(items)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"a batch raised {type(error).__name__}: {error}") from error


@dataclass(slots=True, eq=False)
class _Slot:
    """The place of one live episode in a deterministic batcher, and the request for which it waits."""

    deterministic_batcher: "DeterministicBatcher"
    index: int
    live: bool = True
    request: tuple[Batcher[Any, Any], _Waiter[Any, Any]] | None = None

    @property
    def waits(self) -> bool:
        return self.request is not None and not self.request[1].answer.done()


_slot: ContextVar[_Slot | None] = ContextVar("_slot", default=None)


class DeterministicBatcher:
    """Forms batches by episode index and never by arrival.

    A batch runs only when every live episode waits for one. Among the batchers with waiting items, the one with the lowest
    rank runs (of equal ranks, the one created first). Its items are sorted by episode index and split into batches of at
    most ``max_batch``.

    Which episodes are live must not depend on time either. Enter all episodes of a rollout at once; use ``hold`` to delay
    rounds while some are being prepared; with fewer slots than episodes, keep one registration per slot for all episodes
    that it runs one after another. An episode must not wait for another one other than through a batcher.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        """The event loop of the episodes, which is that of the first episode to enter."""
        self._slots: list[_Slot] = []
        self._round: asyncio.Task[None] | None = None

    @contextmanager
    def episode(self, index: int) -> Iterator[None]:
        """Registers the running task as a live episode; within the block, every batcher it awaits forms batches by index.

        Raises:
            ConfigurationError: an episode with this index is already live.
        """
        if any(slot.index == index for slot in self._slots):
            raise ConfigurationError(
                f"Episode {index} is already live; give every live episode its own index."
            )
        self.loop = asyncio.get_running_loop()
        slot = _Slot(self, index)
        self._slots.append(slot)
        index_token, slot_token = episode_index.set(index), _slot.set(slot)
        try:
            yield
        finally:
            episode_index.reset(index_token)
            _slot.reset(slot_token)
            # The slot ends before the next check. What an environment submits after its episode concerns no other episode,
            # and is batched by arrival.
            slot.live = False
            self._slots.remove(slot)
            self._check_soon()

    def hold(self) -> Callable[[], None]:
        """Prevents rounds from starting until the returned function is called, for episodes that are still being prepared.

        Call that function when the first of these episodes enters, or when it is certain that none will. Further calls do
        nothing.
        """
        slot = _Slot(self, -1)  # this slot never waits, so no round can begin
        self._slots.append(slot)

        def end() -> None:
            if slot in self._slots:
                self._slots.remove(slot)
                self._check_soon()

        return end

    async def wait(self, slot: _Slot, batcher: Batcher[In, Out], item: In) -> Out:
        """Waits in ``slot`` for the round that computes ``item``; called by `Batcher.submit`.

        The deadline of the caller does not include the wait for other episodes, but it does include the batch itself.
        """
        if slot.request is not None:
            raise RuntimeError(
                f"Episode {slot.index} awaits two batchers at once; await one after the other."
            )
        waiter = _Waiter[In, Out](item, self.loop.create_future(), slot.index, hold_current())
        slot.request = (batcher, waiter)
        self._check_soon()
        try:
            return await waiter.answer
        finally:
            slot.request = None
            assert waiter.hold is not None
            waiter.hold.end()

    def _check_soon(self) -> None:
        # The check is delayed: episodes that start in this iteration of the loop have yet to register their slots.
        if self._slots:
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        """Starts a round if every live episode waits for a batch."""
        if self._round is not None or not self._slots or not all(slot.waits for slot in self._slots):
            return
        requests = [slot.request for slot in self._slots if slot.request is not None]
        batcher = min((batcher for batcher, _ in requests), key=lambda batcher: batcher.order)
        waiters = [waiter for asked, waiter in requests if asked is batcher]
        waiters.sort(key=lambda waiter: waiter.index)
        # The reference is kept because the event loop itself holds tasks weakly, and because no second round may begin
        # before this one has ended.
        self._round = asyncio.get_running_loop().create_task(self._play(batcher, waiters))

    async def _play(self, batcher: Batcher[Any, Any], waiters: list[_Waiter[Any, Any]]) -> None:
        size = batcher.max_batch or len(waiters)
        try:
            for start in range(0, len(waiters), size):
                await batcher.serve(waiters[start : start + size])
        finally:
            self._round = None
            self._check_soon()
