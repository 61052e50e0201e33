"""Warm jails: started ahead, one trust domain each, replaced when they die, never more than the quota."""

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.jails import Channel, Jail

WAIT_S = 60.0


class Slots:
    """The right to run one of a few programs at a time, for as many as wait.

    Who waits is refused only when nobody has come to an end for too long, which no program can bring about: each has a
    deadline of its own. A long queue of slow programs is no failure.
    """

    def __init__(self, count: int, wait_s: float) -> None:
        """``count`` programs at a time; ``wait_s`` seconds without an end of one are too long."""
        self._free = threading.BoundedSemaphore(count)
        self._wait_s, self._moved = wait_s, time.monotonic()

    def take(self) -> bool:
        """Waits for the right; False where it could not be had."""
        began = time.monotonic()
        while (left := max(began, self._moved) + self._wait_s - time.monotonic()) > 0:
            if self._free.acquire(timeout=left):
                self.moved()
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
    ``slots`` programs run at a time; who waits is charged queue time and refused where none ends for ``wait_s``.
    """

    def __init__(
        self,
        start: Callable[[], Jail],
        *,
        size: int = 2,
        slots: int | None = None,
        quota: int = 64,
        wait_s: float = WAIT_S,
    ) -> None:
        """Starts ``size`` jails in the background.

        Args:
            start: Starts one jail; the pool waits for it.
            size: Jails that a domain may have at a time, and that are kept in reserve.
            slots: Programs that run at a time; None is one for each processor.
            quota: Jails at a time, over all domains.
            wait_s: Seconds that a caller waits for a jail; for a slot, as long as programs come to an end so often.
        """
        self._start, self._size, self._quota, self._wait_s = start, size, quota, wait_s
        self._slots = Slots(slots or len(os.sched_getaffinity(0)), wait_s)
        self._lock = threading.Lock()
        self._reserve: list[Future[Jail]] = []
        self._domains: dict[str, list[Future[Jail]]] = {}
        self._leases: Counter[Future[Jail]] = Counter()
        """Callers that have been given a jail and have opened no channel in it yet."""
        self._turn = 0
        self._closed = False
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="agentenv-pool")
        with self._lock:
            self._refill()

    def _refill(self) -> None:
        """Orders what is missing in the reserve; the caller holds the lock."""
        have = sum(len(jails) for jails in self._domains.values())
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
    def slot(self) -> Iterator[float]:
        """The right to run one program; gives the seconds that it took to get it.

        Raises:
            SandboxFault: none became free in time.
        """
        began = time.monotonic()
        if not self._slots.take():
            raise SandboxFault(
                f"no processor became free for a program: none came to an end within {self._wait_s:g} s"
            )
        try:
            yield time.monotonic() - began
        finally:
            self._slots.give()

    def channel(self, domain: str, *, session: bool = False) -> Channel:
        """A new warden in a jail of ``domain``, for one run or for a session.

        Raises:
            JailDied: the jail is gone.
            SandboxFault: none could be started, or the quota is used up.
        """
        ordered = self._lease(domain)
        try:
            return self._booted(ordered).channel(session=session)
        finally:
            self._release(ordered)

    def jail(self, domain: str) -> Jail:
        """A live jail of ``domain``, in turn.

        Raises:
            SandboxFault: none could be started, or the quota is used up.
        """
        ordered = self._lease(domain)
        self._release(ordered)
        return self._booted(ordered)

    def _release(self, ordered: "Future[Jail]") -> None:
        with self._lock:
            self._leases[ordered] -= 1
            if not self._leases[ordered]:
                del self._leases[ordered]

    def _lease(self, domain: str) -> "Future[Jail]":
        with self._lock:
            if self._closed:
                raise SandboxFault("the executor is closed")
            own = [ordered for ordered in self._domains.pop(domain, []) if not _dead(ordered)]
            try:
                if len(own) < self._size:
                    own.append(self._take())
            finally:
                if own:
                    self._domains[domain] = own
            self._turn += 1
            ordered = own[self._turn % len(own)]
            self._leases[ordered] += 1
            self._refill()
            return ordered

    def _booted(self, ordered: "Future[Jail]") -> Jail:
        try:
            return ordered.result(self._wait_s)
        except TimeoutError:
            raise SandboxFault(f"no jail within {self._wait_s:.0f} s") from None

    def warm(self) -> None:
        """Waits until every jail that was ordered takes programs.

        Raises:
            SandboxFault: one could not be started.
        """
        with self._lock:
            ordered = [*self._reserve, *(one for jails in self._domains.values() for one in jails)]
        for one in ordered:
            one.result()

    def _take(self) -> Future[Jail]:
        """One that has become idle in another domain, one from the reserve, or a new one."""
        if idle := self._take_idle():
            return idle
        self._reserve = [ordered for ordered in self._reserve if not _dead(ordered)]
        if self._reserve:
            return self._reserve.pop(0)
        if sum(len(jails) for jails in self._domains.values()) >= self._quota:
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
            self._reserve, self._domains = [], {}
        for one in ordered:
            if not one.cancel() and not one.exception():
                one.result().close()
        self._starter.shutdown()


def _dead(ordered: "Future[Jail]") -> bool:
    return ordered.done() and (ordered.exception() is not None or ordered.result().closed)
