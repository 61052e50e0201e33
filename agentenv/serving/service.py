"""The service behind ``agentenv serve``: gives each caller a session, and ends sessions.

A session is one environment for one caller. At most ``sessions`` environments run at once; further callers wait up to
``wait_s`` seconds and then get a 503. A call that misses its deadline ends its session, because the state of its environment
is then unknown: it is not stepped again, and its slot is given back after it was closed.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from agentenv.core.concurrency.deadlines import Deadline, deadline_of, ends_within
from agentenv.core.env import Env
from agentenv.core.types import StateCapability, Task
from agentenv.errors import EnvFault
from agentenv.serving.client_options import ClientOptions
from agentenv.serving.client_slots import ClientSlots
from agentenv.serving.env_session import EnvSession
from agentenv.serving.limits import ServerLimits
from agentenv.serving.mcp_sessions import McpSessions
from agentenv.serving.toolbox import toolbox
from agentenv.serving.wire import VERSION
from agentenv.web.gate import READY, STOPPING, Gate, Refusal
from agentenv.web.telemetry import Meter

T = TypeVar("T")

_CLOSE_WAIT_S = 30.0  # time for an abandoned call to end, and the same again for closing its environment
THREADS = "agentenv-session"
"""Prefix of the names of the threads in which environments run."""

_HOUSEKEEPING_INTERVAL_S = 0.2  # seconds between two rounds of the housekeeper


class EnvService(Gate):
    """Gives every caller an environment of its own; `open` makes the service ready.

    Args:
        name: Name of the environment, such as ``agentenv/Calculator-v0``.
        limits: The limits of the service; None uses the defaults.
        token: The bearer token that callers must send; None admits everybody.
        expert: Whether callers may request the expert's actions, which contain the answers.
        client_tasks: Whether callers may write whole tasks; otherwise they name tasks that the environment holds.
    """

    def __init__(
        self,
        name: str,
        limits: ServerLimits | None = None,
        *,
        token: str | None = None,
        expert: bool = False,
        client_tasks: bool = False,
    ) -> None:
        super().__init__(token)
        self.name = name
        self.limits = limits or ServerLimits()
        self.expert = expert
        self.client_tasks = client_tasks
        self.sessions: dict[str, EnvSession] = {}
        """Forks that wait for a connection of their own, by id."""
        self.mcp = McpSessions(self)
        self.ending = asyncio.Event()
        """Set when the service stops; each conversation then ends after its current answer."""
        self._make: Callable[[], Env[Any]] | None = None
        self._prototype: Env[Any] | None = None
        self._client_options: ClientOptions | None = None
        self.slots = ClientSlots(self.limits, self.mcp.make_room)
        self._making = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.meter = EnvMeter(self)

    def open(self, make: Callable[[], Env[Any]]) -> None:
        """Makes the first environment, which the others are forked from if it can be forked, and admits callers.

        Raises:
            ConfigurationError: the environment's tools cannot be called over MCP.
        """
        prototype = make()
        toolbox(prototype)  # raises errors of its tools now rather than at the first request
        self._client_options = ClientOptions(prototype, whole_tasks=self.client_tasks)
        self._prototype, self._make = prototype, make
        self.ready()

    @property
    def prototype(self) -> Env[Any]:
        """An environment that no caller uses, for its properties.

        Raises:
            Refusal: the service is not ready.
        """
        if self._prototype is None:
            raise Refusal(503, f"The server is {self.state}; try again later.", "NotReady")
        return self._prototype

    def options(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Returns the options of ``reset`` from a caller in the form that the environment takes.

        Raises:
            ConfigurationError: an option or a task is not open to callers, or is malformed.
        """
        assert self._client_options is not None
        return self._client_options.read(given)

    async def tasks(self, n: int, seed: int, split: str, client: str = "") -> list[dict[str, Any]]:
        """Returns at most ``n`` tasks as JSON; from then on callers may name them by id.

        They are the tasks of that split that the environment holds, or else tasks that its class makes. The accepted answers
        are left out unless callers may request the expert's actions, which contain them as well. The tasks count for the
        address ``client``, which may fill half of the room for tasks.

        Raises:
            ConfigurationError: the environment neither holds nor makes tasks, or a different task already has one of the
                ids.
            Refusal: the service is not ready, or already makes tasks for many callers.
            EnvFault: they were not made in time.
        """
        env, options = self.prototype, self._client_options
        assert options is not None

        def made() -> Sequence[Task]:
            held = [task for task in env.held_tasks() if task.split in ("", split)]
            return (
                Random(seed).sample(held, min(n, len(held)))
                if held
                else env.make_tasks(n, seed=seed, split=split)
            )

        if self._making >= self.limits.making_tasks:
            raise Refusal(
                503, f"Tasks are made for {self._making} callers at the moment; try again later.", "Full"
            )
        with deadline_of(self.limits.call_s) as deadline:
            # The thread starts within the block, because it copies the current context: its waits then observe this
            # deadline.
            making = asyncio.ensure_future(asyncio.to_thread(made))
        self._making += 1
        # The count falls only at the end of the thread, which goes on after the request was given up.
        making.add_done_callback(self._tasks_made)
        tasks = await self.await_call(making, "making tasks", deadline)
        options.hold(tasks, client)
        answers = {task.id: list(task.answers) if self.expert else [] for task in tasks}
        return [
            {"id": task.id, "question": task.question, "answers": answers[task.id], "split": task.split}
            for task in tasks
        ]

    def _tasks_made(self, _: "asyncio.Future[Any]") -> None:
        self._making -= 1

    async def session(self, client: str = "") -> EnvSession:
        """Waits for a slot and makes a session with a fresh environment for the caller at the address ``client``.

        Raises:
            Refusal: no slot became free in time, too many callers wait already, or the client has all its slots.
            EnvFault: the environment was not made in time.
        """
        await self._take_place(client)
        with deadline_of(self.limits.call_s) as deadline:
            making = asyncio.ensure_future(asyncio.to_thread(self._fresh))
        try:
            return EnvSession(self, await self.await_call(making, "making the environment", deadline), client)
        except BaseException:
            # The thread cannot be stopped. Its slot is given back after it has ended, and the late environment is closed.
            self.close_later(lambda: _close_made(making), making, client)
            raise

    async def wrap(self, env: Env[Any], client: str) -> EnvSession:
        """Makes a session for an existing environment, and keeps it by id until somebody claims it.

        Raises:
            Refusal: no slot became free in time; the environment has been closed.
        """
        try:
            await self._take_place(client)
        except BaseException:
            await asyncio.to_thread(env.close)
            raise
        return self.keep(EnvSession(self, env, client))

    def keep(self, session: EnvSession) -> EnvSession:
        """Keeps a session that has no connection; the housekeeper ends it if nobody claims it.

        Returns:
            The same session.
        """
        self.sessions[session.id] = session
        return session

    def claim(self, id: str) -> EnvSession:
        """Removes a kept session and returns it.

        Raises:
            Refusal: there is none with that id, or its time is over.
        """
        if (session := self.sessions.pop(id, None)) is None:
            raise Refusal(404, f"No session {id!r} waits to be taken; it may have expired.", "UnknownSession")
        return session

    async def await_call(self, call: asyncio.Future[T], what: str, deadline: Deadline) -> T:
        """Returns the result of ``call``; on a missed deadline the call keeps running, for `close_later` to await.

        Raises:
            EnvFault: the deadline was missed.
        """
        if not await ends_within(deadline, call):
            raise EnvFault(f"{what} took longer than {deadline.seconds:g} s")
        return call.result()

    def close_later(
        self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str
    ) -> asyncio.Task[None]:
        """Closes an environment in a background task after ``call`` has ended, and gives its slot back."""
        task = asyncio.get_running_loop().create_task(self._close(close, call, client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def wait_until_idle(self, seconds: float) -> None:
        """Waits up to ``seconds`` seconds for environments that are being closed."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=seconds)

    async def _close(self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str) -> None:
        try:
            if call is not None:
                # An environment that is being stepped in one thread may not be closed in another one.
                await asyncio.wait({call}, timeout=_CLOSE_WAIT_S)
                call.cancel()  # stops a coroutine that never ends; a thread cannot be stopped and goes on
                await asyncio.gather(call, return_exceptions=True)
            with contextlib.suppress(Exception):  # the slot is given back even if closing fails
                await asyncio.wait_for(asyncio.to_thread(close), _CLOSE_WAIT_S)
        finally:
            self._give_place(client)

    async def housekeeping(self) -> None:
        """Ends unused sessions, and all sessions when the service stops; runs until cancelled."""
        # One thread for each environment that blocks, and further ones for making, forking and closing.
        asyncio.get_running_loop().set_default_executor(_Threads(self.limits.sessions + 16, THREADS))
        while True:
            stopping = self.state == STOPPING
            if stopping:
                self.ending.set()
            # The loop uses a copy, because ended sessions are removed from the dictionary.
            for id, session in list(self.sessions.items()):
                expired = stopping or time.monotonic() > session.expires
                if session.over or (expired and not session.busy):
                    del self.sessions[id]
                    session.end()
            self.mcp.tidy(stopping=stopping)
            self.slots.ask_again()
            await asyncio.sleep(_HOUSEKEEPING_INTERVAL_S)

    def health(self) -> dict[str, Any]:
        """Returns the answer of the health route: that the process answers, what it serves and how full it is."""
        status = "healthy" if self.state == READY else self.state  # the value that OpenEnv's tools expect
        full = {
            "sessions": self.active,
            "most_sessions": self.limits.sessions,
            "waiting": self.slots.waiting,
        }
        return {"status": status, "version": VERSION, "env": self.name, **full}

    def _fresh(self) -> Env[Any]:
        assert self._make is not None
        if self.prototype.capability >= StateCapability.MEMORY:
            return self.prototype.fork()[0]
        return self._make()

    async def _take_place(self, client: str) -> None:
        await self.slots.take(client)
        self.active += 1
        self.answered += 1

    def _give_place(self, client: str) -> None:
        self.active -= 1
        self.slots.give(client)


class _Threads(ThreadPoolExecutor):
    """A thread pool that does not wait for its threads at the end, since a call may never return."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _close_made(making: asyncio.Future[Env[Any]]) -> None:
    """Closes an environment that was made after its deadline."""
    if making.done() and not making.cancelled() and making.exception() is None:
        making.result().close()


class EnvMeter(Meter):
    """Counts episodes, faults and open sessions, beside requests."""

    def __init__(self, service: EnvService) -> None:
        super().__init__(service)
        from prometheus_client import Counter, Gauge

        sessions = self._named(Gauge, "sessions", "Environments that are open.", ())
        sessions.set_function(lambda: service.active)
        waiting = self._named(Gauge, "sessions_waiting", "Callers that wait for a slot.", ())
        waiting.set_function(lambda: service.health()["waiting"])
        self._ends = self._named(Counter, "episodes", "Episodes that ended.", ("end_reason",))
        self._faults = self._named(
            Counter, "faults", "Calls that an infrastructure failure ended.", ("kind",)
        )

    def episode(self, end_reason: str) -> None:
        """Counts an episode by how it ended."""
        self._ends.labels(end_reason).inc()

    def fault(self, kind: str) -> None:
        """Counts an infrastructure failure by its class."""
        self._faults.labels(kind).inc()
