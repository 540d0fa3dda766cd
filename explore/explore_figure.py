"""Figure of Explore: points placed in panels, along an axis and in series, and its texts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from statistics import fmean, median
from typing import Any

from treehammer.analysis.statistics.metric_units import DisplayUnit, find_display_unit
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.explore.explore_query import ExploreQuery, View
from treehammer.explore.figure_points import CAMPAIGN_COLUMN, FigurePoint, FigurePoints, rank_value
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.read.query_model import DAY, MONTH, WEEK, Condition, Scalar
from treehammer.text_formatting import write_minus
from treehammer.web.display_formats import day_from_number
from treehammer.web.figures.figure_layout import (
    MAX_PANELS,
    MAX_PLACES,
    MAX_ROWS,
    MAX_SERIES,
    MAX_TIMES,
    PALETTE,
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    Kind,
    Scale,
    shorten_label,
    style_series,
)
from treehammer.web.labels import (
    VARIANT_COLUMN,
    VariantLabels,
    describe_variant,
    head_column,
    release_of_variant,
    title_column,
)

_KINDS: Mapping[str, Kind] = {
    View.MEANS: Kind.POINTS,
    View.RELATIVE: Kind.POINTS,
    View.HEATMAP: Kind.HEAT_MAP,
}
#: Columns whose values are releases.
_RELEASE_COLUMNS = ("axis_root", "root_version")
#: Label of missing values.
UNKNOWN_NAME = "not known"
#: Maximum characters of the name of a series.
_MAX_SERIES_CHARS = 90
#: Metrics that count something.
_WHOLE_METRICS = {metric.name for metric in METRICS_BY_NAME.values() if metric.type == "int"}
#: Lines of a trend that can all have their own color, and named ones of more.
MAX_COLORED_LINES, MAX_NAMED_LINES = 8, 5
#: Distance from the others, in standard deviations of the lines, from which a line stands out.
_OUTLIER_DISTANCE = 3.5
#: Color of lines that are like all others.
QUIET_COLOR = "#a3abb3"


def lay_out_figure(query: ExploreQuery, data: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out the points; None if there is nothing to draw."""
    points = [point for point in data.points if point.mean is not None]
    if not points:
        return None
    kind, unit = _KINDS[query.view], figure_unit(query)
    panels, places = (GroupNames(data, points, column) for column in (query.panels, query.by))
    names = GroupNames(data, points, query.color, query.separated_columns)
    max_series = MAX_ROWS if kind == Kind.HEAT_MAP else MAX_SERIES
    series = names.build_series(max_series)
    panel_titles = panels.select_drawable(MAX_PANELS)
    place_names = places.select_drawable(MAX_TIMES if places.are_time else MAX_PLACES)
    series_names = [line.name for line in series]
    numbers = (
        panels.number_points(points, panel_titles),
        places.number_points(points, place_names),
        names.number_points(points, series_names),
    )
    marks = _place_marks(points, unit, numbers)
    is_trend = places.are_time and kind != Kind.HEAT_MAP
    short, x_title = places.axis_names()
    left_out = _describe_left_out(
        sum(map(len, marks.values())), len(points), max_series, is_trend=is_trend
    )
    layout = FigureLayout(
        kind,
        title=title,
        x_title=x_title,
        groups=(panels.title, places.title, names.title),
        dates=is_trend,
        places=tuple(shorten_label(short.get(place, place)) for place in place_names),
        series=tuple(
            replace(line, name=shorten_label(line.name, _MAX_SERIES_CHARS)) for line in series
        ),
        panels=tuple(
            FigurePanel(shorten_label(text), tuple(marks[number]))
            for number, text in enumerate(panel_titles)
        ),
        # Lines show changes, not another mix of work.
        joined=data.connected and not data.aggregation.largest_counts,
        keys=(
            panels.list_values(panel_titles),
            places.list_values(place_names),
            names.list_values(series_names),
        ),
        bars=describe_bars(query),
        shared=data.variants.shared_text,
        caption=describe_groups(query),
        selection=describe_selection(query, data.points),
        aggregated=data.aggregation.describe_figure(query.group_columns),
        left_out=left_out,
        **_describe_values(query, unit),
    )
    layout, note = name_outliers(layout, unit.name)
    return replace(layout, outliers=note)


def _place_marks(
    points: Sequence[FigurePoint], unit: DisplayUnit, numbers: Sequence[Sequence[int | None]]
) -> Mapping[int, list[FigureMark]]:
    """Make the marks of each panel from the numbers of panel, place and series of each point."""
    marks: dict[int, list[FigureMark]] = defaultdict(list)
    for point, panel, place, line in zip(points, *numbers, strict=True):
        if panel is not None and place is not None and line is not None:
            mean, low, high = point.mean or 0.0, None, None
            # A single execution has no error bar.
            if point.number > 1 and point.rms is not None:
                low, high = unit.convert(mean - point.rms), unit.convert(mean + point.rms)
            mark = FigureMark(line, place, unit.convert(mean), low, high, point.number)
            marks[panel].append(mark)
    return marks


def _describe_values(query: ExploreQuery, unit: DisplayUnit) -> dict[str, Any]:
    """Describe the axis of values: its title, and whether more is better or whole."""
    metric, title = METRICS_BY_NAME.get(query.metric), head_column(query.metric)
    values = {"scale": Scale.LINEAR, "better": metric.better if metric else ""}
    if query.view == View.RELATIVE:
        return {**values, "y_title": f"{title} against the same work, %"}
    is_whole = query.metric in _WHOLE_METRICS and unit.size == 1
    return {
        **values,
        "y_title": f"{title} in {unit.name}" if unit.name else title,
        "whole": is_whole,
    }


def _describe_left_out(mark_count: int, count: int, max_series: int, *, is_trend: bool) -> str:
    """Describe the limits that left marks out; '' if all are drawn."""
    if mark_count == count:
        return ""
    places = (
        f"{MAX_TIMES} newest days, weeks or months" if is_trend else f"{MAX_PLACES} first places"
    )
    return (
        f"The figure shows {mark_count:,} of {count:,} marks: at most the {places}, {max_series} series and "
        f"{MAX_PANELS} panels. CSV and JSON hold all."
    )


def figure_unit(query: ExploreQuery) -> DisplayUnit:
    """Return the unit in which the figure is shown."""
    if query.view == View.RELATIVE:
        return DisplayUnit("%", 0.01)
    return find_display_unit(query.metric)


def name_outliers(layout: FigureLayout, unit: str) -> tuple[FigureLayout, str]:
    """Color and name the lines of a trend that differ most; return a sentence on them, too."""
    if not layout.dates or len(layout.series) <= MAX_COLORED_LINES:
        return layout, ""
    means = _find_mean_differences(layout)
    spread = 1.4826 * median(map(abs, means.values()))
    ranked = sorted(means, key=lambda line: -abs(means[line]))
    outliers = [line for line in ranked if abs(means[line]) > _OUTLIER_DISTANCE * spread]
    outliers = outliers[:MAX_NAMED_LINES]
    names = ", ".join(
        f"{layout.series[line].name} ({write_minus(f'{means[line]:+.2g} {unit}'.strip())})"
        for line in outliers
    )
    note = f"Farthest from the median of all lines, on average: {names}. Other lines are grey."
    if not outliers:
        outliers = [max(means, key=means.__getitem__), min(means, key=means.__getitem__)]
        note = "No line stands out: the highest and the lowest one are named, all others are grey."
    colors = dict(zip(outliers, PALETTE, strict=False))
    series = tuple(
        replace(line, color=colors.get(number, QUIET_COLOR), is_quiet=number not in colors)
        for number, line in enumerate(layout.series)
    )
    return replace(layout, series=series), note


def _find_mean_differences(layout: FigureLayout) -> Mapping[int, float]:
    """Find the mean difference of each line from the median of all at its places."""
    marks = [(number, mark) for number, panel in enumerate(layout.panels) for mark in panel.marks]
    at_place: dict[tuple[int, int], list[float]] = defaultdict(list)
    for panel, mark in marks:
        at_place[panel, mark.place].append(mark.y)
    medians = {place: median(values) for place, values in at_place.items()}
    differences: dict[int, list[float]] = defaultdict(list)
    for panel, mark in marks:
        differences[mark.series].append(mark.y - medians[panel, mark.place])
    return {line: fmean(values) for line, values in differences.items()}


class GroupNames:
    """Labels of a column's values.

    Args:
        column: '' for none; then all values have the same empty label.
        apart: further columns whose values precede the column's.
    """

    def __init__(
        self,
        data: FigurePoints,
        points: Sequence[FigurePoint],
        column: str,
        apart: Sequence[str] = (),
    ) -> None:
        self.column = column
        self.columns = (*apart, column)
        self._variants = data.variants if column == VARIANT_COLUMN else VariantLabels()
        write_value = group_value_writers(data, column)
        self._texts: dict[tuple[Scalar, ...], str] = {}
        for key in _sort_keys({*self._list_keys(points)}, _value_names(data, column)):
            texts = [*map(format_value, apart, key[:-1])]
            texts += [write_value(key[-1])] if column else []
            self._texts[key] = " · ".join(filter(None, texts))

    def _list_keys(self, points: Sequence[FigurePoint]) -> list[tuple[Scalar, ...]]:
        return [tuple(point.key.get(name) for name in self.columns) for point in points]

    def number_points(
        self, points: Sequence[FigurePoint], labels: Iterable[str]
    ) -> list[int | None]:
        """Number points by their place among labels; None for those without one."""
        numbers = {label: number for number, label in enumerate(labels)}
        return [numbers.get(self._texts[key]) for key in self._list_keys(points)]

    @property
    def title(self) -> str:
        """Titles of the columns, '' for none."""
        return ", ".join(title_column(name) for name in self.columns if name)

    def list_values(self, labels: Iterable[str]) -> list[Mapping[str, Scalar]]:
        """List the values of the columns that have each label, the first of several."""
        keys = {text: key for key, text in reversed(self._texts.items())}
        rows = (zip(self.columns, keys[label], strict=True) for label in labels)
        return [{name: value for name, value in row if name} for row in rows]

    @property
    def all(self) -> list[str]:
        """Distinct labels in order."""
        return list(dict.fromkeys(self._texts.values()))

    @property
    def are_time(self) -> bool:
        """Whether all labels are valid days, weeks or months."""
        return self.column in (DAY, WEEK, MONTH) and all(map(_is_day, self.all))

    def select_drawable(self, limit: int) -> list[str]:
        """Select the first labels up to a limit; of times the newest."""
        return self.all[-limit:] if self.are_time else self.all[:limit]

    def axis_names(self) -> tuple[Mapping[str, str], str]:
        """Return the shorter labels for places along an axis, if any, and the axis' title."""
        if not self._variants.axes:
            return {}, title_column(self.column) if self.column else ""
        axes = [title_column(f"axis_{axis}") for axis in self._variants.axes]
        return self._variants.values, " · ".join(axes)

    def build_series(self, limit: int) -> list[FigureSeries]:
        """Build one series per label; a release has the same color in every figure."""
        family_of: dict[str, tuple[Scalar, ...]] = {}
        releases_of: dict[str, str] = {}
        for (*separate_values, value), text in self._texts.items():
            name = str(value or "")
            variant = name if self._variants.names else ""
            family_of.setdefault(
                text, (*separate_values, drop_release_axis(variant) if variant else text)
            )
            release = name if self.column in _RELEASE_COLUMNS else ""
            releases_of.setdefault(text, release or release_of_variant(variant))
        series = style_series(
            [(name, family, releases_of[name]) for name, family in family_of.items()],
            by_release=self.column in _RELEASE_COLUMNS,
        )
        drawable = set(self.select_drawable(limit))
        return [line for line in series if line.name in drawable]


def _sort_keys(
    keys: Iterable[tuple[Scalar, ...]], names: Iterable[str]
) -> list[tuple[Scalar, ...]]:
    """Sort by the columns in turn, the last one in the order of its names if it has any."""
    # Names of variants are ordered so that releases of the same variant are adjacent.
    places = {name: place for place, name in enumerate(names)}

    def rank(key: tuple[Scalar, ...]) -> tuple[Any, ...]:
        *separate_values, value = key
        place = places.get(str(value), len(places))
        return [*map(rank_value, separate_values)], place, rank_value(value)

    return sorted(keys, key=rank)


def group_value_writers(data: FigurePoints, name: str) -> Callable[[Scalar], str]:
    """Return the formatter of the values of a group's column."""
    names = _value_names(data, name)
    return lambda value: names.get(str(value)) or format_value(name, value)


def _value_names(data: FigurePoints, column: str) -> Mapping[str, str]:
    """Map values to labels in order, for columns whose labels differ from their values."""
    return {VARIANT_COLUMN: data.variants.names, CAMPAIGN_COLUMN: data.campaigns}.get(column, {})


def format_value(name: str, value: Scalar) -> str:
    """Format a value of a column; days as ``2026-03-01``."""
    if value in (None, ""):
        return UNKNOWN_NAME
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return _TIME_FORMATS.get(name, str)(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _format_day(number: int) -> str:
    day = day_from_number(number)
    return str(number) if day == date.max else day.isoformat()


#: Column of time -> formatter of its values.
_TIME_FORMATS: Mapping[str, Callable[[int], str]] = {
    DAY: _format_day,
    WEEK: _format_day,
    MONTH: lambda number: f"{number // 100:04}-{number % 100:02}",
}


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


_EXCLUDED_NOTE = (
    "Failed, implausible and unsupported executions are counted in the table, but never averaged; n "
    "counts the good ones with this metric: those in paired mode have no CPU efficiency of jobs."
)


def figure_heading(query: ExploreQuery) -> str:
    """Return the short heading of a figure."""
    subject = head_column(query.metric)
    if query.view == View.RELATIVE:
        subject += " against the same work"
    panels = f", for each {title_column(query.panels)}" if query.panels else ""
    names = [title_column(name) for name in (query.by, query.color) if name]
    return f"{subject} by {' and '.join(names)}{panels}"


def describe_metric(query: ExploreQuery) -> str:
    """Return the meaning of the metric, as a sentence."""
    metric = METRICS_BY_NAME.get(query.metric)
    if metric is None:
        return f"{head_column(query.metric)}, a metric defined by the test."
    better = f" {metric.better.capitalize()} is better." if metric.better else ""
    return f"{metric.meaning}{better}"


def describe_selection(query: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Describe the selected days, conditions, campaigns and kind, and the number of executions."""
    number = sum(point.number for point in points)
    days = "all days"
    if query.first and query.last:
        days = f"{query.first} to {query.last}"
    elif query.first:
        days = f"from {query.first}"
    elif query.last:
        days = f"to {query.last}"
    parts = [
        days,
        *map(_describe_condition, query.conditions),
        *(f"campaign {name}" for name in query.campaign_names),
        f"{query.kind} executions" if query.kind else "executions of all kinds",
        f"n = {number:,}",
    ]
    return "; ".join(parts)


def _describe_condition(where: Condition) -> str:
    if where.column != VARIANT_COLUMN or where.operator not in ("=", "!="):
        return str(where)
    texts = " or ".join(describe_variant(str(value or "")) or "–" for value in where.values)
    return f"variant {texts}" if where.operator == "=" else f"no variant {texts}"


def describe_groups(query: ExploreQuery) -> str:
    """Explain how each group is drawn."""
    return f"{_GROUP_CAPTIONS.get(query.view, _MEANS_CAPTION)} {_EXCLUDED_NOTE}"


def describe_bars(query: ExploreQuery) -> str:
    """Return the short description of points and error bars."""
    return _BAR_CAPTIONS.get(query.view, "means, error bars: RMS of executions")


def explain_empty_figure(query: ExploreQuery, points: Sequence[FigurePoint]) -> str:
    """Explain why a figure with groups has nothing to draw."""
    good = sum(point.good for point in points)
    if not good:
        return "Nothing to draw: no selected execution is good."
    return f"Nothing to draw: no selected good execution recorded {title_column(query.metric)}."


_GROUP_CAPTIONS: Mapping[str, str] = {
    View.HEATMAP: "Each cell is the mean over the executions of a group, colored by its difference from the "
    "median of its row, but by itself in a single column, or where a mean is zero or negative; cells "
    "without good executions are empty.",
    View.RELATIVE: "Each kind of work (test, variant, ROOT release, dataset, protocol) is compared with the "
    "median over all sites of its means in these days, and counts once. Points and works are fitted "
    "together, so another mix of work is no change; points that share no work are not connected. "
    "What the figure itself compares, such as releases, is not part of the work. RMS bars are the "
    "scatter of executions around the mean of their own work.",
}
_MEANS_CAPTION = "Points are means over executions, error bars their RMS around the mean; single executions have no bar."
_BAR_CAPTIONS: Mapping[str, str] = {
    View.HEATMAP: "means of executions",
    View.RELATIVE: "differences from the median of the same work at all sites",
}
