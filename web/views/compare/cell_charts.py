"""Charts of one variant at one site: both sides by job, and their ratio by day."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read import figure_sql
from treehammer.sql.read.figure_query import DAY, FigureQuery
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.text_formatting import format_significant
from treehammer.web.display import calendar_days
from treehammer.web.figures.line_chart import ChartDot, ChartLine, DayAxis, LineChart, NumberAxis
from treehammer.web.figures.plot_style import choose_release_colors
from treehammer.web.views.compare.side_conditions import side_conditions

#: Days before the comparison at which the trend begins at the earliest.
TREND_DAYS = 90
_SIDES = (("a", "own", True), ("b", "median", False))


def chart_jobs(
    row: VerdictRow, pairs: Sequence[PairRow], link: Callable[[str], str]
) -> LineChart | None:
    """Draw the values of both sides of each job; None without jobs that hold both.

    Args:
        row: verdict on the series.
        pairs: of the comparison.
        link: address of the page of a job, which shows both sides.
    """
    series_pairs = [
        pair
        for pair in pairs
        if (pair.comparison_key, pair.site, pair.metric)
        == (row.comparison_key, row.site, row.metric)
    ]
    if not series_pairs:
        return None
    is_time = row.metric in verdict_text.METRIC_TITLES
    colors = choose_release_colors((row.a, row.b)) if row.axis == "root" else {}
    factor, unit = (1e3, "ms/event") if is_time else (1.0, "")
    lines = [
        ChartLine(
            getattr(row, side),
            css_class,
            [
                ChartDot(
                    float(number),
                    factor * getattr(pair, f"{side}_value"),
                    text=f"{pair.job_id} on {pair.host}: {getattr(row, side)} "
                    f"{format_significant(factor * getattr(pair, f'{side}_value'), 4)} {unit}, "
                    f"change {verdict_text.format_effect(pair.log_ratio)}",
                    link=link(pair.job_id),
                )
                for number, pair in enumerate(series_pairs, 1)
            ],
            round=is_round,
            color=colors.get(getattr(row, side), ""),
        )
        for side, css_class, is_round in _SIDES
    ]
    title = f"{verdict_text.title_metric(row.metric)} by job{f', {unit}' if unit else ''}"
    return LineChart(title, lines, NumberAxis([1.0, float(len(series_pairs))], whole=True))


def chart_trend(store: Store, row: VerdictRow) -> LineChart | None:
    """Draw B against A by day, from all campaigns; None if no day has both sides.

    Figures know daily means of the catalogue's metrics only, not of operations.
    """
    if row.metric not in METRICS_BY_NAME:
        return None
    means = [_load_day_means(store, row, side) for side in "ab"]
    shared = sorted(means[0].keys() & means[1].keys())
    if not shared:
        return None
    changes = {
        calendar_days.day_from_number(number): 100 * (means[1][number] / means[0][number] - 1)
        for number in shared
        if means[0][number]
    }
    return _draw_trend(row, changes) if changes else None


def _draw_trend(row: VerdictRow, changes: Mapping[date, float]) -> LineChart:
    first, last = min(changes), max(changes)
    title = f"{verdict_text.title_metric(row.metric)} of {row.b} against {row.a} by day, %"
    dots = [
        ChartDot(day, change, text=f"{calendar_days.format_day(day)}: {change:+.1f} %")
        for day, change in changes.items()
    ]
    equal = [ChartDot(first, 0.0), ChartDot(last, 0.0)]
    lines = [
        ChartLine("ratio of daily means", "own", dots),
        ChartLine("no change", "ideal", equal, plain=True),
    ]
    return LineChart(title, lines, DayAxis(first, last))


def _load_day_means(store: Store, row: VerdictRow, side: str) -> dict[int, float]:
    """Load the mean of each day (YYYYMMDD) of one side, over all campaigns."""
    conditions = side_conditions(verdict_text.flatten_verdict(row), side)
    if not conditions:
        return {}
    judged = datetime.fromtimestamp(row.created_us / 1e6, UTC).date()
    first = calendar_days.day_number(judged - timedelta(days=TREND_DAYS))
    selection = Selection(conditions=conditions)
    figure = FigureQuery((row.metric,), (DAY,), selection, first_day=first)
    with store.connection() as connection:
        groups = figure_sql.fetch_figure(connection, figure).groups
    return {
        int(group.by[DAY] or 0): mean
        for group in groups
        if (mean := group.metrics[row.metric].mean) is not None
    }
