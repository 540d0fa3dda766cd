"""``/metrics``: figures for monitoring in the Prometheus text format."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from treehammer.analysis.alarms import alarm_overview
from treehammer.analysis.alarms.alarm_levels import AlarmKind, AlarmLevel
from treehammer.analysis.alarms.alarm_watch import list_slowdowns
from treehammer.analysis.alarms.release_state import list_regressions
from treehammer.analysis.status.site_state import SiteState
from treehammer.analysis.status.usability import Usability, list_uses
from treehammer.collectors.job_state import OPEN_JOB_STATES
from treehammer.sql.read import overview_queries
from treehammer.sql.watch import change_points, state_history
from treehammer.sql.watch.state_history import KIND_WORDS, locate_subject
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.web.core.service_metrics import METRICS_MEDIA_TYPE
from treehammer.web.display import calendar_days
from treehammer.web.views.shared.page_context import PageContext


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route, which requires read access."""
    return [context.page_route("/metrics", metrics_view, "metrics")]


def metrics_view(store: Store, _request: Request) -> Response:
    """Respond with the current metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(list(_metric_families(store))))
    return Response(
        generate_latest(registry),
        media_type=METRICS_MEDIA_TYPE,
        headers={"Cache-Control": "no-store"},
    )


class _MetricsCollector(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the metric families."""
        return self._families


def _metric_families(store: Store) -> Iterable[Metric]:
    info = GaugeMetricFamily("treehammer_info", "Version of the service.", labels=["version"])
    info.add_metric([__version__], 1)
    yield info
    yield from _measurement_families(store)
    yield from _alarm_families(store)
    yield _use_family(store)
    yield from _regression_families(store)
    jobs = GaugeMetricFamily(
        "treehammer_jobs",
        "Unfinished jobs, by the last known state in their batch system.",
        labels=["state"],
    )
    counts = overview_queries.count_jobs_by_state(store, OPEN_JOB_STATES)
    for state in OPEN_JOB_STATES:
        jobs.add_metric([state], counts.get(state, 0))
    yield jobs


def _measurement_families(store: Store) -> Iterable[Metric]:
    measurements = CounterMetricFamily(
        "treehammer_measurements",
        "Measurements in the database, by site and outcome: good, implausible, a failure class, "
        "or not supported.",
        labels=["site", "outcome"],
    )
    last = GaugeMetricFamily(
        "treehammer_last_measured_day_seconds",
        "Start of the last day (UTC) with measurements at the site, in seconds since 1970.",
        labels=["site"],
    )
    latest: dict[str, int] = {}
    for row in overview_queries.count_site_outcomes(store):
        measurements.add_metric([row.site, row.outcome], row.measurements)
        latest[row.site] = max(latest.get(row.site, 0), row.last_day)
    for site, day in latest.items():
        last.add_metric([site], calendar_days.midnight_us(calendar_days.day_from_number(day)) / 1e6)
    return measurements, last


def _use_family(store: Store) -> Metric:
    """Return the permitted use of the jobs, storage and doors of each site."""
    use = GaugeMetricFamily(
        "treehammer_site_use",
        "1 for what may be sent to the jobs, the storage or a door of a site: usable, probe only, "
        "excluded.",
        labels=["site", "of", "door", "use"],
    )
    for (kind, label), site_use in list_uses(store).by_subject.items():
        site, door = locate_subject(kind, label)
        for usability in Usability:
            use.add_metric(
                [site, KIND_WORDS[kind], door, usability.value],
                float(site_use.usability is usability),
            )
    return use


def _alarm_families(store: Store) -> Iterable[Metric]:
    """Return the states that ``treehammer check`` prints, and those of jobs and storages."""
    status = GaugeMetricFamily(
        "treehammer_site_status", "1 for the state that the site is in.", labels=["site", "status"]
    )
    labels = ["kind", "name"]
    code = GaugeMetricFamily(
        "treehammer_state_code",
        "State of a site, its jobs or storage, a release, a central event or the service: "
        "0 OK or downtime, 1 warning, 2 critical, 3 unknown.",
        labels=labels,
    )
    downtime = GaugeMetricFamily(
        "treehammer_in_downtime", "1 during an announced downtime of the site.", labels=labels
    )
    excused = GaugeMetricFamily(
        "treehammer_state_excused",
        "1 during a downtime of the site or a central event, when its state alarms nobody.",
        labels=labels,
    )
    since = GaugeMetricFamily(
        "treehammer_state_since_seconds",
        "Time since which the subject is in its state, in seconds since 1970; absent if unknown.",
        labels=labels,
    )
    figures = GaugeMetricFamily(
        "treehammer_state_figure",
        "Figures that states depend on, in their unit.",
        labels=[*labels, "figure", "unit"],
    )
    for alarm_state in alarm_overview.assess_all(store, time.time_ns() // 1000):
        subject = [alarm_state.kind.value, alarm_state.name]
        code.add_metric(subject, alarm_state.level.code)
        if alarm_state.kind is AlarmKind.SITE:
            downtime.add_metric(subject, float(alarm_state.level is AlarmLevel.DOWNTIME))
            excused.add_metric(subject, float(alarm_state.is_excused))
            for state in SiteState:
                status.add_metric(
                    [alarm_state.name, state.value], float(alarm_state.level == state.value.upper())
                )
        if alarm_state.since_us is not None:
            since.add_metric(subject, alarm_state.since_us / 1e6)
        for figure in alarm_state.figures:
            if figure.value is not None:
                figures.add_metric([*subject, figure.name, figure.unit], figure.value)
    for row in state_history.list_current_states(store):
        if row.subject_kind != state_history.CENTRAL:
            kind = state_history.KIND_WORDS[row.subject_kind]
            code.add_metric([kind, row.site], AlarmLevel(row.state.upper()).code)
            since.add_metric([kind, row.site], row.since_us / 1e6)
    return status, code, downtime, excused, since, figures


def _regression_families(store: Store) -> Iterable[Metric]:
    """Return the regressions of releases, and the change points that are news."""
    regressions = GaugeMetricFamily(
        "treehammer_regression_ratio",
        "Relative change of a metric with release b against a, of the variant with the largest: "
        "0.08 is 8 % more. States: confirmed by a rerun, rerunning, suspected or undecided.",
        labels=["test", "a", "b", "metric", "state", "comparison"],
    )
    for check, effects in list_regressions(store):
        for metric, effect in effects.items():
            labels = [check.test_name, check.a, check.b, metric, check.state, check.comparison_id]
            regressions.add_metric(labels, math.expm1(effect))
    changes = GaugeMetricFamily(
        "treehammer_change_ratio",
        "Relative change of a metric at a confirmed change point of the last week to the slower.",
        labels=["test", "metric", "attribution", "subject", "change"],
    )
    points = change_points.fetch_change_points(store)
    for change in list_slowdowns(points, time.time_ns() // 1000):
        labels = [change.test_name, change.metric, change.attribution, change.subject, change.id]
        changes.add_metric(labels, math.expm1(change.effect))
    return regressions, changes
