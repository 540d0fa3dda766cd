"""A figure laid out: panels, places, series and their points, for browser and printer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.read.figure_query import DAY, MONTH, WEEK
from treehammer.sql.read.measurement_selection import Scalar
from treehammer.web.display import calendar_days
from treehammer.web.display.variant_labels import VARIANT_COLUMN, VariantLabels, release_of_variant
from treehammer.web.figures.figure_captions import describe_left_out
from treehammer.web.figures.figure_points import CAMPAIGN_COLUMN, FigurePoint, FigurePoints
from treehammer.web.figures.plot_style import MARKERS, PALETTE

#: What one picture can hold and still be read; files of the table have the rest.
MAX_PLACES, MAX_SERIES, MAX_PANELS = 120, 48, 24
#: Along a time axis, where labels need not all be written.
MAX_TIMES = 400
_MARKERS = tuple(MARKERS)
#: What is not known, or the only one there is.
UNKNOWN_NAME = "not known"
_MAX_LABEL_CHARS, _MAX_SERIES_CHARS = 60, 90


@dataclass(frozen=True)
class FigureSeries:
    """What has a colour and a marker of its own."""

    name: str
    colour: str
    marker: str


@dataclass(frozen=True)
class FigureMark:
    """A point: where it stands, its value, the ends of its bar, and its numbers in words.

    ``box`` holds the 5 %, 25 %, 50 %, 75 % and 95 % quantiles of a distribution.
    """

    series: int
    place: int
    y: float
    low: float | None
    high: float | None
    box: tuple[float, ...]
    text: str


@dataclass(frozen=True)
class FigurePanel:
    """A panel and its title, '' where there is only one."""

    title: str
    marks: tuple[FigureMark, ...]


@dataclass(frozen=True)
class FigureLayout:
    """All that is drawn.

    Attributes:
        title: of the whole.
        x_title: what stands along the horizontal axis.
        y_title: what is measured, with its unit.
        dates: whether places are days (ISO), to be drawn as a trend.
        bins: whether places are bins, named by their lower edges, to be drawn as steps.
        log: whether the vertical axis is logarithmic.
        places: along the horizontal axis.
        series: at least one.
        panels: one, or small multiples with the same axes.
        bars: what points and bars are, in a few words.
        shared: what all variants in it have, '' for none.
        caption: what points and bars are in full.
        selection: which executions it is of.
        mixed: what is taken together in its points, '' for nothing.
        left_out: what could not be drawn, '' for nothing.
    """

    title: str
    x_title: str
    y_title: str
    dates: bool
    bins: bool
    log: bool
    places: tuple[str, ...]
    series: tuple[FigureSeries, ...]
    panels: tuple[FigurePanel, ...]
    bars: str
    shared: str
    caption: str
    selection: str
    mixed: str
    left_out: str = ""


@dataclass(frozen=True)
class MarkPosition:
    """Where a mark belongs, by the texts that people read there."""

    panel: str
    place: str
    name: str


class GroupNames:
    """The values of a column as they are written beside each other.

    Args:
        found: the figure.
        points: those of it whose values are named.
        column: '' for none, where everything has the same empty name.
        apart: more columns whose values stand before those of the column.
    """

    def __init__(
        self,
        found: FigurePoints,
        points: Iterable[FigurePoint],
        column: str,
        apart: Sequence[str] = (),
    ) -> None:
        self.column = column
        self._columns = (*apart, column)
        keys = {tuple(point.key.get(name) for name in self._columns) for point in points}
        ordered = sorted(keys, key=lambda key: [*map(_time_rank, key)])
        values = sorted({key[-1] for key in keys}, key=_time_rank)
        text_of = group_value_writers(found, column)
        texts = {value: text_of(value) if column else "" for value in values}
        self._variants = found.variants if column == VARIANT_COLUMN else VariantLabels()
        if names := _value_names(found, column):
            # In the order of the names: the same variant of two releases side by side.
            places = {value: place for place, value in enumerate(names)}
            last = len(places)
            ordered.sort(key=lambda key: places.get(str(key[-1]), last))
            ordered.sort(key=lambda key: [*map(_time_rank, key[:-1])])
        self._texts = {
            key: " · ".join(
                text
                for text in (*map(format_value, apart, key[:-1]), texts[key[-1]])
                if text or not apart
            )
            for key in ordered
        }

    def __getitem__(self, point: FigurePoint) -> str:
        return self._texts[tuple(point.key.get(name) for name in self._columns)]

    @property
    def all(self) -> list[str]:
        """Each name once, in order."""
        return list(dict.fromkeys(self._texts.values()))

    @property
    def are_time(self) -> bool:
        """Whether they are days, weeks or months that a calendar has."""
        return is_time_axis(self.column, self.all)

    def select_drawable(self, most: int) -> list[str]:
        """As many as can be drawn: of times the newest."""
        return self.all[-most:] if self.are_time else self.all[:most]

    def axis_names(self) -> tuple[Mapping[str, str], str]:
        """Shorter names for places along an axis, where there are any, and the axis' title."""
        if not self._variants.axes:
            return {}, self.column
        return self._variants.values, " · ".join(self._variants.axes)

    def build_series(self) -> list[FigureSeries]:
        """A series for each name; of one variant in several releases the colour is the same."""
        kin: dict[str, tuple[Scalar, ...]] = {}
        releases_of: dict[str, str] = {}
        for (*apart, value), text in self._texts.items():
            variant = str(value) if self._variants.names and value else ""
            kin.setdefault(text, (*apart, drop_release_axis(variant) if variant else text))
            releases_of.setdefault(text, release_of_variant(variant))
        families = list(dict.fromkeys(kin.values()))
        releases = sorted(set(releases_of.values()), key=natural_sort_key)
        found = [
            _plain_series(name, place)
            if len(releases) < 2
            else _release_series(
                name,
                families.index(kin[name]),
                releases.index(releases_of[name]),
                len(releases),
            )
            for place, name in enumerate(kin)
        ]
        kept = set(self.select_drawable(MAX_SERIES))
        return [one for one in found if one.name in kept]


def _time_rank(value: Scalar) -> tuple[Any, ...]:
    return (2,) if value is None else natural_sort_key(value)


#: Makes a mark when it is known which series and place it has; there may be more than are shown.
MarkFactory = Callable[[int, int], FigureMark]


def lay_out_figure(
    empty: FigureLayout,
    found: Iterable[tuple[MarkPosition, MarkFactory]],
    short: Mapping[str, str] | None = None,
) -> FigureLayout:
    """Put marks where they belong.

    Args:
        empty: with the panels, places and series that it can hold, in their order.
        found: where marks belong, and what makes them.
        short: names of places that are written otherwise.
    """
    panels: dict[str, list[FigureMark]] = {one.title: [] for one in empty.panels}
    names = {one.name: number for number, one in enumerate(empty.series)}
    numbers = {place: number for number, place in enumerate(empty.places)}
    count = 0
    for spot, mark in found:
        count += 1
        if spot.panel in panels and spot.place in numbers and spot.name in names:
            panels[spot.panel].append(mark(names[spot.name], numbers[spot.place]))
    left = count - sum(map(len, panels.values()))
    most = (MAX_TIMES if empty.dates else MAX_PLACES, MAX_SERIES, MAX_PANELS)
    return replace(
        empty,
        places=tuple(shorten_label((short or {}).get(place, place)) for place in empty.places),
        series=tuple(
            replace(one, name=shorten_label(one.name, _MAX_SERIES_CHARS)) for one in empty.series
        ),
        panels=tuple(
            FigurePanel(shorten_label(title), tuple(marks)) for title, marks in panels.items()
        ),
        left_out=describe_left_out(left, count, most, newest=empty.dates) if left else "",
    )


def group_value_writers(found: FigurePoints, name: str) -> Callable[[Scalar], str]:
    """How values of a group's column are written for people."""
    names = _value_names(found, name)
    return lambda value: names.get(str(value)) or format_value(name, value)


def _value_names(found: FigurePoints, column: str) -> Mapping[str, str]:
    """Value of a column -> what it is called, in order, where that is not the value itself."""
    return {VARIANT_COLUMN: found.variants.names, CAMPAIGN_COLUMN: found.campaigns}.get(column, {})


def format_value(name: str, value: Scalar) -> str:
    """A value of a column for people; days as ``2026-03-01``."""
    if value is None or value == "":
        return UNKNOWN_NAME
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in (DAY, WEEK) and isinstance(value, int):
        day = calendar_days.day_from_number(value)
        return str(value) if day == date.max else day.isoformat()
    if name == MONTH and isinstance(value, int):
        return f"{value // 100:04}-{value % 100:02}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_time_axis(column: str, places: Sequence[str]) -> bool:
    """Whether places are days, weeks or months that a calendar has."""
    return column in (DAY, WEEK, MONTH) and all(map(_is_day, places))


def _plain_series(name: str, place: int) -> FigureSeries:
    # Neighbours differ in both, and 24 pass before any pair comes again.
    marker = (place + place // 24) % len(_MARKERS)
    return FigureSeries(name, PALETTE[place % len(PALETTE)], _MARKERS[marker])


def _release_series(name: str, family: int, release: int, releases: int) -> FigureSeries:
    marker = (release + releases * (family // len(PALETTE))) % len(_MARKERS)
    return FigureSeries(name, PALETTE[family % len(PALETTE)], _MARKERS[marker])


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


def shorten_label(text: str, longest: int = _MAX_LABEL_CHARS) -> str:
    """No longer than an axis can bear, and nothing that is no character."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= longest else f"{clean[: longest - 1]}…"
