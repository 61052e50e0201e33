"""Warm jails: started ahead, one trust domain each, replaced when they die, never more than the quota."""

import contextlib
import itertools
import math
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from agentenv.core.concurrency.deadlines import waiting_for_others
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.jails import Channel, Jail

WAIT_S = 60.0


class Slots:
    """The right to run one of a few programs at a time, for as many as wait.

    A caller that waits is refused only when no program has ended for too long, beyond the time that the running ones may
    take. No program can bring that about, and a long queue of slow programs is no failure. While a caller waits, its
    deadline stands still.
    """

    def __init__(self, count: int, wait_s: float) -> None:
        """``count`` programs at a time; ``wait_s`` seconds are too long without an end of one that should have ended."""
        self._free = threading.BoundedSemaphore(count)
        self._wait_s, self._moved, self._due = wait_s, time.monotonic(), 0.0

    def take(self, seconds: float = 0.0) -> bool:
        """Waits for the right to run for so many seconds; False where it could not be had."""
        # First without waiting: a caller that need not wait does not hold its deadline either.
        if not self._free.acquire(blocking=False):
            with waiting_for_others():
                if not self._wait(time.monotonic()):
                    return False
        self.moved()
        # Until then a program that has begun may run without anybody having to be at fault.
        self._due = max(self._due, self._moved + seconds)
        return True

    def _wait(self, began: float) -> bool:
        while (left := max(began, self._moved, self._due) + self._wait_s - time.monotonic()) > 0:
            if self._free.acquire(timeout=min(left, self._wait_s)):
                return True
        return False

    def moved(self) -> None:
        """Says that a program came to an end, or began."""
        self._moved = time.monotonic()

    def give(self) -> None:
        """Hands the right on."""
        self.moved()
        self._free.release()


class Pool:
    """Hands out jails.

    A jail serves one trust domain at a time. Once nothing runs in it, it holds nothing of whom it served, since no message
    passes through what it forks, and it may serve another one. At most
    ``slots`` programs run at a time; a caller that waits is charged queue time and refused where none ends for ``wait_s``.

    Where a jail bounds the processes of all that runs in it together, every run, every session and every fork of one
    reserves as many as its own limits allow. So no program can use up what another one was promised; a domain that needs
    more gets another jail.
    """

    def __init__(
        self,
        start: Callable[[], Jail],
        *,
        size: int = 2,
        slots: int | None = None,
        quota: int = 64,
        wait_s: float = WAIT_S,
        processes: int | None = None,
    ) -> None:
        """Starts ``size`` jails in the background.

        Args:
            start: Starts one jail; the pool waits for it.
            size: Jails that a domain has at a time while its programs fit into them, and that are kept in reserve.
            slots: Programs that run at a time; None is one for each processor.
            quota: Jails at a time, over all domains.
            wait_s: Seconds that a caller waits for a jail; for a slot, as long as programs come to an end so often.
            processes: Processes and threads that one jail has room for; None where it sets no bound of its own.
        """
        self._start, self._size, self._quota, self._wait_s = start, size, quota, wait_s
        self._processes = processes
        self._slots = Slots(slots or len(os.sched_getaffinity(0)), wait_s)
        self._lock = threading.Lock()
        self._reserve: list[Future[Jail]] = []
        self._domains: dict[str, list[Future[Jail]]] = {}
        self._leases: Counter[Future[Jail]] = Counter()
        """Processes of callers that have been given a jail and have opened no channel in it yet."""
        self._turn = 0
        self._closed = False
        self._left: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="agentenv-pool")
        with self._lock:
            self._refill()

    def _refill(self) -> None:
        """Orders what is missing in the reserve; the caller holds the lock."""
        have = sum(len(jails) for jails in self._domains.values())
        # Ordered ahead, because a jail takes as long to start as many programs take to run.
        while len(self._reserve) < min(self._size, self._quota - have):
            self._reserve.append(self._starter.submit(self._boot))

    def _boot(self) -> Jail:
        try:
            jail = self._start()
        # A full disk, no descriptor left, or a program that was removed since the first jail was started.
        except (OSError, ConfigurationError) as error:
            raise SandboxFault(f"a jail cannot be started: {error}") from error
        jail.await_ready()
        return jail

    @contextlib.contextmanager
    def slot(self, seconds: float = 0.0) -> Iterator[float]:
        """The right to run one program, which may take so many seconds; gives the seconds that it took to get it.

        Raises:
            SandboxFault: none became free in time.
        """
        began = time.monotonic()
        if not self._slots.take(seconds):
            raise SandboxFault(
                f"no processor became free for a program: none came to an end within {self._wait_s:g} s"
            )
        try:
            yield time.monotonic() - began
        finally:
            self._slots.give()

    def channel(self, domain: str, processes: int, *, session: bool = False) -> Channel:
        """A new supervisor in a jail of ``domain``, for one run or for a session that may have so many processes at a time.

        Raises:
            ConfigurationError: no jail has room for so many processes.
            JailDied: the jail is gone.
            SandboxFault: none could be started, or the quota is used up.
        """
        # The lease holds the processes from the choice of the jail until its channel counts them: without it two
        # callers could be promised the last ones.
        ordered = self._lease(domain, processes)
        try:
            return self._finish_boot(ordered).channel(processes, session=session)
        finally:
            self._release(ordered, processes)

    def end_later(self, end: Callable[[], None]) -> None:
        """Has ``end_left`` call ``end``; takes no lock, so that a garbage collector may call it."""
        self._left.put(end)

    def end_left(self) -> None:
        """Ends the sessions that nobody closed. The caller holds no lock of another session."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._left.get_nowait()()

    def enlarge(self, channel: Channel, processes: int) -> bool:
        """Reserves more processes for a supervisor; False where its jail has no room for them."""
        with self._lock:
            for ordered in itertools.chain.from_iterable(self._domains.values()):
                known = ordered.done() and not _dead(ordered) and ordered.result() is channel.jail
                if known and self._room(ordered) < processes:
                    return False
            channel.processes += processes
            return True

    def jail(self, domain: str) -> Jail:
        """A live jail of ``domain``, in turn.

        Raises:
            SandboxFault: none could be started, or the quota is used up.
        """
        ordered = self._lease(domain, 1)
        self._release(ordered, 1)
        return self._finish_boot(ordered)

    def _release(self, ordered: "Future[Jail]", processes: int) -> None:
        with self._lock:
            self._leases[ordered] -= processes
            if not self._leases[ordered]:
                del self._leases[ordered]

    def _lease(self, domain: str, processes: int) -> "Future[Jail]":
        if self._processes is not None and processes > self._processes:
            raise ConfigurationError(
                f"these limits allow {processes} processes at a time, and a jail has room for {self._processes}: lower "
                "`processes` or `snapshots` of the limits, or raise `processes` of the executor"
            )
        with self._lock:
            if self._closed:
                raise SandboxFault("the executor is closed")
            # Taken out while it is decided, so that an idle jail of this domain is not found as one of another
            # domain.
            own = [ordered for ordered in self._domains.pop(domain, []) if not _dead(ordered)]
            try:
                roomy = [ordered for ordered in own if self._room(ordered) >= processes]
                if len(own) < self._size or not roomy:
                    roomy.append(self._take(len(own)))
                    own.append(roomy[-1])
            finally:
                if own:
                    self._domains[domain] = own
            self._turn += 1
            # In turn, so that the programs of a domain spread over its jails.
            ordered = roomy[self._turn % len(roomy)]
            self._leases[ordered] += processes
            self._refill()
            return ordered

    def _room(self, ordered: "Future[Jail]") -> float:
        """Processes that may still be reserved in a jail; the caller holds the lock."""
        if self._processes is None:
            return math.inf
        taken = ordered.result().taken if ordered.done() else 0
        return self._processes - taken - self._leases[ordered]

    def _finish_boot(self, ordered: "Future[Jail]") -> Jail:
        try:
            return ordered.result(self._wait_s)
        except TimeoutError:
            raise SandboxFault(f"no jail was ready within {self._wait_s:.0f} s") from None
        # A jail that was only ordered is cancelled when the pool is closed, and somebody may wait for it.
        except CancelledError:
            raise SandboxFault("the executor is closed") from None

    def warm(self) -> None:
        """Waits until every jail that was ordered takes programs.

        Raises:
            SandboxFault: one could not be started.
        """
        with self._lock:
            ordered = [*self._reserve, *(one for jails in self._domains.values() for one in jails)]
        for one in ordered:
            one.result()

    def _take(self, own: int) -> Future[Jail]:
        """One that has become idle in another domain, one from the reserve, or a new one, for a domain that has ``own``."""
        if idle := self._take_idle():
            return idle
        self._reserve = [ordered for ordered in self._reserve if not _dead(ordered)]
        if self._reserve:
            return self._reserve.pop(0)
        if own + sum(len(jails) for jails in self._domains.values()) >= self._quota:
            raise SandboxFault(f"all {self._quota} jails are in use")
        return self._starter.submit(self._boot)

    def _take_idle(self) -> "Future[Jail] | None":
        for domain, jails in self._domains.items():
            for ordered in jails:
                if not _dead(ordered) and self._idle(ordered):
                    jails.remove(ordered)
                    if not jails:
                        del self._domains[domain]
                    return ordered
        return None

    def _idle(self, ordered: "Future[Jail]") -> bool:
        """Whether nothing runs in a jail and nobody is about to run anything."""
        return ordered.done() and not self._leases[ordered] and ordered.result().load == 0

    def close(self) -> None:
        """Ends every jail; a second call does nothing."""
        with self._lock:
            self._closed = True
            ordered = [*self._reserve, *(one for jails in self._domains.values() for one in jails)]
            # Taken under the lock and closed outside of it, because a jail that is still starting is waited for.
            self._reserve, self._domains = [], {}
        # All are cancelled before any is waited for, so that callers of those that have not begun are told at once.
        for one in [one for one in ordered if not one.cancel()]:
            if not one.exception():
                one.result().close()
        self._starter.shutdown()


def _dead(ordered: "Future[Jail]") -> bool:
    return ordered.done() and (ordered.exception() is not None or ordered.result().closed)
