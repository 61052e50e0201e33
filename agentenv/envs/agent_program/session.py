"""A running agent program as a resource of an episode's state, which is restored by running the agent again."""

import asyncio
import atexit
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from weakref import WeakSet

from agentenv.core.concurrency.forks import in_forked_processes
from agentenv.core.grammar import shortened
from agentenv.core.types import Task
from agentenv.envs.agent_program.endpoint import LOOP, endpoint
from agentenv.envs.agent_program.program import AgentMistake, Program
from agentenv.envs.agent_program.requests import Asked, ChatRequest, Reply
from agentenv.errors import EnvFault, SnapshotError, SnapshotRefused
from agentenv.web.gate import Refusal

T = TypeVar("T")

_CLOSE_S = 15.0
_GONE_STATUS = 410


@dataclass(frozen=True)
class Ended:
    """The agent program ended."""

    answer: str = ""
    mistake: str = ""
    """Why it gave up because of the model's replies; empty if it answered."""


Event = ChatRequest | Ended
"""What an agent does next: send a request to its model, or end."""


@dataclass(frozen=True)
class Exchange:
    """A request and its reply."""

    request: ChatRequest
    reply: Reply


@dataclass(frozen=True)
class Handle:
    """A point in the run of an agent, to which it can be restored."""

    exchanges: tuple[Exchange, ...]
    event: Event | None


@dataclass
class _PendingRequest:
    """A request that has not been answered yet."""

    asked: Asked
    reply: "asyncio.Future[Reply]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AgentSession:
    """One run of an agent program, with its requests so far.

    A program cannot be captured. To restore a state, a new run is started and given the same replies. If its requests differ
    from the recorded ones, it cannot be restored.

    Args:
        program: The agent program.
        task: Its task.
        timeout_s: Time limit in seconds between a reply of the model and the agent's next request, or its end.
        replays: Whether it may run again; otherwise a snapshot is refused after the first reply.
    """

    def __init__(self, program: Program, task: Task, *, timeout_s: float, replays: bool = True) -> None:
        self.program, self.task = program, task
        self.exchanges: list[Exchange] = []
        self.event: Event | None = None
        """What the agent does at present; None before it has started."""
        self._timeout_s, self._replays = timeout_s, replays
        self._key = ""
        self._waiting: asyncio.Queue[_PendingRequest] = asyncio.Queue()
        self._current: _PendingRequest | None = None
        self._refused = ""
        """Why its last request was refused; empty if it was not."""
        self._running: asyncio.Task[str] | None = None
        self._sound = True

    def __del__(self) -> None:
        """Ends the agent of an environment that was never closed."""
        running = self.__dict__.get("_running")
        if running is not None and not running.done():
            with suppress(RuntimeError):  # the loop and its tasks have ended
                running.get_loop().call_soon_threadsafe(running.cancel)
                running.get_loop().call_soon_threadsafe(_refuse_all, self._unanswered())

    async def begin(self) -> Event:
        """Starts the agent; returns its first event.

        Raises:
            EnvFault: the agent fails, or takes too long.
            MissingExtra: a package that the endpoint needs is not installed.
        """
        return await LOOP.join(self._begin())

    async def reply(self, reply: Reply) -> Event:
        """Answers the agent's pending request; returns its next event.

        Raises:
            EnvFault: the agent fails, has ended, or takes too long.
        """
        return await LOOP.join(self._reply(reply))

    def asked(self, asked: Asked) -> "asyncio.Future[Reply]":
        """Called by the endpoint for a request; returns a future of the reply, or of a ``Refusal`` after the end."""
        waiting = _PendingRequest(asked)
        self._waiting.put_nowait(waiting)
        self._refused = ""
        return waiting.reply

    def refused(self, why: str) -> None:
        """Called by the endpoint for a request that is not served: an agent that hides this must not be scored."""
        self._refused = why

    def snapshot(self) -> Handle:
        """Returns the requests and replies so far.

        Raises:
            SnapshotRefused: the agent must not run twice, and has had a reply already.
        """
        self._check_repeats()
        return Handle(tuple(self.exchanges), self.event)

    def restore(self, handle: Handle) -> None:
        """Returns to ``handle`` by a new run.

        Raises:
            SnapshotRefused: the agent must not run twice, and has had a reply already.
            SnapshotError: the agent's requests differ from the recorded ones, or it fails.
        """
        if handle != Handle(tuple(self.exchanges), self.event) or not self._can_continue:
            self._check_repeats()
            self._restore_handle(handle)

    def fork(self) -> "AgentSession":
        """Starts a separate agent and brings it to the same state.

        Raises:
            SnapshotRefused: as in ``snapshot``.
            SnapshotError: as in ``restore``.
        """
        twin = AgentSession(self.program, self.task, timeout_s=self._timeout_s, replays=self._replays)
        try:
            twin._restore_handle(self.snapshot())
        except BaseException:
            twin.close()
            raise
        return twin

    def close(self) -> None:
        """Ends the agent. Called on a running event loop, it does not wait for the end."""
        if asyncio._get_running_loop() is not None:
            LOOP.submit(self._end())
            return
        self._run(self._end(), _CLOSE_S)

    @property
    def _can_continue(self) -> bool:
        return self._sound and self._running is not None

    def _check_repeats(self) -> None:
        if self.exchanges and not self._replays:
            raise SnapshotRefused(
                "the agent has already continued from an answer, and agent_state='kept' forbids running it a second "
                "time; agent_state='replayed' goes back by starting it anew"
            )

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        return LOOP.run(work, seconds)

    def _restore_handle(self, handle: Handle) -> None:
        self._run(self._replay(handle), _CLOSE_S + self._timeout_s * (len(handle.exchanges) + 1))

    async def _begin(self) -> Event:
        _sessions.add(self)
        self._waiting, self._current, self._refused, self._sound = asyncio.Queue(), None, "", True
        url, self._key = await endpoint.open(self)
        self._running = asyncio.create_task(self.program.run(self.task, url, self._key))
        return await self._next()

    async def _reply(self, reply: Reply) -> Event:
        waiting = self._pending_request()
        self.exchanges.append(Exchange(waiting.asked.request, reply))
        waiting.reply.set_result(reply)
        return await self._next()

    def _pending_request(self) -> _PendingRequest:
        """Returns the current request, or its repetition if the client stopped waiting and sent it again.

        Raises:
            EnvFault: no client waits for a reply.
        """
        waiting = self._current
        if waiting is not None and waiting.reply.done():
            waiting = self._repeated_request(waiting.asked.request)
        running = self._running
        if running is None or running.cancelled():
            raise self._mark_broken("the agent was ended while its model wrote")
        if running.done() and (failure := running.exception()):
            raise self._mark_broken(f"the agent ended while its model wrote: {failure}")
        if waiting is None:
            raise self._mark_broken(
                "the agent did not wait for the answer of its model: give its client a longer timeout, and let it await "
                "every request that it makes at the same time as others"
            )
        return waiting

    def _repeated_request(self, request: ChatRequest) -> _PendingRequest | None:
        """Returns a pending request equal to ``request``; other requests stay in the queue."""
        queued = self._drain_queue()
        again = next((one for one in queued if one.asked.request == request and not one.reply.done()), None)
        for one in queued:
            if one is not again:
                self._waiting.put_nowait(one)
        return again

    async def _next_waiting(self) -> _PendingRequest:
        """Returns the next request whose client still waits."""
        while (waiting := await self._waiting.get()).reply.done():
            pass
        return waiting

    async def _next(self) -> Event:
        """Waits for the agent's next event. Once it has ended, pending requests that others sent with its key are refused.

        Raises:
            EnvFault: the agent fails, or takes too long.
        """
        assert self._running is not None
        asking = asyncio.create_task(self._next_waiting())
        try:
            done, _ = await asyncio.wait(
                [asking, self._running], timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if asking in done:
                self._current = asking.result()
            if self._running in done:
                self.event = self._ended(self._running)
            elif self._current is not None and asking in done:
                self.event = self._current.asked.request
            else:
                why = f"; its last request was refused: {self._refused}" if self._refused else ""
                raise self._mark_broken(
                    f"the agent has neither asked its model nor ended for {self._timeout_s:g} s{why}"
                )
        finally:
            asking.cancel()
        return self.event

    def _ended(self, running: "asyncio.Task[str]") -> Ended:
        try:
            answer = running.result()
            if self._refused:
                raise EnvFault(f"the agent hid that its last request was refused: {self._refused}")
            return Ended(answer)
        except AgentMistake as error:
            return Ended(mistake=str(error))
        except EnvFault:
            self._sound = False
            raise
        except asyncio.CancelledError:
            raise self._mark_broken("the agent was ended") from None

    async def _replay(self, handle: Handle) -> None:
        await self._end()
        self.exchanges, self.event = [], None
        if handle.event is None:
            return
        try:
            await self._begin()
            for made in handle.exchanges:
                self._check_same_event(made.request)
                await self._reply(made.reply)
            self._check_same_event(handle.event)
        except EnvFault as fault:
            raise SnapshotError(str(fault)) from fault

    def _check_same_event(self, before: Event) -> None:
        if self.event != before:
            raise SnapshotError(
                f"the agent cannot go back: after {len(self.exchanges)} answers it does something else than before "
                f"({_described(self.event)} in place of {_described(before)}); if it depends on randomness, the time or "
                "a service, set agent_state='kept', which refuses snapshots"
            )

    def forget(self) -> None:
        """Forgets the agent in a forked process: it belongs to the parent process."""
        self._running = self._current = None

    async def _end(self) -> None:
        _sessions.discard(self)
        endpoint.close(self._key)
        running, self._running = self._running, None
        _refuse_all(self._unanswered())
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait([running], timeout=_CLOSE_S / 2)
        if running is not None and running.done() and not running.cancelled():
            running.exception()  # retrieved so that asyncio does not log it

    def _unanswered(self) -> list[_PendingRequest]:
        return [*([] if self._current is None else [self._current]), *self._drain_queue()]

    def _drain_queue(self) -> list[_PendingRequest]:
        """Removes and returns all requests in the queue."""
        return [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]

    def _mark_broken(self, why: str) -> EnvFault:
        self._sound = False
        return EnvFault(why)


def _refuse_all(unanswered: Sequence[_PendingRequest]) -> None:
    for waiting in unanswered:
        if not waiting.reply.done():
            waiting.reply.set_exception(Refusal(_GONE_STATUS, "this episode is over", "episode_over"))


def _described(event: Event | None) -> str:
    if event is None:
        return "nothing"
    if isinstance(event, Ended):
        return f"the end with {shortened(event.answer or event.mistake, 60)!r}"
    return repr(shortened(event.messages[-1].text, 60))


_sessions: "WeakSet[AgentSession]" = WeakSet()


def _forget_all() -> None:
    for session in [*_sessions]:
        session.forget()
    _sessions.clear()


in_forked_processes(_forget_all)


@atexit.register
def _end_all() -> None:
    async def ended() -> None:
        await asyncio.gather(*(session._end() for session in [*_sessions]), return_exceptions=True)

    if _sessions:
        LOOP.run(ended(), _CLOSE_S)
