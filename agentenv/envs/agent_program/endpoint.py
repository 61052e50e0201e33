"""The endpoint at which agents find their model: one server in a process, and a key for each episode."""

import asyncio
import secrets
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakValueDictionary

from agentenv.core.concurrency.background import BackgroundLoop
from agentenv.core.concurrency.forks import in_forked_processes
from agentenv.envs.agent_program.requests import Asked, Reply, completion, read_request, stream_of
from agentenv.errors import EnvFault, needs_extra
from agentenv.web.connections import ConnectionLimits, bounded_protocol
from agentenv.web.gate import Gate, Refusal
from agentenv.web.hosts import HostCheck
from agentenv.web.http import body_within, unless_gone
from agentenv.web.server import address_of, listen

LOOP = BackgroundLoop("agentenv-agent-programs")
"""Where the endpoint, the agents and their waits live, while episodes are stepped from several loops."""
_BODY_BYTES, _BODY_S = 32 * 2**20, 30.0
_START_S = 30.0
_KEEPALIVE_S = 300  # far longer than clients keep an idle connection: one that is closed as they ask breaks off the agent
# All agents have the address of this machine.
_CONNECTIONS = ConnectionLimits(per_address=ConnectionLimits.connections)
_UNAUTHORISED, _NOT_FOUND, _NOT_ALLOWED = 401, 404, 405
_SERVED = "POST /v1/chat/completions and GET /v1/models"


class Answering(Protocol):
    """An episode, as the endpoint sees it."""

    def asked(self, asked: Asked) -> "asyncio.Future[Reply]":
        """The reply, to be waited for; a ``Refusal`` once the episode is over."""

    def refused(self, why: str) -> None:
        """Takes note of the reason for which a request of its agent was refused."""


class AgentEndpoint:
    """Serves the chat completions of all episodes of this process, on the loopback interface alone."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Starts anew with the next episode."""
        # Held by their environments alone, so that the agent of one that was never closed ends with it.
        self._episodes: WeakValueDictionary[str, Answering] = WeakValueDictionary()
        self._url = ""
        self._starting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self, episode: Answering) -> tuple[str, str]:
        """The address and the key under which ``episode`` is asked; the server starts with the first one.

        Raises:
            MissingExtra: FastAPI or uvicorn is not installed.
            EnvFault: the server does not start.
        """
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)
        key = f"agentenv-{secrets.token_urlsafe(24)}"
        self._episodes[key] = episode
        return self._url, key

    def close(self, key: str) -> None:
        """Forgets an episode; a program that still asks with its key is told that it is over."""
        self._episodes.pop(key, None)

    async def _start(self) -> None:
        with needs_extra("serve"):
            import uvicorn
        listening = listen("127.0.0.1", 0)
        config = uvicorn.Config(
            HostCheck(self._app()),
            http=bounded_protocol(_CONNECTIONS),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEPALIVE_S,
        )
        server = uvicorn.Server(config)
        self._serving = asyncio.create_task(server.serve(sockets=[listening]))
        async with asyncio.timeout(_START_S):
            while not server.started:
                if self._serving.done():
                    raise EnvFault("the endpoint of the agents did not start")
                await asyncio.sleep(0.01)
        self._url = f"{address_of(listening)}/v1"

    def _app(self) -> Any:
        with needs_extra("serve"):
            from fastapi import FastAPI, Request
            from starlette.exceptions import HTTPException
            from starlette.responses import JSONResponse, Response
        app, gate = FastAPI(title="agentenv agent programs"), Gate()

        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Response:
            try:
                key = request.headers.get("authorization", "")
                self._episode(key)  # before the body, which only an agent of an episode may send
                try:
                    asked = read_request(await body_within(request, gate, _BODY_BYTES, _BODY_S))
                except Refusal as error:
                    self._episode(key).refused(str(error))
                    raise
                reply = await unless_gone(self._episode(key).asked(asked), request)
            except Refusal as error:
                return JSONResponse(_said(error), error.status)
            if asked.stream:
                return Response(stream_of(asked, reply), media_type="text/event-stream")
            return JSONResponse(completion(asked, reply))

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "agentenv"}]}

        async def unknown(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            why = f"{request.method} {request.url.path[:200]} is not served, but {_SERVED} alone"
            with suppress(Refusal):
                self._episode(request.headers.get("authorization", "")).refused(why)
            return JSONResponse(_said(Refusal(error.status_code, why, "not_found")), error.status_code)

        for status in (_NOT_FOUND, _NOT_ALLOWED):
            app.add_exception_handler(status, unknown)
        return app

    def _episode(self, authorization: str) -> Answering:
        # The key is the name of the episode: 24 random bytes, of which a guess has no hope.
        episode = self._episodes.get(authorization.strip().removeprefix("Bearer "))
        if episode is None:
            raise Refusal(_UNAUTHORISED, "no episode that is being played has this key", "invalid_api_key")
        return episode


def _said(error: Refusal) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": error.kind, "code": error.kind}}


endpoint = AgentEndpoint()
# A process that was forked has an endpoint of its own.
in_forked_processes(endpoint.forget)
