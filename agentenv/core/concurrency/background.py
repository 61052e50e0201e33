"""An event loop in a daemon thread, for coroutines that run while the calling thread computes."""

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
    """Within the block asyncio believes that this thread runs no event loop, so that ``asyncio.run`` may be called.

    A notebook runs each cell inside its own event loop, which is idle while the cell computes. Another thread would solve
    this too, but signals reach only the main thread, and interrupting the cell has to stop the work.
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
        name: The name of the thread.
        threads: The pool in which ``asyncio.to_thread`` runs its calls; None uses the standard library's default pool.
    """

    def __init__(self, name: str = "background-loop", threads: ThreadPoolExecutor | None = None) -> None:
        self._name, self._threads = name, threads
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        _loops.add(self)

    def forget(self) -> None:
        """Drops the loop, so that the next coroutine starts a new one: a forked process lacks the parent's thread."""
        self._lock, self._loop, self._thread = threading.Lock(), None, None

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Starts ``coroutine``. Tasks that it creates keep running after it ends.

        Raises:
            OSError: no loop is running yet and none can be created, for example because too many files are open.
            RuntimeError: no loop is running yet and no thread can be started for one.
        """
        with self._lock:
            # The lock is needed because several threads may call `submit` first, and each would start a loop.
            try:
                loop = self._loop or self._start()
            except BaseException:
                coroutine.close()
                raise
            return asyncio.run_coroutine_threadsafe(coroutine, loop)

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Runs ``coroutine``, waits for it and returns its result. Tasks that it creates keep running afterwards.

        Raises:
            TimeoutError: it took longer than ``timeout_s``, and was cancelled.
        """
        # The loop itself raises the timeout, unless its thread is blocked. The grace period is for that case.
        limit_s = None if timeout_s is None else timeout_s + _GRACE_S
        return self._submit_within(coroutine, timeout_s).result(limit_s)

    async def join(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Does what ``run`` does for a caller on another event loop. Cancelling the caller cancels ``coroutine``."""
        return await asyncio.wrap_future(self._submit_within(coroutine, timeout_s))

    def is_current(self) -> bool:
        """Whether the caller runs on this loop. Waiting here for a result of the same loop would never end."""
        return self._loop is not None and asyncio._get_running_loop() is self._loop

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels all tasks and ends the thread. A thread that does not end in time is abandoned; it is a daemon."""
        with self._lock:
            # The attribute is cleared before the loop is stopped, because `_main` restarts the loop as long as it is set. A
            # later `submit` starts a new loop.
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        # The stop is delayed by one iteration so that new tasks begin: a task cancelled before it begins never awaits its
        # inner coroutine, and Python warns of that.
        loop.call_soon_threadsafe(loop.call_soon, loop.stop)
        thread.join(timeout_s)

    def _submit_within(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> "Future[T]":
        try:
            return self.submit(asyncio.wait_for(coroutine, timeout_s))
        except BaseException:
            coroutine.close()  # `wait_for` never started it
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
            begun.set_exception(error)  # the caller waits for it
            return
        with runner:
            begun.set_result(loop)
            # a task that raises SystemExit stops the loop, but other tasks still need it
            while self._loop is loop:
                with contextlib.suppress(BaseException):
                    loop.run_forever()


_loops: "WeakSet[BackgroundLoop]" = WeakSet()


def _forget_all() -> None:
    for loop in [*_loops]:
        loop.forget()


in_forked_processes(_forget_all)
