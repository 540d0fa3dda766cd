"""Layout and style of figures, common to the browser and to files: panels, places, series, colors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.read.query_model import DAY, MONTH, WEEK, Scalar
from treehammer.web.display_formats import day_from_number
from treehammer.web.figures.figure_captions import describe_left_out
from treehammer.web.figures.figure_points import (
    CAMPAIGN_COLUMN,
    FigurePoint,
    FigurePoints,
    rank_value,
)
from treehammer.web.labels import VARIANT_COLUMN, VariantLabels, release_of_variant, title_column

#: Okabe and Ito's colors, distinguishable for color-blind readers, without black and with a darker
#: yellow, so that all are visible on white and on near-black.
PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#a89a00",
    "#8c8c8c",
)
#: Markers by their names in Vega.
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
#: Line styles of lines without markers, as lengths of dashes and gaps.
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (9, 4), (3, 3), (8, 3, 2, 3))
#: Colors of texts and of grid lines; pages replace them by their own.
INK_COLOR, GRID_COLOR = "#1d2329", "#d9dee3"

#: Configuration of Vega-Lite for all charts.
THEME: Mapping[str, Any] = {
    "background": "#ffffff",
    "font": "DejaVu Sans, sans-serif",
    # Pages describe charts themselves; a description for each mark would take long.
    "mark": {"aria": False},
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "domainColor": INK_COLOR,
        "tickColor": INK_COLOR,
        "gridColor": GRID_COLOR,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 320,
    },
    "legend": {
        "aria": False,
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "labelFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 0,
        "titleLimit": 0,
    },
    "header": {
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "labelAnchor": "start",
        "labelFontSize": 12,
        "labelFontWeight": "bold",
    },
    "title": {
        "aria": False,
        "color": INK_COLOR,
        "subtitleColor": INK_COLOR,
        "anchor": "start",
        "fontSize": 14,
        "subtitleFontSize": 11,
    },
    "point": {"size": 40},
}

_VERSION = re.compile(r"\d+[./-](\d+)[./-](\d+)$")
#: Limits that keep a figure readable; exported tables have no limits.
MAX_PLACES, MAX_SERIES, MAX_PANELS = 120, 48, 24
#: Maximum series of a heat map, which are its rows.
MAX_ROWS = 120
#: Maximum places along a time axis, where not all labels need to be drawn.
MAX_TIMES = 400
#: Kinds of drawings.
POINTS, BOXES, STEPS, HEAT_MAP, DOTS = "points", "boxes", "steps", "heat map", "dots"
QUANTILES = "quantiles"
#: Kinds whose places lie below each other.
UPRIGHT = (DOTS, QUANTILES)
#: Scales of the axis of values: fitted to the data, from zero, logarithmic.
LINEAR, ZERO, LOG = "linear", "zero", "log"
#: Columns whose values are releases.
_RELEASE_COLUMNS = ("axis_root", "root_version")
#: Label of missing values.
UNKNOWN_NAME = "not known"
_MAX_LABEL_CHARS, _MAX_SERIES_CHARS = 60, 90
#: Values of columns by panel, place and series.
GroupKeys = tuple[Sequence[Mapping[str, Scalar]], ...]


def choose_release_colors(releases: Iterable[str]) -> dict[str, str]:
    """Choose a color for each release, the same in every figure.

    Only if two releases of a figure have the same color, the later one takes the next free color.
    """
    chosen: dict[str, str] = {}
    for release in sorted({*releases}, key=natural_sort_key):
        slot = _color_slot(release)
        slots = [(slot + step) % len(PALETTE) for step in range(len(PALETTE))]
        free = [PALETTE[index] for index in slots if PALETTE[index] not in chosen.values()]
        chosen[release] = free[0] if free else PALETTE[slot]
    return chosen


def _color_slot(release: str) -> int:
    """Choose a place in the palette; neighboring releases and patches have different ones."""
    version = _VERSION.search(release)
    if version is None:
        return zlib.crc32(release.encode()) % len(PALETTE)
    minor, patch = map(int, version.groups())
    return (minor // 2 + 3 * (patch // 2)) % len(PALETTE)


@dataclass(frozen=True)
class FigureSeries:
    """A series with its own color and marker; quiet ones are like most others and have no legend."""

    name: str
    color: str
    marker: str
    is_quiet: bool = False


@dataclass(frozen=True)
class FigureMark:
    """A point with its value, error bar and number of executions or jobs.

    ``box`` holds the 5 %, 25 %, 50 %, 75 % and 95 % quantiles of a distribution, ``middle`` a value
    between the ends of the bar.
    """

    series: int
    place: int
    y: float
    low: float | None
    high: float | None
    box: tuple[float, ...] = ()
    count: int | None = None
    middle: float | None = None

    @property
    def lowest(self) -> float:
        """Lower end of the drawn range."""
        return self.box[0] if self.box else self.y if self.low is None else self.low

    @property
    def highest(self) -> float:
        """Upper end of the drawn range."""
        return self.box[-1] if self.box else self.y if self.high is None else self.high


@dataclass(frozen=True)
class FigurePanel:
    """A panel and its title, '' if it is the only one."""

    title: str
    marks: tuple[FigureMark, ...]


@dataclass(frozen=True)
class FigureLayout:
    """A complete figure, from which :mod:`treehammer.web.figures.figure_chart` builds the chart.

    Attributes:
        kind: one of the kinds of drawings.
        x_title: title of the horizontal axis.
        y_title: metric and unit.
        groups: columns of panels, places and series, '' for none.
        scale: scale of the axis of values.
        places: labels along the horizontal axis.
        series: at least one.
        panels: one, or small multiples with common axes.
        title: title of the figure.
        counted: things that the marks count.
        dates: places are ISO dates, drawn as a trend.
        bars: short description of points and bars.
        shared: axes that all variants have in common, '' for none.
        caption: full description of points and bars.
        selection: description of the selected executions.
        aggregated: note on values aggregated in points, '' for none.
        keys: values of columns that select the executions of each panel, place and series.
        left_out: note on marks that could not be drawn, '' for none.
        joined: draw lines through the points of a trend.
        better: ``higher`` or ``lower`` values are better, '' if unknown.
        whole: values are counts.
        outliers: sentence on the lines that are named, '' if all are.
    """

    kind: str
    x_title: str
    y_title: str
    groups: tuple[str, str, str]
    scale: str
    places: tuple[str, ...]
    series: tuple[FigureSeries, ...]
    panels: tuple[FigurePanel, ...]
    title: str = ""
    counted: str = "executions"
    dates: bool = False
    bars: str = ""
    shared: str = ""
    caption: str = ""
    selection: str = ""
    aggregated: str = ""
    keys: GroupKeys = ((), (), ())
    left_out: str = ""
    joined: bool = True
    better: str = ""
    whole: bool = False
    outliers: str = ""

    @property
    def has_panels(self) -> bool:
        """Whether there are several panels."""
        return len(self.panels) > 1

    @property
    def marks(self) -> list[FigureMark]:
        """Marks of all panels."""
        return [mark for panel in self.panels for mark in panel.marks]

    @property
    def bins(self) -> bool:
        """Whether places are bins labeled by their lower edges."""
        return self.kind == STEPS


class MarkPosition(NamedTuple):
    """Panel, place and series of a mark, by their labels."""

    panel: str
    place: str
    name: str


class GroupNames:
    """Labels of a column's values.

    Args:
        data: the figure's points.
        points: the points whose values are labeled.
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

    def _list_keys(self, points: Sequence[FigurePoint]) -> Iterator[tuple[Scalar, ...]]:
        # By columns, because a figure has thousands of points.
        return zip(
            *([point.key.get(name) for point in points] for name in self.columns), strict=True
        )

    def label_points(self, points: Sequence[FigurePoint]) -> list[str]:
        """Label points."""
        return [*map(self._texts.__getitem__, self._list_keys(points))]

    def __getitem__(self, point: FigurePoint) -> str:
        return self.label_points([point])[0]

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
        return is_time_axis(self.column, self.all)

    def select_drawable(self, limit: int) -> list[str]:
        """Select the first labels up to a limit; of times the newest."""
        return self.all[-limit:] if self.are_time else self.all[:limit]

    def axis_names(self) -> tuple[Mapping[str, str], str]:
        """Return the shorter labels for places along an axis, if any, and the axis' title."""
        if not self._variants.axes:
            return {}, title_column(self.column) if self.column else ""
        axes = [title_column(f"axis_{axis}") for axis in self._variants.axes]
        return self._variants.values, " · ".join(axes)

    def build_series(self, limit: int = MAX_SERIES) -> list[FigureSeries]:
        """Build one series per label; a release has the same color in every figure."""
        family_of: dict[str, tuple[Scalar, ...]] = {}
        releases_of: dict[str, str] = {}
        for (*separate_values, value), text in self._texts.items():
            variant = str(value) if self._variants.names and value else ""
            family_of.setdefault(
                text, (*separate_values, drop_release_axis(variant) if variant else text)
            )
            release = str(value) if self.column in _RELEASE_COLUMNS and value else ""
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


def max_series(kind: str) -> int:
    """Return the maximum number of series of a kind of drawing."""
    return MAX_ROWS if kind == HEAT_MAP else MAX_SERIES


#: Builds a mark from the numbers of its series and place; called for drawable marks only.
MarkFactory = Callable[[int, int], FigureMark]


def lay_out_figure(
    empty: FigureLayout,
    marks: Iterable[tuple[MarkPosition, MarkFactory]],
    short: Mapping[str, str] | None = None,
) -> FigureLayout:
    """Place marks in their panels.

    Args:
        empty: a layout with the panels, places and series that can be drawn.
        marks: position and factory of each mark.
        short: shorter labels of places.
    """
    marks = list(marks)
    panels = _place_marks(empty, marks)
    left_out = len(marks) - sum(map(len, panels.values()))
    limits = (
        MAX_TIMES if empty.dates else MAX_PLACES,
        max_series(empty.kind),
        MAX_PANELS,
    )
    return replace(
        empty,
        places=tuple(shorten_label((short or {}).get(place, place)) for place in empty.places),
        series=tuple(
            replace(line, name=shorten_label(line.name, _MAX_SERIES_CHARS)) for line in empty.series
        ),
        panels=tuple(
            FigurePanel(shorten_label(title), tuple(panel_marks))
            for title, panel_marks in panels.items()
        ),
        left_out=describe_left_out(left_out, len(marks), limits, newest=empty.dates)
        if left_out
        else "",
    )


def _place_marks(
    empty: FigureLayout, marks: Iterable[tuple[MarkPosition, MarkFactory]]
) -> dict[str, list[FigureMark]]:
    """Place the marks that can be drawn, by panel."""
    panels: dict[str, list[FigureMark]] = {panel.title: [] for panel in empty.panels}
    names = {line.name: number for number, line in enumerate(empty.series)}
    numbers = {place: number for number, place in enumerate(empty.places)}
    for position, make_mark in marks:
        if position.panel in panels and position.place in numbers and position.name in names:
            panels[position.panel].append(make_mark(names[position.name], numbers[position.place]))
    return panels


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


def _format_month(number: int) -> str:
    return f"{number // 100:04}-{number % 100:02}"


#: Column of time -> formatter of its values.
_TIME_FORMATS: Mapping[str, Callable[[int], str]] = {
    DAY: _format_day,
    WEEK: _format_day,
    MONTH: _format_month,
}


def is_time_axis(column: str, places: Sequence[str]) -> bool:
    """Return whether places are valid days, weeks or months."""
    return column in (DAY, WEEK, MONTH) and all(map(_is_day, places))


def style_series(
    series: Sequence[tuple[str, Hashable, str]], *, by_release: bool = False
) -> list[FigureSeries]:
    """Choose color and marker of series: the color of their release, the marker of their work.

    Args:
        series: name, work and release of each.
        by_release: use the color of a release even if there is only one.
    """
    works = {work: place for place, work in enumerate(dict.fromkeys(work for _, work, _ in series))}
    colors = choose_release_colors(release for _, _, release in series if release)
    if len(colors) < 2 and not by_release:
        colors = {}
    return [
        FigureSeries(name, colors[release], MARKERS[works[work] % len(MARKERS)])
        if release in colors
        else _plain_series(name, place)
        for place, (name, work, release) in enumerate(series)
    ]


def _plain_series(name: str, place: int) -> FigureSeries:
    # Neighbours differ in both, and combinations repeat after 24 series.
    marker = (place + place // 24) % len(MARKERS)
    return FigureSeries(name, PALETTE[place % len(PALETTE)], MARKERS[marker])


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


def shorten_label(text: str, longest: int = _MAX_LABEL_CHARS) -> str:
    """Truncate a label and replace unprintable characters."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"
