"""What a retrieval service counts, in Prometheus's words."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentenv.core.protocols import Retriever
from agentenv.errors import MissingExtra
from agentenv.retrievers.base import batching_parts
from agentenv.retrievers.gate import READY, Gate

if TYPE_CHECKING:
    from agentenv.retrievers.service import Service

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Meter:
    """What every service of ours counts: requests, how long they take, whether it is ready.

    Args:
        gate: whose state is read when the figures are asked for.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, gate: Gate) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        except ModuleNotFoundError as error:
            raise MissingExtra.of("prometheus-client", "serve") from error
        self._registry = CollectorRegistry()
        self._requests = self._named(Counter, "requests", "Requests answered.", ("route", "status"))
        self._latency = self._named(
            Histogram, "request_seconds", "From request to answer.", ("route",), buckets=_SECONDS
        )
        self._ready = self._named(Gauge, "ready", "1 where requests are taken, else 0.", ())
        self._ready.set_function(lambda: gate.state == READY)

    def _named(self, kind: Any, name: str, said: str, labels: tuple[str, ...], **more: Any) -> Any:
        return kind(f"agentenv_{name}", said, labels, registry=self._registry, **more)

    def request(self, route: str, status: int | str, seconds: float) -> None:
        """A request was answered."""
        self._requests.labels(route, status).inc()
        self._latency.labels(route).observe(seconds)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry).decode()


class Telemetry(Meter):
    """Counters, gauges and histograms of a retrieval service.

    Args:
        service: whose state and queues are read when the figures are asked for.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, service: "Service") -> None:
        super().__init__(service)
        from prometheus_client import Counter, Gauge, Histogram

        self._service = service
        named = self._named
        self._queries = named(Counter, "queries", "Queries by what became of them.", ("corpus", "source"))
        self._sizes = named(
            Histogram, "batch_queries", "Distinct queries a batch.", ("corpus", "part"), buckets=_SIZES
        )
        self._batches = named(
            Histogram,
            "batch_seconds",
            "Encoding and search of a batch.",
            ("corpus", "part"),
            buckets=_SECONDS,
        )
        self._queue = named(Gauge, "queue", "Queries that wait or are under way.", ("corpus",))

    def watch(self, corpus: str, retriever: Retriever) -> None:
        """Counts the batches and the queue of a corpus."""
        self._queue.labels(corpus).set_function(lambda: self._service.desks[corpus].waiting)
        for name, part in batching_parts(retriever).items():
            part.on_batch = self._batch_counter(corpus, name)

    def queries(self, corpus: str, source: str, count: int) -> None:
        """``count`` queries were blank, cached, joined or searched."""
        if count:
            self._queries.labels(corpus, source).inc(count)

    def _batch_counter(self, corpus: str, part: str) -> Callable[[int, float], None]:
        sizes, seconds_of = self._sizes.labels(corpus, part), self._batches.labels(corpus, part)

        def count(size: int, seconds: float) -> None:
            sizes.observe(size)
            seconds_of.observe(seconds)

        return count
