"""The service behind ``agentenv serve``: how many sessions there are, what one can do, and how each of them ends.

A session is one environment for one caller. At most ``sessions`` environments run at once. Further callers wait up to
``wait_s`` seconds and then get a 503. A call that misses its deadline ends its session: nobody knows what the environment
is doing then, so it is never stepped again, and its slot is given back when it has been closed.
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

_RETIRE_S = 30.0  # for a call that was given up to end, and again for its environment to close
THREADS = "agentenv-session"
"""How the names of the threads begin in which environments run."""

_ROUND_S = 0.2  # between two rounds of the housekeeper


class EnvService(Gate):
    """Gives every caller an environment of its own. It starts empty; `open` makes it ready.

    Args:
        name: of the environment, such as ``agentenv/Calculator-v0``.
        limits: bounds.
        token: what callers must send as bearer token; None lets everybody in.
        expert: whether callers may ask for the expert's actions, which hold the answers.
        client_tasks: whether callers may write tasks themselves; else they name those that the environment holds.
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
        """Forks that wait to be taken by a connection of their own, by id."""
        self.mcp = McpSessions(self)
        self.ending = asyncio.Event()
        """Set when the service stops; every conversation then ends after the answer under way."""
        self._make: Callable[[], Env[Any]] | None = None
        self._prototype: Env[Any] | None = None
        self._client_options: ClientOptions | None = None
        self.slots = ClientSlots(self.limits, self.mcp.make_room)
        self._making = 0
        self._closing: set[asyncio.Task[None]] = set()
        self.meter = EnvMeter(self)

    def open(self, make: Callable[[], Env[Any]]) -> None:
        """Makes the first environment, from which the others are forked where that can be, and lets callers in.

        Raises:
            ConfigurationError: an environment whose tools cannot be called over MCP.
        """
        prototype = make()
        toolbox(prototype)  # what cannot be said of it must not come out at the first request
        self._client_options = ClientOptions(prototype, whole_tasks=self.client_tasks)
        self._prototype, self._make = prototype, make
        self.ready()

    @property
    def prototype(self) -> Env[Any]:
        """An environment that nobody plays, to ask what it is.

        Raises:
            Refusal: the service is not ready.
        """
        if self._prototype is None:
            raise Refusal(503, f"The server is {self.state}; try again later.", "NotReady")
        return self._prototype

    def options(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The options of ``reset`` that a caller sent, as the environment takes them.

        Raises:
            ConfigurationError: an option or a task that callers may not give, or a malformed one.
        """
        assert self._client_options is not None
        return self._client_options.read(given)

    async def tasks(self, n: int, seed: int, split: str, client: str = "") -> list[dict[str, Any]]:
        """At most ``n`` tasks as they are sent; callers may name them by their ids from then on.

        They are the tasks of that split that the environment holds, or else tasks that its class makes. The accepted answers
        are left out unless callers may ask for the expert's actions, which hold them too. The address ``client`` is who
        asks; half of the room for tasks is for others.

        Raises:
            ConfigurationError: the environment holds none and makes none; or another task has the id of one of them.
            Refusal: the service is not ready, or makes tasks for many callers already.
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
            # Within the block, because a thread gets the context of the moment: what waits in it then holds this
            # deadline.
            making = asyncio.ensure_future(asyncio.to_thread(made))
        self._making += 1
        # Not before: a call that is given up has its thread until it ends.
        making.add_done_callback(self._made)
        tasks = await self.await_call(making, "making tasks", deadline)
        options.hold(tasks, client)
        answers = {task.id: list(task.answers) if self.expert else [] for task in tasks}
        return [
            {"id": task.id, "question": task.question, "answers": answers[task.id], "split": task.split}
            for task in tasks
        ]

    def _made(self, _: "asyncio.Future[Any]") -> None:
        self._making -= 1

    async def session(self, client: str = "") -> EnvSession:
        """A session of a fresh environment for the caller at the address ``client``, once there is a slot.

        Raises:
            Refusal: no slot came free in time, too many wait already, or the client holds all that it may.
            EnvFault: the environment was not made in time.
        """
        await self._take_place(client)
        with deadline_of(self.limits.call_s) as deadline:
            making = asyncio.ensure_future(asyncio.to_thread(self._fresh))
        try:
            return EnvSession(self, await self.await_call(making, "making the environment", deadline), client)
        except BaseException:
            # The thread that makes it cannot be ended: it is waited for before its slot is given back, and what comes
            # late is closed.
            self.close_later(lambda: _close_made(making), making, client)
            raise

    async def wrap(self, env: Env[Any], client: str) -> EnvSession:
        """A session of an environment that is there already, kept by id until somebody takes it.

        Raises:
            Refusal: no slot came free in time; the environment has been closed.
        """
        try:
            await self._take_place(client)
        except BaseException:
            await asyncio.to_thread(env.close)
            raise
        return self.keep(EnvSession(self, env, client))

    def keep(self, session: EnvSession) -> EnvSession:
        """Holds a session that has no connection; the housekeeper ends it when it is not used."""
        self.sessions[session.id] = session
        return session

    def claim(self, id: str) -> EnvSession:
        """Takes a kept session out.

        Raises:
            Refusal: there is none, or its time is over.
        """
        if (session := self.sessions.pop(id, None)) is None:
            raise Refusal(404, f"No session {id!r} waits to be taken; it may have expired.", "UnknownSession")
        return session

    async def await_call(self, call: asyncio.Future[T], what: str, deadline: Deadline) -> T:
        """The result of ``call`` within its deadline; a late one is left running, for `close_later` to see to.

        Raises:
            EnvFault: the deadline was missed.
        """
        if not await ends_within(deadline, call):
            raise EnvFault(f"{what} took longer than {deadline.seconds:g} s")
        return call.result()

    def close_later(
        self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str
    ) -> asyncio.Task[None]:
        """Closes an environment beside everything else, once the call in it is over, and gives its slot back."""
        task = asyncio.get_running_loop().create_task(self._close(close, call, client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def wait_until_idle(self, seconds: float) -> None:
        """Waits so long for what is being retired."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=seconds)

    async def _close(self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str) -> None:
        try:
            if call is not None:
                # Not closed beside the call: an environment that is being stepped in a thread may not be closed in
                # another one.
                await asyncio.wait({call}, timeout=_RETIRE_S)
                call.cancel()  # a coroutine that never ends; a thread cannot be ended and is left behind
                await asyncio.gather(call, return_exceptions=True)
            with contextlib.suppress(Exception):  # one that cannot be closed has no slot any more either
                await asyncio.wait_for(asyncio.to_thread(close), _RETIRE_S)
        finally:
            self._give_place(client)

    async def housekeeping(self) -> None:
        """Ends sessions that nobody uses any more, and all of them when the service stops; runs until cancelled."""
        # A thread for each environment that blocks, and some for those that are made, forked and closed.
        asyncio.get_running_loop().set_default_executor(_Threads(self.limits.sessions + 16, THREADS))
        while True:
            stopping = self.state == STOPPING
            if stopping:
                self.ending.set()
            # A copy, because ended sessions leave the dictionary.
            for id, session in list(self.sessions.items()):
                expired = stopping or time.monotonic() > session.expires
                if session.over or (expired and not session.busy):
                    del self.sessions[id]
                    session.end()
            self.mcp.tidy(stopping=stopping)
            self.slots.ask_again()
            await asyncio.sleep(_ROUND_S)

    def health(self) -> dict[str, Any]:
        """That the process answers, what it serves and how full it is."""
        status = "healthy" if self.state == READY else self.state  # the word that OpenEnv's tools look for
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
    """Threads that nobody waits for when the service ends: one may never return."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _close_made(making: asyncio.Future[Env[Any]]) -> None:
    """Closes what was made too late for anybody to want it."""
    if making.done() and not making.cancelled() and making.exception() is None:
        making.result().close()


class EnvMeter(Meter):
    """What a service of environments counts beside requests."""

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
        """An episode ended."""
        self._ends.labels(end_reason).inc()

    def fault(self, kind: str) -> None:
        """A call failed by no fault of the policy."""
        self._faults.labels(kind).inc()
