"""Means with their bars, and distributions: the figure and its table."""

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
from treehammer.web.views.shared.common_columns import count_columns

#: Column -> how its values are written.
ValueWriters = Mapping[str, Callable[[Scalar], str]]

_QUANTILE_KEYS = tuple(f"p{100 * share:g}" for share in QUANTILE_SHARES)


def lay_out_spreads(asked: ExploreQuery, found: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the points; None when there is nothing to draw."""
    drawn = [p for p in found.points if p.mean is not None and (asked.scale != "log" or p.mean > 0)]
    if not drawn:
        return None
    unit = figure_unit(asked, drawn)
    places, panels = (GroupNames(found, drawn, column) for column in (asked.by, asked.panels))
    names = GroupNames(found, drawn, asked.colour, asked.separated_columns)
    texts = {name: group_value_writers(found, name) for name in asked.group_columns}
    short, x_title = places.axis_names()
    empty = FigureLayout(
        title=title,
        x_title=x_title,
        y_title=figure_captions.y_axis_title(asked, unit),
        dates=places.are_time,
        bins=False,
        log=asked.scale == "log",
        places=tuple(places.select_drawable(MAX_TIMES if places.are_time else MAX_PLACES)),
        series=tuple(names.build_series()),
        panels=tuple(FigurePanel(name, ()) for name in panels.select_drawable(MAX_PANELS)),
        bars=figure_captions.describe_bars(asked),
        shared=found.variants.shared_text,
        caption=figure_captions.describe_groups(asked),
        selection=figure_captions.describe_selection(asked, found.points),
        mixed=found.aggregation.describe_figure(asked.group_columns),
    )
    marks = [
        (
            MarkPosition(panels[point], places[point], names[point]),
            partial(_point_mark, asked, point, unit, texts),
        )
        for point in drawn
    ]
    return lay_out_figure(empty, marks, short)


def figure_unit(asked: ExploreQuery, points: Iterable[FigurePoint]) -> DisplayUnit:
    """The unit in which people read the figure."""
    metric = METRICS_BY_NAME.get(asked.metric)
    return fit_unit(metric.unit if metric else "1", (point.mean for point in points))


def _point_mark(
    asked: ExploreQuery,
    point: FigurePoint,
    unit: DisplayUnit,
    texts: ValueWriters,
    series: int,
    place: int,
) -> FigureMark:
    mean = point.mean or 0.0
    low = high = None
    if asked.view != DISTRIBUTION and asked.bars == INTERVAL:
        low, high = point.low, point.high
    elif asked.view != DISTRIBUTION and asked.bars == RMS and point.number > 1:
        assert point.rms is not None
        low, high = mean - point.rms, mean + point.rms
    low, high = (None if end is None else unit.convert(end) for end in (low, high))
    box = tuple(unit.convert(value) for value in point.quantiles)
    names = [f"{name}: {texts[name](point.key[name])}" for name in asked.group_columns]
    y = box[2] if box else unit.convert(mean)
    bar = f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else ""
    n = f"{point.jobs} jobs" if point.jobs is not None else f"n = {point.number}"
    what = "median" if box else "mean"
    text = "\n".join([*names, f"{what} {y:.4g}{bar} {unit.name}".rstrip() + f", {n}"])
    return FigureMark(series, place, y, low, high, box, text)


def spread_table(asked: ExploreQuery, found: FigurePoints, links: RowLinks) -> DataTable:
    """All groups with their numbers, as programs get them; people read them in the unit that fits."""
    numbers: tuple[str, ...] = ("mean", "rms", "smallest", "largest")
    if asked.view == DISTRIBUTION:
        numbers = ("smallest", *_QUANTILE_KEYS, "largest", "mean")
    elif asked.bars == INTERVAL:
        numbers = ("jobs", "mean", "low", "high")
    elif found.source == "roll-ups":
        numbers = ("mean", "rms")
    rows = [_point_row(asked, point, found.aggregation) for point in found.points]
    unit = figure_unit(asked, found.points)
    shown = [row[name] for row in rows for name in numbers if name != "jobs"]
    number = aligned_format(shown, unit)
    columns = (
        *group_columns(asked, found, links),
        *count_columns("good", "failed", "implausible"),
        TableColumn("not_supported", "not supported", is_number=True),
        TableColumn("number", "n", is_number=True, link=links.jobs_link),
        *(
            TableColumn(name, name, is_number=True)
            if name == "jobs"
            else TableColumn(name, name, number, is_number=True)
            for name in numbers
        ),
        *aggregation_column(asked, rows),
    )
    own = METRICS_BY_NAME[asked.metric].unit if asked.metric in METRICS_BY_NAME else ""
    said = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree are in {own}." if unit.name and unit.name != own else ""
    return DataTable(
        "figure", f"{figure_captions.figure_heading(asked)}{said}", columns, rows, note=note
    )


def group_columns(asked: ExploreQuery, found: FigurePoints, links: RowLinks) -> list[TableColumn]:
    """The columns whose values make a group."""
    return [
        TableColumn(
            name,
            name,
            group_value_writers(found, name),
            is_long=name == VARIANT_COLUMN,
            link=links.value_link(name),
        )
        for name in asked.group_columns
    ]


def aggregation_column(asked: ExploreQuery, rows: Sequence[Row]) -> list[TableColumn]:
    """What each group takes together; not along a time axis, where this is known of whole lines."""
    if set(asked.group_columns) & set(TIME_UNITS):
        return []
    return [TableColumn("mixes", "mixes", hidden=not any(row["mixes"] for row in rows))]


def _point_row(asked: ExploreQuery, point: FigurePoint, mix: Aggregation) -> dict[str, Any]:
    values = vars(point)
    quantiles = point.quantiles or (None,) * len(QUANTILE_SHARES)
    return {
        **{name: point.key[name] for name in asked.group_columns},
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILE_KEYS, quantiles, strict=True)),
        "mixes": mix.describe_point(point.key),
    }
