"""Concurrent requests of all running episodes meet in one batch.

A `Batcher` collects the items that coroutines submit, hands them as one list to a synchronous function in a
thread of its own, and gives every coroutine its result. There is one mechanism and two rules for when a
batch is formed:

- by arrival (the default): an idle batcher takes whatever waits after one turn of the event loop; while a
  batch runs, requests accumulate into the next one;
- by episode, inside a `DeterministicBatcher`: a batch is formed only when every live episode waits, in the order of
  episode indices. Batches are then the same in every run, however long tools and threads took.

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

_POLL_S = 0.001  # between two looks at who has come
_SKIPPED_WAITS = 8  # batches without a wait after one that was in vain

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
    """In a deterministic batcher: on the deadline of the caller, until the batch begins."""


@dataclass(slots=True)
class _Queue(Generic[In, Out]):
    """What one event loop has asked of a batcher by arrival."""

    waiters: "list[_Waiter[In, Out]]" = field(default_factory=list)
    task: "asyncio.Task[None] | None" = None  # the event loop itself holds tasks only weakly
    last_batch_size: int = 0  # who asked in the last batch or waited at its end
    batch_s: float = 0.0  # what the last batch took
    ended: float = 0.0  # when it ended
    skip_waits: int = 0  # batches still to be formed at once, because the callers did not come back in time


class Batcher(Generic[In, Out]):
    """Runs ``run`` on batches of the items that concurrent coroutines submit.

    One batch of a batcher runs at a time. A batcher keeps no event loop and may be used from several in turn.

    Args:
        run: takes a list of items and returns as many results, in order; an exception among them is raised where
            its item was submitted, and there alone. It is called in a thread of the batcher.
        rank: in a `DeterministicBatcher`, of several batchers with waiters the lowest rank runs first.
        max_batch: most items a batch; None is no limit.
        timeout_s: seconds from forming a batch to its answer, after which its waiters get `TimeoutError`. An
            abandoned call keeps the thread until it returns. None waits for ever.
        max_wait: between two batches by arrival, the longest wait for those who were just answered to ask again, as
            a share of the last batch's time. Without it callers that ask again at once fall into two halves that
            take turns, and batches are half as large as they could be. 0 never waits.
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
        # Not the shared pool: OpenMP keeps one team of workers for every thread that calls it.
        self._thread = DaemonThreads(1, "batcher", replaces=False)
        # Weak, so that a batcher that outlives a run does not keep the run's loop.
        self._queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _Queue[In, Out]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """All but the thread and what waits."""
        own = ("order", "max_batch", "max_wait", "_run", "_timeout_s")
        return {name: self.__dict__[name] for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_run"], rank=state["order"][0], timeout_s=state["_timeout_s"])  # type: ignore[misc]
        self.max_batch, self.max_wait = state["max_batch"], state["max_wait"]

    async def submit(self, item: In) -> Out:
        """The result for ``item``, computed together with whatever else waits.

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
            # An environment runs on another loop than its episode.
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
        """What ``work`` returns, which runs in the thread of the batcher between two batches.

        Raises:
            Exception: what it raises.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _drain(self, queue: _Queue[In, Out]) -> None:
        try:
            while queue.waiters:
                await asyncio.sleep(0)  # requests of the same turn of the loop share a batch
                await self._wait_for_more(queue)
                # Taken out before the batch runs, because further items are submitted meanwhile.
                size = self.max_batch or len(queue.waiters)
                batch, queue.waiters = queue.waiters[:size], queue.waiters[size:]
                began = time.monotonic()
                await self.serve(batch)
                queue.ended = time.monotonic()
                queue.batch_s, queue.last_batch_size = queue.ended - began, len(batch) + len(queue.waiters)
        finally:
            # Also where the batch failed or the loop ends: with a task that has ended in its place the queue would
            # never move again.
            queue.task = None

    async def _wait_for_more(self, queue: _Queue[In, Out]) -> None:
        """Waits a little for those who were just answered; where they stay away, not again for some batches."""
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
        """Runs one batch; every waiter still there gets its result or the exception of the batch."""
        # A caller that was cancelled while it waited has no use for an answer, and the batch is smaller without it.
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
        """What ``run`` gives for ``items``; called in the thread of the batcher.

        Raises:
            RuntimeError: it raised what is no ``Exception``, as ``SystemExit`` or the panic of a library in Rust. That must
                reach those who wait, as any other error does, and not the event loop, where nobody would be told.
            Exception: it raised that.
        """
        try:
            return self._run(items)
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"a batch raised {type(error).__name__}: {error}") from error


@dataclass(slots=True, eq=False)
class _Slot:
    """The place of one live episode in a deterministic batcher, and what it waits for."""

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

    A batch runs only when every live episode waits on one. Of the batchers with waiters the one with the
    lowest rank runs (of equal ranks the one created first), its items sorted by episode index and cut into
    runs of ``max_batch``.

    Which episodes are live must itself not depend on time: enter all episodes of a rollout at once, ``hold`` the rounds
    where some have to be prepared first, or, with fewer slots than episodes, let a fixed slot hold one registration over
    the episodes that it runs one after another. An episode must not wait for another one by any other means than a batcher.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        """The event loop of the episodes, which is that of the first episode to enter."""
        self._slots: list[_Slot] = []
        self._round: asyncio.Task[None] | None = None

    @contextmanager
    def episode(self, index: int) -> Iterator[None]:
        """Makes the running task a live episode; every batcher that it awaits inside joins the deterministic batcher.

        Raises:
            ConfigurationError: an episode with this index is live.
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
            # Before the next check: what an environment asks after its episode is no business of the others, and it
            # forms batches by arrival.
            slot.live = False
            self._slots.remove(slot)
            self._check_soon()

    def hold(self) -> Callable[[], None]:
        """Keeps rounds from beginning until the returned function is called: for episodes that have to be prepared.

        Call it when the first of these episodes enters, or when it is certain that none will; further calls do nothing.
        """
        slot = _Slot(self, -1)  # it never waits, so that no round begins
        self._slots.append(slot)

        def end() -> None:
            if slot in self._slots:
                self._slots.remove(slot)
                self._check_soon()

        return end

    async def wait(self, slot: _Slot, batcher: Batcher[In, Out], item: In) -> Out:
        """Waits in ``slot`` for the round that answers ``item``; called by `Batcher.submit`.

        The wait for the other episodes does not count in the deadline of the caller, the batch itself does.
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
        # Not at once: episodes that start in this turn of the loop have yet to take their seats.
        if self._slots:
            asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        """Starts a round if every live episode waits."""
        if self._round is not None or not self._slots or not all(slot.waits for slot in self._slots):
            return
        requests = [slot.request for slot in self._slots if slot.request is not None]
        batcher = min((batcher for batcher, _ in requests), key=lambda batcher: batcher.order)
        waiters = [waiter for asked, waiter in requests if asked is batcher]
        waiters.sort(key=lambda waiter: waiter.index)
        # Kept, because the event loop itself holds tasks weakly, and because no second round may begin before this
        # one has ended.
        self._round = asyncio.get_running_loop().create_task(self._play(batcher, waiters))

    async def _play(self, batcher: Batcher[Any, Any], waiters: list[_Waiter[Any, Any]]) -> None:
        size = batcher.max_batch or len(waiters)
        try:
            for start in range(0, len(waiters), size):
                await batcher.serve(waiters[start : start + size])
        finally:
            self._round = None
            self._check_soon()
