"""Layout and style of figures, common to the browser and to files: panels, places, series, colors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.sql.read.query_model import Scalar

#: Okabe and Ito's colors, distinguishable for color-blind readers, without black and with a darker
#: yellow, so that all are visible on white and on near-black.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#a89a00", "#8c8c8c")
#: Markers by their names in Vega.
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
#: Line styles of lines without markers, as lengths of dashes and gaps.
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (9, 4), (3, 3), (8, 3, 2, 3))
#: Colors of texts and of grid lines; pages replace them by their own.
INK_COLOR, GRID_COLOR = "#1d2329", "#d9dee3"
#: Colors of numbers on light cells and of cells without a difference; pages replace them together.
NUMBER_COLOR, EQUAL_COLOR = "#1d2328", "#d9dee2"

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
    # Labels that would touch are left out.
    "axisX": {"labelSeparation": 8},
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


class Kind(StrEnum):
    """Kind of drawing."""

    POINTS = "points"
    STEPS = "steps"
    HEAT_MAP = "heat map"
    #: Points joined by lines, at places in order.
    CURVES = "curves"


class Scale(StrEnum):
    """Axis of values: fitted to the data, from zero, logarithmic."""

    LINEAR = "linear"
    ZERO = "zero"
    LOG = "log"


_MAX_LABEL_CHARS = 60
#: Values of columns by panel, place and series.
GroupKeys = tuple[Sequence[Mapping[str, Scalar]], ...]


def choose_release_colors(
    releases: Iterable[str], reserved: Collection[str] = ()
) -> dict[str, str]:
    """Choose a color for each release, the same in every figure.

    Only if two releases of a figure have the same color, or it is reserved for something else, the
    later one takes the next free color.
    """
    colors: dict[str, str] = {}
    for release in sorted({*releases}, key=natural_sort_key):
        slot = _color_slot(release)
        slots = [(slot + step) % len(PALETTE) for step in range(len(PALETTE))]
        used = {*colors.values(), *reserved}
        free = [PALETTE[index] for index in slots if PALETTE[index] not in used]
        colors[release] = free[0] if free else PALETTE[slot]
    return colors


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
    """A point with its value, error bar and number of executions or jobs."""

    series: int
    place: int
    y: float
    low: float | None
    high: float | None
    count: int | None = None

    @property
    def lowest(self) -> float:
        """Lower end of the drawn range."""
        return self.y if self.low is None else self.low

    @property
    def highest(self) -> float:
        """Upper end of the drawn range."""
        return self.y if self.high is None else self.high


@dataclass(frozen=True)
class FigurePanel:
    """A panel and its title, '' if it is the only one."""

    title: str
    marks: tuple[FigureMark, ...]


@dataclass(frozen=True)
class FigureLayout:
    """A complete figure, from which :mod:`treehammer.web.figures.figure_chart` builds the chart.

    Attributes:
        y_title: metric and unit.
        groups: columns of panels, places and series, '' for none.
        panels: one, or small multiples with common axes.
        counted: things that the marks count.
        dates: places are ISO dates, drawn as a trend.
        bars: short description of points and bars.
        shared: axes that all variants have in common, '' for none.
        caption: full description of points and bars.
        aggregated: note on values aggregated in points, '' for none.
        keys: values of columns that select the executions of each panel, place and series.
        left_out: note on marks that could not be drawn, '' for none.
        better: ``higher`` or ``lower`` values are better, '' if unknown.
        whole: values are counts.
        outliers: sentence on the lines that are named, '' if all are.
        limit: ratio that divides good cells of a heat map from bad ones, whose numbers are written;
            None to color them by the difference from their row's median.
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
    count_title: str = "executions"
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
    limit: float | None = None

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
        return self.kind == Kind.STEPS


def style_series(
    series: Sequence[tuple[str, Hashable, str]],
    *,
    by_release: bool = False,
    reserved: Collection[str] = (),
) -> list[FigureSeries]:
    """Choose color and marker of series: the color of their release, the marker of their work.

    Args:
        series: name, work and release of each.
        by_release: use the color of a release even if there is only one.
        reserved: colors of other things in the figure.
    """
    works = {work: place for place, work in enumerate(dict.fromkeys(work for _, work, _ in series))}
    colors = choose_release_colors((release for _, _, release in series if release), reserved)
    if len(colors) < 2 and not by_release:
        colors = {}
    return [
        FigureSeries(name, colors[release], MARKERS[works[work] % len(MARKERS)])
        if release in colors
        # Neighbors differ in both, and combinations repeat after 24 series.
        else FigureSeries(
            name, PALETTE[place % len(PALETTE)], MARKERS[(place + place // 24) % len(MARKERS)]
        )
        for place, (name, work, release) in enumerate(series)
    ]


def shorten_label(text: str, longest: int = _MAX_LABEL_CHARS) -> str:
    """Truncate a label and replace unprintable characters."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"
