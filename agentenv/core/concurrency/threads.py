"""A pool of threads that nobody waits for at the end, and in which a call that hangs is replaced.

The pool of the standard library fits calls that end: the interpreter waits for all its threads before it leaves, and a
call that never returns keeps its place for ever. Here a call that waits for other episodes, with its deadline held, needs no
place either: those that it waits for may still wait for a thread.
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

_GLANCE_S = 0.01  # between two looks at what still runs
_SETTLE_S = 10.0  # for calls that run when the interpreter ends

P = ParamSpec("P")
T = TypeVar("T")

MAX_ABANDONED = 512
"""Calls that may hang at a time in one pool; beyond that every further call is refused."""


class _Call(Future[Any]):
    """One call in a pool; cancelling it while it runs gives it up."""

    def __init__(self, pool: "_Pool", run: Callable[[], Any]) -> None:
        super().__init__()
        self.run = run
        self.deadline = current_deadline()
        self.hold = Hold(self.deadline)  # the wait for a free thread is nobody's fault
        self._pool = pool

    def cancel(self) -> bool:
        cancelled = super().cancel()
        self.hold.end()
        if not cancelled:
            self._pool.give_up(self)
        return cancelled

    def carry_out(self) -> None:
        """Runs the function; the pool is told when it waits for others."""
        self.hold.end()
        if self.deadline is not None:
            self.deadline.watch(self._look)
            # The deadline may have been held before it was watched.
            self._look()
        try:
            result = self.run()
        except StopIteration as error:  # a future refuses it, and its caller would wait for ever
            self.set_exception(RuntimeError(f"StopIteration was raised: {error}"))
        except BaseException as error:
            self.set_exception(error)
        else:
            self.set_result(result)
        finally:
            if self.deadline is not None:
                self.deadline.unwatch(self._look)

    def _look(self) -> None:
        self._pool.look_at(self)


class _Pool:
    """What the threads of a pool share; they hold this and not the executor, which may be collected."""

    def __init__(self, size: int, name: str, replaces: bool) -> None:
        self.abandoned = 0
        self._size, self._name, self._replaces = size, name, replaces
        # Guards all that follows. It is never held while a call runs, nor while a deadline is moved.
        self._ready = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._running: set[_Call] = set()
        self._held: set[_Call] = set()  # of those that run, those that wait for others and need no place
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
                self._staff()
            except BaseException:
                self._waiting.remove(call)  # the caller is told, and would not wait for it
                raise

    def give_up(self, call: _Call) -> None:
        """Takes the thread of ``call`` out of the pool, if it still runs; another one takes its place."""
        with self._ready:
            refused: list[_Call] = []
            if self._replaces and call in self._running:
                self._leave(call)
                self._threads -= 1
                self.abandoned += 1
                refused = self._staffed()
        _refuse(refused)

    def look_at(self, call: _Call) -> None:
        """Takes note of whether ``call`` waits for others; another one has its place meanwhile."""
        with self._ready:
            if not self._replaces or call not in self._running or call.deadline is None:
                return
            refused: list[_Call] = []
            if call.deadline.held:
                self._held.add(call)
                refused = self._staffed()
            else:
                self._held.discard(call)
        _refuse(refused)

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def forget(self) -> None:
        """Begins anew without threads: a forked process has none of them, and what they ran never ends there."""
        self._ready = threading.Condition()  # one of the threads may have held the other one
        for calls in (self._waiting, self._running, self._held):
            calls.clear()
        self._threads = self.abandoned = 0

    @property
    def running(self) -> int:
        """Calls that run and that nobody has given up."""
        return len(self._running)

    @property
    def _free(self) -> int:
        """Places for further calls."""
        return self._size - len(self._running) + len(self._held)

    def _staffed(self) -> "list[_Call]":
        """Does what ``_staff`` does where no caller could be told of an error.

        Returns:
            The calls that are taken out of what waits, because the system gives no thread for them: their time stands still
            until they begin, so that they would wait for ever.
        """
        try:
            self._staff()
        except RuntimeError:
            refused = [call for call in self._waiting if call.set_running_or_notify_cancel()]
            self._waiting.clear()
            return refused
        return []

    def _staff(self) -> None:
        """Wakes or starts threads for what waits, as far as there are places.

        Raises:
            RuntimeError: the system gives no thread; the next call tries again.
        """
        wanted = min(len(self._waiting), self._free)
        if wanted <= 0:
            return
        self._ready.notify(wanted)
        # A held call gives up its place and keeps its thread, so there may be more threads than places.
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
                # Under the lock, because `give_up` may come at the same moment: either the thread leaves or the call
                # does, and never both.
                if call not in self._running:  # it was given up, and this thread replaced
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
                # False for a call that was cancelled while it waited; its thread goes on with the next one.
                if call.set_running_or_notify_cancel():
                    self._running.add(call)
                    return call


def _refuse(calls: list[_Call]) -> None:
    """Lets calls fail for which the system gives no thread; not under the lock of their pool."""
    for call in calls:
        call.hold.end()
        call.set_exception(EnvFault("the operating system could not start another thread for this call"))


class DaemonThreads(ThreadPoolExecutor):
    """At most ``size`` calls at a time, each in a daemon thread.

    Args:
        size: Threads, those of calls that were given up not counted.
        name: How the names of the threads begin.
        replaces: Whether cancelling a call that runs gives its thread up and lets another one take the place. Without it
            the place is taken until the call returns.
    """

    def __init__(self, size: int, name: str, *, replaces: bool = True) -> None:
        super().__init__(size, thread_name_prefix=name)  # an event loop takes no other kind of executor
        self._pool = _Pool(size, name, replaces)
        _pools.add(self._pool)
        weakref.finalize(self, self._pool.close).atexit = False

    @property
    def abandoned(self) -> int:
        """Calls that were given up and have not returned yet."""
        return self._pool.abandoned

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Runs ``function`` when a thread is free.

        Raises:
            EnvFault: too many calls of this pool hang.
            RuntimeError: the system gives no thread, or the pool is closed.
        """
        call = _Call(self._pool, lambda: function(*args, **kwargs))
        try:
            self._pool.add(call)
        except BaseException:
            call.hold.end()
            raise
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads as they become idle; nobody waits for them."""
        self._pool.close()


_pools: "weakref.WeakSet[_Pool]" = weakref.WeakSet()


def in_time(seconds: float, work: Callable[[], T], threads: DaemonThreads | None = None) -> T:
    """The result of ``work``, which runs in a daemon thread.

    Args:
        seconds: That it may take.
        work: Takes no arguments.
        threads: Where it runs; None starts a thread for it, which ends with it.

    Raises:
        TimeoutError: it took too long, and is left behind.
        EnvFault: it raised what is no ``Exception``, such as ``SystemExit``.
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
        if not call.done():  # the wait itself was interrupted
            raise
        raise EnvFault(f"{type(error).__name__} was raised: {error}") from error
    finally:
        if threads is None:
            pool.shutdown()


def wait_until_idle(seconds: float) -> bool:
    """Waits so long for calls that run; whether none is left in any pool, those that were given up included.

    A daemon thread that is in native code when the interpreter ends may abort the process.
    """
    deadline = time.monotonic() + seconds
    while any(pool.running for pool in _pools) and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)
    return not any(pool.running or pool.abandoned for pool in _pools)


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


atexit.register(wait_until_idle, _SETTLE_S)
in_forked_processes(_forget_all)
