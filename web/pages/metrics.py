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

from treehammer.analysis.days import Judged, Status
from treehammer.sql import overview
from treehammer.sql.store import Store
from treehammer.submit.batch.base import JobState
from treehammer.version import __version__
from treehammer.web.pages import days
from treehammer.web.pages.context import PageContext

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_OPEN = [state.value for state in JobState if not state.final]


def routes(context: PageContext) -> list[BaseRoute]:
    """The route; whoever may read may read this."""
    return [context.page("/metrics", view, "metrics")]


def view(store: Store, _request: Request) -> Response:
    """The metrics as they are now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(list(_families(store))))
    return Response(
        generate_latest(registry), media_type=MEDIA_TYPE, headers={"Cache-Control": "no-store"}
    )


class _Now(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """What was found."""
        return self._families


def _families(store: Store) -> Iterable[Metric]:
    info = GaugeMetricFamily("treehammer_info", "Version of the service.", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    yield from _measured(store)
    yield _statuses(store)
    jobs = GaugeMetricFamily(
        "treehammer_jobs",
        "Jobs that are not over, as their batch systems were last seen.",
        labels=["state"],
    )
    found = overview.open_jobs(store, _OPEN)
    for state in _OPEN:
        jobs.add_metric([state], found.get(state, 0))
    yield jobs


def _measured(store: Store) -> Iterable[Metric]:
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
    for one in overview.totals(store):
        measurements.add_metric([one.site, one.outcome], one.measurements)
        latest[one.site] = max(latest.get(one.site, 0), one.last_day)
    for site, day in latest.items():
        last.add_metric([site], days.midnight_us(days.of_number(day)) / 1e6)
    return measurements, last


def _statuses(store: Store) -> Metric:
    """What today is at each site so far, or yesterday where nothing was measured today."""
    today = days.today()
    status = GaugeMetricFamily(
        "treehammer_site_status",
        "1 for the status of the site's last measured day, of today and yesterday (UTC).",
        labels=["site", "status"],
    )
    first = days.numbered(today - timedelta(days=1))
    # They come by site and day, so that the later day stays.
    found = {one.site: one for one in overview.site_days(store, first, days.numbered(today))}
    for site, one in found.items():
        mine = Judged.of(one.outcomes).status
        for known in Status:
            if known is not Status.NO_DATA:
                status.add_metric([site, known.value], float(known is mine))
    return status
