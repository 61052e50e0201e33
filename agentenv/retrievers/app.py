"""The retrieval service over HTTP: the FastAPI application, and the status of every failure."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentenv.errors import ConfigurationError, Fault, MissingExtra, UnknownName
from agentenv.retrievers.desk import QueueFull
from agentenv.retrievers.service import READY, STOPPING, Refusal, Service
from agentenv.retrievers.wire import VERSION, AccessRequest, RetrieveRequest, SearchRequest, sentence

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Body = TypeVar("Body", bound=BaseModel)

_DRAINED = 8  # a body this many times too long is still read to its end, so that the caller gets our reason


def make_app(service: Service) -> Any:
    """The FastAPI application. Every route but those on health also exists under ``/corpora/NAME``.

    Raises:
        MissingExtra: FastAPI is not installed.
    """
    try:
        from fastapi import APIRouter, FastAPI, Request
        from starlette.responses import PlainTextResponse, Response
    except ModuleNotFoundError as error:
        raise MissingExtra.of("fastapi", "serve") from error
    app = FastAPI(title="agentenv retriever", version=VERSION)
    router = APIRouter()

    def post(
        path: str, model: type[Body], answer: Callable[[Body, str | None], Awaitable[dict[str, Any]]]
    ) -> None:
        async def endpoint(request: Request) -> Response:
            async def work() -> dict[str, Any]:
                body = await _body_of(service, request, model)
                return await answer(body, request.path_params.get("corpus"))

            return await _guarded(service, request, work)

        schema = {"requestBody": {"content": {"application/json": {"schema": model.model_json_schema()}}}}
        router.add_api_route(
            path, endpoint, methods=["POST"], openapi_extra=schema, description=answer.__doc__
        )

    post("/retrieve", RetrieveRequest, service.retrieve)
    post("/v1/search", SearchRequest, service.search)
    post("/access", AccessRequest, service.access)

    @router.get("/v1/info")
    async def info(request: Request) -> Response:
        async def work() -> dict[str, Any]:
            return service.info(request.path_params.get("corpus"))

        return await _guarded(service, request, work)

    @app.get("/healthz")
    @app.get("/health")
    async def health() -> Response:
        return _json(service.health(), 200)

    @app.get("/readyz")
    async def ready() -> Response:
        return _json({"status": service.state}, 200 if service.state == READY else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return PlainTextResponse(service.telemetry.text(), media_type="text/plain; version=0.0.4")

    app.include_router(router)
    app.include_router(router, prefix="/corpora/{corpus}")
    return app


def as_refusal(error: Exception) -> Refusal:
    """The status of a failure: 4xx where another request would do, 5xx where it is ours."""
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
    service: Service, request: "Request", work: Callable[[], Awaitable[dict[str, Any]]]
) -> "Response":
    """Lets a caller in, does the work and gives every failure its status and its sentence."""
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
    return _json(reply, status, closing=status in (408, 413) or service.state == STOPPING)


async def _body_of(service: Service, request: "Request", model: type[Body]) -> Body:
    """The request's body.

    Raises:
        Refusal: it is too long, too slow or not what ``model`` says.
    """
    try:
        async with asyncio.timeout(service.limits.body_s):
            content = await _read(request, service.limits.body_bytes)
    except TimeoutError as error:
        raise Refusal(
            408, f"The body did not arrive within {service.limits.body_s:g} s.", "TooSlow"
        ) from error
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        malformed = error.errors()[0]["type"] == "json_invalid"
        raise Refusal(400 if malformed else 422, sentence(error), "BadRequest") from error


async def _read(request: "Request", limit: int) -> bytes:
    chunks, length = [], 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= limit:
            chunks.append(chunk)
        elif length > _DRAINED * limit:
            break
    if length > limit:
        raise Refusal(413, f"The body is longer than {limit} bytes; send several requests.", "TooLarge")
    return b"".join(chunks)


def _json(reply: dict[str, Any], status: int, *, closing: bool = False) -> "Response":
    import orjson
    from starlette.responses import Response

    headers = {"Connection": "close"} if closing else {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return Response(orjson.dumps(reply), status, headers, "application/json")
