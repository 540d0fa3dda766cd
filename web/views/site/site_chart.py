"""Chart of a site's difference from the median of similar sites."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from starlette.requests import Request

from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.sql.read.figure_query import WEEK
from treehammer.tables import Row
from treehammer.text_formatting import format_cell, pluralize
from treehammer.web.display import calendar_days
from treehammer.web.display.display_units import format_per_cent
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.views.shared.page_context import link_to
from treehammer.web.views.shared.site_columns import WINDOW_CHOICES
from treehammer.web.views.site.site_query import SiteQuery


def build_site_chart(
    points: Sequence[PeerComparison], changes: Sequence[Row], query: SiteQuery, request: Request
) -> LineChart | None:
    """Draw the site's difference from the median of the same work; None without common work.

    Differences are drawn instead of means, which change with the mix of variants of a day.
    """
    dots = [
        ChartDot(
            _point_day(point, query),
            100 * point.difference,
            100 * point.rms / abs(point.peer_median),
            _describe_point(point, query),
            link=_link_to_measurements(point, query, request),
        )
        for point in points
        if point.difference is not None and point.peer_median
    ]
    if not dots:
        return None
    ends = [ChartDot(day, 0.0) for day in (query.first, query.last)]
    lines = [
        ChartLine(query.site or "this site", "own", dots),
        ChartLine("median of similar sites", "median", ends, plain=True),
    ]
    return LineChart(
        f"{query.metric} at {query.site} by {query.time_column}, difference from the median of the same work in "
        f"%, from {calendar_days.format_day(query.first)} to {calendar_days.format_day(query.last)}",
        lines,
        DayAxis(query.first, query.last),
        build_change_marks(changes),
    )


def _describe_point(point: PeerComparison, query: SiteQuery) -> str:
    day_text = calendar_days.format_day(calendar_days.day_from_number(point.time))
    return (
        f"{'week of ' if query.time_column == WEEK else ''}{day_text}: {format_per_cent(point.difference)}, "
        f"{query.site} {format_cell(point.own_mean)}, median {format_cell(point.peer_median)} of "
        f"{pluralize(point.peer_count, 'site')}, {point.compared_count} of {point.count} timed measurements"
    )


def _link_to_measurements(point: PeerComparison, query: SiteQuery, request: Request) -> str:
    """Link to the day of a point, or to the days around its week."""
    day = calendar_days.day_from_number(point.time)
    if query.time_column != WEEK:
        return link_to(request, "day", day=day, query={"site": query.site})
    last = min(day + timedelta(days=6), query.last)
    parameters = {"metric": query.metric, "days": WINDOW_CHOICES[0], "to": last, **query.filters}
    return link_to(request, "site", site=query.site, query=parameters)


def _point_day(point: PeerComparison, query: SiteQuery) -> date:
    """Return the day at which a point is drawn: for a week the middle of its shown days."""
    day = calendar_days.day_from_number(point.time)
    if query.time_column != WEEK:
        return day
    first, last = max(day, query.first), min(day + timedelta(days=6), query.last)
    return first + (last - first) / 2


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
