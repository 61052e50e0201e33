"""Deadlines that do not count the time during which a call waits for others.

An episode in a deterministic batcher waits for all other episodes before its batch runs, and a call of an environment may
wait for a free thread. The called policy or environment is not responsible for that time, so its `Deadline` is held (paused)
meanwhile. Otherwise one environment that hangs would make every other episode fail with it, with a misleading error.
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

_SHORTEST_WAIT_S = 0.02  # shortest wait between two checks of a deadline
_CANCEL_GRACE_S = 1.0  # time that a cancelled coroutine gets to end


class Deadline:
    """A time limit of a call, in seconds. Any thread may pause it by a hold, which also pauses the enclosing deadlines."""

    def __init__(self, seconds: float, around: "Deadline | None" = None) -> None:
        """Starts the time.

        Args:
            seconds: The time that the call may take.
            around: The enclosing deadline: that of the call that makes this one.
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
        """Whether the time is paused because the call waits for others."""
        return self._holds > 0

    def watch(self, watcher: Callable[[], None]) -> None:
        """Calls ``watcher`` from any thread whenever ``held`` changes."""
        with self._lock:
            self._watchers = (*self._watchers, watcher)

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Removes a watcher that ``watch`` added."""
        with self._lock:
            self._watchers = tuple(one for one in self._watchers if one != watcher)

    def left(self) -> float:
        """Returns the remaining seconds, which do not change while the deadline is held."""
        with self._lock:
            running = 0.0 if self._holds else time.monotonic() - self._since
            return self.seconds - self._used - running

    def hold(self) -> "Hold":
        """Pauses the time until the returned hold is ended."""
        return Hold(self)

    def _pause(self) -> None:
        with self._lock:
            if not self._holds:
                self._used += time.monotonic() - self._since
            self._holds += 1
            # The watchers are called outside of the lock, because they take the lock of their pool, and holding both could
            # cause a deadlock.
            watchers = self._watchers if self._holds == 1 else ()
        for watcher in watchers:
            watcher()
        if self._around is not None:
            self._around._pause()

    def _resume(self) -> None:
        with self._lock:
            self._holds -= 1
            if not self._holds:
                self._since = time.monotonic()
            watchers = () if self._holds else self._watchers
        for watcher in watchers:
            watcher()
        if self._around is not None:
            self._around._resume()


class Hold:
    """One reason to pause a deadline. Ending it a second time does nothing."""

    def __init__(self, deadline: Deadline | None) -> None:
        # a list, because only one thread can pop the deadline
        self._held = [] if deadline is None else [deadline]
        if deadline is not None:
            deadline._pause()

    def end(self) -> None:
        """Resumes the time, unless another hold is active."""
        with contextlib.suppress(IndexError):
            self._held.pop()._resume()


_current: ContextVar[Deadline | None] = ContextVar("_current", default=None)


def current_deadline() -> Deadline | None:
    """Returns the deadline of the call that is running here; None without one."""
    return _current.get()


def hold_current() -> Hold:
    """Pauses the deadline of the call that is running here, if it has one."""
    return Hold(current_deadline())


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Within the block, the deadline of the call that is running here is paused."""
    hold = hold_current()
    try:
        yield
    finally:
        hold.end()


class DeadlineAwareLock:
    """A reentrant lock. While a call waits for it, the call's deadline is paused."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        # Tried first without waiting, so that a call that need not wait does not touch its deadline.
        if not self._lock.acquire(blocking=False):
            with waiting_for_others():
                self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def seconds_left() -> float:
    """Returns the remaining seconds of the call that is running here; infinity if it has no deadline."""
    deadline = current_deadline()
    return math.inf if deadline is None else deadline.left()


def short_of_time() -> bool:
    """Whether the call that is running here has used more than half of its time."""
    deadline = current_deadline()
    return deadline is not None and deadline.left() < deadline.seconds / 2


def bounded_by_call(seconds: float) -> float:
    """Returns ``seconds``, or half of the remaining time of the call that is running here, if that is less.

    Use it for the time limit of anything whose duration a policy can choose, such as a program. It then never outlasts the
    call, which would count as a failure of the environment and exclude the episode.
    """
    return min(seconds, max(0.0, seconds_left()) / 2)


@contextlib.contextmanager
def deadline_of(seconds: float) -> Iterator[Deadline]:
    """Sets the deadline of the calls that begin within the block. It enforces nothing by itself (see ``ends_within``)."""
    deadline = Deadline(seconds, _current.get())
    token = _current.set(deadline)
    try:
        yield deadline
    finally:
        _current.reset(token)


async def ends_within(deadline: Deadline, call: "asyncio.Future[Any]") -> bool:
    """Waits for ``call`` while ``deadline`` has time left; returns whether the call has ended."""
    while not call.done() and (left := deadline.left()) > 0:
        # The remaining time is read again after each wait, because the deadline may have been held in the meantime.
        await asyncio.wait({call}, timeout=max(left, _SHORTEST_WAIT_S))
    return call.done()


async def within(seconds: float, work: Awaitable[T], fault: Fault) -> T:
    """Runs ``work`` in a task with a deadline and returns its result.

    Anything raised that is not an ``Exception`` (``SystemExit``, or a cancellation that nobody here requested) is raised as
    ``fault``: it would end the whole process, which one episode must not do. Work that does not end when it is cancelled is
    abandoned.

    Args:
        seconds: The time limit, not counting holds.
        work: The awaitable to run.
        fault: An error that names who is waited for. Errors raised here have its type.

    Raises:
        Fault: ``work`` took too long, or raised something that is not an ``Exception``. The error has the type of ``fault``.
        Exception: ``work`` raised it.
    """
    with deadline_of(seconds) as deadline:
        # Created within the block, because a task copies the context at its creation: calls within `work` find this deadline
        # there.
        task = asyncio.ensure_future(guarded(work, fault))
    # Python would otherwise warn that the coroutine of a task cancelled before its start was never awaited.
    if isinstance(work, Coroutine):
        # Closing a coroutine that has ended does nothing.
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
    await asyncio.wait({task}, timeout=_CANCEL_GRACE_S)
    raise type(fault)(f"{fault} took longer than {seconds:g} s")


async def guarded(work: Awaitable[T], fault: Fault) -> T:
    """Returns the result of ``work``; a SystemExit, which is no ``Exception``, becomes an error of the type of ``fault``."""
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
