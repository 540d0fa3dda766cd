"""Histograms of read latency of selected groups, as figure and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from treehammer.text_formatting import format_share
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import format_seconds
from treehammer.web.display.metric_titles import title_column
from treehammer.web.figures import figure_captions
from treehammer.web.figures.explore_query import ExploreQuery
from treehammer.web.figures.figure_layout import (
    MAX_PANELS,
    STEPS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    GroupKeys,
    GroupNames,
    MarkFactory,
    MarkPosition,
    lay_out_figure,
)
from treehammer.web.figures.figure_points import FigurePoint, FigurePoints
from treehammer.web.figures.histogram_layout import bin_lower_s, format_edge
from treehammer.web.views.explore.row_links import RowLinks
from treehammer.web.views.explore.spread_figure import aggregation_column, group_columns

_QUANTILE_SHARES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def lay_out_latencies(query: ExploreQuery, data: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the histograms, one panel per place; None if there are no reads."""
    drawn = [point for point in data.points if sum(point.reads)]
    if not drawn:
        return None
    first, last = _bin_range(drawn)
    outer, inner = (GroupNames(data, drawn, column) for column in (query.panels, query.by))
    names = GroupNames(
        data, drawn, "" if query.color == query.by else query.color, query.separated_columns
    )
    titles = {id(point): _panel_title(outer[point], inner[point]) for point in drawn}
    edges = {bin_: format_edge(bin_) for bin_ in range(first, last + 1)}
    empty = FigureLayout(
        kind=STEPS,
        x_title="read latency",
        y_title="reads (%)",
        groups=(title_column(query.panels or query.by), "from", title_column(query.color)),
        counted="",
        scale=query.scale,
        places=tuple(edges.values()),
        series=tuple(names.build_series()),
        panels=tuple(
            FigurePanel(text, ()) for text in _panel_titles(outer, inner, set(titles.values()))
        ),
        **figure_captions.describe_figure(query, data, title),
    )
    keys_by_title = {titles[id(point)]: point.key for point in drawn}
    panel_columns = {query.panels, query.by}
    panel_keys = [
        {name: value for name, value in keys_by_title[one.title].items() if name in panel_columns}
        for one in empty.panels
    ]
    series_keys = [names.values_of(one.name) for one in empty.series]
    # Generated lazily: there may be tens of thousands, most of which are not drawn.
    marks = (
        mark
        for point in drawn
        for mark in _bin_marks(query, point, titles[id(point)], names[point], edges)
    )
    keys: GroupKeys = (panel_keys, [{}] * len(edges), series_keys)
    return lay_out_figure(replace(empty, keys=keys), marks)


def _bin_marks(
    query: ExploreQuery, point: FigurePoint, panel: str, name: str, edges: Mapping[int, str]
) -> Iterator[tuple[MarkPosition, MarkFactory]]:
    """Yield position and factory of the marks of a histogram; ``edges`` label its bins."""
    total = sum(point.reads)
    for bin_, text in edges.items():
        if point.reads[bin_] or query.scale != "log":
            share = 100 * point.reads[bin_] / total
            yield MarkPosition(panel, text, name), partial(_bin_mark, share, point.reads[bin_])


def _panel_title(outer: str, inner: str) -> str:
    return " – ".join(text for text in (outer, inner) if text)


def _panel_titles(outer: GroupNames, inner: GroupNames, present: set[str]) -> list[str]:
    """Titles of drawable panels, equally many per outer name; of times the newest."""
    each = max(1, MAX_PANELS // len(outer.all))
    kept = inner.select_drawable(each) if inner.are_time else inner.all
    titles = [
        _panel_title(outer_name, inner_name)
        for outer_name in outer.select_drawable(MAX_PANELS)
        for inner_name in kept
    ]
    return [title for title in titles if title in present][:MAX_PANELS]


def _bin_range(points: Sequence[FigurePoint]) -> tuple[int, int]:
    """First and last bin with reads."""
    filled = [place for point in points for place, reads in enumerate(point.reads) if reads > 0]
    return min(filled), max(filled)


def _bin_mark(share: float, reads: int, series: int, place: int) -> FigureMark:
    return FigureMark(series, place, share, None, None, count=reads)


def latency_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Reads of every group by bin."""
    columns = (
        *group_columns(query, data, links),
        TableColumn("from_s", "from", format_seconds, is_number=True),
        TableColumn("to_s", "to", format_seconds, is_number=True),
        TableColumn("reads", "reads", is_number=True),
        TableColumn("share", "share", lambda share: f"{100 * share:.2f} %", is_number=True),
    )
    rows = [row for point in data.points for row in _bin_rows(query, point)]
    return DataTable(
        "figure", f"{figure_captions.figure_heading(query)}, bin by bin", columns, rows
    )


def _bin_rows(query: ExploreQuery, point: FigurePoint) -> Iterator[Row]:
    total = sum(point.reads)
    for bin_, reads in enumerate(point.reads):
        if reads:
            yield {
                **{name: point.key[name] for name in query.group_columns},
                "from_s": bin_lower_s(bin_) if bin_ else 0.0,
                "to_s": bin_lower_s(bin_ + 1),
                "reads": reads,
                "share": reads / total,
            }


def quantile_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Quantiles of the read latency of every group."""
    columns: tuple[TableColumn, ...] = (
        *group_columns(query, data, links),
        TableColumn("good", "executions", is_number=True, link=links.jobs_link),
        TableColumn("reads", "reads", is_number=True),
        *(
            TableColumn(key, f"{format_share(share)} below", format_seconds, is_number=True)
            for key, share in _QUANTILE_SHARES.items()
        ),
    )
    rows = [
        {
            **{name: point.key[name] for name in query.group_columns},
            "good": point.good,
            "reads": sum(point.reads),
            **{key: point.latency_quantile_s(share) for key, share in _QUANTILE_SHARES.items()},
            "aggregates": data.aggregation.describe_point(point.key),
        }
        for point in data.points
        if sum(point.reads)
    ]
    columns += tuple(aggregation_column(query, rows))
    note = (
        "Quantiles are accurate to a factor of two: reads are assumed to be evenly distributed "
        "within a bin."
    )
    return DataTable("quantiles", figure_captions.figure_heading(query), columns, rows, note=note)
