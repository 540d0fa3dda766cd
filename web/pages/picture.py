"""A figure laid out: panels, places, series and their points, for browser and printer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from treehammer.analysis.samples import natural_order
from treehammer.sql.figures import DAY, MONTH, WEEK
from treehammer.sql.selection import Scalar
from treehammer.web.looks import MARKERS, PALETTE
from treehammer.web.pages import days
from treehammer.web.pages.asked import Asked
from treehammer.web.pages.captions import left_out
from treehammer.web.pages.points import Point
from treehammer.web.pages.variants import VARIANT, Variants, release_of, told_apart, without_release

#: What one picture can hold and still be read; the table has the rest.
MOST_PLACES, MOST_SERIES, MOST_PANELS = 120, 48, 24
_MARKERS = tuple(MARKERS)
#: What is not known, or the only one there is.
NOTHING = "not known"
_LONGEST = 60


@dataclass(frozen=True)
class Series:
    """What has a colour and a marker of its own."""

    name: str
    colour: str
    marker: str


@dataclass(frozen=True)
class Mark:
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
class Panel:
    """A panel and its title, '' where there is only one."""

    title: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Picture:
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
        caption: what points and bars are in full, and what was left out.
    """

    title: str
    x_title: str
    y_title: str
    dates: bool
    bins: bool
    log: bool
    places: tuple[str, ...]
    series: tuple[Series, ...]
    panels: tuple[Panel, ...]
    bars: str
    shared: str
    caption: str


@dataclass(frozen=True)
class Spot:
    """Where a mark belongs, by the texts that people read there."""

    panel: str
    place: str
    name: str


class Names:
    """The values of a column as they are written beside each other.

    Args:
        asked: the figure.
        points: whose values are named.
        column: '' for none, where everything has the same empty name.
    """

    def __init__(self, asked: Asked, points: Iterable[Point], column: str) -> None:
        self.column = column
        found = {point.key[column] for point in points} if column else {None}
        ordered = sorted(found, key=lambda value: (2,) if value is None else natural_order(value))
        self._texts = {value: value_text(column, value) if column else "" for value in ordered}
        self.variants: Variants | None = None
        labels = [value for value in ordered if isinstance(value, str) and value]
        if column == VARIANT and len(labels) > 1:
            self.variants = told_apart(labels, release_told="axis_root" in asked.groups)
            others = {value: text for value, text in self._texts.items() if value not in labels}
            self._texts = {**dict(self.variants.names.items()), **others}

    def __getitem__(self, point: Point) -> str:
        return self._texts[point.key.get(self.column)]

    @property
    def all(self) -> list[str]:
        """Each name once, in order."""
        return list(dict.fromkeys(self._texts.values()))

    def along(self) -> tuple[Mapping[str, str], str]:
        """Shorter names for places along an axis, where there are any, and the axis' title."""
        if not self.variants or not self.variants.axes:
            return {}, self.column
        short = {name: self.variants.values(name) for name in self.variants.names.values()}
        return short, " · ".join(self.variants.axes)

    def series(self) -> list[Series]:
        """A series for each name; of one variant in several releases the colour is the same."""
        kin: dict[str, tuple[str, str]] = {}
        for value, text in self._texts.items():
            label = str(value) if self.variants and text != NOTHING else ""
            kin.setdefault(text, (without_release(label) if label else text, release_of(label)))
        families = list(dict.fromkeys(family for family, _ in kin.values()))
        releases = sorted({release for _, release in kin.values()}, key=natural_order)
        if len(releases) < 2:
            return [_series(name, place) for place, name in enumerate(self.all)]
        return [
            _kindred(name, families.index(family), releases.index(release), len(releases))
            for name, (family, release) in kin.items()
        ]


#: Makes a mark when it is known which series and place it has; there may be more than are shown.
Marking = Callable[[int, int], Mark]


def laid_out(
    empty: Picture, found: Sequence[tuple[Spot, Marking]], short: Mapping[str, str] | None = None
) -> Picture:
    """Put marks where they belong, as many as one picture can hold.

    Args:
        empty: with all panels, places and series in their order.
        found: where marks belong, and what makes them.
        short: names of places that are written otherwise.
    """
    places = list(empty.places)[:MOST_PLACES]
    series = list(empty.series)[:MOST_SERIES]
    panels: dict[str, list[Mark]] = {one.title: [] for one in empty.panels[:MOST_PANELS]}
    names = {one.name: number for number, one in enumerate(series)}
    numbers = {place: number for number, place in enumerate(places)}
    for spot, mark in found:
        if spot.panel in panels and spot.place in numbers and spot.name in names:
            panels[spot.panel].append(mark(names[spot.name], numbers[spot.place]))
    left = len(found) - sum(map(len, panels.values()))
    most = (MOST_PLACES, MOST_SERIES, MOST_PANELS)
    return replace(
        empty,
        places=tuple(shortened((short or {}).get(place, place)) for place in places),
        series=tuple(replace(one, name=shortened(one.name)) for one in series),
        panels=tuple(Panel(shortened(title), tuple(marks)) for title, marks in panels.items()),
        caption=empty.caption + (left_out(left, len(found), most) if left else ""),
    )


def written(point: Point, name: str) -> str:
    """A value of a group's column for people."""
    return value_text(name, point.key[name]) if name else ""


def value_text(name: str, value: Scalar) -> str:
    """A value of a column for people; days as ``2026-03-01``."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in (DAY, WEEK) and isinstance(value, int):
        day = days.of_number(value)
        return str(value) if day == date.max else day.isoformat()
    if name == MONTH and isinstance(value, int):
        return f"{value // 100:04}-{value % 100:02}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_time(column: str, places: Sequence[str]) -> bool:
    """Whether places are days, weeks or months that a calendar has."""
    return column in (DAY, WEEK, MONTH) and all(map(_is_day, places))


def _series(name: str, place: int) -> Series:
    # Neighbours differ in both, and 24 pass before any pair comes again.
    marker = (place + place // 24) % len(_MARKERS)
    return Series(name, PALETTE[place % len(PALETTE)], _MARKERS[marker])


def _kindred(name: str, family: int, release: int, releases: int) -> Series:
    marker = (release + releases * (family // len(PALETTE))) % len(_MARKERS)
    return Series(name, PALETTE[family % len(PALETTE)], _MARKERS[marker])


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return False
    return True


def shortened(text: str) -> str:
    """No longer than an axis can bear, and nothing that is no character."""
    clean = "".join(c if c.isprintable() else "�" for c in text)
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"
