"""MCP sessions over HTTP, which have no connection that shows when their caller leaves.

``initialize`` resets an environment, because its answer tells how the episode opens. Until the first tool call, the session
is unused: its environment is closed as soon as another caller needs the slot. The first tool call then makes the environment
again, with the same seed and options. Used sessions may take half of all slots, and those of one client (one address) half
of these. If these slots are taken, the session that has been idle for longest is ended, provided that it has been idle for a
while.

A client with too many sessions displaces its own: beginning a session takes a slot of its client's share, and the unused
session to end is the oldest of the client that has most of them.
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

_MOST_SEEDS = 2**31


class McpHost(Protocol):
    """What MCP sessions need from their service; `EnvService` implements it."""

    @property
    def limits(self) -> ServerLimits:
        """The limits of the service."""

    @property
    def prototype(self) -> Env[Any]:
        """An environment that no caller uses, for its properties."""

    @property
    def mcp(self) -> "McpSessions":
        """All MCP sessions."""

    @property
    def slots(self) -> ClientSlots:
        """The slots of the service."""

    async def session(self, client: str = "") -> EnvSession:
        """Waits for a slot and makes a session with a fresh environment."""


class McpSession:
    """The session of one MCP client.

    Args:
        service: Sets the limits, and gives the environments.
        asked: Seed and options of the episode; without a seed one is drawn, so that the first tool call can repeat the
            episode.
        client: The address of the caller.
    """

    def __init__(self, service: McpHost, asked: ResetData, client: str = "") -> None:
        self.id = uuid.uuid4().hex
        self.opening = ""
        """The text of the first observation of the current episode."""
        self.over = False
        self.client = client
        self._service = service
        self._asked = asked.model_copy(
            update={"seed": secrets.randbelow(_MOST_SEEDS) if asked.seed is None else asked.seed}
        )
        self._session: EnvSession | None = None
        self._used = False
        self._turn = asyncio.Lock()
        self._last_call = time.monotonic()

    @property
    def env(self) -> Env[Any]:
        """The environment, or the service's prototype if its own was closed."""
        return self._service.prototype if self._session is None else self._session.env

    @property
    def held(self) -> bool:
        """Whether the session was used and holds a slot that others cannot take."""
        return self._used and self._session is not None and not self._session.over

    @property
    def announced(self) -> EnvSession | None:
        """The session whose environment ``initialize`` has reset; None once it was used or its slot was taken."""
        return None if self._used or self._session is None or self._session.over else self._session

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return self._turn.locked()

    @property
    def idle_s(self) -> float:
        """Seconds since the last call ended; 0 during a call."""
        return 0.0 if self.busy else time.monotonic() - self._last_call

    async def begin(self) -> None:
        """Begins the episode that the first tool call continues.

        Raises:
            Refusal: no slot became free in time.
            ConfigurationError: an option is not open to callers.
            Fault: the environment broke.
        """
        # The reset happens before the first call, because the answer to `initialize` contains the opening observation.
        session = await self._service.session(self.client)
        try:
            await session.reset(_with_native(self._asked, session))
        except BaseException:
            session.end()
            raise
        self.opening, self._session = session.opening, session

    def give_way(self) -> asyncio.Task[None] | None:
        """Closes the environment of an unused session; returns None if there is none to close or a call is running."""
        if self.busy or (announced := self.announced) is None:
            return None
        self._session = None
        return announced.end()

    async def reset(self, data: ResetData) -> dict[str, Any]:
        """Begins another episode, as `EnvSession.reset` does."""
        async with self._turn:
            return await self._reset(data)

    async def step(self, data: ActionData) -> dict[str, Any]:
        """Takes a step as `EnvSession.step` does."""
        return await self.act(lambda env: env.astep(data.text))

    async def act(self, action: Callable[[Env[Any]], Coroutine[Any, Any, Step]]) -> dict[str, Any]:
        """Takes a step as `EnvSession.act` does; begins the episode again if its environment was closed."""
        async with self._turn:
            session = await self._begun_session()
            try:
                return await session.act(action)
            finally:
                self.over = self.over or session.over
                self._last_call = time.monotonic()

    def end(self) -> None:
        """Ends the session: closes its environment and gives the slot back."""
        self.over = True
        if self._session is not None:
            self._session.end()

    async def _begun_session(self) -> EnvSession:
        """Returns the session within the announced episode.

        Raises:
            EnvFault: the session has ended, or the seed now gives another episode.
            Refusal: no slot became free in time.
        """
        opening, session = self.opening, await self._take_place()
        if session.begun:
            return session
        await self._reset(self._asked)  # the announced environment was closed for another caller
        # The caller has seen the announced opening; a different episode would be scored by the wrong question.
        if self.opening != opening:
            self.end()
            raise EnvFault(
                "the environment gave way to another session, and with the same seed it now begins another episode than "
                "the one that was announced; open another session"
            )
        return session

    async def _take_place(self) -> EnvSession:
        """Returns the session, which holds its slot from now on."""
        if self.over:
            raise EnvFault("this session has ended; open another one")
        if self._session is not None and self._used:
            return self._session
        session = await self._service.mcp.place(self)
        if self.over:  # this session was ended while it waited for a slot
            session.end()
            raise EnvFault("this session has ended; open another one")
        self._session, self._used = session, True
        return session

    async def _reset(self, data: ResetData) -> dict[str, Any]:
        session = await self._take_place()
        try:
            reply = await session.reset(_with_native(data, session))
        finally:
            self.over = self.over or session.over
            self._last_call = time.monotonic()
        self.opening = session.opening
        return reply


def _with_native(data: ResetData, session: EnvSession) -> ResetData:
    """Sets ``native`` for an environment with declared tools, whose opening then does not explain how to call them."""
    return data.model_copy(update={"native": isinstance(session.env, ToolEnv)})


def eviction_order(sessions: Sequence[McpSession]) -> list[McpSession]:
    """Returns ``sessions`` in the order of eviction: always the oldest of the client that has most left.

    Args:
        sessions: Sessions, oldest first.
    """
    left = Counter(one.client for one in sessions)
    ranked: list[tuple[int, int]] = []
    for age, session in enumerate(sessions):
        ranked.append((-left[session.client], age))
        # The count falls with each session, so that clients with many sessions lose them in turn.
        left[session.client] -= 1
    return [sessions[age] for _, age in sorted(ranked)]


class McpSessions:
    """All MCP sessions of a service, within its limits.

    Args:
        service: The service that gives the slots.
    """

    def __init__(self, service: McpHost) -> None:
        self._service = service
        self._sessions: dict[str, McpSession] = {}
        self._taking: Counter[str] = Counter()
        """How many used sessions of each client are being given a slot."""

    async def begin(self, asked: ResetData, client: str = "") -> McpSession:
        """Begins an unused session; ends the first ones in `eviction_order` if there are too many of these.

        Raises:
            Refusal: no slot became free in time, or too many callers wait for one.
            ConfigurationError: an option is not open to callers.
            Fault: the environment broke.
        """
        session = McpSession(self._service, asked, client)
        await session.begin()
        self._sessions[session.id] = session
        # The slot is given up at once if needed, because an unused session must not keep anybody waiting.
        if self._service.slots.wanted(client):
            session.give_way()
        unused = [one for one in self._sessions.values() if not one.held and not one.busy]
        for old in eviction_order(unused)[: max(0, len(unused) - self._service.limits.unused)]:
            self.end(old.id)
        return session

    def find(self, id: str) -> McpSession:
        """Returns the session with that id.

        Raises:
            Refusal: there is no such session, or it has ended.
        """
        if id not in self._sessions:
            raise Refusal(
                404, f"There is no session {id[:60]!r}; begin one with initialize.", "UnknownSession"
            )
        return self._sessions[id]

    def end(self, id: str) -> None:
        """Ends a session.

        Raises:
            Refusal: there is no such session.
        """
        session = self.find(id)
        del self._sessions[id]
        session.end()

    def make_room(self, client: str | None = None) -> asyncio.Task[None] | None:
        """Closes the environment of the first unused session in `eviction_order`, of ``client`` if one is given.

        Returns:
            A task that is done when the slot is free; None if no such session exists.
        """
        own = [one for one in self._sessions.values() if client is None or one.client == client]
        for session in eviction_order([one for one in own if one.announced is not None]):
            if (closing := session.give_way()) is not None:
                return closing
        return None

    async def place(self, session: McpSession) -> EnvSession:
        """Returns an environment for the first use of ``session``: the announced one, or a fresh one.

        Raises:
            Refusal: the slots for MCP sessions are taken, all or those of the client, and none of these sessions has been
                idle for long enough.
        """
        client, limits = session.client, self._service.limits
        # The client's share is checked first: a client that has used it up ends a session of its own, not of another client.
        holding = sorted((one for one in self._sessions.values() if one.held), key=lambda one: -one.idle_s)
        own = [one for one in holding if one.client == client]
        if len(own) + self._taking[client] >= limits.mcp_share:
            self._end_idle(own, "This client's slots for sessions without a connection are taken; try again.")
        elif len(holding) + self._taking.total() >= limits.mcp_sessions:
            self._end_idle(holding, "All slots for sessions without a connection are taken; try again.")
        if (announced := session.announced) is not None:
            return announced
        # The slot is counted while the session waits for it; otherwise several sessions at once would find it free.
        self._taking[client] += 1
        try:
            return await self._service.session(client)
        finally:
            self._taking[client] -= 1
            self._taking += Counter()  # drops clients with a count of 0

    def _end_idle(self, holding: Sequence[McpSession], refusal: str) -> None:
        """Ends the first of ``holding``, which has been idle for longest.

        Raises:
            Refusal: it has not been idle for long enough.
        """
        if not holding or holding[0].idle_s < self._service.limits.yield_s:
            raise Refusal(503, refusal, "Full")
        self.end(holding[0].id)

    def tidy(self, *, stopping: bool) -> None:
        """Ends sessions that are over or idle for too long, and all idle ones if the service is stopping."""
        limits = self._service.limits
        # The loop uses a copy, because `end` removes sessions.
        for session in list(self._sessions.values()):
            late = session.idle_s > (limits.idle_s if session.held else min(limits.claim_s, limits.idle_s))
            if session.over or (stopping and not session.busy) or late:
                self.end(session.id)
