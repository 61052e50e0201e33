"""Sessions of MCP over HTTP, which have no connection whose end would show that their caller has left.

``initialize`` resets an environment to say how the episode opens, and the first call of a tool goes on with it. Until then
the session holds no slot that another caller could miss: one that needs it gets it at once. The environment is closed, and
the first call of a tool makes it again, with the same seed and options. Sessions that are used may take half of all slots,
and those of one client (one address) half of these; where they are taken, the one that has been idle for longest gives way
once it has been idle for a while.

A client that begins sessions without end crowds out its own: a session takes a slot of its client's share while it is
begun, and of unused sessions the oldest of the client that has most of them goes first.
"""

import asyncio
import secrets
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from agentenv.core.env import Env
from agentenv.core.tools import ToolEnv
from agentenv.core.types import Step
from agentenv.errors import EnvFault
from agentenv.serving.client_slots import ClientSlots
from agentenv.serving.env_session import EnvSession
from agentenv.serving.limits import ServerLimits
from agentenv.serving.wire import ActionData, ResetData
from agentenv.web.gate import Refusal

_SEEDS = 2**31


class McpHost(Protocol):
    """What sessions of MCP need of the service that they belong to; `EnvService` is one."""

    @property
    def limits(self) -> ServerLimits:
        """The bounds of the service."""

    @property
    def prototype(self) -> Env[Any]:
        """An environment that nobody plays."""

    @property
    def mcp(self) -> "McpSessions":
        """All sessions of MCP."""

    @property
    def slots(self) -> ClientSlots:
        """The slots of the service."""

    async def session(self, client: str = "") -> EnvSession:
        """A session of a fresh environment, once there is a slot."""


class McpSession:
    """What one MCP client plays.

    Args:
        service: whose bounds hold.
        asked: seed and options of the episode; without a seed one is drawn, so that it is the same episode at its first use.
        client: address of its caller.
    """

    def __init__(self, service: McpHost, asked: ResetData, client: str = "") -> None:
        self.id = uuid.uuid4().hex
        self.opening = ""
        """The text of the first observation of the present episode."""
        self.over = False
        self.client = client
        self._service = service
        self._asked = asked.model_copy(
            update={"seed": secrets.randbelow(_SEEDS) if asked.seed is None else asked.seed}
        )
        self._session: EnvSession | None = None
        self._used = False
        self._turn = asyncio.Lock()
        self._last_call = time.monotonic()

    @property
    def env(self) -> Env[Any]:
        """The environment, or one like it where its own has given way."""
        return self._service.prototype if self._session is None else self._session.env

    @property
    def held(self) -> bool:
        """Whether it holds a slot that it does not give to others: since its first use."""
        return self._used and self._session is not None and not self._session.over

    @property
    def announced(self) -> EnvSession | None:
        """The environment that ``initialize`` has reset, while nothing has used it and nobody needed its slot."""
        return None if self._used or self._session is None or self._session.over else self._session

    @property
    def busy(self) -> bool:
        """Whether a call is under way or waits for another one."""
        return self._turn.locked()

    @property
    def idle_s(self) -> float:
        """Seconds since its last call ended."""
        return 0.0 if self.busy else time.monotonic() - self._last_call

    async def begin(self) -> None:
        """Begins the episode that the first use goes on with.

        Raises:
            Refusal: no slot came free in time.
            ConfigurationError: an option that callers may not give.
            Fault: the environment broke.
        """
        # Reset now and not at the first call: the opening of the episode is part of the answer to `initialize`.
        session = await self._service.session(self.client)
        try:
            await session.reset(_native(self._asked, session))
        except BaseException:
            session.end()
            raise
        self.opening, self._session = session.opening, session

    def give_way(self) -> asyncio.Task[None] | None:
        """Closes the environment of a session that was not used; None where it has none or is being used just now."""
        if self.busy or (announced := self.announced) is None:
            return None
        self._session = None
        return announced.end()

    async def reset(self, data: ResetData) -> dict[str, Any]:
        """Begins another episode; as `EnvSession.reset`."""
        async with self._turn:
            return await self._reset(data)

    async def step(self, data: ActionData) -> dict[str, Any]:
        """Acts as `EnvSession.step` does."""
        return await self.act(lambda env: env.astep(data.text))

    async def act(self, action: Callable[[Env[Any]], Coroutine[Any, Any, Step]]) -> dict[str, Any]:
        """Acts as `EnvSession.act` does; the first time, the episode begins before."""
        async with self._turn:
            session = await self._begun()
            try:
                return await session.act(action)
            finally:
                self.over = self.over or session.over
                self._last_call = time.monotonic()

    def end(self) -> None:
        """Ends it; its environment is closed and its slot given back."""
        self.over = True
        if self._session is not None:
            self._session.end()

    async def _begun(self) -> EnvSession:
        """The environment within the episode that was announced."""
        opening, session = self.opening, await self._take_place()
        if session.begun:
            return session
        await self._reset(self._asked)  # the announced environment gave way
        # The caller has seen the opening that was announced; another episode behind it would be scored under the
        # wrong question.
        if self.opening != opening:
            self.end()
            raise EnvFault(
                "the environment gave way to another session, and with the same seed it now begins another episode than "
                "the one that was announced; open another session"
            )
        return session

    async def _take_place(self) -> EnvSession:
        """The environment, in a slot of its own from now on."""
        if self.over:
            raise EnvFault("this session has ended; open another one")
        if self._session is not None and self._used:
            return self._session
        session = await self._service.mcp.place(self)
        if self.over:  # it was ended while it waited for its slot
            session.end()
            raise EnvFault("this session has ended; open another one")
        self._session, self._used = session, True
        return session

    async def _reset(self, data: ResetData) -> dict[str, Any]:
        session = await self._take_place()
        try:
            reply = await session.reset(_native(data, session))
        finally:
            self.over = self.over or session.over
            self._last_call = time.monotonic()
        self.opening = session.opening
        return reply


def _native(data: ResetData, session: EnvSession) -> ResetData:
    """``data`` for a caller to whom the tools are declared: the opening message then says nothing of how one is called."""
    return data.model_copy(update={"native": isinstance(session.env, ToolEnv)})


def eviction_order(sessions: Sequence[McpSession]) -> list[McpSession]:
    """``sessions`` in the order in which they give way: each time the oldest of the client that has most left.

    Args:
        sessions: The oldest first.
    """
    left = Counter(one.client for one in sessions)
    ranked: list[tuple[int, int]] = []
    for age, session in enumerate(sessions):
        ranked.append((-left[session.client], age))
        # Counted down, so that clients with many sessions give way in turn rather than one of them alone.
        left[session.client] -= 1
    return [sessions[age] for _, age in sorted(ranked)]


class McpSessions:
    """The MCP sessions of a service, within its bounds.

    Args:
        service: whose slots they take.
    """

    def __init__(self, service: McpHost) -> None:
        self._service = service
        self._sessions: dict[str, McpSession] = {}
        self._taking: Counter[str] = Counter()
        """Places that each client is taking for sessions that are used."""

    async def begin(self, asked: ResetData, client: str = "") -> McpSession:
        """A session that holds no slot yet. Where too many are unused, the oldest of who has most of them goes.

        Raises:
            Refusal: no slot came free in time, or many callers wait for one.
            ConfigurationError: an option that callers may not give.
            Fault: the environment broke.
        """
        session = McpSession(self._service, asked, client)
        await session.begin()
        self._sessions[session.id] = session
        # At once, because a session that nobody has used must not keep anybody waiting.
        if self._service.slots.wanted(client):
            session.give_way()
        unused = [one for one in self._sessions.values() if not one.held and not one.busy]
        for old in eviction_order(unused)[: max(0, len(unused) - self._service.limits.unused)]:
            self.end(old.id)
        return session

    def find(self, id: str) -> McpSession:
        """The session of that id.

        Raises:
            Refusal: there is none, or its time is over.
        """
        if id not in self._sessions:
            raise Refusal(
                404, f"There is no session {id[:60]!r}; begin one with initialize.", "UnknownSession"
            )
        return self._sessions[id]

    def end(self, id: str) -> None:
        """Ends a session.

        Raises:
            Refusal: there is none.
        """
        session = self.find(id)
        del self._sessions[id]
        session.end()

    def make_room(self, client: str | None = None) -> asyncio.Task[None] | None:
        """Closes the environment of an unused session: the oldest of who has most, of ``client`` where one is named.

        Returns:
            What ends when its slot is free; None where there is no such session.
        """
        own = [one for one in self._sessions.values() if client is None or one.client == client]
        for session in eviction_order([one for one in own if one.announced is not None]):
            if (closing := session.give_way()) is not None:
                return closing
        return None

    async def place(self, session: McpSession) -> EnvSession:
        """An environment for the first use of ``session``: the one that was announced, or a fresh one.

        Raises:
            Refusal: the slots for sessions without a connection are taken, all or those of one client, and none of these
                has been idle for long.
        """
        client, limits = session.client, self._service.limits
        # The client's own share is looked at first: a client that has used it up takes the place of its own session, and of
        # nobody else's.
        holding = sorted((one for one in self._sessions.values() if one.held), key=lambda one: -one.idle_s)
        own = [one for one in holding if one.client == client]
        if len(own) + self._taking[client] >= limits.mcp_share:
            self._end_idle(own, "This client's slots for sessions without a connection are taken; try again.")
        elif len(holding) + self._taking.total() >= limits.mcp_sessions:
            self._end_idle(holding, "All slots for sessions without a connection are taken; try again.")
        if (announced := session.announced) is not None:
            return announced
        # Counted while the slot is waited for: otherwise several first uses at once would all find room.
        self._taking[client] += 1
        try:
            return await self._service.session(client)
        finally:
            self._taking[client] -= 1
            self._taking += Counter()  # without the clients that take none

    def _end_idle(self, holding: Sequence[McpSession], refusal: str) -> None:
        """Ends the first of ``holding``, which has been idle for longest.

        Raises:
            Refusal: it has not been idle for long.
        """
        if not holding or holding[0].idle_s < self._service.limits.yield_s:
            raise Refusal(503, refusal, "Full")
        self.end(holding[0].id)

    def tidy(self, *, stopping: bool) -> None:
        """Ends sessions that are over or were not used for too long; all of them where the service stops."""
        limits = self._service.limits
        # A copy, because `end` takes sessions out.
        for session in list(self._sessions.values()):
            late = session.idle_s > (limits.idle_s if session.held else min(limits.claim_s, limits.idle_s))
            if session.over or (stopping and not session.busy) or late:
                self.end(session.id)
