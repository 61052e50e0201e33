"""The Prometheus metrics of a retrieval service."""

from collections.abc import Callable

from agentenv.core.protocols import Retriever
from agentenv.retrievers.base import batching_parts
from agentenv.web.gate import Gate
from agentenv.web.telemetry import SECONDS, Meter

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Telemetry(Meter):
    """Counters, gauges and histograms of a retrieval service.

    Args:
        gate: The service, whose state is read when the metrics are requested.
        waiting: Returns the number of a corpus's queries that wait or are in progress.

    Raises:
        MissingExtra: prometheus-client is not installed.
    """

    def __init__(self, gate: Gate, waiting: Callable[[str], int]) -> None:
        super().__init__(gate)
        from prometheus_client import Counter, Gauge, Histogram

        self._waiting = waiting
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
            buckets=SECONDS,
        )
        self._queue = named(Gauge, "queue", "Queries that wait or are under way.", ("corpus",))

    def watch(self, corpus: str, retriever: Retriever) -> None:
        """Observes the batches and the queue of a corpus."""
        self._queue.labels(corpus).set_function(lambda: self._waiting(corpus))
        for name, part in batching_parts(retriever).items():
            part.on_batch = self._batch_counter(corpus, name)

    def queries(self, corpus: str, source: str, count: int) -> None:
        """Counts ``count`` queries that were blank, cached, joined or searched."""
        if count:
            self._queries.labels(corpus, source).inc(count)

    def _batch_counter(self, corpus: str, part: str) -> Callable[[int, float], None]:
        sizes, seconds_of = self._sizes.labels(corpus, part), self._batches.labels(corpus, part)

        def count(size: int, seconds: float) -> None:
            sizes.observe(size)
            seconds_of.observe(seconds)

        return count
