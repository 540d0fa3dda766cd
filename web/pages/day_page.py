"""Measurements, failures and jobs of one site on one day."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date, timedelta
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.analysis.status.rule_judgements import DayOutcomes, describe_daily_rule
from treehammer.collectors.record.outcome import UNSUPPORTED_LABELS, Outcome
from treehammer.sql.read import overview_queries
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.query_model import (
    Condition,
    FigureGroup,
    FigureQuery,
    Moments,
    Scalar,
    Selection,
)
from treehammer.sql.read.site_history import common_label
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web.display_formats import (
    day_number,
    format_day,
    format_mean_and_rms,
    midnight_us,
)
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, label_variants
from treehammer.web.page_query import Day, PageOperation, PageQuery, TextOrBlank
from treehammer.web.pages.common_tables import (
    count_columns,
    job_column,
    outcome_columns,
    outcome_counts,
    variant_column,
)
from treehammer.web.pages.page_context import PageContext, PageModule, PageView, link_to

_GROUP_COLUMNS = ("test_name", VARIANT_COLUMN, "axis_root", "door", "kind")
#: Outcomes counted by name; all others are failure classes.
_OUTCOMES = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value, *UNSUPPORTED_LABELS.values())
_METRICS = ("eff_job", "cpu_per_event_s", "wall_per_event_s")


class DayQuery(PageQuery):
    """Parameters of the page."""

    day: Day = Field(description="Day (UTC).")
    site: TextOrBlank = Field(description="Site; empty for measurements without a site.")


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/days/{day}",
        "getDay",
        "day",
        "Measurements and failures of a site on a day",
        {
            "measured": "measurements by test, variant and door",
            "failing": "failures",
            "jobs": "jobs with measurements, and their campaigns",
        },
        DayQuery,
        ("status", "counts", "classes"),
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page; the site is a query parameter, as it may be any text."""
    return [context.page_route("/days/{day}", day_view, "day")]


PAGES = PageModule(routes, position=15, operations=OPERATIONS)


def day_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: the day is invalid, or no site is named.
        NothingToDoError: the site has never measured anything.
    """
    query = DayQuery.parse(request)
    day, site = query.day, query.site
    number = day_number(day)
    outcomes = _load_outcomes(store, site, number)
    groups = _load_groups(store, site, number)
    labels = _load_labels(store, site, number)
    variants = label_variants(
        (str(group.by[VARIANT_COLUMN] or "") for group in groups), hide_release=True
    )
    groups = sorted(groups, key=lambda group: _group_sort_key(group, variants))
    measured = _measured_table(groups, labels, variants, site, day, request)
    failing = _failure_table(store, site, number, variants, request)
    jobs = _job_table(store, site, number, request)
    judged = DayOutcomes.from_outcomes(outcomes)
    classes = Counter({name: n for name, n in outcomes.items() if name not in _OUTCOMES})
    values = {
        "site": site,
        "judged": judged,
        "explanation": explain_period(store, site, Period.of_day(midnight_us(day))),
        "status": judged.status.value,
        "counts": outcome_counts(judged),
        "classes": dict(classes.most_common()),
        "jobs": jobs,
        "links": list(_related_links(site, day, request)) if judged.total else [],
        "measured": measured,
        "failing": failing,
        "neighbors": list(_neighbor_links(day, site, request)),
        "rule": describe_daily_rule(),
    }
    title = f"{site or 'No site'} on {format_day(day)}"
    return PageView("day.html.j2", title, values, (measured, failing, jobs))


def _load_outcomes(store: Store, site: str, day: int) -> Mapping[str, int]:
    """Load the number of measurements by outcome; empty for a known site without any.

    Raises:
        NothingToDoError: the site has never measured anything.
    """
    site_days = overview_queries.list_site_days(store, day, day)
    outcomes = next((row.outcomes for row in site_days if row.site == site), {})
    if not outcomes and site not in overview_queries.list_sites(store):
        raise overview_queries.build_unknown_site_error(store, site)
    return outcomes


def _neighbor_links(day: date, site: str, request: Request) -> Iterator[tuple[str, str]]:
    for step, word in ((-1, "day before"), (1, "day after")):
        try:
            other = day + timedelta(days=step)
        except OverflowError:
            continue
        yield word, link_to(request, "day", day=other, query={"site": site})


def _related_links(site: str, day: date, request: Request) -> Iterator[tuple[str, str]]:
    """Link to Explore for the same site and day, each with a title."""
    selection = {"site": site, "from": day, "to": day}
    for title, parameters in (
        ("CPU efficiency by variant", {"metric": "eff_job", "by": VARIANT_COLUMN}),
        ("CPU time per event by host", {"metric": "cpu_per_event_s", "by": "host"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield (
            title,
            link_to(request, "explore", query={**parameters, "color": "axis_root", **selection}),
        )


def _load_groups(
    store: Store, site: str, day: int, metrics: tuple[str, ...] = _METRICS, *more_columns: str
) -> Sequence[FigureGroup]:
    """Build the table of outcomes and means by test, variant, release, door and kind."""
    selection = Selection(conditions=(Condition("site", "=", site or None),))
    figure = FigureQuery(
        metrics, (*_GROUP_COLUMNS, *more_columns), selection, first_day=day, last_day=day, kind=None
    )
    return store.fetch_figure(figure).groups


def _load_labels(store: Store, site: str, day: int) -> Mapping[tuple[Scalar, ...], str]:
    """Return the common label of the measurements of each group, '' if they differ."""
    labels_by_group: dict[tuple[Scalar, ...], set[str]] = defaultdict(set)
    for group in _load_groups(store, site, day, (), "variant_label"):
        labels_by_group[_group_key(group)].add(str(group.by["variant_label"] or ""))
    return {key: common_label(labels) for key, labels in labels_by_group.items()}


def _group_key(group: FigureGroup) -> tuple[Scalar, ...]:
    return tuple(group.by[name] for name in _GROUP_COLUMNS)


def _group_sort_key(group: FigureGroup, variants: VariantLabels) -> tuple[Any, ...]:
    """Sort by test, values of the variant, release, door and kind."""
    test, variant, *remaining = (str(value or "") for value in _group_key(group))
    return test, variants.place(variant), *map(natural_sort_key, remaining)


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

    def link_to_hosts(row: Row) -> str:
        """Link to Explore with the same measurements by host."""
        parameters = {"metric": "cpu_per_event_s", "by": "host", "color": "job_id", "site": site}
        group = {name: row[name] for name in _GROUP_COLUMNS}
        return link_to(request, "explore", query={**parameters, **group, "from": day, "to": day})

    columns = (
        TableColumn("test_name", "test"),
        replace(variant_column(variants), link=link_to_hosts),
        TableColumn("variant_label", hidden=True),
        TableColumn("axis_root", "ROOT"),
        TableColumn("door", "door"),
        TableColumn("kind", "kind"),
        *outcome_columns(),
        *_metric_columns("eff_job", "eff_job", 1.0),
        *_metric_columns("cpu_per_event_s", "CPU, ms/event", 1e3),
        *_metric_columns("wall_per_event_s", "wall, ms/event", 1e3),
    )
    return DataTable(
        "measured",
        "Means ± RMS of good measurements",
        columns,
        rows,
        empty_text="No measurements.",
        note=variants.note,
    )


def _group_row(by: Any, outcomes: Any, metrics: Any) -> dict[str, Any]:
    row = {**by, **outcome_counts(DayOutcomes.from_outcomes(outcomes))}
    for name in _METRICS:
        moments: Moments = metrics[name]
        row |= {f"{name}_mean": moments.mean, f"{name}_rms": moments.rms}
    return row


def _metric_columns(name: str, title: str, scale: float) -> tuple[TableColumn, TableColumn]:
    """Build the columns of a metric's mean and RMS, shown together."""
    mean, rms = f"{name}_mean", f"{name}_rms"

    def write(row: Row) -> str:
        if row[mean] is None or row[rms] is None:
            return "–"
        return format_mean_and_rms(scale * row[mean], scale * row[rms])

    return TableColumn(mean, title, format_row=write, is_number=True), TableColumn(rms, hidden=True)


def _failure_table(
    store: Store, site: str, day: int, variants: VariantLabels, request: Request
) -> DataTable:
    failures = overview_queries.list_bad_measurements(store, site, day)
    rows = [
        {
            **asdict(failure),
            "failure_class": failure.failure_class or Outcome.IMPLAUSIBLE.value,
            "message": failure.failure_message or failure.implausible_reasons,
        }
        for failure in failures
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
    truncated = len(failures) == overview_queries.MAX_BAD_MEASUREMENTS
    return DataTable(
        "failing",
        "Measurements that are not good",
        columns,
        rows,
        empty_text="All measurements are good.",
        note=f"The first {len(failures)}; the campaigns' pages list all." if truncated else "",
    )


def _job_table(store: Store, site: str, day: int, request: Request) -> DataTable:
    jobs = overview_queries.list_measured_jobs(store, site, day)
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
    truncated = len(jobs) == overview_queries.MAX_MEASURED_JOBS
    note = f"The first {len(jobs)}; the campaigns' pages list all." if truncated else ""
    rows = [asdict(job) for job in jobs]
    return DataTable("jobs", "Jobs with measurements", columns, rows, note=note)
