"""Deadlines that leave out the time during which a call itself waits for others.

An episode in a deterministic batcher waits for all the others before its batch runs, and a call of an environment may wait
for a free thread. Neither is the doing of the policy or environment that is called, so a `Deadline` is held in the meantime.
Otherwise one environment that hangs would let every other episode fail with it, under a wrong name.
"""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from agentenv.errors import Fault

T = TypeVar("T")

_SHORTEST_S = 0.02  # between two looks at a deadline that is held with next to nothing left
_PARTING_S = 1.0  # for a coroutine that was given up to end


class Deadline:
    """Seconds that a call may take. Any thread may stop its time (hold it); that also holds the deadlines around it."""

    def __init__(self, seconds: float, around: "Deadline | None" = None) -> None:
        """The time begins now.

        Args:
            seconds: That the call may take.
            around: The deadline of the call that makes this one.
        """
        self.seconds = seconds
        self._around = around
        self._lock = threading.Lock()
        self._used = 0.0
        self._since = time.monotonic()
        self._holds = 0
        self._watchers: tuple[Callable[[], None], ...] = ()

    @property
    def held(self) -> bool:
        """Whether the time stands still: the call waits for others."""
        return self._holds > 0

    def watch(self, watcher: Callable[[], None]) -> None:
        """Lets ``watcher`` be called whenever ``held`` has changed, from any thread."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Ends ``watch``."""
        with self._lock:
            self._watchers = tuple(one for one in self._watchers if one != watcher)

    def left(self) -> float:
        """Seconds that are left; while it is held they stay the same."""
        with self._lock:
            running = 0.0 if self._holds else time.monotonic() - self._since
            return self.seconds - self._used - running

    def hold(self) -> "Hold":
        """Stops the time until the hold is ended."""
        return Hold(self)

    def _stop(self) -> None:
        with self._lock:
            if not self._holds:
                self._used += time.monotonic() - self._since
            self._holds += 1
            # The watchers are called outside of the lock: they take that of their pool, and no thread may hold both.
            watchers = self._watchers if self._holds == 1 else ()
        for watcher in watchers:
            watcher()
        if self._around is not None:
            self._around._stop()

    def _go_on(self) -> None:
        with self._lock:
            self._holds -= 1
            if not self._holds:
                self._since = time.monotonic()
            watchers = () if self._holds else self._watchers
        for watcher in watchers:
            watcher()
        if self._around is not None:
            self._around._go_on()


class Hold:
    """One reason why the time of a deadline stands still; ending it a second time does nothing."""

    def __init__(self, deadline: Deadline | None) -> None:
        self._held = [] if deadline is None else [deadline]  # popped by one thread only
        if deadline is not None:
            deadline._stop()

    def end(self) -> None:
        """Lets the time go on where there is no other hold."""
        with contextlib.suppress(IndexError):
            self._held.pop()._go_on()


_current: ContextVar[Deadline | None] = ContextVar("_current", default=None)


def current_deadline() -> Deadline | None:
    """The deadline of the call that runs here, if there is one."""
    return _current.get()


def hold_current() -> Hold:
    """Holds the deadline of the call that runs here, if there is one."""
    return Hold(current_deadline())


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Holds the deadline of the call that runs here within the block."""
    hold = hold_current()
    try:
        yield
    finally:
        hold.end()


class DeadlineAwareLock:
    """A lock that one thread may take more than once; while a call waits for it, the deadline of the call stands still."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        # First without waiting: a call that need not wait leaves its deadline alone.
        if not self._lock.acquire(blocking=False):
            with waiting_for_others():
                self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def seconds_left() -> float:
    """Seconds that are left to the call that runs here; without end where it has no deadline."""
    deadline = current_deadline()
    return math.inf if deadline is None else deadline.left()


def short_of_time() -> bool:
    """Whether the call that runs here has used more than half of its time."""
    deadline = current_deadline()
    return deadline is not None and deadline.left() < deadline.seconds / 2


def bounded_by_call(seconds: float) -> float:
    """``seconds``, or half of what is left to the call that runs here, if that is less.

    Whatever a policy may let last, such as a program, takes its time so: it never outlasts the call, which would be a
    failure of the environment and would exclude the episode.
    """
    return min(seconds, max(0.0, seconds_left()) / 2)


@contextlib.contextmanager
def deadline_of(seconds: float) -> Iterator[Deadline]:
    """The deadline of the calls that begin within the block; it bounds nothing by itself (see ``ends_within``)."""
    deadline = Deadline(seconds, _current.get())
    token = _current.set(deadline)
    try:
        yield deadline
    finally:
        _current.reset(token)


async def ends_within(deadline: Deadline, call: "asyncio.Future[Any]") -> bool:
    """Waits for ``call`` as long as ``deadline`` has time left; returns whether the call has ended."""
    while not call.done() and (left := deadline.left()) > 0:
        # What is left is looked at again after each wait, because the deadline may have been held in the meantime.
        await asyncio.wait({call}, timeout=max(left, _SHORTEST_S))
    return call.done()


async def within(seconds: float, work: Awaitable[T], fault: Fault) -> T:
    """The result of ``work``, which runs in a task of its own.

    Whatever is no ``Exception`` (``SystemExit``, a cancellation that nobody here asked for) is raised as ``fault`` too: it
    is meant for the whole process and must not get there from inside one episode. Work that does not end when it is
    cancelled is left behind.

    Args:
        seconds: That it may take, holds left out.
        work: An awaitable.
        fault: Names who is waited for; its kind is that of the error.

    Raises:
        Fault: of the kind of ``fault``: the work took too long, or ended in a way that is no error of its own.
        Exception: what the work raised.
    """
    with deadline_of(seconds) as deadline:
        # Within the block, because a task copies the context when it is made: calls within `work` find this deadline
        # in it.
        task = asyncio.ensure_future(guarded(work, fault))
    # Python warns of a task that is cancelled before it begins, because nobody awaited its coroutine.
    if isinstance(work, Coroutine):
        # On a coroutine that has ended, to close it does nothing.
        task.add_done_callback(lambda _: work.close())
    try:
        ended = await ends_within(deadline, task)
    except BaseException:
        task.cancel()
        raise
    if ended:
        return task.result()
    task.cancel()
    task.add_done_callback(_forget)
    await asyncio.wait({task}, timeout=_PARTING_S)
    raise type(fault)(f"{fault} took longer than {seconds:g} s")


async def guarded(work: Awaitable[T], fault: Fault) -> T:
    """The result of ``work``; a SystemExit, which is no ``Exception``, becomes an error of the type of ``fault``."""
    try:
        return await work
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise type(fault)(f"{fault} raised CancelledError, although agentenv had not cancelled it") from error
    except Exception:
        raise
    except BaseException as error:
        raise type(fault)(f"{fault} raised {type(error).__name__}: {error}") from error


def _forget(task: "asyncio.Future[Any]") -> None:
    """Retrieves the exception of an abandoned task, so that asyncio does not log it."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
