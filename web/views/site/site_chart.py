"""Chart of a site and the median of similar sites."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from treehammer.analysis.descriptive.peer_comparison import PeerComparison
from treehammer.sql.read.figure_query import WEEK
from treehammer.web.display import calendar_days
from treehammer.web.display.data_tables import Row
from treehammer.web.display.template_environment import format_cell
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, DayAxis, LineChart
from treehammer.web.views.site.site_changes import history_texts
from treehammer.web.views.site.site_query import SiteQuery


def build_site_chart(
    points: Sequence[PeerComparison], changes: Sequence[Row], query: SiteQuery
) -> LineChart:
    """Draw the site's means beside the median of similar sites, with marks of changes."""

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
        build_change_marks(changes),
    )


def _point_day(point: PeerComparison, query: SiteQuery) -> date:
    """Day at which a point is drawn: for a week the middle of its shown days."""
    day = calendar_days.day_from_number(point.time)
    if query.time_column != WEEK:
        return day
    first, last = max(day, query.first), min(day + timedelta(days=6), query.last)
    return first + (last - first) / 2


def build_change_marks(changes: Sequence[Row]) -> list[ChartMark]:
    """Build one mark per day, with the texts of all its changes."""
    texts: dict[tuple[str, int], list[str]] = {}
    for change in changes:
        text = f"{change['thing']}: {change['what']} {history_texts(change['after'])}"
        texts.setdefault((change["day"], change["mark"]), []).append(text)
    return [
        ChartMark(date.fromisoformat(day), number, "; ".join(descriptions))
        for (day, number), descriptions in texts.items()
    ]
