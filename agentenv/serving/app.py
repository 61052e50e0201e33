"""The FastAPI application that serves environments over HTTP and WebSocket."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, needs_extra
from agentenv.serving.conversation import CallerConnection, host_of
from agentenv.serving.mcp import PARSE_ERROR, SERVER_ERROR, answer, complaint, failure, is_notification
from agentenv.serving.mcp_sessions import McpSession
from agentenv.serving.service import EnvService
from agentenv.serving.toolbox import toolbox
from agentenv.serving.wire import (
    VERSION,
    ActionData,
    ObservationData,
    ResetData,
    TasksQuery,
    error_out,
    read_json,
)
from agentenv.web.gate import Refusal
from agentenv.web.http import add_health_routes, body_within, json_response, refuse_unknown_routes

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import Response
    from starlette.websockets import WebSocket

SESSION_HEADER = "mcp-session-id"
_DRAIN_S = 5.0  # time for environments to close after the server has stopped


def make_app(service: EnvService) -> Any:
    """Makes the FastAPI application of ``service``.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    with needs_extra("serve"):
        from fastapi import FastAPI, Request
        from starlette.responses import Response
        from starlette.websockets import WebSocket

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        keeping = asyncio.create_task(service.housekeeping())
        yield
        # The housekeeper runs until here, because it ends the sessions of a stopping service.
        keeping.cancel()
        await service.wait_until_idle(0.0 if service.hurried else _DRAIN_S)

    app = FastAPI(title="agentenv environment", version=VERSION, lifespan=lifespan)
    add_health_routes(app, service, service.meter, service.health)
    refuse_unknown_routes(app)

    @app.websocket("/ws")
    async def socket(socket: WebSocket) -> None:
        await _converse(service, socket)

    @app.get("/metadata")
    async def metadata(request: Request) -> Response:
        return _respond(service, request, lambda: describe(service))

    @app.get("/schema")
    async def schema(request: Request) -> Response:
        return _respond(service, request, schemas)

    @app.get("/tasks")
    async def tasks(request: Request) -> Response:
        return await _tasks(service, request)

    @app.post("/mcp")
    async def mcp(request: Request) -> Response:
        return await _mcp(service, request)

    @app.delete("/mcp")
    async def end_mcp(request: Request) -> Response:
        def end() -> dict[str, Any]:
            service.mcp.end(request.headers.get(SESSION_HEADER, ""))
            return {}

        return _respond(service, request, end)

    return app


def describe(service: EnvService) -> dict[str, Any]:
    """Returns what ``/metadata`` says of an environment; `RemoteEnv` takes these properties over."""
    env = service.prototype
    return {
        "name": service.name,
        "description": " ".join((type(env).__doc__ or service.name).split("\n\n")[0].split()),
        "version": VERSION,
        "capability": env.capability.name.lower(),
        "reward_floor": env.reward_floor,
        "reward_ceiling": env.reward_ceiling,
        "no_expert": env.no_expert,
        "call_markers": list(env.call_markers),
        "stop": list(env.stop),
        "reports_searches": env.reports_searches,
        "refuses_half_escapes": env.refuses_half_escapes,
        "client_tasks": service.client_tasks,
        "client_data": list(env.client_data),
        "tools": [tool.to_mcp() for tool in toolbox(env).values()],
    }


def schemas() -> dict[str, Any]:
    """Returns JSON Schemas of action, observation and state, as OpenEnv's clients request them."""
    state = {
        "title": "State",
        "type": "object",
        "properties": {
            "episode_id": {"type": ["string", "null"]},
            "step_count": {"type": "integer"},
            "env": {"type": "string"},
        },
    }
    return {
        "action": ActionData.model_json_schema() | {"title": "AgentenvAction"},
        "observation": ObservationData.model_json_schema(),
        "state": state,
    }


def _admit(service: EnvService, asking: "HTTPConnection") -> None:
    """Checks that a caller may use the service.

    Raises:
        Refusal: the token is missing, or the service is not ready.
    """
    service.admit(asking.headers.get("authorization", ""))


def _respond(service: EnvService, request: "Request", work: Callable[[], dict[str, Any]]) -> "Response":
    try:
        _admit(service, request)
        return json_response(work(), 200)
    except Refusal as error:
        return _refused(error)


def _refused(error: Refusal) -> "Response":
    return json_response({"error": str(error), "kind": error.kind}, error.status)


async def _tasks(service: EnvService, request: "Request") -> "Response":
    """Returns tasks that the environment makes, by number, seed and split from the query string."""
    try:
        _admit(service, request)
        asked = TasksQuery.model_validate(dict(request.query_params))
        made = await service.tasks(asked.n, asked.seed, asked.split, host_of(request))
        return json_response({"tasks": made}, 200)
    except Refusal as error:
        return _refused(error)
    except ValidationError as error:
        return json_response({"error": f"The address's query: {sentence(error)}", "kind": "BadRequest"}, 400)
    except Exception as error:
        said = error_out(error)
        return json_response({"error": said["message"], "kind": said["kind"]}, 500 if said["fault"] else 400)


async def _converse(service: EnvService, socket: "WebSocket") -> None:
    try:
        _admit(service, socket)
    except Refusal as error:
        # The refusal comes before the handshake, so that the caller gets an HTTP status and not a WebSocket that closes at
        # once.
        await socket.send_denial_response(_refused(error))
        return
    await socket.accept()
    await CallerConnection(socket, service).run()


async def _mcp(service: EnvService, request: "Request") -> "Response":
    """Answers one message of streamable HTTP with JSON."""
    from starlette.responses import Response

    try:
        _admit(service, request)
        content = await body_within(request, service, service.limits.message_bytes, service.limits.send_s)
    except Refusal as error:
        return _refused(error)
    try:
        # The text is parsed first, because a JSON-RPC error needs the id of its message, which malformed text does not have.
        message = read_json(content.decode())
    except ValueError as error:
        return json_response(failure(None, PARSE_ERROR, f"this is no JSON: {error}"), 400)
    if is_notification(message):
        return Response(status_code=202)
    if (wrong := complaint(message)) is not None:
        return json_response(wrong, 400)
    try:
        session = await _session_of(service, request, message["method"])
    except Exception as error:
        said = error_out(error)
        status = error.status if isinstance(error, Refusal) else 500 if said["fault"] else 400
        return json_response(failure(message["id"], SERVER_ERROR, said["message"], said), status)
    reply = await answer(session, message)
    return json_response(reply, 200, headers={SESSION_HEADER: session.id})


async def _session_of(service: EnvService, request: "Request", method: str) -> McpSession:
    """Finds the session of a request; ``initialize`` begins one, with seed and options from the query string.

    Raises:
        Refusal: there is no such session, or no slot to begin another one.
        ConfigurationError: the query string has an unusable seed or unusable options.
        Fault: the environment broke.
    """
    if method != "initialize":
        # Only the header tells which session is meant, because an HTTP connection does not belong to a session.
        return service.mcp.find(request.headers.get(SESSION_HEADER, ""))
    return await service.mcp.begin(_reset_from_query(request.query_params), host_of(request))


def _reset_from_query(query: Mapping[str, str]) -> ResetData:
    try:
        options = read_json(query["options"]) if "options" in query else None
        return ResetData(seed=query.get("seed"), options=options)
    except ValidationError as error:
        raise ConfigurationError(f"The address's query: {sentence(error)}") from error
    except ValueError as error:
        raise ConfigurationError(f"options in the address are no JSON: {error}") from error
