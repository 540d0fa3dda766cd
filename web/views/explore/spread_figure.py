"""Means with error bars and distributions, as figure and as table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read.figure_query import TIME_UNITS
from treehammer.sql.read.measurement_selection import Scalar
from treehammer.web.display.data_tables import DataTable, Row, TableColumn
from treehammer.web.display.display_units import DisplayUnit, aligned_format, fit_unit
from treehammer.web.display.variant_labels import VARIANT_COLUMN
from treehammer.web.figures import figure_captions
from treehammer.web.figures.aggregation_notes import Aggregation
from treehammer.web.figures.explore_query import DISTRIBUTION, INTERVAL, RMS, ExploreQuery
from treehammer.web.figures.figure_layout import (
    MAX_PANELS,
    MAX_PLACES,
    MAX_TIMES,
    FigureLayout,
    FigureMark,
    FigurePanel,
    GroupNames,
    MarkPosition,
    group_value_writers,
    lay_out_figure,
)
from treehammer.web.figures.figure_points import QUANTILE_SHARES, FigurePoint, FigurePoints
from treehammer.web.views.explore.row_links import RowLinks
from treehammer.web.views.shared.common_columns import outcome_columns

#: Column -> formatter of its values.
ValueWriters = Mapping[str, Callable[[Scalar], str]]

_QUANTILE_KEYS = tuple(f"p{100 * share:g}" for share in QUANTILE_SHARES)


def lay_out_spreads(query: ExploreQuery, data: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the points; None if there is nothing to draw."""
    drawn = [p for p in data.points if p.mean is not None and (query.scale != "log" or p.mean > 0)]
    if not drawn:
        return None
    unit = figure_unit(query, drawn)
    places, panels = (GroupNames(data, drawn, column) for column in (query.by, query.panels))
    names = GroupNames(data, drawn, query.color, query.separated_columns)
    texts = {name: group_value_writers(data, name) for name in query.group_columns}
    short, x_title = places.axis_names()
    empty = FigureLayout(
        title=title,
        x_title=x_title,
        y_title=figure_captions.y_axis_title(query, unit),
        dates=places.are_time,
        bins=False,
        log=query.scale == "log",
        places=tuple(places.select_drawable(MAX_TIMES if places.are_time else MAX_PLACES)),
        series=tuple(names.build_series()),
        panels=tuple(FigurePanel(name, ()) for name in panels.select_drawable(MAX_PANELS)),
        bars=figure_captions.describe_bars(query),
        shared=data.variants.shared_text,
        caption=figure_captions.describe_groups(query),
        selection=figure_captions.describe_selection(query, data.points),
        aggregated=data.aggregation.describe_figure(query.group_columns),
    )
    marks = [
        (
            MarkPosition(panels[point], places[point], names[point]),
            partial(_point_mark, query, point, unit, texts),
        )
        for point in drawn
    ]
    return lay_out_figure(empty, marks, short)


def figure_unit(query: ExploreQuery, points: Iterable[FigurePoint]) -> DisplayUnit:
    """Unit in which the figure is shown."""
    metric = METRICS_BY_NAME.get(query.metric)
    return fit_unit(metric.unit if metric else "1", (point.mean for point in points))


def _error_bar(query: ExploreQuery, point: FigurePoint) -> tuple[float, float] | None:
    """Ends of a point's error bar; None if it has none."""
    if query.view == DISTRIBUTION or point.mean is None:
        return None
    if query.bars == INTERVAL and point.low is not None and point.high is not None:
        return point.low, point.high
    if query.bars == RMS and point.number > 1 and point.rms is not None:
        return point.mean - point.rms, point.mean + point.rms
    return None


def _point_mark(
    query: ExploreQuery,
    point: FigurePoint,
    unit: DisplayUnit,
    texts: ValueWriters,
    series: int,
    place: int,
) -> FigureMark:
    ends = _error_bar(query, point)
    low, high = map(unit.convert, ends) if ends else (None, None)
    bar = f" ({low:.4g} to {high:.4g})" if ends else ""
    box = tuple(map(unit.convert, point.quantiles))
    statistic, y = ("median", box[2]) if box else ("mean", unit.convert(point.mean or 0.0))
    names = [f"{name}: {texts[name](point.key[name])}" for name in query.group_columns]
    n = f"{point.jobs} jobs" if point.jobs is not None else f"n = {point.number}"
    text = "\n".join([*names, f"{statistic} {y:.4g}{bar} {unit.name}".rstrip() + f", {n}"])
    return FigureMark(series, place, y, low, high, box, text)


def spread_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Table of all groups; numbers are exported in the metric's unit and shown in a readable one."""
    numbers = _statistic_names(query, data)
    rows = [_point_row(query, point, data.aggregation) for point in data.points]
    unit = figure_unit(query, data.points)
    shown = [row[name] for row in rows for name in numbers if name != "jobs"]
    number = aligned_format(shown, unit)
    columns = (
        *group_columns(query, data, links),
        *outcome_columns(),
        TableColumn("number", "n", is_number=True, link=links.jobs_link),
        *(
            TableColumn(name, name, is_number=True)
            if name == "jobs"
            else TableColumn(name, name, number, is_number=True)
            for name in numbers
        ),
        *aggregation_column(query, rows),
    )
    own_unit = METRICS_BY_NAME[query.metric].unit if query.metric in METRICS_BY_NAME else ""
    unit_text = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree use {own_unit}." if unit.name and unit.name != own_unit else ""
    return DataTable(
        "figure", f"{figure_captions.figure_heading(query)}{unit_text}", columns, rows, note=note
    )


def _statistic_names(query: ExploreQuery, data: FigurePoints) -> tuple[str, ...]:
    """Name the statistics in the table, which depend on view, bars and source."""
    if query.view == DISTRIBUTION:
        return ("smallest", *_QUANTILE_KEYS, "largest", "mean")
    if query.bars == INTERVAL:
        return ("jobs", "mean", "low", "high")
    return ("mean", "rms") if data.source == "roll-ups" else ("mean", "rms", "smallest", "largest")


def group_columns(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> list[TableColumn]:
    """Columns whose values define a group."""
    return [
        TableColumn(
            name,
            name,
            group_value_writers(data, name),
            is_long=name == VARIANT_COLUMN,
            link=links.value_link(name),
        )
        for name in query.group_columns
    ]


def aggregation_column(query: ExploreQuery, rows: Sequence[Row]) -> list[TableColumn]:
    """Column of the values aggregated in each group; none along a time axis, where only lines have it."""
    if set(query.group_columns) & set(TIME_UNITS):
        return []
    return [
        TableColumn("aggregates", "aggregates", hidden=not any(row["aggregates"] for row in rows))
    ]


def _point_row(query: ExploreQuery, point: FigurePoint, aggregation: Aggregation) -> dict[str, Any]:
    values = vars(point)
    quantiles = point.quantiles or (None,) * len(QUANTILE_SHARES)
    return {
        **{name: point.key[name] for name in query.group_columns},
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILE_KEYS, quantiles, strict=True)),
        "aggregates": aggregation.describe_point(point.key),
    }
