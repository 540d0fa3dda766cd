"""Charts and changes of a site: difference from similar sites, times of its doors, versions.

Charts are drawn over time; the doors with the versions of their servers. Changes are those of the
state of its doors, middleware and releases.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from treehammer.analysis.comparison.verdict_text import format_change_interval, format_effect
from treehammer.analysis.descriptive.door_comparison import DoorDay, estimate_days, relate_door_days
from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.analysis.statistics.estimates import Estimate, combine_estimates
from treehammer.analysis.statistics.metric_units import format_metric
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.statistics.verdict import ALPHA
from treehammer.sql.read import query_model
from treehammer.sql.read.site_history import SERVER_VERSION, WORKLOAD_COLUMNS, ContextHistory
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import pluralize
from treehammer.web.addresses import link_to
from treehammer.web.columns import columns as usual_columns
from treehammer.web.display_formats import day_from_number, format_per_cent
from treehammer.web.figures.figure_layout import PALETTE
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.pages.common_tables import WINDOW_CHOICES
from treehammer.web.pages.site_standing import SiteQuery

#: Metrics of the charts, with their titles.
DOOR_METRICS: Mapping[str, str] = {
    "cpu_per_event_s": "CPU time per event",
    "wall_per_event_s": "Wall time per event",
}
_EFFECT_METRIC = "wall_per_event_s"
_NO_VERSIONS_NOTE = "No versions reported in this period."


def build_site_chart(
    points: Sequence[PeerComparison], changes: Sequence[Row], query: SiteQuery
) -> LineChart | None:
    """Draw the site's difference from the median of the same work; None without common work.

    Means would change with the mix of variants of a day.
    """
    compared = [point for point in points if point.difference is not None and point.peer_median]
    dots = [_draw_point(point, query) for point in compared]
    if not dots:
        return None
    ends = [ChartDot(day, 0.0) for day in (query.first, query.to)]
    lines = [
        ChartLine(query.site or "this site", "own", dots),
        ChartLine("median of similar sites", "median", ends, plain=True),
    ]
    return LineChart(
        f"{query.metric} at {query.site} by {query.time_column}, difference from the median of the same work in "
        f"%, from {query.first} to {query.to}",
        lines,
        DayAxis(query.first, query.to),
        build_change_marks(changes),
        values="difference (%)",
    )


def _draw_point(point: PeerComparison, query: SiteQuery) -> ChartDot:
    """Draw a day, or a week in the middle of its shown days, linked to its measurements."""
    day = shown_day = day_from_number(point.time)
    link, period = link_to("day", day=day, query={"site": query.site}), ""
    if query.is_weekly:
        last = min(day + timedelta(days=6), query.to)
        parameters = {
            "metric": query.metric,
            "days": WINDOW_CHOICES[0],
            "to": last,
            **query.filters,
        }
        link, period = link_to("site", site=query.site, query=parameters), "week of "
        first = max(day, query.first)
        shown_day = first + (last - first) / 2
    difference, median = point.difference or 0.0, point.peer_median or 1.0
    text = (
        f"{period}{day}: {format_per_cent(difference)}, {query.site} "
        f"{format_metric(query.metric, point.own_mean)}, median {format_metric(query.metric, median)} of "
        f"{pluralize(point.peer_count, 'site')}, {point.compared_count:,} of {point.count:,} timed "
        "measurements"
    )
    error = 100 * (point.rms or 0.0) / abs(median)
    return ChartDot(shown_day, 100 * difference, error, text, link=link)


def build_change_marks(changes: Sequence[Row]) -> list[ChartMark]:
    """Build one mark per day, with the texts of all its changes."""
    texts: dict[tuple[str, int], list[str]] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {', '.join(change['after'])}"
        texts.setdefault((change["day"], change["mark"]), []).append(text)
    return [
        ChartMark(date.fromisoformat(day), number, "; ".join(descriptions))
        for (day, number), descriptions in texts.items()
    ]


def load_door_days(store: Store, query: SiteQuery) -> list[DoorDay]:
    """Load the times of a site's doors by day, relative to all doors and days of the same work."""
    filters = {"site": query.site or None, **query.find_recorded_filters(store)}
    conditions = tuple(query_model.Condition(name, "=", value) for name, value in filters.items())
    groups = store.load_figure(
        query_model.FigureQuery(
            tuple(DOOR_METRICS),
            (query_model.DAY, "door", *WORKLOAD_COLUMNS),
            query_model.Selection(conditions=conditions),
            *query.day_numbers,
        )
    ).groups
    return [door_day for metric in DOOR_METRICS for door_day in relate_door_days(groups, metric)]


def build_door_charts(
    days: Sequence[DoorDay], changes: Sequence[Row], query: SiteQuery
) -> list[LineChart]:
    """Build a chart for each metric: a line per door, and marks where servers changed.

    Empty with less than two points of any door, which would show no course of time.
    """
    marks = build_change_marks([row for row in changes if row["what"] == SERVER_VERSION])
    charts = []
    for metric, title in DOOR_METRICS.items():
        by_door: dict[str, list[ChartDot]] = defaultdict(list)
        for door_day in days:
            if door_day.metric == metric:
                day, change = day_from_number(door_day.day), math.expm1(door_day.log_ratio)
                text = (
                    f"{day}: {door_day.door} {format_per_cent(change)}, "
                    f"{door_day.measurements} timed"
                )
                by_door[door_day.door].append(ChartDot(day, 100 * change, text=text))
        if max(map(len, by_door.values()), default=0) > 1:
            lines = [
                ChartLine(door or "no door", f"color{index}", dots)
                for index, (door, dots) in enumerate([*by_door.items()][: len(PALETTE)])
            ]
            text = f"{title} by door, difference from the mean of the same work in %"
            axis = DayAxis(query.first, query.to)
            charts.append(LineChart(text, lines, axis, marks, values="difference (%)"))
    return charts


def build_door_table(days: Sequence[DoorDay]) -> DataTable:
    """Build the table behind the charts."""
    rows: dict[tuple[int, str], dict[str, object]] = {}
    for door_day in days:
        day = day_from_number(door_day.day).isoformat()
        row = rows.setdefault((door_day.day, door_day.door), {"day": day, "door": door_day.door})
        row[door_day.metric] = math.expm1(door_day.log_ratio)
        row["measurements"] = door_day.measurements
    columns = (
        *usual_columns("day", "door"),
        *(
            TableColumn(name, title, format_per_cent, is_number=True)
            for name, title in DOOR_METRICS.items()
        ),
        TableColumn("measurements", "timed and good", is_number=True),
    )
    caption = "Time per event by day and door, difference from the mean of the same work"
    values = [{**dict.fromkeys(DOOR_METRICS), **row} for _, row in sorted(rows.items())]
    return DataTable("door_days", caption, columns, values)


def build_state_table(history: ContextHistory, *, earlier: bool) -> DataTable:
    """List the last known state of doors, middleware and releases, with its beginning.

    A state may be older if the site measured ``earlier`` than the first day.
    """
    rows = []
    for aspect, by_day in history.items():
        days = list(by_day)
        first_day = max((after for _, after in _find_changes(by_day)), default=days[0])
        rows.append(
            {
                "thing": aspect.component,
                "what": aspect.attribute,
                "value": sorted(by_day[days[-1]], key=natural_sort_key),
                "since": day_from_number(first_day).isoformat(),
                "since_known": not earlier or first_day != days[0],
                "last": day_from_number(days[-1]).isoformat(),
            }
        )
    columns = (
        *usual_columns("thing", "what"),
        TableColumn("value", "value", ", ".join, is_long=True),
        TableColumn(
            "since",
            "unchanged since",
            format_row=lambda row: f"{row['since']}{'' if row['since_known'] else ' or before'}",
        ),
        TableColumn("since_known", hidden=True),
        TableColumn("last", "last reported"),
    )
    return DataTable(
        "state", "Doors, middleware and releases", columns, rows, empty_text=_NO_VERSIONS_NOTE
    )


def _find_server_effects(
    history: ContextHistory, days: Sequence[DoorDay]
) -> dict[tuple[str, str], Estimate]:
    """Estimate by how much wall time per event of the same work changed with a server's version.

    Days between the version's neighbors are the units. Whatever else changed on that day is in it.

    Returns:
        component and first day of the new version -> change in ln.
    """
    effects = {}
    for aspect, by_day in history.items():
        if aspect.attribute != SERVER_VERSION:
            continue
        door_days = [
            day
            for day in days
            if day.metric == _EFFECT_METRIC and aspect.component.startswith(f"door {day.door} (")
        ]
        bounds = [0, *(after for _, after in _find_changes(by_day)), math.inf]
        for previous, start, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
            before = _estimate_days(door_days, previous, start)
            after = _estimate_days(door_days, start, end)
            if before and after:
                change = combine_estimates([after, before], [1.0, -1.0])
                effects[aspect.component, day_from_number(int(start)).isoformat()] = change
    return effects


def _estimate_days(days: Sequence[DoorDay], first: float, end: float) -> Estimate | None:
    return estimate_days([day.log_ratio for day in days if first <= day.day < end])


def _find_changes(by_day: Mapping[int, Collection[str]]) -> list[tuple[int, int]]:
    """Find the pairs of successive measured days with different values."""
    return [days for days in itertools.pairwise(by_day) if by_day[days[0]] != by_day[days[1]]]


def describe_server_effects(rows: Sequence[Row]) -> str:
    """Say what the newest change of each door's server changed; '' without any."""
    newest = {row["thing"]: row for row in rows if row["what"] == SERVER_VERSION}
    sentences = [
        f"{row['thing']}: server {', '.join(row['before'])} → {', '.join(row['after'])} on {row['day']}"
        + (f", wall time per event {row['effect']}" if row["effect"] else ", too few days to judge")
        for row in newest.values()
    ]
    return f"{'; '.join(sentences)}." if sentences else ""


def build_change_table(history: ContextHistory, door_days: Sequence[DoorDay]) -> DataTable:
    """Build the table of changes between measured days; those of one day share a mark."""
    effects = _find_server_effects(history, door_days)
    changes = [
        {
            "day": day_from_number(after).isoformat(),
            "thing": aspect.component,
            "what": aspect.attribute,
            "before": sorted(by_day[before], key=natural_sort_key),
            "after": sorted(by_day[after], key=natural_sort_key),
        }
        for aspect, by_day in history.items()
        for before, after in _find_changes(by_day)
    ]
    days = sorted({str(change["day"]) for change in changes})
    marks = {day: number for number, day in enumerate(days, 1)}
    rows: list[dict[str, Any]] = []
    for item in changes:
        text, change = "", effects.get((str(item["thing"]), str(item["day"])))
        if change:
            interval = format_change_interval(*change.interval(ALPHA))
            text = f"{format_effect(change.mean)} {interval}"
        rows.append({"mark": marks[str(item["day"])], **item, "effect": text})
    rows.sort(key=lambda row: row["mark"])
    columns = (
        *usual_columns("mark", "day", "thing", "what"),
        TableColumn("before", "before", ", ".join, is_long=True),
        TableColumn("after", "after", ", ".join, is_long=True),
        TableColumn(
            "effect", "wall time per event since", lambda text: text or "–", is_number=True
        ),
    )
    return DataTable("changes", "Changes", columns, rows, empty_text="No changes in this period.")
