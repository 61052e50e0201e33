"""Handles one WebSocket connection by OpenEnv's contract; the caller is not trusted."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from agentenv.core.validation import sentence
from agentenv.errors import AgentEnvError
from agentenv.serving.env_session import EnvSession
from agentenv.serving.mcp import answer
from agentenv.serving.service import EnvService
from agentenv.serving.wire import (
    CAPACITY_REACHED,
    EXECUTION_ERROR,
    FACTORY_ERROR,
    INVALID_JSON,
    SESSION_ERROR,
    UNKNOWN_TYPE,
    VALIDATION_ERROR,
    ActionData,
    ExtensionData,
    Frame,
    ResetData,
    error_out,
    frame,
    read_json,
)
from agentenv.web.connections import network_of
from agentenv.web.gate import Refusal

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.websockets import WebSocket

T = TypeVar("T")

TYPES = ("reset", "step", "state", "mcp", "close", "agentenv")
GOING_AWAY, TRY_AGAIN, TOO_MUCH, BROKEN = 1001, 1013, 1008, 1011  # codes of RFC 6455 and IANA's registry

_log = logging.getLogger(__name__)


def host_of(asking: "HTTPConnection") -> str:
    """Returns the part of the caller's address that identifies it (``network_of``); empty if it has none."""
    return network_of(asking.client.host) if asking.client else ""


class _CallerLeft(Exception):
    """The caller has closed the connection."""


class _ConversationEnded(Exception):
    """The server ends the conversation."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class CallerConnection:
    """Answers the frames of one caller in order, and notices meanwhile when the caller leaves.

    Args:
        socket: An accepted WebSocket.
        service: The service that gives the environment.
    """

    def __init__(self, socket: "WebSocket", service: EnvService) -> None:
        self._socket = socket
        self._service = service
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue()
        self._ahead = 0  # number of characters in the inbox
        self._gone = asyncio.Event()
        self._why: Exception = _CallerLeft()
        self._session: EnvSession | None = None

    async def run(self) -> None:
        """Answers frames until the caller leaves, is idle too long or sends too much, or the service stops."""
        # Reads run beside the answers, because only a read notices that the caller has left.
        reading = asyncio.create_task(self._read())
        try:
            await self._talk()
        except _CallerLeft:
            pass
        except _ConversationEnded as end:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(self._service.limits.send_s):
                    await self._socket.close(end.code, str(end))
        finally:
            reading.cancel()
            if self._session is not None:
                self._session.end()

    async def _read(self) -> None:
        """Moves incoming frames to the inbox at once, because only a pending read notices that the caller has left."""
        from starlette.websockets import WebSocketDisconnect

        try:
            while True:
                limits = self._service.limits
                if self._inbox.qsize() >= limits.backlog or self._ahead > limits.message_bytes:
                    self._why = _ConversationEnded(TOO_MUCH, "too many frames ahead of the answers")
                    break
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    break
                text = message.get("text")
                self._ahead += len(text or "")
                self._inbox.put_nowait(text)
        # Starlette raises RuntimeError on reading a socket that was closed.
        except (WebSocketDisconnect, RuntimeError):
            pass
        self._gone.set()

    async def _talk(self) -> None:
        try:
            self._session = await self._unless_gone(self._service.session(host_of(self._socket)))
        except Exception as error:
            code = CAPACITY_REACHED if isinstance(error, Refusal) else FACTORY_ERROR
            await self._send("error", error_out(error, code))
            raise _ConversationEnded(TRY_AGAIN, "no environment") from error
        while True:
            text = await self._unless_gone(self._next())
            await self._send(*await self._answer(text))
            if self._session.over:
                raise _ConversationEnded(BROKEN, "the environment was given up")

    async def _next(self) -> str | None:
        """Returns the text of the next frame; None for a binary frame."""
        # Both are cancelled at the end, so that no abandoned wait takes a frame.
        waiting = [
            asyncio.ensure_future(self._inbox.get()),
            asyncio.ensure_future(self._service.ending.wait()),
        ]
        try:
            idle_s = self._service.limits.idle_s
            done, _ = await asyncio.wait(waiting, timeout=idle_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
        if waiting[1] in done:
            raise _ConversationEnded(GOING_AWAY, "the server stops")
        if not done:
            await self._send(
                "error", error_out(AgentEnvError(f"nothing came for {idle_s:g} s"), SESSION_ERROR)
            )
            raise _ConversationEnded(GOING_AWAY, "idle")
        text: str | None = waiting[0].result()  # type: ignore[assignment]
        self._ahead -= len(text or "")
        return text

    async def _answer(self, text: str | None) -> tuple[str, dict[str, Any]]:
        """Returns type and data of the answer to one frame; there is one for every error."""
        try:
            asked = Frame.model_validate(read_json(text or ""))
        except ValidationError as error:
            return "error", error_out(AgentEnvError(sentence(error)), VALIDATION_ERROR)
        except ValueError as error:
            return "error", error_out(AgentEnvError(f"this frame is no JSON: {error}"), INVALID_JSON)
        if asked.type not in TYPES:
            said = f"{asked.type[:60]!r} is no type of frame; there are {', '.join(TYPES)}"
            return "error", error_out(AgentEnvError(said), UNKNOWN_TYPE)
        if asked.type == "close":
            raise _ConversationEnded(1000, "")
        try:
            return await self._unless_gone(self._do(asked.type, asked.data))
        except (_CallerLeft, _ConversationEnded):
            raise
        except ValidationError as error:
            return "error", error_out(AgentEnvError(sentence(error)), VALIDATION_ERROR)
        except Refusal as error:
            return "error", error_out(error, CAPACITY_REACHED if error.status == 503 else SESSION_ERROR)
        except AgentEnvError as error:
            return "error", error_out(error)
        except Exception as error:
            _log.exception("an environment failed with an error that is not ours")
            return "error", error_out(error, EXECUTION_ERROR)

    async def _do(self, type: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        session = self._session
        assert session is not None
        if type == "reset":
            return "observation", await session.reset(ResetData.model_validate(data))
        if type == "step":
            return "observation", await session.step(ActionData.model_validate(data))
        if type == "state":
            return "state", session.state()
        if type == "mcp":
            return "mcp", await answer(session, data) or {}
        asked = ExtensionData.model_validate(data)
        if asked.verb != "attach":
            return "agentenv", await session.extension(asked)
        # The new session is claimed first, so that the caller keeps the old one if the claim is refused.
        self._session = self._service.claim(asked.id)
        session.end()
        return "agentenv", {}

    async def _unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of ``work``; cancels it if the caller leaves.

        Raises:
            _CallerLeft: the caller has left.
            _ConversationEnded: the service stops, or the caller sent too many frames.
        """
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self._why
            return task.result()
        finally:
            gone.cancel()
            if not task.done():
                task.cancel()
                # The session ends only after ``work`` has released what it holds.
                await asyncio.gather(task, return_exceptions=True)

    async def _send(self, type: str, data: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._service.limits.send_s):
                await self._socket.send_text(frame(type, data))
        except Exception as error:
            raise _CallerLeft from error  # it has left, or has not read the last answers for too long
