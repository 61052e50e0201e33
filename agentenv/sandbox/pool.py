"""Warm jails: started ahead, one trust domain each, replaced when they die, never more than the quota."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from agentenv.errors import SandboxFault
from agentenv.sandbox.jails import Jail

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

    A jail is unassigned until a trust domain first asks for it and serves that domain alone ever after. At most
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
        except OSError as error:  # no room for a temporary file, no descriptor, no process
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

    def jail(self, domain: str) -> Jail:
        """A live jail of ``domain``, in turn.

        Raises:
            SandboxFault: none could be started, or the quota is used up.
        """
        with self._lock:
            if self._closed:
                raise SandboxFault("the executor is closed")
            own = self._domains.setdefault(domain, [])
            own[:] = [ordered for ordered in own if not _dead(ordered)]
            if len(own) < self._size:
                own.append(self._take())
            self._turn += 1
            ordered = own[self._turn % len(own)]
            self._refill()
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
        """One from the reserve, a new one, or the place of an idle jail of another domain."""
        self._reserve = [ordered for ordered in self._reserve if not _dead(ordered)]
        if self._reserve:
            return self._reserve.pop(0)
        if sum(len(jails) for jails in self._domains.values()) >= self._quota and not self._evict():
            raise SandboxFault(f"all {self._quota} jails are in use")
        return self._starter.submit(self._boot)

    def _evict(self) -> bool:
        for jails in self._domains.values():
            for ordered in jails:
                if ordered.done() and not ordered.exception() and ordered.result().load == 0:
                    jails.remove(ordered)
                    self._starter.submit(ordered.result().close)
                    return True
        return False

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
