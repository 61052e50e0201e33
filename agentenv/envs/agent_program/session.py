"""An agent at work on one task: a resource of an episode's state, which goes back by letting the agent work again."""

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
_OVER = 410


@dataclass(frozen=True)
class Ended:
    """The agent has ended."""

    answer: str = ""
    mistake: str = ""
    """Why it gave up, where the model's answers are to blame; empty where it has answered."""


Event = ChatRequest | Ended
"""What an agent does next: it asks its model, or ends."""


@dataclass(frozen=True)
class Exchange:
    """A request and what answered it."""

    request: ChatRequest
    reply: Reply


@dataclass(frozen=True)
class Handle:
    """A point in the work of an agent."""

    exchanges: tuple[Exchange, ...]
    event: Event | None


@dataclass
class _Waiting:
    """A request that has not been answered."""

    asked: Asked
    reply: "asyncio.Future[Reply]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AgentSession:
    """One run of an agent program, and what it has asked so far.

    A program cannot be captured. To go back, a new one is started and answered as before; one that asks otherwise than
    before cannot go back.

    Args:
        program: What is run.
        task: What it is to do.
        timeout_s: Seconds between an answer of the model and the agent's next request, or its end.
        replays: Whether it may work again; otherwise a snapshot is refused after the first answer.
    """

    def __init__(self, program: Program, task: Task, *, timeout_s: float, replays: bool = True) -> None:
        self.program, self.task = program, task
        self.exchanges: list[Exchange] = []
        self.event: Event | None = None
        """What it does now; None before it has begun."""
        self._timeout_s, self._replays = timeout_s, replays
        self._key = ""
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._current: _Waiting | None = None
        self._refused = ""
        """Why its last request was refused; empty where it was not."""
        self._running: asyncio.Task[str] | None = None
        self._sound = True

    def __del__(self) -> None:
        """Ends the agent of an environment that was never closed."""
        running = self.__dict__.get("_running")
        if running is not None and not running.done():
            with suppress(RuntimeError):  # the loop has ended, and its tasks with it
                running.get_loop().call_soon_threadsafe(running.cancel)
                running.get_loop().call_soon_threadsafe(_refuse, self._unanswered())

    async def begin(self) -> Event:
        """Starts the agent; gives what it does first.

        Raises:
            EnvFault: it fails, or does nothing for too long.
            MissingExtra: what the endpoint needs is not installed.
        """
        return await LOOP.join(self._begin())

    async def reply(self, reply: Reply) -> Event:
        """Answers the request that the agent waits with; gives what it does next.

        Raises:
            EnvFault: it fails, is gone, or does nothing for too long.
        """
        return await LOOP.join(self._reply(reply))

    def asked(self, asked: Asked) -> "asyncio.Future[Reply]":
        """What the endpoint calls for a request of the agent; gives the reply, or a ``Refusal`` at the end."""
        waiting = _Waiting(asked)
        self._waiting.put_nowait(waiting)
        self._refused = ""
        return waiting.reply

    def refused(self, why: str) -> None:
        """What the endpoint calls for a request that is not served: an agent that hides it is not to be scored."""
        self._refused = why

    def snapshot(self) -> Handle:
        """What was asked and answered so far.

        Raises:
            SnapshotRefused: the agent must not work again, and the model has answered.
        """
        self._check_repeats()
        return Handle(tuple(self.exchanges), self.event)

    def restore(self, handle: Handle) -> None:
        """Goes back to ``handle``.

        Raises:
            SnapshotRefused: the agent must not work again, and the model has answered.
            SnapshotError: the agent asks otherwise than before, or fails.
        """
        if handle != Handle(tuple(self.exchanges), self.event) or not self._is_sound:
            self._check_repeats()
            self._go_to(handle)

    def fork(self) -> "AgentSession":
        """An agent of its own in the same state.

        Raises:
            SnapshotRefused: as in ``snapshot``.
            SnapshotError: as in ``restore``.
        """
        twin = AgentSession(self.program, self.task, timeout_s=self._timeout_s, replays=self._replays)
        try:
            twin._go_to(self.snapshot())
        except BaseException:
            twin.close()
            raise
        return twin

    def close(self) -> None:
        """Ends the agent. On an event loop that runs, it does not wait for the end."""
        if asyncio._get_running_loop() is not None:
            LOOP.submit(self._end())
            return
        self._run(self._end(), _CLOSE_S)

    @property
    def _is_sound(self) -> bool:
        return self._sound and self._running is not None

    def _check_repeats(self) -> None:
        if self.exchanges and not self._replays:
            raise SnapshotRefused(
                "the agent has already continued from an answer, and agent_state='kept' forbids running it a second "
                "time; agent_state='replayed' goes back by starting it anew"
            )

    def _run(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        return LOOP.run(work, seconds)

    def _go_to(self, handle: Handle) -> None:
        self._run(self._repeat(handle), _CLOSE_S + self._timeout_s * (len(handle.exchanges) + 1))

    async def _begin(self) -> Event:
        _sessions.add(self)
        self._waiting, self._current, self._refused, self._sound = asyncio.Queue(), None, "", True
        url, self._key = await endpoint.open(self)
        self._running = asyncio.create_task(self.program.run(self.task, url, self._key))
        return await self._next()

    async def _reply(self, reply: Reply) -> Event:
        waiting = self._answerable()
        self.exchanges.append(Exchange(waiting.asked.request, reply))
        waiting.reply.set_result(reply)
        return await self._next()

    def _answerable(self) -> _Waiting:
        """The current request; where its client has given up waiting and has asked once more, that one.

        Raises:
            EnvFault: nobody waits for an answer.
        """
        waiting = self._current
        if waiting is not None and waiting.reply.done():
            waiting = self._asked_again(waiting.asked.request)
        running = self._running
        if running is None or running.cancelled():
            raise self._fault("the agent was ended while its model wrote")
        if running.done() and (failure := running.exception()):
            raise self._fault(f"the agent ended while its model wrote: {failure}")
        if waiting is None:
            raise self._fault(
                "the agent did not wait for the answer of its model: give its client a longer timeout, and let it await "
                "every request that it makes at the same time as others"
            )
        return waiting

    def _asked_again(self, request: ChatRequest) -> _Waiting | None:
        """One that waits with the same ``request``; the others stay in the queue."""
        queued = self._queued()
        again = next((one for one in queued if one.asked.request == request and not one.reply.done()), None)
        for one in queued:
            if one is not again:
                self._waiting.put_nowait(one)
        return again

    async def _next_waiting(self) -> _Waiting:
        """The next request whose client still waits."""
        while (waiting := await self._waiting.get()).reply.done():
            pass
        return waiting

    async def _next(self) -> Event:
        """What the agent does next. What others have asked in its name counts no more once it has ended.

        Raises:
            EnvFault: it fails, or does nothing for too long.
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
                raise self._fault(
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
            raise self._fault("the agent was ended") from None

    async def _repeat(self, handle: Handle) -> None:
        await self._end()
        self.exchanges, self.event = [], None
        if handle.event is None:
            return
        try:
            await self._begin()
            for made in handle.exchanges:
                self._check_same(made.request)
                await self._reply(made.reply)
            self._check_same(handle.event)
        except EnvFault as fault:
            raise SnapshotError(str(fault)) from fault

    def _check_same(self, before: Event) -> None:
        if self.event != before:
            raise SnapshotError(
                f"the agent cannot go back: after {len(self.exchanges)} answers it does something else than before "
                f"({_described(self.event)} in place of {_described(before)}); if it depends on randomness, the time or "
                "a service, set agent_state='kept', which refuses snapshots"
            )

    def forget(self) -> None:
        """Leaves the agent to the process that has started it."""
        self._running = self._current = None

    async def _end(self) -> None:
        _sessions.discard(self)
        endpoint.close(self._key)
        running, self._running = self._running, None
        _refuse(self._unanswered())
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait([running], timeout=_CLOSE_S / 2)
        if running is not None and running.done() and not running.cancelled():
            running.exception()  # which is of nobody's interest any more

    def _unanswered(self) -> list[_Waiting]:
        return [*([] if self._current is None else [self._current]), *self._queued()]

    def _queued(self) -> list[_Waiting]:
        """What is in the queue, which is empty afterwards."""
        return [self._waiting.get_nowait() for _ in range(self._waiting.qsize())]

    def _fault(self, why: str) -> EnvFault:
        self._sound = False
        return EnvFault(why)


def _refuse(unanswered: Sequence[_Waiting]) -> None:
    for waiting in unanswered:
        if not waiting.reply.done():
            waiting.reply.set_exception(Refusal(_OVER, "this episode is over", "episode_over"))


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
