"""The retrieval service: what each route does with a request, and the FastAPI application that routes to it."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from agentenv.core.protocols import Retriever
from agentenv.errors import AgentEnvError, ConfigurationError, Fault, MissingExtra, UnknownName
from agentenv.retrievers.base import batching_parts
from agentenv.retrievers.desk import Desk, Memory, QueueFull
from agentenv.retrievers.pages import Pages
from agentenv.retrievers.remote import Found
from agentenv.retrievers.telemetry import Telemetry
from agentenv.retrievers.wire import (
    DEFAULT_K,
    VERSION,
    AccessRequest,
    ContextQuery,
    RetrieveRequest,
    SearchRequest,
    accessed,
    retrieved,
    sentence,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Body = TypeVar("Body", bound=BaseModel)

STARTING, READY, STOPPING = "starting", "ready", "stopping"
_LINGER = 0.15  # clients that ask one question after the other come back within so much of a batch
_DRAINED = 8  # a body this many times too long is still read to its end, so that the caller gets our reason


@dataclass(frozen=True)
class Limits:
    """Bounds of a service."""

    queue: int = 16_384
    """Queries of one corpus that may wait or be under way; one request can hold no more."""
    cache: int = 20_000
    """Replies remembered; 0 remembers none."""
    timeout_s: float = 30.0
    """From a request's last byte to its answer."""
    body_s: float = 10.0
    """For a request's body to arrive."""
    body_bytes: int = 8 * 2**20
    """Length of a body."""
    query_chars: int = 32_768
    """Length of a query."""
    most_k: int = 1_000
    """Passages a query."""


class Refusal(AgentEnvError):
    """A request that gets a status and a sentence instead of an answer."""

    def __init__(self, status: int, said: str, kind: str = "Refused", **more: Any) -> None:
        super().__init__(said)
        self.status = status
        self.kind = kind
        self.more = more


class Service:
    """Serves corpora to HTTP requests. It starts empty; `open` makes it ready.

    Args:
        limits: bounds.
        token: what callers must send as bearer token; None lets everybody in.
    """

    def __init__(self, limits: Limits | None = None, *, token: str | None = None) -> None:
        self.limits = limits or Limits()
        self.state = STARTING
        self.desks: dict[str, Desk] = {}
        self.active = 0
        """Requests that were taken and not yet answered."""
        self.answered = 0
        self._token = token
        self._stopped_at = 0.0
        self._memory = Memory(self.limits.cache)
        self._pages: dict[str, Pages] = {}
        self.telemetry = Telemetry(self)

    def open(self, retrievers: Mapping[str, Retriever]) -> None:
        """Begins to answer; the first corpus is the one of requests that name none."""
        for name, retriever in retrievers.items():
            self.desks[name] = Desk(
                name, retriever, memory=self._memory, queue=self.limits.queue, tally=self.telemetry
            )
            self.telemetry.watch(name, retriever)
            for part in batching_parts(retriever).values():
                part.linger = _LINGER
            if hasattr(retriever, "corpus"):
                self._pages[name] = Pages(retriever.corpus)
        if self.state == STARTING:
            self.state = READY

    def stop(self) -> None:
        """Takes no more requests; those that were taken are still answered."""
        self.state, self._stopped_at = STOPPING, time.monotonic()

    def drained(self, grace_s: float) -> bool:
        """Whether it was stopped and has answered what it took, or has had ``grace_s`` for that."""
        late = time.monotonic() - self._stopped_at > grace_s
        return self.state == STOPPING and (late or not self.active)

    async def retrieve(self, body: RetrieveRequest, corpus: str | None) -> dict[str, Any]:
        """Search-R1's route."""
        desk = self._desk(body.corpus or corpus)
        found = await self._search(desk, body.queries, body.topk or DEFAULT_K, body.partial)
        reply: dict[str, Any] = {"result": [retrieved(one, body.return_scores) for one in found.passages]}
        return reply | ({"complete": False, "missing": found.missing} if found.missing else {})

    async def search(self, body: SearchRequest, corpus: str | None) -> dict[str, Any]:
        """Our route, versioned."""
        desk = self._desk(body.corpus or corpus)
        queries = [query.query() if isinstance(query, ContextQuery) else query for query in body.queries]
        timeout_s = min(body.timeout_s or self.limits.timeout_s, self.limits.timeout_s)
        found = await self._search(desk, queries, body.k, body.partial, timeout_s)
        return {
            "version": VERSION,
            "corpus": desk.name,
            "index": desk.info.fingerprint,
            "results": found.passages,
            "complete": not found.missing,
            "missing": found.missing,
        }

    async def access(self, body: AccessRequest, corpus: str | None) -> dict[str, Any]:
        """Whole documents by id and by address; null for one that is not there."""
        desk = self._desk(body.corpus or corpus)
        if len(body.ids) + len(body.urls) > self.limits.queue:
            raise Refusal(413, f"At most {self.limits.queue} documents a request.", "TooLarge")
        if hasattr(desk.retriever, "documents"):
            return {"result": await desk.retriever.documents(body.ids, body.urls)}
        if desk.name not in self._pages:
            raise Refusal(404, f"{desk.name} is a {desk.info.name} retriever and holds no documents to open.")
        pages = self._pages[desk.name]
        # In a thread: the first address makes the table of all titles.
        found = await asyncio.to_thread(
            lambda: (
                [(pages.by_id(one), None) for one in body.ids]
                + [(pages.by_url(one), one) for one in body.urls]
            )
        )
        return {"result": [accessed(documents, url) for documents, url in found]}

    def info(self, corpus: str | None) -> dict[str, Any]:
        """The card of one corpus."""
        return {"version": VERSION, **_card(self._desk(corpus))}

    def health(self) -> dict[str, Any]:
        """That the process answers, and what it serves."""
        return {
            "status": self.state,
            "version": VERSION,
            "corpora": [_card(desk) for desk in self.desks.values()],
        }

    async def guard(self, request: "Request", work: Callable[[], Awaitable[dict[str, Any]]]) -> "Response":
        """Lets a caller in, does the work and gives every failure its status and its sentence."""
        began, route = time.perf_counter(), request.scope["route"].path.removeprefix("/corpora/{corpus}")
        self.active += 1
        try:
            self._admit(request)
            status, reply = 200, await work()
        except Exception as error:
            refusal = as_refusal(error)
            status, reply = refusal.status, {"error": str(refusal), "kind": refusal.kind, **refusal.more}
        finally:
            self.active -= 1
            self.answered += 1
        self.telemetry.request(route, status, time.perf_counter() - began)
        return _json(reply, status, closing=status in (408, 413) or self.state == STOPPING)

    async def body(self, request: "Request", model: type[Body]) -> Body:
        """The request's body.

        Raises:
            Refusal: it is too long, too slow or not what ``model`` says.
        """
        try:
            async with asyncio.timeout(self.limits.body_s):
                content = await _read(request, self.limits.body_bytes)
        except TimeoutError as error:
            raise Refusal(
                408, f"The body did not arrive within {self.limits.body_s:g} s.", "TooSlow"
            ) from error
        try:
            return model.model_validate_json(content)
        except ValidationError as error:
            malformed = error.errors()[0]["type"] == "json_invalid"
            raise Refusal(400 if malformed else 422, sentence(error), "BadRequest") from error

    def _admit(self, request: "Request") -> None:
        if self._token is not None:
            given = request.headers.get("authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                raise Refusal(
                    401, "This server wants a bearer token, and the one given is not it.", "Unauthorised"
                )
        if self.state != READY:
            raise Refusal(503, f"The server is {self.state}; try again later.", "NotReady")

    def _desk(self, name: str | None) -> Desk:
        if name is None:
            return next(iter(self.desks.values()))
        if name not in self.desks:
            raise UnknownName.among("corpus", name, self.desks)
        return self.desks[name]

    async def _search(
        self, desk: Desk, queries: list[Any], k: int, partial: bool, timeout_s: float | None = None
    ) -> Found:
        if k > self.limits.most_k:
            raise Refusal(422, f"k is {k}; this server gives at most {self.limits.most_k}.", "BadRequest")
        if len(queries) > self.limits.queue:
            raise Refusal(
                413, f"{len(queries)} queries; at most {self.limits.queue} fit into one request.", "TooLarge"
            )
        texts = (query if isinstance(query, str) else query.text for query in queries)
        if (longest := max(map(len, texts), default=0)) > self.limits.query_chars:
            raise Refusal(
                413,
                f"A query has {longest} characters; at most {self.limits.query_chars} are taken.",
                "TooLarge",
            )
        found = await desk.search(queries, k, timeout_s or self.limits.timeout_s)
        if found.missing and not partial:
            said = f"No answer from {len(found.missing)} shards; the rest would be incomplete."
            raise Refusal(503, said, "ShardsMissing", missing=found.missing)
        return found


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
                body = await service.body(request, model)
                return await answer(body, request.path_params.get("corpus"))

            return await service.guard(request, work)

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

        return await service.guard(request, work)

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


def _card(desk: Desk) -> dict[str, Any]:
    retriever = desk.retriever
    encoder = getattr(getattr(retriever, "encoder", None), "id", None)
    of_index = {
        "index_spec": getattr(retriever, "spec", None),
        "threads": getattr(retriever, "threads", None),
    }
    return {"corpus": desk.name, **asdict(desk.info), "encoder": encoder, **of_index}


def _json(reply: dict[str, Any], status: int, *, closing: bool = False) -> "Response":
    import orjson
    from starlette.responses import Response

    headers = {"Connection": "close"} if closing else {}
    if status in (429, 503):
        headers["Retry-After"] = "1"
    return Response(orjson.dumps(reply), status, headers, "application/json")
