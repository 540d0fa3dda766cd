"""Means with error bars and distributions, as figure and as table, with links from its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import date, timedelta
from functools import partial
from statistics import fmean, median
from typing import Any
from urllib.parse import quote, urlencode

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read.query_model import (
    DAY,
    MONTH,
    TIME_UNITS,
    WEEK,
    Condition,
    Scalar,
    intersect_conditions,
)
from treehammer.tables import DataTable, LazyRows, Row, TableColumn
from treehammer.web.addresses import link_to
from treehammer.web.arranged_table import encode_condition
from treehammer.web.columns import outcome_columns
from treehammer.web.display_formats import (
    DisplayUnit,
    aligned_format,
    day_from_number,
    day_number,
    fit_unit,
)
from treehammer.web.figures.explore_query import (
    DIMENSIONS,
    DISTRIBUTION,
    HEATMAP,
    INTERVAL,
    MEANS,
    RELATIVE,
    RMS,
    SORTED,
    ExploreQuery,
)
from treehammer.web.figures.figure_captions import describe_figure, figure_heading, y_axis_title
from treehammer.web.figures.figure_layout import (
    BOXES,
    DOTS,
    HEAT_MAP,
    LOG,
    MAX_PANELS,
    MAX_PLACES,
    MAX_TIMES,
    PALETTE,
    POINTS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    GroupKeys,
    GroupNames,
    MarkPosition,
    group_value_writers,
    lay_out_figure,
    max_series,
)
from treehammer.web.figures.figure_points import QUANTILE_SHARES, FigurePoint, FigurePoints
from treehammer.web.figures.work_mix import Aggregation
from treehammer.web.labels import VARIANT_COLUMN, title_column

_KINDS = {
    MEANS: POINTS,
    RELATIVE: POINTS,
    HEATMAP: HEAT_MAP,
    SORTED: DOTS,
    DISTRIBUTION: BOXES,
}
#: Metrics that count something.
_WHOLE_METRICS = {metric.name for metric in METRICS_BY_NAME.values() if metric.type == "int"}
#: Lines of a trend that can all have their own color, and named ones of more.
MAX_COLORED_LINES, MAX_NAMED_LINES = 8, 5
#: Distance from the others, in standard deviations of the lines, from which a line stands out.
_OUTLIER_DISTANCE = 3.5
#: Color of lines that are like all others.
QUIET_COLOR = "#a3abb3"
_PER_CENT = DisplayUnit("%", 0.01)
_QUANTILE_KEYS = tuple(f"p{100 * share:g}" for share in QUANTILE_SHARES)

#: Column -> URL of the page of its value ``-``.
_PAGE_LINKS: Mapping[str, Callable[[], str]] = {
    "site": lambda: link_to("site", site="-"),
    "job_id": lambda: link_to("job", job_id="-"),
    "campaign_id": lambda: link_to("campaign", campaign_id="-"),
}
_JOB = "job_id"
_WEEK_LENGTH = timedelta(days=6)
_LAST_MONDAY = date.max - _WEEK_LENGTH


def lay_out_spreads(query: ExploreQuery, data: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the points; None if there is nothing to draw."""
    drawn = [point for point in data.points if _is_drawable(point, query.scale)]
    if not drawn:
        return None
    kind, unit = _KINDS[query.view], figure_unit(query, drawn)
    panels, places = (GroupNames(data, drawn, column) for column in (query.panels, query.by))
    names = GroupNames(data, drawn, query.color, query.separated_columns)
    panel_titles = panels.select_drawable(MAX_PANELS)
    place_names = _select_places(kind, places, drawn)
    series = names.build_series(max_series(kind))
    short, x_title = places.axis_names()
    empty = FigureLayout(
        kind=kind,
        x_title=x_title,
        y_title=y_axis_title(query, unit),
        groups=(panels.title, places.title, names.title),
        counted="executions" if drawn[0].jobs is None else "jobs",
        dates=places.are_time and kind not in (HEAT_MAP, DOTS),
        scale=query.scale,
        places=tuple(place_names),
        series=tuple(series),
        panels=tuple(FigurePanel(name, ()) for name in panel_titles),
        joined=data.are_comparable,
        better=METRICS_BY_NAME[query.metric].better if query.metric in METRICS_BY_NAME else "",
        whole=query.view != RELATIVE and query.metric in _WHOLE_METRICS and unit.size == 1,
        keys=(
            panels.list_values(panel_titles),
            places.list_values(place_names),
            names.list_values(line.name for line in series),
        ),
        **describe_figure(query, data, title),
    )
    labels = (axis_names.label_points(drawn) for axis_names in (panels, places, names))
    marks = [
        (MarkPosition(*position), partial(_point_mark, query, point, unit))
        for point, *position in zip(drawn, *labels, strict=True)
    ]
    layout, note = name_outliers(lay_out_figure(empty, marks, short), unit.name)
    return replace(layout, outliers=note)


def name_outliers(layout: FigureLayout, unit: str) -> tuple[FigureLayout, str]:
    """Color and name the lines of a trend that differ most from the others; all others become grey.

    Args:
        layout: of the figure.
        unit: of its values.

    Returns:
        the figure, and a sentence on these lines; unchanged and '' for few lines.
    """
    if not layout.dates or len(layout.series) <= MAX_COLORED_LINES:
        return layout, ""
    at_place: dict[tuple[int, int], list[float]] = defaultdict(list)
    for number, panel in enumerate(layout.panels):
        for mark in panel.marks:
            at_place[number, mark.place].append(mark.y)
    medians = {place: median(values) for place, values in at_place.items()}
    differences: dict[int, list[float]] = defaultdict(list)
    for number, panel in enumerate(layout.panels):
        for mark in panel.marks:
            differences[mark.series].append(mark.y - medians[number, mark.place])
    means = {line: fmean(values) for line, values in differences.items()}
    spread = 1.4826 * median(map(abs, means.values()))
    ranked = sorted(means, key=lambda line: -abs(means[line]))
    named = [line for line in ranked if abs(means[line]) > _OUTLIER_DISTANCE * spread]
    named = named[:MAX_NAMED_LINES]
    names = ", ".join(
        f"{layout.series[line].name} ({f'{means[line]:+.2g} {unit}'.strip().replace('-', '−')})"
        for line in named
    )
    note = f"Farthest from the median of all lines, on average: {names}. Other lines are grey."
    if not named:
        named = [max(means, key=means.__getitem__), min(means, key=means.__getitem__)]
        note = "No line stands out: the highest and the lowest one are named, all others are grey."
    colors = dict(zip(named, PALETTE, strict=False))
    series = tuple(
        replace(line, color=colors.get(number, QUIET_COLOR), is_quiet=number not in colors)
        for number, line in enumerate(layout.series)
    )
    return replace(layout, series=series), note


def _is_drawable(point: FigurePoint, scale: str) -> bool:
    """Return whether a point has a mean with a place on the scale."""
    return point.mean is not None and (scale != LOG or point.mean > 0)


def _select_places(kind: str, places: GroupNames, points: Iterable[FigurePoint]) -> list[str]:
    """Select the places to draw; sorted dots have the smallest medians of their means first."""
    limit = MAX_TIMES if places.are_time else MAX_PLACES
    if kind != DOTS:
        return places.select_drawable(limit)
    means: dict[str, list[float]] = defaultdict(list)
    for point in points:
        means[places[point]].append(point.mean or 0.0)
    return sorted(means, key=lambda place: median(means[place]))[:limit]


def figure_unit(query: ExploreQuery, points: Iterable[FigurePoint]) -> DisplayUnit:
    """Return the unit in which the figure is shown."""
    if query.view == RELATIVE:
        return _PER_CENT
    metric = METRICS_BY_NAME.get(query.metric)
    return fit_unit(metric.unit if metric else "1", (point.mean for point in points))


def _exported_unit(query: ExploreQuery) -> str:
    """Return the unit of the numbers in files, '' if unknown."""
    if query.view == RELATIVE:
        return "shares: 0.05 is 5 %"
    metric = METRICS_BY_NAME.get(query.metric)
    return metric.unit if metric else ""


def _error_bar(query: ExploreQuery, point: FigurePoint) -> tuple[float, float] | None:
    """Return the ends of a point's error bar; None if it has none."""
    if query.view == DISTRIBUTION or point.mean is None:
        return None
    if query.bars == INTERVAL and point.low is not None and point.high is not None:
        return point.low, point.high
    if query.bars == RMS and point.number > 1 and point.rms is not None:
        return point.mean - point.rms, point.mean + point.rms
    return None


def _point_mark(
    query: ExploreQuery, point: FigurePoint, unit: DisplayUnit, series: int, place: int
) -> FigureMark:
    ends = _error_bar(query, point)
    low, high = map(unit.convert, ends) if ends else (None, None)
    box = tuple(map(unit.convert, point.quantiles))
    y = box[2] if box else unit.convert(point.mean or 0.0)
    count = point.number if point.jobs is None else point.jobs
    return FigureMark(series, place, y, low, high, box, count)


def spread_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of all groups, exported in the metric's unit, shown in a readable one."""
    numbers = _statistic_names(query, data)
    rows = LazyRows(data.points, partial(_point_row, aggregation=data.aggregation))
    unit = figure_unit(query, data.points)
    measured = [name for name in numbers if name != "jobs"]
    number = aligned_format(
        (_find_statistic(point, name) for point in data.points for name in measured), unit
    )
    in_heading = f", {unit.name}" if query.view == RELATIVE else ""
    columns = (
        *group_columns(query, data, links),
        *outcome_columns(),
        TableColumn("number", "n", is_number=True, link=links.jobs_link),
        *(
            TableColumn(name, name, is_number=True)
            if name == "jobs"
            else TableColumn(name, f"{title_column(name)}{in_heading}", number, is_number=True)
            for name in numbers
        ),
        *aggregation_column(query, data),
    )
    own_unit = _exported_unit(query)
    unit_text = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree use {own_unit}." if unit.name and unit.name != own_unit else ""
    return DataTable("figure", f"{figure_heading(query)}{unit_text}", columns, rows, note=note)


def _find_statistic(point: FigurePoint, name: str) -> float | None:
    if name in _QUANTILE_KEYS:
        return point.quantiles[_QUANTILE_KEYS.index(name)] if point.quantiles else None
    value: float | None = getattr(point, "mean" if name == "difference" else name)
    return value


def _statistic_names(query: ExploreQuery, data: FigurePoints) -> tuple[str, ...]:
    """Name the statistics in the table, which depend on view, bars and source."""
    if query.view == DISTRIBUTION:
        return ("smallest", *_QUANTILE_KEYS, "largest", "mean")
    if query.view == RELATIVE:
        return ("difference", "rms")
    if query.bars == INTERVAL:
        return ("jobs", "mean", "low", "high")
    return ("mean", "rms") if data.source == "roll-ups" else ("mean", "rms", "smallest", "largest")


def group_columns(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> list[TableColumn]:
    """Build the columns whose values define a group."""
    return [
        TableColumn(
            name,
            title_column(name),
            group_value_writers(data, name),
            is_long=name == VARIANT_COLUMN,
            link=links.value_link(name),
        )
        for name in query.group_columns
    ]


def aggregation_column(query: ExploreQuery, data: FigurePoints) -> list[TableColumn]:
    """Build the column of the values in each group; none along a time axis."""
    if set(query.group_columns) & set(TIME_UNITS):
        return []
    return [TableColumn("aggregates", "aggregates", hidden=not data.aggregation.largest_counts)]


def _point_row(point: FigurePoint, aggregation: Aggregation) -> dict[str, Any]:
    values = point._asdict()
    quantiles = point.quantiles or (None,) * len(QUANTILE_SHARES)
    return {
        **point.key,
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILE_KEYS, quantiles, strict=True)),
        "difference": point.mean,
        "aggregates": aggregation.describe_point(point.key),
    }


class RowLinks:
    """Links of the rows of one figure's table.

    Args:
        query: the figure's parameters.
    """

    def __init__(self, query: ExploreQuery) -> None:
        self._groups = query.group_columns
        self._explore = link_to("explore")
        # Resolved once, as there may be many rows.
        self._bases = {
            name: page().removesuffix("-")
            for name, page in _PAGE_LINKS.items()
            if name in query.group_columns
        }
        jobs = {"by": _JOB, "color": VARIANT_COLUMN, "panels": "", "view": MEANS, "bars": RMS}
        removed = ("where", *(("kind",) if "kind" in query.group_columns else ()))
        parameters = [
            (name, jobs.get(name, value))
            for name, value in query.list_parameters()
            if name not in removed
        ]
        self._shared_parameters = urlencode(parameters)
        self._query_conditions = query.conditions
        self._links_to_jobs = _JOB not in query.group_columns and {*query.group_columns} <= {
            *DIMENSIONS
        }

    def value_link(self, name: str) -> Callable[[Row], str]:
        """Build a function that links to the page of a row's value; '' if it has none."""
        base = self._bases.get(name)
        if base is None:
            return lambda _: ""
        return lambda row: base + quote(str(row[name]), safe="") if row[name] else ""

    def jobs_link(self, row: Row) -> str:
        """Link to the figure of a row's jobs; '' if rows are jobs, or no condition can select them."""
        if not self._links_to_jobs:
            return ""
        conditions = intersect_conditions((*self._query_conditions, *self._conditions(row)))
        return f"{self._explore}?{self._shared_parameters}&{_encode_conditions(conditions)}"

    def mark_links(self, keys: GroupKeys) -> Mapping[str, Any] | None:
        """Start of the links of marks, and the part that each panel, place and series adds; may be None."""
        if not self._links_to_jobs:
            return None
        conditions = [
            condition
            for condition in self._query_conditions
            if condition.operator != "=" or condition.column not in self._groups
        ]
        parts = [
            [_encode_conditions(self._conditions(values)) for values in axis_keys]
            for axis_keys in keys
        ]
        encoded = _encode_conditions(conditions)
        base = f"{self._explore}?{self._shared_parameters}" + (f"&{encoded}" if encoded else "")
        return {"base": base, **dict(zip(("panels", "places", "series"), parts, strict=True))}

    def _conditions(self, row: Mapping[str, Any]) -> Iterator[Condition]:
        for name in self._groups:
            if name not in row:
                continue
            value = row[name]
            if name in (WEEK, MONTH):
                first, last = _period_bounds(name, value)
                yield Condition(DAY, ">=", first)
                yield Condition(DAY, "<=", last)
            else:
                yield Condition(name, "=", value)


def _encode_conditions(conditions: Iterable[Condition]) -> str:
    return "&".join(map(encode_condition, conditions))


def _period_bounds(name: str, value: Scalar) -> tuple[int, int]:
    """Return the first and last database day number of a week or month."""
    number = value if isinstance(value, int) else 0
    if name == MONTH:
        return 100 * number, 100 * number + 99
    monday = day_from_number(number)
    # The last days of the calendar have no complete week.
    return number, number if monday > _LAST_MONDAY else day_number(monday + _WEEK_LENGTH)
