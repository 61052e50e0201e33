"""An event loop in a thread of its own, for work that goes on while the caller computes."""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakSet

from agentenv.core.concurrency.forks import in_forked_processes

T = TypeVar("T")

_GRACE_S = 10.0


@contextmanager
def without_running_loop() -> Iterator[None]:
    """Within the block this thread runs no event loop as far as asyncio knows, so that ``asyncio.run`` may be called.

    A notebook runs each cell inside its own loop, which stands still while the cell computes. A thread beside it would do
    too, but signals reach the main thread only, and an interrupted cell has to end the work.
    """
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(outer)


class BackgroundLoop:
    """Runs coroutines on one event loop, in a daemon thread that starts with the first of them.

    Args:
        name: of the thread.
        threads: Where ``asyncio.to_thread`` runs its calls; None takes the standard library's pool of a few threads.
    """

    def __init__(self, name: str = "background-loop", threads: ThreadPoolExecutor | None = None) -> None:
        self._name, self._threads = name, threads
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        _loops.add(self)

    def forget(self) -> None:
        """Forgets the loop, so that the next coroutine starts one: a forked process lacks the thread of its parent."""
        self._lock, self._loop, self._thread = threading.Lock(), None, None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts ``coroutine``; tasks that it makes go on after it.

        Raises:
            OSError: there is no loop yet, and the system gives none: too many files are open, for example.
            RuntimeError: the same, because no thread can be started.
        """
        with self._lock:
            # Under the lock, because several threads may submit first, and each would start a loop of its own.
            try:
                loop = self._loop or self._start()
            except BaseException:
                coroutine.close()
                raise
            return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of ``coroutine``, waited for; tasks that it makes go on afterwards.

        Raises:
            TimeoutError: it took longer than ``timeout_s``, and was cancelled.
        """
        # The loop says so itself, unless something blocks it.
        limit_s = None if timeout_s is None else timeout_s + _GRACE_S
        return self._submit_within(coroutine, timeout_s).result(limit_s)

    async def join(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Does what ``run`` does, for a caller on another event loop. Cancelling the caller cancels ``coroutine``."""
        return await asyncio.wrap_future(self._submit_within(coroutine, timeout_s))

    def is_current(self) -> bool:
        """Whether the caller runs on this loop, where waiting for a result would never end."""
        return self._loop is not None and asyncio._get_running_loop() is self._loop

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels what still runs and ends the thread; one that does not end in time is left to die with the process."""
        with self._lock:
            # The loop is taken away before it is stopped: `_main` runs it again as long as it is this object's, and a
            # later `submit` starts another one.
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        # One turn later, so that tasks begin: of one that is cancelled before, what it would await is never awaited.
        loop.call_soon_threadsafe(loop.call_soon, loop.stop)
        thread.join(timeout_s)

    def _submit_within(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> "Future[T]":
        try:
            return self.submit(asyncio.wait_for(coroutine, timeout_s))
        except BaseException:
            coroutine.close()  # which `wait_for` has not begun
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        begun: Future[asyncio.AbstractEventLoop] = Future()
        thread = threading.Thread(target=self._main, args=(begun,), name=self._name, daemon=True)
        thread.start()
        loop, self._thread = begun.result(), thread
        return loop

    def _main(self, begun: "Future[asyncio.AbstractEventLoop]") -> None:
        runner = asyncio.Runner()
        try:
            loop = self._loop = runner.get_loop()
            if self._threads is not None:
                loop.set_default_executor(self._threads)
        except BaseException as error:
            begun.set_exception(error)  # for the caller, who waits
            return
        with runner:
            begun.set_result(loop)
            while self._loop is loop:  # a task that raises SystemExit stops the loop, and others wait on it
                with contextlib.suppress(BaseException):
                    loop.run_forever()


_loops: "WeakSet[BackgroundLoop]" = WeakSet()


def _forget_all() -> None:
    for loop in [*_loops]:
        loop.forget()


in_forked_processes(_forget_all)
