"""Calls environments so that none of them can stop a run: on separate event loops and threads, each with a deadline.

Code of an environment never runs on the event loop of the run. Coroutines of all environments run on one loop in a separate
thread, so that environments may share clients and locks. If a coroutine blocks that loop (by ``time.sleep`` instead of
``await asyncio.sleep``), calls that have not begun are moved to a new loop. Plain functions run in daemon threads, and a
thread that hangs is replaced.
"""

import asyncio
import contextlib
import contextvars
import math
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from agentenv.core.concurrency.deadlines import (
    Deadline,
    Hold,
    current_deadline,
    guarded,
    hold_current,
    within,
)
from agentenv.core.concurrency.threads import MAX_ABANDONED, DaemonThreads
from agentenv.errors import EnvFault

T = TypeVar("T")

_BLOCKED_S = 5.0  # if one piece of code runs longer, the waiting calls move to another loop
_CLOSE_S = 5.0  # time that loops get to end
_LOOP_THREAD = "agentenv-env-loop"
_MOST_HANGING = 4  # so many hanging calls make waiting ones fail; fewer than the threads
_HANGING_TIME_SHARE = 0.1  # a running call with less than this share of its time left counts as hanging
_POLL_S = 0.001  # seconds between two checks whether the threads have ended


class _SharedThreads(DaemonThreads):
    """Threads that all event loops of the process share. A loop that closes must not shut them down."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing."""


THREADS = _SharedThreads(min(32, (os.cpu_count() or 1) + 4), "agentenv-env")
"""Runs plain functions of environments; as many at a time as the standard library's default pool."""


def abandoned() -> int:
    """Number of calls of environments in this process that were abandoned and have not returned."""
    all_loops = list(_run_loops.values())
    return THREADS.abandoned + sum(loop.abandoned for loops in all_loops for loop in loops.loops)


def no_loop_is_running() -> bool:
    """Whether no event loop of environments is running in this process. Each loop ends with the run that created it."""
    return not any(thread.name == _LOOP_THREAD for thread in threading.enumerate())


async def call(what: str, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """Runs the coroutine that ``work`` makes on the event loop of the environments, and returns its result.

    Args:
        what: The name of the call in errors, such as ``the environment's step``.
        seconds: The time limit of the call from its start. Waiting for a batch or a thread does not count.
        work: A function that makes the coroutine. It is called on that loop too, so it must not block.

    Raises:
        EnvFault: the call took too long, or raised something that is not an ``Exception``.
        Exception: the coroutine raised it.
    """
    home = asyncio.get_running_loop()
    if home in _env_loops:  # called from an environment, which plays another one
        return await within(seconds, _await(work), EnvFault(what))
    if home not in _run_loops:
        _run_loops[home] = _RunLoops(home)
    request = _Request(what, work, seconds, home)
    try:
        return await within(seconds, _run_loops[home].run(request), EnvFault(what))
    except EnvFault as error:
        if (culprit := request.held_up_by()) is not None:
            raise EnvFault(f"{error}: {culprit}") from error
        raise


async def call_plain(what: str, seconds: float, function: Callable[[], T], *, owner: type | None = None) -> T:
    """Calls a plain function in a thread and returns its result; otherwise like `call`.

    Args:
        what: The name of the call in errors.
        seconds: The time limit of the call from its start.
        function: The function, which runs in the thread.
        owner: The class of the environment. If several of its first calls have used up their time and none has ever
            returned, only one further call is tried at a time, and those that wait meanwhile fail at once. Otherwise a run
            of many tasks would take hours to fail, because there are few threads. None disables this rule.
    """
    kind = _histories.setdefault((what, owner), _CallHistory())

    async def work() -> T:
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(THREADS, lambda: run(counted))

    def counted() -> T:
        if owner is not None and kind.hopeless:
            raise EnvFault(
                f"{what} of {owner.__name__} was not called: none of its earlier calls returned, and {_MOST_HANGING} still "
                "hang"
            )
        with kind.running():
            return function()

    return await within(seconds, work(), EnvFault(what))


class _CallHistory:
    """The history of the calls of one plain function of one class in this process."""

    def __init__(self) -> None:
        self._returned = False
        self._running: dict[object, Deadline] = {}
        """The deadlines of the calls that have not returned."""

    @property
    def hopeless(self) -> bool:
        """Whether no call has ever returned, several have used up their time, and another one is being tried."""
        deadlines = list(self._running.values())
        late = sum(deadline.left() < _HANGING_TIME_SHARE * deadline.seconds for deadline in deadlines)
        return not self._returned and _MOST_HANGING <= late < len(deadlines)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Records a running call within the block."""
        key, deadline = object(), current_deadline()
        if deadline is not None:
            self._running[key] = deadline
        try:
            yield
        finally:
            self._returned = True
            self._running.pop(key, None)


_histories: dict[tuple[str, type | None], _CallHistory] = {}


async def _await(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


class _Request:
    """One call on a loop of environments, from the moment it is requested."""

    def __init__(
        self, what: str, work: Callable[[], Awaitable[Any]], seconds: float, home: asyncio.AbstractEventLoop
    ) -> None:
        self.what, self.work, self.seconds = what, work, seconds
        self.answer: asyncio.Future[Any] = home.create_future()
        self.given_up = False
        self.context = contextvars.Context()
        self.hold = Hold(None)
        self.loop: _EnvLoop | None = None
        """The loop on which the call has begun; None before."""
        self.task: asyncio.Task[Any] | None = None
        self._claim = threading.Lock()

    def begins(self, loop: "_EnvLoop") -> bool:
        """Claims the call for ``loop``; False if it was given up or another loop was first."""
        # Two loops may try to begin it: the blocked one from which it was taken, as soon as that continues, and the new one.
        with self._claim:
            if self.given_up or self.loop is not None:
                return False
            self.loop = loop
        self.task = asyncio.current_task()
        self.hold.end()
        return True

    def held_up_by(self) -> str | None:
        """What blocks the call, if that is code that blocks its event loop; otherwise None."""
        running = self.loop.running() if self.loop is not None else None
        if running is None:
            return None
        if running is self:
            return "its code blocks"
        return f"{running.what} of another episode blocks their event loop; it should await"


class _EnvLoop:
    """An event loop for environments, in a daemon thread.

    Raises:
        OSError: the loop cannot be created, for example because too many files are open.
        RuntimeError: the thread cannot be started.
    """

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.posted: dict[_Request, float] = {}
        """Calls that have not begun, with the times at which they were posted."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(THREADS)
        self.blocked = False
        """Whether its waiting calls were taken away and it has not continued since."""
        self._home = home
        self._requests: dict[asyncio.Task[Any], _Request] = {}
        self._done: list[tuple[_Request, Any, Exception | None]] = []
        # Guards `_done`: this loop appends results while the run's loop takes them.
        self._answers = threading.Lock()
        self._ends = False
        _env_loops.add(self.loop)
        self.thread = threading.Thread(target=self._run, name=_LOOP_THREAD, daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.loop.close()
            raise

    @property
    def abandoned(self) -> int:
        """Number of calls that were given up and have not returned."""
        return sum(request.given_up for request in list(self._requests.values()))

    def post(self, requests: list[_Request]) -> None:
        """Schedules ``requests`` to begin in one iteration of this loop."""
        self.posted |= dict.fromkeys(requests, time.monotonic())
        self.loop.call_soon_threadsafe(self._take, requests)

    def cancel(self, request: _Request) -> None:
        """Cancels a call that has begun."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(lambda: request.task and request.task.cancel())

    def drain(self) -> list[_Request]:
        """Removes and returns the calls that have not begun. If the blocked code ever ends, the loop serves the rest."""
        self.blocked = True
        self.loop.call_soon_threadsafe(lambda: setattr(self, "blocked", False))
        requests, self.posted = list(self.posted), {}
        return requests

    def running(self) -> _Request | None:
        """Returns the call whose code is running at this moment; may be called from any thread."""
        task = asyncio.current_task(self.loop)
        return self._requests.get(task) if task is not None else None

    def end(self) -> None:
        """Stops the loop: cancels its tasks and ends its thread as soon as the running code allows."""
        self._ends = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _take(self, requests: list[_Request]) -> None:
        for request in requests:
            self.loop.create_task(self._carry_out(request), context=request.context.copy())

    async def _carry_out(self, request: _Request) -> None:
        self.posted.pop(request, None)
        task = asyncio.current_task()
        if task is None or not request.begins(self):
            return
        self._requests[task] = request
        result: Any = None
        error: Exception | None = None
        try:
            result = await guarded(request.work(), EnvFault(request.what))
        except asyncio.CancelledError:
            error = EnvFault(f"{request.what} was cancelled")
        except Exception as raised:
            error = raised
        del self._requests[task]
        # Atomic, because a result appended after the list was taken would never be delivered.
        with self._answers:
            first = not self._done
            self._done.append((request, result, error))
        if first:
            self.loop.call_soon(self._deliver)  # results of one iteration are delivered together

    def _deliver(self) -> None:
        with contextlib.suppress(RuntimeError):  # the run's loop may be closed
            self._home.call_soon_threadsafe(self.answer)

    def answer(self) -> None:
        """Passes the results to the callers; runs on their event loop."""
        with self._answers:
            done, self._done = self._done, []
        for request, result, error in done:
            if request.answer.done():
                continue
            if error is not None:
                request.answer.set_exception(error)
            else:
                request.answer.set_result(result)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ends:
            # A task of an environment may raise SystemExit through the loop; the loop continues for the other tasks.
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        # If a task ignores its cancellation, this daemon thread stays alive.
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S))
        with contextlib.suppress(BaseException):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class _RunLoops:
    """The loops of the environments that one run calls. They live as long as the run's own loop."""

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.loops = [_EnvLoop(home)]
        self._home = home
        self._outbox: list[_Request] = []
        self._closer = self._close_with_run()  # closed when the run's loop shuts down its async generators
        with contextlib.suppress(StopIteration):
            self._closer.__anext__().send(None)

    async def run(self, request: _Request) -> Any:
        """Runs ``request`` and returns its result. Cancelling this coroutine cancels the call."""
        request.context, request.hold = contextvars.copy_context(), hold_current()
        self._send([request])
        try:
            return await request.answer
        finally:
            # Set before the hold ends and the loop is notified, so that no loop begins the call any more.
            request.given_up = not request.answer.done() or request.answer.cancelled()
            request.hold.end()
            if request.given_up and request.loop is not None:
                request.loop.cancel(request)

    def _send(self, requests: Sequence[_Request]) -> None:
        # The list is empty if a loop that seemed blocked began all its calls before they could be taken away.
        if requests and not self._outbox:
            # calls of one iteration begin together, so that they share batches
            self._home.call_soon(self._flush)
        self._outbox += requests

    def _flush(self) -> None:
        requests, self._outbox = self._outbox, []
        if sum(loop.blocked for loop in self.loops) >= MAX_ABANDONED:
            _fail(requests, f"{MAX_ABANDONED} event loops are blocked already")
            return
        loop, delay_s = self.loops[-1], min(_BLOCKED_S, *(request.seconds / 2 for request in requests))
        loop.post(requests)
        self._home.call_later(delay_s, self._move_late_calls, loop, delay_s)

    def _move_late_calls(self, loop: _EnvLoop, delay_s: float) -> None:
        """Moves calls that ``loop`` has not begun in time to a new loop, and delivers the results it has kept back."""
        loop.answer()
        oldest = min(list(loop.posted.values()), default=math.inf)
        if loop is self.loops[-1] and oldest <= time.monotonic() - delay_s:
            try:
                self.loops.append(_EnvLoop(self._home))
            except (OSError, RuntimeError) as error:
                # The deadlines of these calls are held until they begin, so they would wait for ever.
                said = f"another call blocks their event loop, and the system gives no other one ({error})"
                _fail(loop.drain(), said)
            else:
                self._send(loop.drain())

    async def _close_with_run(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            _run_loops.pop(self._home, None)
            for loop in self.loops:
                loop.end()
            # A loop with blocking code is not waited for, because its thread is a daemon.
            threads = [loop.thread for loop in self.loops if loop.running() is None]
            deadline = time.monotonic() + _CLOSE_S
            while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)


def _fail(requests: Sequence[_Request], reason: str) -> None:
    """Fails calls that cannot be made, with ``reason`` as the error."""
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(EnvFault(reason))


_run_loops: dict[asyncio.AbstractEventLoop, _RunLoops] = {}
_env_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
