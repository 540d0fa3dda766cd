"""Page of one site: comparison with similar sites, changes and daily outcomes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.day_status import DayOutcomes
from treehammer.analysis.descriptive.efficiency_diagnosis import DIAGNOSIS_COLUMNS
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.collectors.record.value_checks import is_variant
from treehammer.errors import ConfigError, suggest_word
from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import overview_queries, site_history
from treehammer.sql.read.figure_query import DAY, WEEK, FigureQuery, coarsen_day
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.read.site_history import ContextAspect, ContextHistory, Workload
from treehammer.sql.write.store import Store
from treehammer.web.core.route_paths import allow_any_text
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import format_per_cent
from treehammer.web.display.efficiency_explanation import (
    EfficiencyExplanation,
    explain_efficiency,
)
from treehammer.web.display.template_environment import format_cell
from treehammer.web.display.variant_labels import VARIANT_COLUMN, label_variants
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.views.shared.common_columns import count_columns, variant_column
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to, wants_html
from treehammer.web.views.shared.site_columns import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    WINDOW_CHOICES,
    status_class,
)

_COMPLETED = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)
#: Windows of at least this many days are shown by week.
WEEKLY_FROM_DAYS = 90
#: Days before the last one shown, and measurements in them, whose wall time is broken down.
EXPLAINED_DAYS = 7
MAX_EXPLAINED = 200
#: Parameter -> column of the workload that it filters.
FILTERS = {
    "test": "test_name",
    "variant": VARIANT_COLUMN,
    "root": "axis_root",
    "protocol": "door_protocol",
}
_NO_VERSIONS_NOTE = "No versions reported in this period."


def routes(context: PageContext) -> list[BaseRoute]:
    """Route of the page."""
    return [context.page_route(allow_any_text("/sites/{site}"), site_view, "site")]


@dataclass(frozen=True)
class SiteQuery:
    """Parameters of the page's URL."""

    site: str
    metric: str
    first: date
    last: date
    day_count: int
    filters: dict[str, str]

    @property
    def day_numbers(self) -> tuple[int, int]:
        """First and last day as database day numbers."""
        return calendar_days.day_number(self.first), calendar_days.day_number(self.last)

    @property
    def is_weekly(self) -> bool:
        """Whether points are weeks."""
        return self.time_column == WEEK

    @property
    def time_column(self) -> str:
        """Column of time whose values are points: day or week."""
        return WEEK if self.day_count >= WEEKLY_FROM_DAYS else DAY


def site_view(store: Store, request: Request) -> PageView | Response:
    """Collect the data of the page of a site.

    Raises:
        NothingToDoError: the site has never measured anything.
    """
    site = str(request.path_params["site"])
    works = site_history.list_workloads(store, site)
    if not works:
        if not site and wants_html(request):
            return RedirectResponse(link_to(request, "sites"))
        raise overview_queries.build_unknown_site_error(store, site)
    query = _parse_query(request, site, works)
    points = _load_points(store, query)
    history = site_history.fetch_history(store, site, *query.day_numbers)
    series = _series_table(points, query)
    state = _state_table(history, earlier=_has_earlier_measurements(store, query))
    changes = _change_table(_change_rows(history))
    outcomes = _outcome_table(store, query, request)
    work = _work_table(works)
    explanation = _explain_site(store, query)
    values = {
        "query": query,
        "chart": _build_chart(points, changes.rows, query) if points else None,
        "series": series,
        "state": state,
        "changes": changes,
        "explanation": explanation.sentences,
        "time": explanation.table,
        "outcomes": outcomes,
        "works": work,
        "metrics": [METRICS_BY_NAME[name] for name in ROLLUP_METRICS],
        "metric": METRICS_BY_NAME[query.metric],
        "choices": WINDOW_CHOICES,
        "filters": {
            name: _filter_options(works, name, query.filters.get(name)) for name in FILTERS
        },
        "similar": peer_comparison.SIMILAR_SITES_TEXT,
        "links": list(_link_to_explore(store, query, request)),
        "comparable": any(point.peer_count for point in points),
    }
    tables = (series, explanation.table, state, changes, outcomes, work)
    return PageView("site.html.j2", site or "(no site)", values, tables)


def _explain_site(store: Store, query: SiteQuery) -> EfficiencyExplanation:
    """Explain the site's newest measurements of the last days shown."""
    first = query.last - timedelta(days=min(query.day_count, EXPLAINED_DAYS) - 1)
    days = calendar_days.day_number(first), calendar_days.day_number(query.last)
    ids = site_history.list_newest_solo(store, query.site, *days, MAX_EXPLAINED)
    selection = Selection(conditions=(Condition("measurement_id", "=", tuple(ids)),))
    with store.snapshot() as snapshot:
        rows = list(snapshot.measurements(selection, DIAGNOSIS_COLUMNS)) if ids else []
    note = (
        f"The newest {MAX_EXPLAINED} at most, from {first} to {query.last}, whatever the filters."
    )
    return explain_efficiency(query.site or "Work without a site", rows, note)


def _load_points(store: Store, query: SiteQuery) -> list[PeerComparison]:
    """Compare the site with similar sites, per day or per week."""
    filters = {FILTERS[name]: text for name, text in query.filters.items()}
    sums = site_history.fetch_daily_sums(store, query.metric, *query.day_numbers, filters)
    return peer_comparison.compare_over_time(
        sums, query.site, lambda day: coarsen_day(WEEK, day) if query.is_weekly else day
    )


def _parse_query(request: Request, site: str, works: Sequence[Workload]) -> SiteQuery:
    """Parse the URL's parameters; filters are values that the site measured.

    Raises:
        ConfigError: a parameter is invalid.
    """
    query = request.query_params
    shown = calendar_days.parse_window(query, WINDOW_CHOICES, DEFAULT_WINDOW_DAYS)
    metric = query.get("metric", DEFAULT_METRIC)
    if metric not in ROLLUP_METRICS:
        raise ConfigError(
            f"{metric[:40]!r} is not a daily metric",
            hint=suggest_word(metric, ROLLUP_METRICS).strip(),
        )
    filters = {name: query[name] for name in FILTERS if query.get(name)}
    if variant := filters.get("variant"):
        if not is_variant(variant) and variant not in {work.variant for work in works}:
            raise ConfigError(
                f"variant must be a JSON object of axes and values, not {variant[:40]!r}",
                hint="Choose one on the page of the site.",
            )
        filters["variant"] = drop_release_axis(variant)
    return SiteQuery(site, metric, shown[0], shown[-1], len(shown), filters)


def _link_to_explore(store: Store, query: SiteQuery, request: Request) -> Iterator[tuple[str, str]]:
    """Links to Explore with the page's metric, filters and days."""
    filters: dict[str, Any] = {FILTERS[name]: text for name, text in query.filters.items()}
    filters |= {"site": query.site, "from": str(query.first), "to": str(query.last)}
    if chosen := query.filters.get("variant"):
        filters["variant"] = (
            site_history.list_recorded_variants(store, [chosen], query.site) or chosen
        )
    metric = {"metric": query.metric}
    for title, view in (
        (f"{query.metric} by variant", {**metric, "by": VARIANT_COLUMN}),
        (f"{query.metric} by day and release", {**metric, "by": "day"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**view, "color": "axis_root", **filters})


def _has_earlier_measurements(store: Store, query: SiteQuery) -> bool:
    first = site_history.find_first_day(store, query.site)
    return first is not None and first < calendar_days.day_number(query.first)


def _filter_options(
    works: Sequence[Workload], name: str, chosen: str | None
) -> list[tuple[str, str]]:
    """Values to choose from, each with its label."""
    values = {value for value in (chosen, *(getattr(work, name) for work in works)) if value}
    if name == "variant":
        return [*label_variants(map(drop_release_axis, values)).names.items()]
    return [(value, value) for value in sorted(values)]


def _series_table(points: Sequence[PeerComparison], query: SiteQuery) -> DataTable:
    rows = [
        {
            query.time_column: calendar_days.day_from_number(point.time).isoformat(),
            "measurements": point.count,
            "mean": point.mean,
            "compared": point.compared_count,
            "own": point.own_mean,
            "rms": point.rms,
            "error": point.standard_error,
            "median": point.peer_median,
            "difference": point.difference,
            "sites": point.peer_count,
        }
        for point in points
    ]
    columns = (
        TableColumn(query.time_column, "week of" if query.time_column == WEEK else "day (UTC)"),
        TableColumn("measurements", "timed and good", is_number=True),
        TableColumn("mean", "mean of all", is_number=True),
        TableColumn("compared", "compared", is_number=True),
        TableColumn("own", "their mean", is_number=True),
        TableColumn("rms", "± RMS", is_number=True),
        TableColumn("error", hidden=True),
        TableColumn("median", "median of similar sites", is_number=True),
        TableColumn("difference", "difference", format_per_cent, is_number=True),
        TableColumn("sites", "similar sites", is_number=True),
    )
    caption = f"{query.metric} by {query.time_column}, and the median of similar sites"
    return DataTable("series", caption, columns, rows)


def _history_texts(texts: Sequence[str]) -> str:
    return ", ".join(texts)


def _state_table(history: ContextHistory, *, earlier: bool) -> DataTable:
    """Last known state of doors, middleware and releases, and since when it is unchanged.

    Args:
        history: states by day.
        earlier: the site measured before the first day, so that a state may be older.
    """
    rows = [_state_row(aspect, by_day, earlier=earlier) for aspect, by_day in history.items()]
    columns = (
        TableColumn("thing", "component"),
        TableColumn("what", "attribute"),
        TableColumn("value", "value", _history_texts, is_long=True),
        TableColumn("since", "unchanged since", format_row=_format_since),
        TableColumn("since_known", hidden=True),
        TableColumn("last", "last reported"),
    )
    return DataTable(
        "state", "Doors, middleware and releases", columns, rows, empty_text=_NO_VERSIONS_NOTE
    )


def _state_row(
    aspect: ContextAspect, by_day: Mapping[int, Collection[str]], *, earlier: bool
) -> dict[str, Any]:
    days = list(by_day)
    first, last = days[0], days[-1]
    *_, since = itertools.takewhile(lambda day: by_day[day] == by_day[last], reversed(days))
    return {
        "thing": aspect.component,
        "what": aspect.attribute,
        "value": sorted(by_day[last]),
        "since": calendar_days.day_from_number(since).isoformat(),
        "since_known": not earlier or since != first,
        "last": calendar_days.day_from_number(last).isoformat(),
    }


def _format_since(row: Row) -> str:
    return str(row["since"]) if row["since_known"] else f"{row['since']} or before"


def _change_rows(history: ContextHistory) -> list[dict[str, Any]]:
    """Changes between measured days, by day; changes of the same day share a mark."""
    changes = [
        {
            "day": calendar_days.day_from_number(after).isoformat(),
            "thing": aspect.component,
            "what": aspect.attribute,
            "before": sorted(by_day[before]),
            "after": sorted(by_day[after]),
        }
        for aspect, by_day in history.items()
        for before, after in itertools.pairwise(by_day)
        if by_day[before] != by_day[after]
    ]
    days = sorted({str(change["day"]) for change in changes})
    marks = {day: number for number, day in enumerate(days, 1)}
    rows = [{"mark": marks[str(change["day"])], **change} for change in changes]
    return sorted(rows, key=lambda row: row["mark"])


def _change_table(rows: Sequence[Row]) -> DataTable:
    columns = (
        TableColumn("mark", "mark"),
        TableColumn("day", "day (UTC)"),
        TableColumn("thing", "component"),
        TableColumn("what", "attribute"),
        TableColumn("before", "before", _history_texts, is_long=True),
        TableColumn("after", "after", _history_texts, is_long=True),
    )
    return DataTable("changes", "Changes", columns, rows, empty_text="No changes in this period.")


def _outcome_table(store: Store, query: SiteQuery, request: Request) -> DataTable:
    """Executions of all kinds by day and outcome."""
    selection = Selection(conditions=(Condition("site", "=", query.site or None),))
    first, last = calendar_days.day_number(query.first), calendar_days.day_number(query.last)
    groups = store.fetch_figure(FigureQuery((), (DAY,), selection, first, last, kind=None)).groups
    classes = sorted({name for group in groups for name in group.outcomes} - {*_COMPLETED})
    rows = [
        {
            "day": calendar_days.day_from_number(int(group.by[DAY] or 0)).isoformat(),
            "status": DayOutcomes.from_outcomes(group.outcomes).status.value,
            **{name: group.outcomes.get(name, 0) for name in (*_COMPLETED, *classes)},
        }
        for group in reversed(groups)
    ]
    columns = (
        TableColumn(
            "day",
            "day (UTC)",
            link=lambda row: link_to(request, "day", day=row["day"], query={"site": query.site}),
        ),
        TableColumn("status", "status", css_class=status_class),
        *count_columns(*_COMPLETED, *classes),
    )
    empty = "No measurements in this period."
    return DataTable(
        "outcomes",
        "Outcomes of all executions by day",
        columns,
        rows,
        empty_text=empty,
    )


def _work_table(works: Sequence[Workload]) -> DataTable:
    rows = [{name: getattr(work, name) for name in Workload.__annotations__} for work in works]
    variants = label_variants((work.variant for work in works), hide_release=True)
    columns = (
        TableColumn("test", "test"),
        variant_column(variants),
        TableColumn("variant_label", hidden=True),
        TableColumn("root", "ROOT"),
        TableColumn("dataset", "dataset"),
        TableColumn("door", "door"),
        TableColumn("protocol", "protocol"),
    )
    return DataTable("work", "Everything measured here", columns, rows, note=variants.note)


def _build_chart(
    points: Sequence[PeerComparison], changes: Sequence[Row], query: SiteQuery
) -> LineChart:
    def describe(point: PeerComparison, value: float, subject: str) -> str:
        when = calendar_days.format_day(calendar_days.day_from_number(point.time))
        return f"{'week of ' if query.time_column == WEEK else ''}{when}: {subject} {format_cell(value)}"

    own = [
        ChartDot(
            _point_day(point, query),
            point.displayed_mean,
            point.rms,
            f"{describe(point, point.displayed_mean, query.site)}, {point.count} timed measurements",
            hollow=point.own_mean is None,
        )
        for point in points
    ]
    median = [
        ChartDot(
            _point_day(point, query),
            point.peer_median,
            text=f"{describe(point, point.peer_median, 'median')} of {point.peer_count} sites",
        )
        for point in points
        if point.peer_median is not None
    ]
    lines = [ChartLine(query.site or "this site", "own", own)]
    lines += [ChartLine("median of similar sites", "median", median, round=False)] if median else []
    return LineChart(
        f"{query.metric} at {query.site} by {query.time_column}, from {calendar_days.format_day(query.first)} to "
        f"{calendar_days.format_day(query.last)}",
        lines,
        DayAxis(query.first, query.last),
        _change_marks(changes),
    )


def _point_day(point: PeerComparison, query: SiteQuery) -> date:
    """Day at which a point is drawn: for a week the middle of its shown days."""
    day = calendar_days.day_from_number(point.time)
    if query.time_column != WEEK:
        return day
    first, last = max(day, query.first), min(day + timedelta(days=6), query.last)
    return first + (last - first) / 2


def _change_marks(changes: Sequence[Row]) -> list[ChartMark]:
    """Build one mark per day, with the texts of all its changes."""
    texts: dict[tuple[str, int], list[str]] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {_history_texts(change['after'])}"
        texts.setdefault((change["day"], change["mark"]), []).append(text)
    return [
        ChartMark(date.fromisoformat(day), number, "; ".join(descriptions))
        for (day, number), descriptions in texts.items()
    ]
