"""A pool of jails: started in advance, one trust domain each, replaced when they die, never more than the quota."""

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
    """A semaphore for running programs with a fair timeout.

    A waiting caller is refused only if no program has ended for too long, beyond the time limits of the running ones.
    Programs cannot cause this, and a long queue of slow programs is not a failure. While a caller waits, its deadline is
    held.
    """

    def __init__(self, count: int, wait_s: float) -> None:
        """``count`` programs may run at a time; ``wait_s`` seconds without an end of a program that is due are too long."""
        self._free = threading.BoundedSemaphore(count)
        self._wait_s, self._moved, self._due = wait_s, time.monotonic(), 0.0

    def take(self, seconds: float = 0.0) -> bool:
        """Waits for permission to run for ``seconds``; False if there is none in time."""
        # Tried first without waiting, so that a caller that need not wait does not hold its deadline.
        if not self._free.acquire(blocking=False):
            with waiting_for_others():
                if not self._wait(time.monotonic()):
                    return False
        self.moved()
        # Until then, a started program may run without anything being wrong.
        self._due = max(self._due, self._moved + seconds)
        return True

    def _wait(self, began: float) -> bool:
        while (left := max(began, self._moved, self._due) + self._wait_s - time.monotonic()) > 0:
            if self._free.acquire(timeout=min(left, self._wait_s)):
                return True
        return False

    def moved(self) -> None:
        """Records that a program has ended or started."""
        self._moved = time.monotonic()

    def give(self) -> None:
        """Returns the permission."""
        self.moved()
        self._free.release()


class Pool:
    """Assigns jails to callers.

    A jail serves one trust domain at a time. When nothing runs in it, it contains nothing of that domain, because no message
    passes through the processes from which it forks, so it may serve another one. At most ``slots`` programs run at a time.
    A waiting caller is charged queue time, and refused if no program ends for ``wait_s``.

    If a jail limits the processes of everything in it together, every run, session and fork reserves as many as its own
    limits allow. So no program can use up what was promised to another one. A domain that needs more gets another jail.
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
            size: Number of jails that a domain uses at a time while its programs fit into them, and of jails kept in
                reserve.
            slots: Number of programs that run at a time; None is one for each processor.
            quota: Largest number of jails of all domains together.
            wait_s: Seconds that a caller waits for a jail; for a slot, the longest time without the end of a program.
            processes: Number of processes and threads for which one jail has room; None if it sets no such limit.
        """
        self._start, self._size, self._quota, self._wait_s = start, size, quota, wait_s
        self._processes = processes
        self._slots = Slots(slots or len(os.sched_getaffinity(0)), wait_s)
        self._lock = threading.Lock()
        self._reserve: list[Future[Jail]] = []
        self._domains: dict[str, list[Future[Jail]]] = {}
        self._leases: Counter[Future[Jail]] = Counter()
        """Processes reserved for callers that were assigned a jail and have not opened a channel in it yet."""
        self._turn = 0
        self._closed = False
        self._left: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="agentenv-pool")
        with self._lock:
            self._refill()

    def _refill(self) -> None:
        """Starts the missing jails of the reserve. The caller holds the lock."""
        have = sum(len(jails) for jails in self._domains.values())
        # Started in advance, because a jail takes as long to start as many programs take to run.
        while len(self._reserve) < min(self._size, self._quota - have):
            self._reserve.append(self._starter.submit(self._boot))

    def _boot(self) -> Jail:
        try:
            jail = self._start()
        # The disk is full, no descriptor is left, or a program was removed since the first jail was started.
        except (OSError, ConfigurationError) as error:
            raise SandboxFault(f"a jail cannot be started: {error}") from error
        jail.await_ready()
        return jail

    @contextlib.contextmanager
    def slot(self, seconds: float = 0.0) -> Iterator[float]:
        """Waits for permission to run one program for ``seconds``; yields the waiting time in seconds.

        Raises:
            SandboxFault: there was none in time.
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
        """Opens a channel to a new supervisor in a jail of ``domain``, with at most so many processes at a time.

        Raises:
            ConfigurationError: no jail has room for so many processes.
            JailDied: the jail has ended.
            SandboxFault: no jail could be started, or the quota is used up.
        """
        # The lease reserves the processes until the channel counts them. Without it, the last ones could be promised to two
        # callers.
        ordered = self._lease(domain, processes)
        try:
            return self._await_boot(ordered).channel(processes, session=session)
        finally:
            self._release(ordered, processes)

    def end_later(self, end: Callable[[], None]) -> None:
        """Makes ``end_left`` call ``end`` later. It takes no lock, so a finaliser may call it."""
        self._left.put(end)

    def end_left(self) -> None:
        """Ends the sessions that were never closed. The caller must not hold the lock of another session."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._left.get_nowait()()

    def enlarge(self, channel: Channel, processes: int) -> bool:
        """Reserves more processes for a supervisor; False if its jail has no room for them."""
        with self._lock:
            for ordered in itertools.chain.from_iterable(self._domains.values()):
                known = ordered.done() and not _dead(ordered) and ordered.result() is channel.jail
                if known and self._room(ordered) < processes:
                    return False
            channel.processes += processes
            return True

    def jail(self, domain: str) -> Jail:
        """Returns a live jail of ``domain``; several are used in turn.

        Raises:
            SandboxFault: no jail could be started, or the quota is used up.
        """
        ordered = self._lease(domain, 1)
        self._release(ordered, 1)
        return self._await_boot(ordered)

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
            # Removed while this is decided, so that an idle jail of this domain is not taken for that of another one.
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
            # In turn, so that the programs of a domain are spread over its jails.
            ordered = roomy[self._turn % len(roomy)]
            self._leases[ordered] += processes
            self._refill()
            return ordered

    def _room(self, ordered: "Future[Jail]") -> float:
        """Returns the number of processes that can still be reserved in a jail. The caller holds the lock."""
        if self._processes is None:
            return math.inf
        taken = ordered.result().taken if ordered.done() else 0
        return self._processes - taken - self._leases[ordered]

    def _await_boot(self, ordered: "Future[Jail]") -> Jail:
        try:
            return ordered.result(self._wait_s)
        except TimeoutError:
            raise SandboxFault(f"no jail was ready within {self._wait_s:.0f} s") from None
        # Closing the pool cancels a jail that has not been started, and a caller may be waiting for it.
        except CancelledError:
            raise SandboxFault("the executor is closed") from None

    def warm(self) -> None:
        """Waits until all jails that are being started accept programs.

        Raises:
            SandboxFault: a jail could not be started.
        """
        with self._lock:
            ordered = [*self._reserve, *(one for jails in self._domains.values() for one in jails)]
        for one in ordered:
            one.result()

    def _take(self, own: int) -> Future[Jail]:
        """Returns an idle jail of another domain, one of the reserve, or a new one, for a domain that has ``own`` jails."""
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
        """Whether nothing runs in a jail and no caller is about to use it."""
        return ordered.done() and not self._leases[ordered] and ordered.result().load == 0

    def close(self) -> None:
        """Ends every jail. A second call does nothing."""
        with self._lock:
            self._closed = True
            ordered = [*self._reserve, *(one for jails in self._domains.values() for one in jails)]
            # Taken under the lock but closed outside of it, because closing waits for jails that are still starting.
            self._reserve, self._domains = [], {}
        # All are cancelled before any is waited for, so that callers of those not started are notified at once.
        for one in [one for one in ordered if not one.cancel()]:
            if not one.exception():
                one.result().close()
        self._starter.shutdown()


def _dead(ordered: "Future[Jail]") -> bool:
    return ordered.done() and (ordered.exception() is not None or ordered.result().closed)
