"""The model endpoint for agent programs: one HTTP server per process, with an API key for each episode."""

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
"""The event loop of the endpoint, the agents and their waits. Episodes themselves may be stepped from several loops."""
_BODY_BYTES, _BODY_S = 32 * 2**20, 30.0
_START_TIMEOUT_S = 30.0
# longer than clients keep idle connections; closing one during a request would fail the agent
_KEEPALIVE_S = 300
# All agents connect from the address of this machine, so the limit per address is the overall limit.
_CONNECTIONS = ConnectionLimits(per_address=ConnectionLimits.connections)
_UNAUTHORISED, _NOT_FOUND, _NOT_ALLOWED = 401, 404, 405
_SUPPORTED_ROUTES = "POST /v1/chat/completions and GET /v1/models"


class Answering(Protocol):
    """The interface of an episode that the endpoint uses."""

    def asked(self, asked: Asked) -> "asyncio.Future[Reply]":
        """Returns a future of the reply; it raises a ``Refusal`` once the episode is over."""

    def refused(self, why: str) -> None:
        """Records the reason why a request of the episode's agent was refused."""


class AgentEndpoint:
    """Serves chat completions for all episodes of this process, on the loopback interface only."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Resets the endpoint, so that the next episode starts a new server."""
        # Weak references: the environments own the episodes, so that the agent of an episode that was never closed ends with
        # it.
        self._episodes: WeakValueDictionary[str, Answering] = WeakValueDictionary()
        self._url = ""
        self._starting: asyncio.Task[None] | None = None
        self._serving: asyncio.Task[None] | None = None

    async def open(self, episode: Answering) -> tuple[str, str]:
        """Registers ``episode``; returns the base URL and its API key. The first call starts the server.

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
        """Removes an episode. A program that still sends its key is told that the episode is over."""
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
        async with asyncio.timeout(_START_TIMEOUT_S):
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
                # checked before the body is read, which only an agent of an episode may send
                self._episode(key)
                try:
                    asked = read_request(await body_within(request, gate, _BODY_BYTES, _BODY_S))
                except Refusal as error:
                    self._episode(key).refused(str(error))
                    raise
                reply = await unless_gone(self._episode(key).asked(asked), request)
            except Refusal as error:
                return JSONResponse(_error_body(error), error.status)
            if asked.stream:
                return Response(stream_of(asked, reply), media_type="text/event-stream")
            return JSONResponse(completion(asked, reply))

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "policy", "object": "model", "owned_by": "agentenv"}]}

        async def unknown(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            why = f"{request.method} {request.url.path[:200]} is not served, but {_SUPPORTED_ROUTES} alone"
            with suppress(Refusal):
                self._episode(request.headers.get("authorization", "")).refused(why)
            return JSONResponse(_error_body(Refusal(error.status_code, why, "not_found")), error.status_code)

        for status in (_NOT_FOUND, _NOT_ALLOWED):
            app.add_exception_handler(status, unknown)
        return app

    def _episode(self, authorization: str) -> Answering:
        # The key identifies the episode. It consists of 24 random bytes, so it cannot be guessed.
        episode = self._episodes.get(authorization.strip().removeprefix("Bearer "))
        if episode is None:
            raise Refusal(_UNAUTHORISED, "no episode that is being played has this key", "invalid_api_key")
        return episode


def _error_body(error: Refusal) -> dict[str, Any]:
    return {"error": {"message": str(error), "type": error.kind, "code": error.kind}}


endpoint = AgentEndpoint()
# A forked process needs its own endpoint.
in_forked_processes(endpoint.forget)
