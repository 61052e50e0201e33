"""A pool of daemon threads: the interpreter does not wait for them at exit, and a thread whose call hangs is replaced.

The pool of the standard library assumes that calls end: the interpreter waits for all its threads at exit, and a call that
never returns occupies its worker for ever. Here, also, a call that waits for other episodes (its deadline is held) occupies
no worker, because the calls that it waits for may still need one.
"""

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from agentenv.core.concurrency.deadlines import Hold, current_deadline
from agentenv.core.concurrency.forks import in_forked_processes
from agentenv.errors import EnvFault

_POLL_S = 0.01  # seconds between two checks for running calls
_EXIT_GRACE_S = 10.0  # time that running calls get when the interpreter exits

P = ParamSpec("P")
T = TypeVar("T")

MAX_ABANDONED = 512
"""The largest number of abandoned calls in one pool. Beyond it, every further call is refused."""


class _Call(Future[Any]):
    """One call in a pool. Cancelling it while it runs abandons it."""

    def __init__(self, pool: "_Pool", run: Callable[[], Any]) -> None:
        super().__init__()
        self.run = run
        self.deadline = current_deadline()
        self.hold = Hold(self.deadline)  # the wait for a free thread does not count
        self._pool = pool

    def cancel(self) -> bool:
        cancelled = super().cancel()
        self.hold.end()
        if not cancelled:
            self._pool.give_up(self)
        return cancelled

    def carry_out(self) -> None:
        """Runs the function. The pool learns when the function waits for others."""
        self.hold.end()
        if self.deadline is not None:
            self.deadline.watch(self._update_held)
            # The deadline may have been held before the watcher was added.
            self._update_held()
        try:
            result = self.run()
        except StopIteration as error:  # a future rejects StopIteration, and its caller would wait for ever
            self.set_exception(RuntimeError(f"StopIteration was raised: {error}"))
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)
        finally:
            if self.deadline is not None:
                self.deadline.unwatch(self._update_held)

    def _update_held(self) -> None:
        self._pool.update_held(self)


class _Pool:
    """The state of a pool that its threads share. They do not refer to the executor, so it can be garbage-collected."""

    def __init__(self, size: int, name: str, replaces: bool) -> None:
        self.abandoned = 0
        self._size, self._name, self._replaces = size, name, replaces
        # Guards all attributes below. It is never held while a call runs, nor while a deadline changes.
        self._ready = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._held: set[_Call] = set()  # running calls that wait for others and occupy no worker
        self._threads = self._started = 0
        self._closed = False

    def add(self, call: _Call) -> None:
        with self._ready:
            if self._closed:
                raise RuntimeError("this pool of threads is closed")
            if self.abandoned >= MAX_ABANDONED:
                raise EnvFault(
                    f"it was not called: {self.abandoned} earlier calls have not returned, and each holds a thread"
                )
            self._waiting.append(call)
            try:
                self._start_threads()
            except BaseException:
                self._waiting.remove(call)  # the caller gets the error and does not wait for the call
                raise

    def give_up(self, call: _Call) -> None:
        """Abandons ``call`` if it still runs: its thread leaves the pool, and a new one replaces it."""
        with self._ready:
            refused: list[_Call] = []
            if self._replaces and call in self._running:
                self._leave(call)
                self._threads -= 1
                self.abandoned += 1
                refused = self._start_threads_or_refuse()
        _refuse(refused)

    def update_held(self, call: _Call) -> None:
        """Updates whether ``call`` waits for others. While it does, another call may run in its place."""
        with self._ready:
            if not self._replaces or call not in self._running or call.deadline is None:
                return
            refused: list[_Call] = []
            if call.deadline.held:
                self._held.add(call)
                refused = self._start_threads_or_refuse()
            else:
                self._held.discard(call)
        _refuse(refused)

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def forget(self) -> None:
        """Resets the pool in a forked process, which has none of its threads and in which their calls would never end."""
        self._ready = threading.Condition()  # a thread may have held the old one during the fork
        for calls in (self._waiting, self._running, self._held):
            calls.clear()
        self._threads = self.abandoned = 0

    @property
    def running(self) -> int:
        """Number of running calls that are not abandoned."""
        return len(self._running)

    @property
    def _free(self) -> int:
        """Number of calls that may start now."""
        return self._size - len(self._running) + len(self._held)

    def _start_threads_or_refuse(self) -> "list[_Call]":
        """Does what ``_start_threads`` does, for callers to whom no error can be raised.

        Returns:
            The waiting calls, removed from the queue because no thread can be started for them. Their deadlines are held
            until they begin, so they would otherwise wait for ever.
        """
        try:
            self._start_threads()
        except RuntimeError:
            refused = [call for call in self._waiting if call.set_running_or_notify_cancel()]
            self._waiting.clear()
            return refused
        return []

    def _start_threads(self) -> None:
        """Wakes or starts threads for the waiting calls, as far as the size of the pool allows.

        Raises:
            RuntimeError: the system cannot start a thread; the next call tries again.
        """
        wanted = min(len(self._waiting), self._free)
        if wanted <= 0:
            return
        self._ready.notify(wanted)
        # A held call occupies no worker but keeps its thread, so there may be more threads than the size of the pool.
        while self._threads < len(self._running) + wanted:
            self._threads += 1
            self._started += 1
            name = f"{self._name}_{self._started}"
            try:
                threading.Thread(target=self._work, name=name, daemon=True).start()
            except BaseException:
                self._threads -= 1
                raise

    def _leave(self, call: _Call) -> None:
        self._running.remove(call)
        self._held.discard(call)

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.carry_out()
            with self._ready:
                # The lock is needed because `give_up` may run at the same moment: either the call is finished or its thread
                # leaves the pool, never both.
                if call not in self._running:  # the call was abandoned, and this thread was replaced
                    self.abandoned -= self._replaces
                    return
                self._leave(call)
            del call

    def _next(self) -> _Call | None:
        with self._ready:
            while True:
                while not self._waiting or self._free <= 0:
                    if self._closed and not self._waiting:
                        return None
                    self._ready.wait()
                call = self._waiting.popleft()
                # The result is False for a call that was cancelled while it waited; the thread then takes the next call.
                if call.set_running_or_notify_cancel():
                    self._running.add(call)
                    return call


def _refuse(calls: list[_Call]) -> None:
    """Fails calls for which the system cannot start a thread. The lock of their pool must not be held."""
    for call in calls:
        call.hold.end()
        call.set_exception(EnvFault("the operating system could not start another thread for this call"))


class DaemonThreads(ThreadPoolExecutor):
    """Runs at most ``size`` calls at a time, each in a daemon thread.

    Args:
        size: The number of threads, not counting those of abandoned calls.
        name: The prefix of the threads' names.
        replaces: Whether cancelling a running call abandons its thread and starts another one in its place. Otherwise the
            call occupies its worker until it returns.
    """

    def __init__(self, size: int, name: str, *, replaces: bool = True) -> None:
        super().__init__(size, thread_name_prefix=name)  # event loops accept only this type of executor
        self._pool = _Pool(size, name, replaces)
        _pools.add(self._pool)
        weakref.finalize(self, self._pool.close).atexit = False

    @property
    def abandoned(self) -> int:
        """Number of abandoned calls that have not returned yet."""
        return self._pool.abandoned

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs ``function`` as soon as a worker is free.

        Raises:
            EnvFault: too many calls of this pool hang.
            RuntimeError: the system cannot start a thread, or the pool is closed.
        """
        call = _Call(self._pool, lambda: function(*args, **kwargs))
        try:
            self._pool.add(call)
        except BaseException:
            call.hold.end()
            raise
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads as they become idle, without waiting for them."""
        self._pool.close()


_pools: "weakref.WeakSet[_Pool]" = weakref.WeakSet()


def in_time(seconds: float, work: Callable[[], T], threads: DaemonThreads | None = None) -> T:
    """Runs ``work`` in a daemon thread with a time limit, and returns its result.

    Args:
        seconds: The time limit.
        work: A function without arguments.
        threads: The pool that runs it; None starts a thread for this call only.

    Raises:
        TimeoutError: ``work`` took too long and was abandoned.
        EnvFault: ``work`` raised something that is not an ``Exception``, such as ``SystemExit``.
    """
    pool = threads or DaemonThreads(1, "agentenv-in-time")
    call = pool.submit(work)
    try:
        return call.result(seconds)
    except TimeoutError:
        if call.done():
            raise
        call.cancel()
        raise TimeoutError(f"it took longer than {seconds:g} s") from None
    except Exception:
        raise
    except BaseException as error:
        if not call.done():  # the wait was interrupted
            raise
        raise EnvFault(f"{type(error).__name__} was raised: {error}") from error
    finally:
        if threads is None:
            pool.shutdown()


def wait_until_idle(seconds: float) -> bool:
    """Waits up to ``seconds`` for running calls; returns whether none is left in any pool, abandoned ones included.

    A daemon thread that runs native code while the interpreter exits may abort the process.
    """
    deadline = time.monotonic() + seconds
    while any(pool.running for pool in _pools) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return not any(pool.running or pool.abandoned for pool in _pools)


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


atexit.register(wait_until_idle, _EXIT_GRACE_S)
in_forked_processes(_forget_all)
