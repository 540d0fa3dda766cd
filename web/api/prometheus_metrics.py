"""Metrics in the Prometheus text format.

``/metrics`` has figures of the results for monitoring; ``/metrics/service`` those of this process:
refusals, queue, commits and database size. Requests are counted by the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.analysis.descriptive.peer_comparison import COMPARED_DAYS, compare_all_sites
from treehammer.collectors.job_spec import OPEN_JOB_STATES
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.read import overview_queries
from treehammer.sql.read.query_model import FigureQuery
from treehammer.sql.write.audit_trail import Delivery
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.verticals import import_parts
from treehammer.web.core.auth import AccessControl, require_read_grant
from treehammer.web.core.measurement_writer import MeasurementWriter, WriteMeasurements
from treehammer.web.display_formats import day_from_number, day_number, midnight_us, today

#: Format in which metrics are sent.
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Upper bounds in seconds of the histogram of commits.
COMMIT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
#: Seconds for which a measured database size is used again.
SIZE_MAX_AGE_S = 30.0
#: Maximum characters of the last error's message.
MAX_MESSAGE_CHARS = 200
SERVICE_METRICS_PATH = "/metrics/service"
#: Seconds to wait for the size of the database.
SIZE_TIMEOUT_S = 3.0
#: Days whose reads enter the quantiles of latency.
LATENCY_DAYS = 7
#: CPU efficiency and time per event, in which sites are compared.
PERFORMANCE_METRICS = ("eff_job", "wall_per_event_s")
#: Shares of the reads that are faster than the exported latencies.
LATENCY_SHARES = (0.5, 0.95, 0.99)


#: Name of a family -> description and labels.
Families = Mapping[str, tuple[str, Sequence[str]]]
#: Name of a family, labels and value.
Sample = tuple[str, Sequence[str], float]


class MetricsPart(Protocol):
    """Module ``metrics`` of a vertical: its families of ``/metrics``, and their samples at a time."""

    FAMILIES: Families

    def list_samples(self, store: Store, now_us: int) -> Iterator[Sample]:
        """Yield the samples."""


class ServiceMetrics:
    """Metrics of one service process, all zero at its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter, gauge = (
            partial(Counter, registry=self.registry),
            partial(Gauge, registry=self.registry),
        )
        self.refusals = counter("treehammer_refusals", "Refused requests.", ["reason"])
        self._received = counter(
            "treehammer_written_measurements",
            "Measurements of committed requests, by outcome: new, known or conflicting.",
            ["outcome"],
        )
        self._commit_seconds = Histogram(
            "treehammer_commit_seconds",
            "Time of a write transaction with its commit.",
            ["what"],
            buckets=COMMIT_BUCKETS_S,
            registry=self.registry,
        )
        failed = "Write transactions that failed because of the database."
        self._write_errors = counter("treehammer_write_errors", failed, ["what"])
        self._last_write_error = gauge(
            "treehammer_last_write_error_timestamp_seconds",
            "Time of the last failed write transaction in seconds since 1970, with its message; "
            "absent before the first.",
            ["message"],
        )
        size = "Size of the database; absent if it is unknown."
        self._database_bytes = gauge("treehammer_database_bytes", size, ["kind"])
        self._size_measured_s = -SIZE_MAX_AGE_S

    def observe_writer(self, writer: MeasurementWriter) -> None:
        """Report the length of a writer's queue and whether its last write succeeded."""
        queue = "Measurements that wait to be written."
        limit = "Maximum number of measurements that wait to be written."
        writable = "1 if the last write succeeded, 0 if it failed."
        for name, text, read in (
            ("queue_measurements", queue, lambda: writer.waiting),
            ("queue_limit_measurements", limit, lambda: writer.max_waiting),
            ("database_writable", writable, lambda: not writer.failure),
        ):
            Gauge(f"treehammer_{name}", text, registry=self.registry).set_function(read)

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

    def meter(self, write: WriteMeasurements) -> WriteMeasurements:
        """Make a function that writes measurements, times the transaction and counts its outcomes."""

        def write_metered(
            measurements: Sequence[Measurement], deliveries: Sequence[Delivery]
        ) -> AddResult:
            with self.time_commit("measurements"):
                result = write(measurements, deliveries)
            conflicting = len(result.conflicting)
            counts = {"new": result.new, "known": result.duplicates, "conflicting": conflicting}
            for outcome, count in counts.items():
                self._received.labels(outcome).inc(count)
            return result

        return write_metered

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


def service_metrics_routes(
    access_control: AccessControl,
    metrics: ServiceMetrics,
    measure_size: Callable[[], tuple[str, int | None]],
) -> list[BaseRoute]:
    """Return the route, which always requires a key, also where reading is public.

    Args:
        measure_size: returns the kind of the database and its bytes, None if they are unknown;
            called in a thread.
    """

    async def get_metrics(request: Request) -> Response:
        # Monitoring matters most while the database fails, when keys cannot be read anew.
        require_read_grant(await access_control.authenticate(request, accept_stale_keys=True))
        try:
            async with asyncio.timeout(SIZE_TIMEOUT_S):
                await asyncio.to_thread(metrics.update_database_size, measure_size)
        except TimeoutError:
            pass  # The other metrics do not need the database.
        return _respond(metrics.registry)

    return [Route(SERVICE_METRICS_PATH, get_metrics, name="service_metrics", methods=["GET"])]


def metrics_view(store: Store, _request: Request) -> Response:
    """Respond with the current metrics."""
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    parts: list[MetricsPart] = [*import_parts("metrics")]
    declared = (FAMILIES, *(part.FAMILIES for part in parts), _JOB_FAMILIES)
    for name, (text, labels) in chain.from_iterable(group.items() for group in declared):
        kind = CounterMetricFamily if name == "measurements" else GaugeMetricFamily
        families[name] = kind(f"treehammer_{name}", text, labels=labels)
    # A gauge may not have the label ``quantile``.
    families["site_read_latency_seconds"].type = "unknown"
    now_us = current_us()
    listed = (_count_outcomes, _list_performances, *(part.list_samples for part in parts))
    for list_samples in listed:
        for name, labels, value in list_samples(store, now_us):
            families[name].add_metric(labels, value)
    return _respond(_FamilyCollector([*families.values()]))


def _respond(metrics: Collector) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(generate_latest(metrics), media_type=METRICS_MEDIA_TYPE, headers=headers)


class _FamilyCollector(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metric families."""
        return self._families


_PERIOD = f"over the last {COMPARED_DAYS} days"
FAMILIES: Families = {
    "info": ("Version of the service.", ["version"]),
    "measurements": (
        "Measurements in the database, by site and outcome: good, implausible, a failure class, "
        "or not supported.",
        ["site", "outcome"],
    ),
    "last_measured_day_seconds": (
        "Start of the last day (UTC) with measurements at the site, in seconds since 1970.",
        ["site"],
    ),
    "site_cpu_efficiency": (
        f"CPU efficiency of jobs on the work of similar sites, {_PERIOD}.",
        ["site"],
    ),
    "site_cpu_efficiency_median": (f"Median of similar sites on that work, {_PERIOD}.", ["site"]),
    "site_event_time_ratio": (
        f"Wall time per event relative to the median of similar sites on the same work, {_PERIOD}: "
        "1.2 is 20 % slower.",
        ["site"],
    ),
    "site_read_latency_seconds": (
        f"Quantile of the latency of all reads of good measurements of {LATENCY_DAYS} days.",
        ["site", "quantile"],
    ),
}
_JOB_FAMILIES: Families = {
    "jobs": ("Unfinished jobs, by the last known state in their batch system.", ["state"])
}


def _count_outcomes(store: Store, _now_us: int) -> Iterator[Sample]:
    yield "info", [__version__], 1
    latest: dict[str, int] = {}
    for row in overview_queries.count_site_outcomes(store):
        yield "measurements", [row.site, row.outcome], row.measurements
        latest[row.site] = max(latest.get(row.site, 0), row.last_day)
    for site, day in latest.items():
        yield "last_measured_day_seconds", [site], midnight_us(day_from_number(day)) / 1e6
    counts = overview_queries.count_open_jobs(store)
    for state in OPEN_JOB_STATES:
        yield "jobs", [state], counts.get(state, 0)


def _list_performances(store: Store, _now_us: int) -> Iterator[Sample]:
    """List the performance of sites on the work that similar sites did as well, and their latency."""
    efficiency, event_time = PERFORMANCE_METRICS
    comparisons = compare_all_sites(store, PERFORMANCE_METRICS, today())
    for site, comparison in comparisons[efficiency].items():
        if comparison.own_mean is not None and comparison.peer_median is not None:
            yield "site_cpu_efficiency", [site], comparison.own_mean
            yield "site_cpu_efficiency_median", [site], comparison.peer_median
    for site, comparison in comparisons[event_time].items():
        if comparison.difference is not None:
            yield "site_event_time_ratio", [site], 1 + comparison.difference
    first_day = day_number(today() - timedelta(days=LATENCY_DAYS - 1))
    query = FigureQuery((), ("site",), first_day=first_day, latencies=True)
    for group in store.load_figure(query).groups:
        for share in LATENCY_SHARES:
            seconds = group.latency_quantile_s(share)
            if seconds is not None:
                labels = [str(group.by["site"] or ""), f"{share:g}"]
                yield "site_read_latency_seconds", labels, seconds
