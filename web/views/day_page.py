"""The evidence of one site and day: what was measured, what became of it, what was said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive.day_status import STATUS_RULE_TEXT, DayOutcomes
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.errors import ConfigError
from treehammer.sql.read import overview_queries
from treehammer.sql.read.figure_query import FigureGroup, FigureQuery, Moments
from treehammer.sql.read.measurement_selection import Condition, Scalar, Selection
from treehammer.sql.read.site_history import common_label
from treehammer.sql.write.store import Store
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import format_mean_and_rms
from treehammer.web.display.variant_labels import VARIANT_COLUMN, VariantLabels, label_variants
from treehammer.web.views.shared.common_columns import count_columns, job_column, variant_column
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to

_GROUP_COLUMNS = ("test_name", VARIANT_COLUMN, "axis_root", "door", "kind")
#: Outcomes that are counted in words of their own.
_OUTCOMES = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value, *UNSUPPORTED_LABELS.values())
_METRICS = ("eff_job", "cpu_per_event_s", "wall_per_event_s")


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page; the site stands after '?', as it may be any text."""
    return [context.page_route("/days/{day}", day_view, "day")]


def day_view(store: Store, request: Request) -> PageView:
    """What the page shows.

    Raises:
        ConfigError: it is no day, or no site is named.
        NothingToDo: the site has never measured anything.
    """
    day = calendar_days.parse_day(request.path_params["day"], "the day")
    site = request.query_params.get("site")
    if site is None:
        raise ConfigError("site is missing", hint="A day is shown of one site: site=NAME.")
    number = calendar_days.day_number(day)
    found = overview_queries.list_site_days(store, number, number)
    outcomes = next((one.outcomes for one in found if one.site == site), {})
    if not outcomes and site not in overview_queries.list_sites(store):
        raise overview_queries.build_unknown_site_error(store, site)
    groups = _load_groups(store, site, number)
    labels = _load_labels(store, site, number)
    variants = label_variants(
        (str(one.by[VARIANT_COLUMN] or "") for one in groups), release_told=True
    )
    measured = _measured_table(groups, labels, variants, site, day, request)
    failing = _failure_table(store, site, number, variants, request)
    jobs = _job_table(store, site, number, request)
    judged = DayOutcomes.from_outcomes(outcomes)
    values = {
        "site": site,
        "judged": judged,
        "status": judged.status.value,
        "counts": _outcome_counts(judged),
        "classes": dict(
            sorted(
                ((name, n) for name, n in outcomes.items() if name not in _OUTCOMES),
                key=lambda item: -item[1],
            )
        ),
        "jobs": jobs,
        "further": list(_related_links(site, day, request)) if judged.total else [],
        "measured": measured,
        "failing": failing,
        "neighbours": list(_neighbour_links(day, site, request)),
        "rule": STATUS_RULE_TEXT,
    }
    title = f"{site or 'No site'} on {calendar_days.format_day(day)}"
    return PageView("day.html.j2", title, values, (measured, failing, jobs))


def _neighbour_links(day: date, site: str, request: Request) -> Iterator[tuple[str, str]]:
    for step, word in ((-1, "day before"), (1, "day after")):
        try:
            other = day + timedelta(days=step)
        except OverflowError:
            continue
        yield word, link_to(request, "day", day=other, query={"site": site})


def _related_links(site: str, day: date, request: Request) -> Iterator[tuple[str, str]]:
    """Where the day is looked at otherwise: what is read there, and its address."""
    only = {"site": site, "from": day, "to": day}
    for title, asked in (
        ("CPU efficiency by variant", {"metric": "eff_job", "by": VARIANT_COLUMN}),
        ("CPU time per event by host", {"metric": "cpu_per_event_s", "by": "host"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**asked, "colour": "axis_root", **only})


def _load_groups(
    store: Store, site: str, day: int, metrics: tuple[str, ...] = _METRICS, *further: str
) -> Sequence[FigureGroup]:
    """By test, variant, release and door: what became of the measurements, and means of the good ones."""
    where = Condition("site", "=", site or None)
    mine = Selection(conditions=(where,))
    figure = FigureQuery(
        metrics, (*_GROUP_COLUMNS, *further), mine, first_day=day, last_day=day, kind=None
    )
    return store.fetch_figure(figure).groups


def _load_labels(store: Store, site: str, day: int) -> Mapping[tuple[Scalar, ...], str]:
    """The label of each of the same groups, as far as it has one."""
    found: dict[tuple[Scalar, ...], set[str]] = defaultdict(set)
    for group in _load_groups(store, site, day, (), "variant_label"):
        found[_group_key(group)].add(str(group.by["variant_label"] or ""))
    return {key: common_label(labels) for key, labels in found.items()}


def _group_key(group: FigureGroup) -> tuple[Scalar, ...]:
    return tuple(group.by[name] for name in _GROUP_COLUMNS)


def _measured_table(
    groups: Sequence[FigureGroup],
    labels: Mapping[tuple[Scalar, ...], str],
    variants: VariantLabels,
    site: str,
    day: date,
    request: Request,
) -> DataTable:
    rows = [
        {
            **_group_row(group.by, group.outcomes, group.metrics),
            "variant_label": labels.get(_group_key(group), ""),
        }
        for group in groups
    ]

    def explored(row: Row) -> str:
        """The same measurements one by one host."""
        asked = {"metric": "cpu_per_event_s", "by": "host", "colour": "job_id", "site": site}
        mine = {name: row[name] for name in _GROUP_COLUMNS}
        return link_to(request, "explore", query={**asked, **mine, "from": day, "to": day})

    columns = (
        TableColumn("test_name", "test"),
        replace(variant_column(variants), link=explored),
        TableColumn("variant_label", hidden=True),
        TableColumn("axis_root", "ROOT"),
        TableColumn("door", "door"),
        TableColumn("kind", "kind"),
        *count_columns("good", "failed", "implausible"),
        TableColumn("not_supported", "not supported", is_number=True),
        *_metric_columns("eff_job", "eff_job", 1.0),
        *_metric_columns("cpu_per_event_s", "CPU, ms/event", 1e3),
        *_metric_columns("wall_per_event_s", "wall, ms/event", 1e3),
    )
    return DataTable(
        "measured",
        "Means ± RMS of the good ones",
        columns,
        rows,
        empty_text="Nothing was measured.",
        note=variants.note,
    )


def _group_row(by: Any, outcomes: Any, metrics: Any) -> dict[str, Any]:
    row = {**by, **_outcome_counts(DayOutcomes.from_outcomes(outcomes))}
    for name in _METRICS:
        moments: Moments = metrics[name]
        row |= {f"{name}_mean": moments.mean, f"{name}_rms": moments.rms}
    return row


def _outcome_counts(judged: DayOutcomes) -> dict[str, int]:
    return {
        "good": judged.good,
        "failed": judged.failed,
        "implausible": judged.implausible,
        "not_supported": judged.unsupported,
    }


def _metric_columns(name: str, title: str, scale: float) -> tuple[TableColumn, TableColumn]:
    """Mean and RMS of a metric, which people see together."""
    mean, rms = f"{name}_mean", f"{name}_rms"

    def written(row: Row) -> str:
        if row[mean] is None or row[rms] is None:
            return "–"
        return format_mean_and_rms(scale * row[mean], scale * row[rms])

    return TableColumn(mean, title, format_row=written, is_number=True), TableColumn(
        rms, hidden=True
    )


def _failure_table(
    store: Store, site: str, day: int, variants: VariantLabels, request: Request
) -> DataTable:
    found = overview_queries.list_bad_measurements(store, site, day)
    rows = [
        {
            **asdict(one),
            "failure_class": one.failure_class or Outcome.IMPLAUSIBLE.value,
            "message": one.failure_message or one.implausible_reasons,
        }
        for one in found
    ]
    columns = (
        TableColumn("failure_class", "class"),
        TableColumn("failure_kind", "kind"),
        TableColumn("failure_phase", "phase"),
        TableColumn("message", "message", is_long=True),
        TableColumn("test_name", "test"),
        variant_column(variants),
        TableColumn("variant_label", hidden=True),
        TableColumn("axis_root", "ROOT"),
        TableColumn("host", "host"),
        job_column(request, "job"),
        TableColumn("campaign_id", hidden=True),
    )
    cut = len(found) == overview_queries.MAX_BAD_MEASUREMENTS
    return DataTable(
        "failing",
        "Measurements that are not good",
        columns,
        rows,
        empty_text="Every measurement is good." if not found else "",
        note=f"The first {len(found)}; the pages of campaigns have the others." if cut else "",
    )


def _job_table(store: Store, site: str, day: int, request: Request) -> DataTable:
    found = overview_queries.list_measured_jobs(store, site, day)
    columns = (
        job_column(request, "job"),
        TableColumn(
            "campaign_id",
            "campaign",
            format_row=lambda row: row["campaign_name"] or row["campaign_id"],
            link=lambda row: link_to(request, "campaign", campaign_id=row["campaign_id"]),
            is_long=True,
        ),
        TableColumn("campaign_name", hidden=True),
        *count_columns("measurements", "good"),
    )
    cut = len(found) == overview_queries.MAX_MEASURED_JOBS
    note = f"The first {len(found)}; the pages of campaigns have the others." if cut else ""
    rows = [asdict(one) for one in found]
    return DataTable("jobs", "Jobs that measured", columns, rows, note=note)
