"""Metrics of the running service itself: requests, refusals, queue, commits and database size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client import generate_latest as format_registry

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.write.ownership import Delivery
from treehammer.sql.write.recording import AddResult
from treehammer.web.core.measurement_writer import MeasurementSink, MeasurementWriter

#: Format in which metrics are sent.
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds in seconds of the histograms of requests and of commits.
REQUEST_BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
COMMIT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: Seconds for which a measured database size is used again.
SIZE_MAX_AGE_S = 30.0
#: Maximum characters of the last error's message.
MAX_MESSAGE_CHARS = 200


class ServiceMetrics:
    """Metrics of one service process, all zero at its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "treehammer_http_requests",
            "Completed requests; status 0 if the connection broke before the response.",
            ["method", "endpoint", "status"],
            registry=registry,
        )
        self.request_seconds = Histogram(
            "treehammer_http_request_seconds",
            "Time from the first header of a request to the last byte of its response.",
            ["endpoint"],
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self.in_progress = Gauge(
            "treehammer_http_requests_in_progress", "Requests in progress.", registry=registry
        )
        self.refusals = Counter(
            "treehammer_refusals", "Refused requests.", ["reason"], registry=registry
        )
        self._received = Counter(
            "treehammer_written_measurements",
            "Measurements of committed requests, by outcome: new, known or conflicting.",
            ["outcome"],
            registry=registry,
        )
        self._commit_seconds = Histogram(
            "treehammer_commit_seconds",
            "Time of a write transaction with its commit.",
            ["what"],
            buckets=COMMIT_BUCKETS_S,
            registry=registry,
        )
        self._write_errors = Counter(
            "treehammer_write_errors",
            "Write transactions that failed because of the database.",
            ["what"],
            registry=registry,
        )
        self._last_write_error = Gauge(
            "treehammer_last_write_error_timestamp_seconds",
            "Time of the last failed write transaction in seconds since 1970, with its message; "
            "absent before the first.",
            ["message"],
            registry=registry,
        )
        self._database_bytes = Gauge(
            "treehammer_database_bytes",
            "Size of the database; absent if it is unknown.",
            ["kind"],
            registry=registry,
        )
        self._size_measured_s = -SIZE_MAX_AGE_S

    def observe_writer(self, writer: MeasurementWriter) -> None:
        """Report the length of a writer's queue and whether its last write succeeded."""
        for name, text, read in (
            (
                "treehammer_queue_measurements",
                "Measurements that wait to be written.",
                lambda: writer.waiting,
            ),
            (
                "treehammer_queue_limit_measurements",
                "Maximum number of measurements that wait to be written.",
                lambda: writer.max_waiting,
            ),
            (
                "treehammer_database_writable",
                "1 if the last write succeeded, 0 if it failed.",
                lambda: not writer.failure,
            ),
        ):
            Gauge(name, text, registry=self.registry).set_function(read)

    @contextmanager
    def time_commit(self, kind: str) -> Iterator[None]:
        """Time a write transaction; record a failure of the database."""
        start = time.monotonic()
        try:
            yield
        except UnstorableContentError:
            raise
        except StoreError as error:
            self._write_errors.labels(kind).inc()
            self._last_write_error.clear()
            message = error.message[:MAX_MESSAGE_CHARS]
            self._last_write_error.labels(message).set(time.time())
            raise
        self._commit_seconds.labels(kind).observe(time.monotonic() - start)

    def count_written(self, added: AddResult) -> None:
        """Count the measurements of a committed transaction."""
        for outcome, count in (
            ("new", added.new),
            ("known", added.known),
            ("conflicting", len(added.conflicting)),
        ):
            self._received.labels(outcome).inc(count)

    def update_database_size(self, measure: Callable[[], tuple[str, int | None]]) -> None:
        """Measure the size of the database unless that was done a moment ago."""
        if time.monotonic() - self._size_measured_s < SIZE_MAX_AGE_S:
            return
        self._database_bytes.clear()
        try:
            kind, size = measure()
        except StoreError:
            return
        if size is not None:
            self._database_bytes.labels(kind).set(size)
            self._size_measured_s = time.monotonic()

    def format_text(self) -> bytes:
        """Format all metrics in the Prometheus text format."""
        return format_registry(self.registry)


class MeteredSink:
    """Destination of measurements that times its transactions."""

    def __init__(self, sink: MeasurementSink, metrics: ServiceMetrics) -> None:
        self._sink = sink
        self._metrics = metrics

    def add(self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery]) -> AddResult:
        """Write measurements; see :class:`~treehammer.web.core.measurement_writer.MeasurementSink`."""
        with self._metrics.time_commit("measurements"):
            added = self._sink.add(measurements, deliveries)
        self._metrics.count_written(added)
        return added
