"""One site: its series beside similar sites, what changed there, and what came back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from treehammer.analysis.descriptive import peer_comparison
from treehammer.analysis.descriptive.day_status import DayOutcomes
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.errors import ConfigError, suggest_word
from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import overview_queries, site_history
from treehammer.sql.read.figure_query import DAY, WEEK, FigureQuery, coarsen_day
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.read.site_history import ContextHistory, Workload
from treehammer.sql.write.record_consistency import is_variant
from treehammer.sql.write.store import Store
from treehammer.web.core.route_paths import allow_any_text
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import format_per_cent
from treehammer.web.display.template_environment import format_cell
from treehammer.web.display.variant_labels import VARIANT_COLUMN, label_variants
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, LineChart
from treehammer.web.views.shared.common_columns import count_columns, variant_column
from treehammer.web.views.shared.page_context import PageContext, PageView, link_to, wants_html
from treehammer.web.views.shared.site_columns import (
    DEFAULT_METRIC,
    DEFAULT_WINDOW_DAYS,
    WINDOW_CHOICES,
    status_class,
)

_COMPLETED = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)
#: Days from which on a point is a week.
WEEKLY_FROM_DAYS = 90
#: Filters of the address -> column of a work.
FILTERS = {
    "test": "test_name",
    "variant": VARIANT_COLUMN,
    "root": "axis_root",
    "protocol": "door_protocol",
}
_NO_VERSIONS_NOTE = "It is told by the measurements; nothing was told in these days."


def routes(context: PageContext) -> list[BaseRoute]:
    """The route of the page."""
    return [context.page_route(allow_any_text("/sites/{site}"), site_view, "site")]


@dataclass(frozen=True)
class SiteQuery:
    """What the address asks for."""

    site: str
    metric: str
    first: date
    last: date
    day_count: int
    filters: dict[str, str]

    @property
    def time_column(self) -> str:
        """The column of time that makes a point."""
        return WEEK if self.day_count >= WEEKLY_FROM_DAYS else DAY


def site_view(store: Store, request: Request) -> PageView | Response:
    """One site."""
    site = str(request.path_params["site"])
    works = site_history.list_workloads(store, site)
    if not works:
        if not site and wants_html(request):
            return RedirectResponse(link_to(request, "sites"))
        raise overview_queries.build_unknown_site_error(store, site)
    asked = _parse_query(request, site, works)
    dailies = site_history.fetch_daily_sums(
        store,
        asked.metric,
        calendar_days.day_number(asked.first),
        calendar_days.day_number(asked.last),
        {FILTERS[name]: text for name, text in asked.filters.items()},
    )
    points = peer_comparison.compare_over_time(
        dailies, site, lambda day: coarsen_day(WEEK, day) if asked.time_column == WEEK else day
    )
    history = site_history.fetch_history(
        store,
        site,
        calendar_days.day_number(asked.first),
        calendar_days.day_number(asked.last),
    )
    changed = list(_change_rows(history))
    number = {day: place for place, day in enumerate(sorted({one["day"] for one in changed}), 1)}
    for change in changed:
        change["mark"] = number[change["day"]]
    tables = (
        _series_table(points, asked),
        _state_table(history, earlier=_has_earlier_measurements(store, asked)),
        _change_table(sorted(changed, key=lambda change: change["mark"])),
        _outcome_table(store, asked, request),
        _work_table(works),
    )
    values = {
        "asked": asked,
        "chart": _build_chart(points, tables[2].rows, asked) if points else None,
        "series": tables[0],
        "state": tables[1],
        "changes": tables[2],
        "failures": tables[3],
        "works": tables[4],
        "metrics": [METRICS_BY_NAME[name] for name in ROLLUP_METRICS],
        "metric": METRICS_BY_NAME[asked.metric],
        "choices": WINDOW_CHOICES,
        "filters": {
            name: _filter_options(works, name, asked.filters.get(name)) for name in FILTERS
        },
        "similar": peer_comparison.SIMILAR_SITES_TEXT,
        "weekly": asked.time_column == WEEK,
        "further": list(_link_to_explore(store, asked, request)),
        "alone": not any(point.peer_count for point in points),
        "comparable": any(point.peer_count for point in points),
    }
    return PageView("site.html.j2", site or "(no site)", values, tables)


def _parse_query(request: Request, site: str, works: Sequence[Workload]) -> SiteQuery:
    """Read the address, which may name what the site measured.

    Raises:
        ConfigError: it asks for what there is not.
    """
    asked = request.query_params
    until = (
        calendar_days.parse_day(asked["until"], "until")
        if asked.get("until")
        else calendar_days.today()
    )
    count = asked.get("days", str(DEFAULT_WINDOW_DAYS))
    if count not in map(str, WINDOW_CHOICES):
        raise ConfigError(
            f"days must be one of {', '.join(map(str, WINDOW_CHOICES))}, not {count[:40]!r}"
        )
    metric = asked.get("metric", DEFAULT_METRIC)
    if metric not in ROLLUP_METRICS:
        raise ConfigError(
            f"there is no daily {metric[:40]!r}", hint=suggest_word(metric, ROLLUP_METRICS).strip()
        )
    shown = calendar_days.days_until(until, int(count))
    filters = {name: asked[name] for name in FILTERS if asked.get(name)}
    if variant := filters.get("variant"):
        if not is_variant(variant) and variant not in {work.variant for work in works}:
            raise ConfigError(
                f"variant must be axes and their values as JSON, not {variant[:40]!r}",
                hint="The page of the site has those that it measured.",
            )
        filters["variant"] = drop_release_axis(variant)
    return SiteQuery(site, metric, shown[0], shown[-1], int(count), filters)


def _link_to_explore(store: Store, asked: SiteQuery, request: Request) -> Iterator[tuple[str, str]]:
    """Explore with what the page shows: its metric, filters and days."""
    only: dict[str, Any] = {FILTERS[name]: text for name, text in asked.filters.items()}
    only |= {"site": asked.site, "from": str(asked.first), "to": str(asked.last)}
    if chosen := asked.filters.get("variant"):
        only["variant"] = site_history.list_recorded_variants(store, [chosen], asked.site) or chosen
    metric = {"metric": asked.metric}
    for title, more in (
        (f"{asked.metric} by variant", {**metric, "by": VARIANT_COLUMN}),
        (f"{asked.metric} by day and release", {**metric, "by": "day"}),
        ("Read latency by door", {"view": "latency", "by": "door"}),
    ):
        yield title, link_to(request, "explore", query={**more, "colour": "axis_root", **only})


def _has_earlier_measurements(store: Store, asked: SiteQuery) -> bool:
    first = site_history.find_first_day(store, asked.site)
    return first is not None and first < calendar_days.day_number(asked.first)


def _filter_options(
    works: Sequence[Workload], name: str, chosen: str | None
) -> list[tuple[str, str]]:
    """What a filter can have and what is chosen, each with its text."""
    values = {value for value in (chosen, *(getattr(work, name) for work in works)) if value}
    if name == "variant":
        return [*label_variants(map(drop_release_axis, values)).names.items()]
    return [(value, value) for value in sorted(values)]


def _series_table(points: Sequence[PeerComparison], asked: SiteQuery) -> DataTable:
    rows = [
        {
            asked.time_column: calendar_days.day_from_number(point.time).isoformat(),
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
        TableColumn(asked.time_column, "week of" if asked.time_column == WEEK else "day (UTC)"),
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
    caption = f"{asked.metric} by {asked.time_column}, and the median of similar sites"
    return DataTable("series", caption, columns, rows)


def _history_texts(found: Sequence[str]) -> str:
    return ", ".join(found)


def _state_table(history: ContextHistory, *, earlier: bool) -> DataTable:
    """What everything was last, and since when.

    Of what was so on the first of these days that knows it, where the site had measured ``earlier``,
    the beginning is not among them.
    """
    rows = []
    for aspect, by_day in history.items():
        numbers = list(by_day)
        now = by_day[numbers[-1]]
        since = numbers[-1]
        for number in reversed(numbers):
            if by_day[number] != now:
                break
            since = number
        rows.append(
            {
                "thing": aspect.component,
                "what": aspect.attribute,
                "value": sorted(now),
                "since": calendar_days.day_from_number(since).isoformat(),
                "since_known": not earlier or since != numbers[0],
                "last": calendar_days.day_from_number(numbers[-1]).isoformat(),
            }
        )
    columns = (
        TableColumn("thing", "what"),
        TableColumn("what", "aspect"),
        TableColumn("value", "is", _history_texts, is_long=True),
        TableColumn("since", "seen since", format_row=_format_since),
        TableColumn("since_known", hidden=True),
        TableColumn("last", "last seen"),
    )
    return DataTable(
        "state", "Doors, middleware and releases", columns, rows, empty_text=_NO_VERSIONS_NOTE
    )


def _format_since(row: Row) -> str:
    return str(row["since"]) if row["since_known"] else f"{row['since']} or before"


def _change_rows(history: ContextHistory) -> Iterator[dict[str, Any]]:
    for aspect, by_day in history.items():
        numbers = list(by_day)
        for before, after in itertools.pairwise(numbers):
            if by_day[before] != by_day[after]:
                yield {
                    "day": calendar_days.day_from_number(after).isoformat(),
                    "thing": aspect.component,
                    "what": aspect.attribute,
                    "before": sorted(by_day[before]),
                    "after": sorted(by_day[after]),
                }


def _change_table(rows: Sequence[Row]) -> DataTable:
    columns = (
        TableColumn("mark", "mark"),
        TableColumn("day", "day (UTC)"),
        TableColumn("thing", "what"),
        TableColumn("what", "aspect"),
        TableColumn("before", "was", _history_texts, is_long=True),
        TableColumn("after", "is", _history_texts, is_long=True),
    )
    return DataTable(
        "changes", "Changes", columns, rows, empty_text="Nothing changed in these days."
    )


def _outcome_table(store: Store, asked: SiteQuery, request: Request) -> DataTable:
    """What came back by day and outcome."""
    mine = Selection(conditions=(Condition("site", "=", asked.site or None),))
    first, last = calendar_days.day_number(asked.first), calendar_days.day_number(asked.last)
    groups = store.fetch_figure(FigureQuery((), (DAY,), mine, first, last, kind=None)).groups
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
            link=lambda row: link_to(request, "day", day=row["day"], query={"site": asked.site}),
        ),
        TableColumn("status", "status", css_class=status_class),
        *count_columns(*_COMPLETED, *classes),
    )
    empty = "Nothing was measured in these days."
    return DataTable(
        "outcomes",
        "What came back, by day, of all kinds of execution",
        columns,
        rows,
        empty_text=empty,
    )


def _work_table(works: Sequence[Workload]) -> DataTable:
    rows = [{name: getattr(work, name) for name in Workload.__annotations__} for work in works]
    variants = label_variants((work.variant for work in works), release_told=True)
    columns = (
        TableColumn("test", "test"),
        variant_column(variants),
        TableColumn("variant_label", hidden=True),
        TableColumn("root", "ROOT"),
        TableColumn("dataset", "dataset"),
        TableColumn("door", "door"),
        TableColumn("protocol", "protocol"),
    )
    return DataTable("work", "What was ever measured here", columns, rows, note=variants.note)


def _build_chart(
    points: Sequence[PeerComparison], changes: Sequence[Row], asked: SiteQuery
) -> LineChart:
    def about(point: PeerComparison, value: float, what: str) -> str:
        when = calendar_days.format_day(calendar_days.day_from_number(point.time))
        return (
            f"{'week of ' if asked.time_column == WEEK else ''}{when}: {what} {format_cell(value)}"
        )

    own = [
        ChartDot(
            _point_day(point, asked),
            point.displayed_mean,
            point.rms,
            f"{about(point, point.displayed_mean, asked.site)}, {point.count} timed measurements",
            hollow=point.own_mean is None,
        )
        for point in points
    ]
    median = [
        ChartDot(
            _point_day(point, asked),
            point.peer_median,
            text=f"{about(point, point.peer_median, 'median')} of {point.peer_count} sites",
        )
        for point in points
        if point.peer_median is not None
    ]
    lines = [ChartLine(asked.site or "this site", "own", own)]
    lines += [ChartLine("median of similar sites", "median", median, round=False)] if median else []
    return LineChart(
        f"{asked.metric} at {asked.site} by {asked.time_column}, from {calendar_days.format_day(asked.first)} to "
        f"{calendar_days.format_day(asked.last)}",
        lines,
        _change_marks(changes),
        asked.first,
        asked.last,
    )


def _point_day(point: PeerComparison, asked: SiteQuery) -> date:
    """The day that a point stands at: of a week the middle of its days that are shown."""
    day = calendar_days.day_from_number(point.time)
    if asked.time_column != WEEK:
        return day
    first, last = max(day, asked.first), min(day + timedelta(days=6), asked.last)
    return first + (last - first) / 2


def _change_marks(changes: Sequence[Row]) -> list[ChartMark]:
    """One a day, with all that changed on it."""
    texts: dict[tuple[str, int], list[str]] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {_history_texts(change['after'])}"
        texts.setdefault((change["day"], change["mark"]), []).append(text)
    return [
        ChartMark(date.fromisoformat(day), number, "; ".join(found))
        for (day, number), found in texts.items()
    ]
