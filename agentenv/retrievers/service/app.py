"""The retrieval service over HTTP: the FastAPI application, and the status of every failure."""

import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentenv.core.protocols import Retriever
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, Fault, UnknownName, needs_extra
from agentenv.retrievers.service.query_queue import QueueFull
from agentenv.retrievers.service.service import Service
from agentenv.retrievers.service.wire import VERSION, AccessRequest, RetrieveRequest, SearchRequest
from agentenv.web.gate import STOPPING, Refusal
from agentenv.web.http import add_health_routes, body_within, json_response, refuse_unknown_routes
from agentenv.web.server import run_app

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Body = TypeVar("Body", bound=BaseModel)


def make_app(service: Service) -> Any:
    """Makes the FastAPI application. Every route except those about health also exists under ``/corpora/NAME``.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    with needs_extra("serve"):
        from fastapi import APIRouter, FastAPI, Request
        from starlette.responses import Response
    app = FastAPI(title="agentenv retriever", version=VERSION)
    router = APIRouter()

    def post(
        path: str, model: type[Body], answer: Callable[[Body, str | None], Awaitable[dict[str, Any]]]
    ) -> None:
        async def endpoint(request: Request) -> Response:
            claimed = 0

            async def work() -> dict[str, Any]:
                nonlocal claimed
                body = await _body_of(service, request, model)
                corpus = request.path_params.get("corpus")
                claimed = service.claim(body, corpus)  # type: ignore[arg-type]
                return await answer(body, corpus)

            return await _guarded(service, request, work, lambda: service.release(claimed))

        schema = {"requestBody": {"content": {"application/json": {"schema": model.model_json_schema()}}}}
        router.add_api_route(
            path, endpoint, methods=["POST"], openapi_extra=schema, description=answer.__doc__
        )

    post("/retrieve", RetrieveRequest, service.retrieve)
    post("/search", RetrieveRequest, service.retrieve)
    post("/v1/search", SearchRequest, service.search)
    post("/access", AccessRequest, service.access)

    @router.get("/v1/info")
    async def info(request: Request) -> Response:
        async def work() -> dict[str, Any]:
            return service.info(request.path_params.get("corpus"))

        return await _guarded(service, request, work)

    add_health_routes(app, service, service.telemetry, service.health)
    refuse_unknown_routes(app)
    app.include_router(router)
    app.include_router(router, prefix="/corpora/{corpus}")
    return app


def run_service(
    service: Service,
    load: Callable[[], Mapping[str, Retriever]],
    listening: socket.socket,
    hosts: Iterable[str] = (),
) -> None:
    """Serves corpora until SIGTERM or SIGINT; then new requests get status 503, and accepted ones are still answered.

    Args:
        service: The service, not opened yet.
        load: Opens the retrievers; called in a thread.
        listening: The socket from `agentenv.web.server.listen`.
        hosts: Further names by which callers may address this server, besides those that `HostCheck` knows.

    Raises:
        AgentEnvError: ``load`` failed, and the server has stopped.
        MissingExtra: FastAPI or uvicorn is not installed.
    """
    run_app(make_app(service), service, lambda: service.open(load()), listening, hosts)


def as_refusal(error: Exception) -> Refusal:
    """Returns the status of a failure: 4xx if another request would succeed, 5xx for a failure of the server."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, QueueFull):
        return Refusal(429, str(error), "QueueFull")
    if isinstance(error, TimeoutError):
        return Refusal(504, str(error) or "No answer in time.", "Deadline")
    if isinstance(error, UnknownName):
        return Refusal(404, str(error), "UnknownName")
    if isinstance(error, ConfigurationError):
        return Refusal(422, str(error), "BadRequest")
    said = str(error) if isinstance(error, Fault) else f"{type(error).__name__}: {error}"
    return Refusal(500, said, type(error).__name__)


async def _guarded(
    service: Service,
    request: "Request",
    work: Callable[[], Awaitable[dict[str, Any]]],
    sent: Callable[[], None] | None = None,
) -> "Response":
    """Checks access, does the work, and gives every failure its status and message; calls ``sent`` at the end."""
    began, route = time.perf_counter(), request.scope["route"].path.removeprefix("/corpora/{corpus}")
    service.active += 1
    try:
        service.admit(request.headers.get("authorization", ""))
        status, reply = 200, await work()
    except Exception as error:
        refusal = as_refusal(error)
        status, reply = refusal.status, {"error": str(refusal), "kind": refusal.kind, **refusal.more}
    finally:
        service.active -= 1
        service.answered += 1
    service.telemetry.request(route, status, time.perf_counter() - began)
    # Otherwise the unread rest of a body would be read as the next request.
    closing = status in (408, 413) or service.state == STOPPING
    return json_response(reply, status, closing=closing, sent=sent)


async def _body_of(service: Service, request: "Request", model: type[Body]) -> Body:
    """Reads and parses the request's body.

    Raises:
        Refusal: it is too long, too slow, or does not fit ``model``.
    """
    content = await body_within(request, service, service.limits.body_bytes, service.limits.body_s)
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        malformed = error.errors()[0]["type"] == "json_invalid"
        raise Refusal(400 if malformed else 422, sentence(error), "BadRequest") from error
