"""Histograms of read latency, merged over what is selected: the figure and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures import figure_captions
from treehammer.web.figures.explore_query import ExploreQuery
from treehammer.web.figures.figure_layout import (
    MAX_PANELS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    GroupNames,
    MarkPosition,
    lay_out_figure,
)
from treehammer.web.figures.figure_points import FigurePoint, FigurePoints
from treehammer.web.figures.latency_histogram import bin_lower_s, format_edge
from treehammer.web.views.explore.row_links import RowLinks
from treehammer.web.views.explore.spread_figure import aggregation_column, group_columns

_QUANTILE_SHARES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


def lay_out_latencies(asked: ExploreQuery, found: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the histograms, a panel for each place; None when there are no reads."""
    drawn = [point for point in found.points if sum(point.reads)]
    if not drawn:
        return None
    first, last = _bin_range(drawn)
    outer, inner = (GroupNames(found, drawn, column) for column in (asked.panels, asked.by))
    names = GroupNames(
        found, drawn, "" if asked.colour == asked.by else asked.colour, asked.separated_columns
    )
    titles = {id(point): _panel_title(outer[point], inner[point]) for point in drawn}
    edges = {bin_: format_edge(bin_) for bin_ in range(first, last + 1)}
    empty = FigureLayout(
        title=title,
        x_title="read latency",
        y_title="reads (%)",
        dates=False,
        bins=True,
        log=asked.scale == "log",
        places=tuple(edges.values()),
        series=tuple(names.build_series()),
        panels=tuple(
            FigurePanel(text, ()) for text in _panel_titles(outer, inner, set(titles.values()))
        ),
        bars=figure_captions.describe_bars(asked),
        shared=found.variants.shared_text,
        caption=figure_captions.describe_groups(asked),
        selection=figure_captions.describe_selection(asked, found.points),
        mixed=found.aggregation.describe_figure(asked.group_columns),
    )
    ends = {bin_: format_seconds(bin_lower_s(bin_ + 1)) for bin_ in edges}
    # One at a time: there may be ten thousands, most of which are not drawn.
    marks = (
        (
            MarkPosition(titles[id(point)], text, name),
            partial(
                _bin_mark,
                f"{asked.colour}: {name}\n" if name else "",
                f"{text} to {ends[bin_]}",
                100 * point.reads[bin_] / whole,
            ),
        )
        for point in drawn
        for name, whole in ((names[point], sum(point.reads)),)
        for bin_, text in edges.items()
        if point.reads[bin_] or asked.scale != "log"
    )
    return lay_out_figure(empty, marks)


def _panel_title(outer: str, inner: str) -> str:
    return " – ".join(text for text in (outer, inner) if text)


def _panel_titles(outer: GroupNames, inner: GroupNames, known: set[str]) -> list[str]:
    """As many panels as can be drawn: of times the newest, of each outer name as many as of another."""
    each = max(1, MAX_PANELS // len(outer.all))
    kept = inner.select_drawable(each) if inner.are_time else inner.all
    titles = [
        _panel_title(one, other) for one in outer.select_drawable(MAX_PANELS) for other in kept
    ]
    return [title for title in titles if title in known][:MAX_PANELS]


def _bin_range(points: Sequence[FigurePoint]) -> tuple[int, int]:
    """The first and the last bin that has reads."""
    filled = [place for point in points for place, reads in enumerate(point.reads) if reads > 0]
    return min(filled), max(filled)


def _bin_mark(of: str, latencies: str, share: float, series: int, place: int) -> FigureMark:
    text = f"{of}{latencies}: {share:.3g} % of the reads"
    return FigureMark(series, place, share, None, None, (), text)


def latency_table(asked: ExploreQuery, found: FigurePoints, links: RowLinks) -> DataTable:
    """The reads of every group by bin."""
    columns = (
        *group_columns(asked, found, links),
        TableColumn("from_s", "from", format_seconds, is_number=True),
        TableColumn("to_s", "to", format_seconds, is_number=True),
        TableColumn("reads", "reads", is_number=True),
        TableColumn("share", "share", lambda share: f"{100 * share:.2f} %", is_number=True),
    )
    rows = [row for point in found.points for row in _bin_rows(asked, point)]
    return DataTable(
        "figure", f"{figure_captions.figure_heading(asked)}, bin by bin", columns, rows
    )


def _bin_rows(asked: ExploreQuery, point: FigurePoint) -> Iterator[Row]:
    whole = sum(point.reads)
    for place, reads in enumerate(point.reads):
        if reads:
            yield {
                **{name: point.key[name] for name in asked.group_columns},
                "from_s": bin_lower_s(place) if place else 0.0,
                "to_s": bin_lower_s(place + 1),
                "reads": reads,
                "share": reads / whole,
            }


def quantile_table(asked: ExploreQuery, found: FigurePoints, links: RowLinks) -> DataTable:
    """The latencies below which shares of the reads of a group lie."""
    columns: tuple[TableColumn, ...] = (
        *group_columns(asked, found, links),
        TableColumn("good", "executions", is_number=True, link=links.jobs_link),
        TableColumn("reads", "reads", is_number=True),
        *(
            TableColumn(key, f"{share:.0%} below", format_seconds, is_number=True)
            for key, share in _QUANTILE_SHARES.items()
        ),
    )
    rows = [
        {
            **{name: point.key[name] for name in asked.group_columns},
            "good": point.good,
            "reads": sum(point.reads),
            **{key: point.latency_quantile_s(share) for key, share in _QUANTILE_SHARES.items()},
            "mixes": found.aggregation.describe_point(point.key),
        }
        for point in found.points
        if sum(point.reads)
    ]
    columns += tuple(aggregation_column(asked, rows))
    note = "A quantile is off by less than a factor of two: within a bin reads are taken as evenly spread."
    return DataTable(
        "quantiles", f"{figure_captions.figure_heading(asked)}", columns, rows, note=note
    )
