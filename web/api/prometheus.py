"""``/metrics``: what a monitoring system watches, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive.day_status import DayOutcomes, DayStatus
from treehammer.collectors.job_state import JobState
from treehammer.sql.read import overview_queries
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.web.display import calendar_days
from treehammer.web.views.shared.page_context import PageContext

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OPEN_STATES = [state.value for state in JobState if not state.is_final]


def routes(context: PageContext) -> list[BaseRoute]:
    """The route; whoever may read may read this."""
    return [context.page_route("/metrics", metrics_view, "metrics")]


def metrics_view(store: Store, _request: Request) -> Response:
    """The metrics as they are now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(list(_metric_families(store))))
    return Response(
        generate_latest(registry), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"}
    )


class _MetricsCollector(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """What was found."""
        return self._families


def _metric_families(store: Store) -> Iterable[Metric]:
    info = GaugeMetricFamily("treehammer_info", "Version of the service.", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    yield from _measurement_families(store)
    yield _status_families(store)
    jobs = GaugeMetricFamily(
        "treehammer_jobs",
        "Jobs that are not over, as their batch systems were last seen.",
        labels=["state"],
    )
    found = overview_queries.count_jobs_by_state(store, _OPEN_STATES)
    for state in _OPEN_STATES:
        jobs.add_metric([state], found.get(state, 0))
    yield jobs


def _measurement_families(store: Store) -> Iterable[Metric]:
    measurements = CounterMetricFamily(
        "treehammer_measurements",
        "Measurements in the database: good, implausible, or the class of the failure; "
        "what is not supported is counted apart.",
        labels=["site", "outcome"],
    )
    last = GaugeMetricFamily(
        "treehammer_last_measured_day_seconds",
        "Beginning of the last day (UTC) on which the site measured something, since 1970.",
        labels=["site"],
    )
    latest: dict[str, int] = {}
    for one in overview_queries.count_site_outcomes(store):
        measurements.add_metric([one.site, one.outcome], one.measurements)
        latest[one.site] = max(latest.get(one.site, 0), one.last_day)
    for site, day in latest.items():
        last.add_metric([site], calendar_days.midnight_us(calendar_days.day_from_number(day)) / 1e6)
    return measurements, last


def _status_families(store: Store) -> Metric:
    """What today is at each site so far, or yesterday where nothing was measured today."""
    today = calendar_days.today()
    status = GaugeMetricFamily(
        "treehammer_site_status",
        "1 for the status of the site's last measured day, of today and yesterday (UTC).",
        labels=["site", "status"],
    )
    first = calendar_days.day_number(today - timedelta(days=1))
    # They come by site and day, so that the later day stays.
    found = {
        one.site: one
        for one in overview_queries.list_site_days(store, first, calendar_days.day_number(today))
    }
    for site, one in found.items():
        mine = DayOutcomes.from_outcomes(one.outcomes).status
        for known in DayStatus:
            if known is not DayStatus.NO_DATA:
                status.add_metric([site, known.value], float(known is mine))
    return status
