"""What every service counts, in Prometheus's words: requests, how long they take, whether it is ready."""

from typing import Any

from agentenv.errors import needs_extra
from agentenv.web.gate import READY, Gate

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Meter:
    """What every service of ours counts: requests, how long they take, whether it is ready.

    Args:
        gate: whose state is read when the metrics are asked for.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, gate: Gate) -> None:
        with needs_extra("serve", "prometheus-client"):
            from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
        self._registry = CollectorRegistry()
        self._requests = self._named(Counter, "requests", "Requests answered.", ("route", "status"))
        self._latency = self._named(
            Histogram, "request_seconds", "From request to answer.", ("route",), buckets=SECONDS
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
