"""Calling environments so that none of them can stop a run: on loops and threads of their own, each call with a deadline.

Code of an environment never runs on the event loop of the run. Coroutines run on a loop in a thread beside it, all of them
on one, so that environments may share clients and locks. A coroutine that blocks that loop (``time.sleep`` where
``await asyncio.sleep`` was meant) keeps it to itself: calls that have not begun are made on another loop. Plain functions
run in daemon threads, and one that hangs is replaced.
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

_BLOCKED_S = 5.0  # for which a loop may run one piece of code before calls that wait are made elsewhere
_CLOSE_S = 5.0  # for a loop to end
_LOOP_THREAD = "agentenv-env-loop"
_HUNG = 4  # calls that hang before those that wait are given up; fewer than there are threads
_LEFT = 0.1  # of its time: a call that has less left and has not returned counts as one of them
_GLANCE_S = 0.001  # between two looks at whether it has


class _SharedThreads(DaemonThreads):
    """Threads of the process; a loop that ends does not end them."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Does nothing."""


THREADS = _SharedThreads(min(32, (os.cpu_count() or 1) + 4), "agentenv-env")
"""Runs what an environment does in plain functions, as many at a time as the standard library's own pool."""


def abandoned() -> int:
    """Calls of environments in this process that were given up and have not returned."""
    hosts = list(_hosts.values())
    return THREADS.abandoned + sum(loop.abandoned for host in hosts for loop in host.loops)


def none_runs() -> bool:
    """Whether no loop of environments runs any more, in this process: each ends with the run that it was made for."""
    return not any(thread.name == _LOOP_THREAD for thread in threading.enumerate())


async def call(what: str, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
    """The result of the coroutine that ``work`` makes, on the loop of the environments.

    Args:
        what: Names the call in errors, such as ``the environment's step``.
        seconds: That it may take from its beginning; the wait for a batch or a thread is left out.
        work: Is called there too; what it does before its first wait blocks the loop.

    Raises:
        EnvFault: it took too long, or raised what is no ``Exception``.
        Exception: what it raised.
    """
    home = asyncio.get_running_loop()
    if home in _env_loops:  # an environment that plays another one
        return await within(seconds, _await(work), EnvFault(what))
    if home not in _hosts:
        _hosts[home] = _Host(home)
    order = _Order(what, work, seconds, home)
    try:
        return await within(seconds, _hosts[home].run(order), EnvFault(what))
    except EnvFault as error:
        if (culprit := order.held_up_by()) is not None:
            raise EnvFault(f"{error}: {culprit}") from error
        raise


async def call_plain(what: str, seconds: float, function: Callable[[], T], *, owner: type | None = None) -> T:
    """The result of a plain function, in a thread; as `call` otherwise.

    Args:
        what: Names the call in errors.
        seconds: That it may take from its beginning.
        function: Is called in the thread.
        owner: The class of the environment. Where the first calls of one that hangs have used up their time and none has
            ever returned, one further call is tried at a time and those that wait meanwhile fail at once: there are few
            threads, and a run of many tasks would otherwise take hours to say what is wrong. None counts nothing.
    """
    kind = _kinds.setdefault((what, owner), _Kind())

    async def work() -> T:
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(THREADS, lambda: run(counted))

    def counted() -> T:
        if owner is not None and kind.hopeless:
            raise EnvFault(
                f"{what} of {owner.__name__} was not called: none of its earlier calls returned, and {_HUNG} still hang"
            )
        with kind.running():
            return function()

    return await within(seconds, work(), EnvFault(what))


class _Kind:
    """What became of the calls of one plain function of one class, in this process."""

    def __init__(self) -> None:
        self._returned = False
        self._running: dict[object, Deadline] = {}
        """The deadlines of those that have not returned."""

    @property
    def hopeless(self) -> bool:
        """Whether none has ever returned, several have used up their time, and another one is being tried."""
        deadlines = list(self._running.values())
        late = sum(deadline.left() < _LEFT * deadline.seconds for deadline in deadlines)
        return not self._returned and _HUNG <= late < len(deadlines)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Within the block a call runs."""
        key, deadline = object(), current_deadline()
        if deadline is not None:
            self._running[key] = deadline
        try:
            yield
        finally:
            self._returned = True
            self._running.pop(key, None)


_kinds: dict[tuple[str, type | None], _Kind] = {}


async def _await(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


class _Order:
    """One call for a loop of environments, from the moment when it is asked for."""

    def __init__(
        self, what: str, work: Callable[[], Awaitable[Any]], seconds: float, home: asyncio.AbstractEventLoop
    ) -> None:
        self.what, self.work, self.seconds = what, work, seconds
        self.answer: asyncio.Future[Any] = home.create_future()
        self.given_up = False
        self.context = contextvars.Context()
        self.hold = Hold(None)
        self.loop: _EnvLoop | None = None
        """Where it has begun."""
        self.task: asyncio.Task[Any] | None = None
        self._claim = threading.Lock()

    def begins(self, loop: "_EnvLoop") -> bool:
        """Whether it begins on ``loop`` now: it was not given up, and no other loop was first."""
        # Two loops may want to begin it: the one that it was taken from, as soon as that goes on, and the one that
        # got it.
        with self._claim:
            if self.given_up or self.loop is not None:
                return False
            self.loop = loop
        self.task = asyncio.current_task()
        self.hold.end()
        return True

    def held_up_by(self) -> str | None:
        """What keeps it from going on, where that is a call that blocks the loop."""
        running = self.loop.running() if self.loop is not None else None
        if running is None:
            return None
        if running is self:
            return "its code blocks"
        return f"{running.what} of another episode blocks their event loop; it should await"


class _EnvLoop:
    """An event loop in a daemon thread.

    Raises:
        OSError: the system gives none, because too many files are open, for example.
        RuntimeError: it gives no thread.
    """

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.posted: dict[_Order, float] = {}
        """Calls that have not begun, with the times at which they were posted."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(THREADS)
        self.blocked = False
        """Whether what it had not begun was taken away from it, and it has not gone on since."""
        self._home = home
        self._orders: dict[asyncio.Task[Any], _Order] = {}
        self._done: list[tuple[_Order, Any, Exception | None]] = []
        # Guards what is done: this loop adds to it while the run's loop takes it away.
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
        """Calls that were given up and have not returned."""
        return sum(order.given_up for order in list(self._orders.values()))

    def post(self, orders: list[_Order]) -> None:
        """Lets the loop begin ``orders`` in one of its turns."""
        self.posted |= dict.fromkeys(orders, time.monotonic())
        self.loop.call_soon_threadsafe(self._take, orders)

    def cancel(self, order: _Order) -> None:
        """Cancels a call that has begun."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(lambda: order.task and order.task.cancel())

    def drain(self) -> list[_Order]:
        """Takes away what has not begun; the loop goes on with the rest if it ever can."""
        self.blocked = True
        self.loop.call_soon_threadsafe(lambda: setattr(self, "blocked", False))
        orders, self.posted = list(self.posted), {}
        return orders

    def running(self) -> _Order | None:
        """The call whose code runs at this moment, from any thread."""
        task = asyncio.current_task(self.loop)
        return self._orders.get(task) if task is not None else None

    def end(self) -> None:
        """Cancels what is under way and ends the thread, as soon as its code lets it."""
        self._ends = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _take(self, orders: list[_Order]) -> None:
        for order in orders:
            self.loop.create_task(self._carry_out(order), context=order.context.copy())

    async def _carry_out(self, order: _Order) -> None:
        self.posted.pop(order, None)
        task = asyncio.current_task()
        if task is None or not order.begins(self):
            return
        self._orders[task] = order
        result: Any = None
        error: Exception | None = None
        try:
            result = await guarded(order.work(), EnvFault(order.what))
        except asyncio.CancelledError:
            error = EnvFault(f"{order.what} was cancelled")
        except Exception as raised:
            error = raised
        del self._orders[task]
        # In one step: an answer that is added behind a list that was just taken away would have nobody to deliver it.
        with self._answers:
            first = not self._done
            self._done.append((order, result, error))
        if first:
            self.loop.call_soon(self._deliver)  # answers of one turn arrive in one turn

    def _deliver(self) -> None:
        with contextlib.suppress(RuntimeError):  # the run's loop is closed
            self._home.call_soon_threadsafe(self.answer)

    def answer(self) -> None:
        """Gives those who wait what their calls came to; runs on their loop."""
        with self._answers:
            done, self._done = self._done, []
        for order, result, error in done:
            if order.answer.done():
                continue
            if error is not None:
                order.answer.set_exception(error)
            else:
                order.answer.set_result(result)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ends:
            # A task that an environment started may raise SystemExit through the loop; the others go on.
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        # A task that ignores its cancellation keeps this daemon thread.
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_S))
        with contextlib.suppress(BaseException):
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class _Host:
    """The loops of the environments that one run calls; they live as long as the run's own loop."""

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.loops = [_EnvLoop(home)]
        self._home = home
        self._outbox: list[_Order] = []
        self._keeper = self._keep()  # the run's loop closes it when it shuts down its asynchronous generators
        with contextlib.suppress(StopIteration):
            self._keeper.__anext__().send(None)

    async def run(self, order: _Order) -> Any:
        """The result of ``order``; cancelling this cancels it there."""
        order.context, order.hold = contextvars.copy_context(), hold_current()
        self._send([order])
        try:
            return await order.answer
        finally:
            # Set before the hold is ended and the loop told, so that a loop that looks now does not begin it any
            # more.
            order.given_up = not order.answer.done() or order.answer.cancelled()
            order.hold.end()
            if order.given_up and order.loop is not None:
                order.loop.cancel(order)

    def _send(self, orders: Sequence[_Order]) -> None:
        # None are left where a loop that looked blocked has begun them all before they could be taken away.
        if orders and not self._outbox:
            self._home.call_soon(self._flush)  # orders of one turn begin in one turn: they share batches
        self._outbox += orders

    def _flush(self) -> None:
        orders, self._outbox = self._outbox, []
        if sum(loop.blocked for loop in self.loops) >= MAX_ABANDONED:
            _fail(orders, f"{MAX_ABANDONED} event loops are blocked already")
            return
        loop, delay_s = self.loops[-1], min(_BLOCKED_S, *(order.seconds / 2 for order in orders))
        loop.post(orders)
        self._home.call_later(delay_s, self._look, loop, delay_s)

    def _look(self, loop: _EnvLoop, delay_s: float) -> None:
        """Makes the calls elsewhere that ``loop`` has not begun for so long, and takes the answers that it keeps back."""
        loop.answer()
        oldest = min(list(loop.posted.values()), default=math.inf)
        if loop is self.loops[-1] and oldest <= time.monotonic() - delay_s:
            try:
                self.loops.append(_EnvLoop(self._home))
            except (OSError, RuntimeError) as error:
                # The time of these calls stands still until they begin: they would wait for ever.
                said = f"another call blocks their event loop, and the system gives no other one ({error})"
                _fail(loop.drain(), said)
            else:
                self._send(loop.drain())

    async def _keep(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            _hosts.pop(self._home, None)
            for loop in self.loops:
                loop.end()
            # A loop whose code blocks is not waited for; its thread is a daemon.
            threads = [loop.thread for loop in self.loops if loop.running() is None]
            deadline = time.monotonic() + _CLOSE_S
            while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
                await asyncio.sleep(_GLANCE_S)


def _fail(orders: Sequence[_Order], reason: str) -> None:
    """Tells those who wait that their calls are not made."""
    for order in orders:
        if not order.answer.done():
            order.answer.set_exception(EnvFault(reason))


_hosts: dict[asyncio.AbstractEventLoop, _Host] = {}
_env_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
