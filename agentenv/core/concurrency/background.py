"""An event loop in a thread of its own, for work that goes on while the caller computes."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

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
    """Runs coroutines in a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._runner: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._end: asyncio.Event | None = None

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of ``coroutine``, waited for; tasks that it makes go on afterwards.

        Raises:
            TimeoutError: it took longer than ``timeout_s``, and was cancelled.
        """
        # The loop says so itself, unless something blocks it.
        patience = None if timeout_s is None else timeout_s + _GRACE_S
        return self._submit(coroutine, timeout_s).result(patience)

    async def join(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """As ``run``, for a caller on a loop of its own; cancelling the caller cancels ``coroutine``."""
        return await asyncio.wrap_future(self._submit(coroutine, timeout_s))

    def _submit(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> "Future[T]":
        if self._runner is None:
            begun = threading.Event()
            self._thread = threading.Thread(
                target=asyncio.run, args=(self._main(begun),), name="background-loop", daemon=True
            )
            self._thread.start()
            begun.wait()
        assert self._runner is not None
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(coroutine, timeout_s), self._runner)

    async def _main(self, begun: threading.Event) -> None:
        self._runner, self._end = asyncio.get_running_loop(), asyncio.Event()
        begun.set()
        await self._end.wait()

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels what still runs and ends the thread; one that does not end in time is left to die with the process."""
        if self._runner is None or self._thread is None or self._end is None:
            return
        self._runner.call_soon_threadsafe(self._end.set)
        self._thread.join(timeout_s)
        self._runner = None
