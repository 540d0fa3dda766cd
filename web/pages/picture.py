"""A figure laid out: panels, places, series and their points, for browser and printer alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from treehammer.analysis.samples import natural_order
from treehammer.collectors.metrics import BY_NAME
from treehammer.sql.figures import DAY, MONTH, WEEK
from treehammer.sql.selection import Scalar
from treehammer.web.pages import days
from treehammer.web.pages.asked import DISTRIBUTION, INTERVAL, NO_BARS, RMS, Asked
from treehammer.web.pages.points import Point

#: What one picture can hold and still be read; the table has the rest.
MOST_PLACES, MOST_SERIES, MOST_PANELS = 120, 48, 24
#: Okabe and Ito's colours without black, and with a darker yellow.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#a89a00",
    "#8c8c8c",
)
#: What Plotly calls them.
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
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
        log: whether the vertical axis is logarithmic.
        places: along the horizontal axis.
        series: at least one.
        panels: one, or small multiples with the same axes.
        bars: what points and bars are, in a few words.
        caption: the same in full, and what was left out.
    """

    title: str
    x_title: str
    y_title: str
    dates: bool
    log: bool
    places: tuple[str, ...]
    series: tuple[Series, ...]
    panels: tuple[Panel, ...]
    bars: str
    caption: str


def picture(asked: Asked, points: Sequence[Point], title: str = "") -> Picture | None:
    """Lay out the points; None when there is nothing to draw."""
    drawn = [p for p in points if p.mean is not None and (asked.scale != "log" or p.mean > 0)]
    if not drawn:
        return None
    places, names, panels = (
        _texts(asked, drawn, name) for name in (asked.by, asked.colour, asked.panels)
    )
    shown_places = [*dict.fromkeys(places.values())][:MOST_PLACES]
    shown_names = [*dict.fromkeys(names.values())][:MOST_SERIES]
    shown_panels = [*dict.fromkeys(panels.values())][:MOST_PANELS]
    marks: dict[str, list[Mark]] = {name: [] for name in shown_panels}
    for point in drawn:
        place = places[point.key.get(asked.by)]
        name = names[point.key.get(asked.colour)]
        panel = panels[point.key.get(asked.panels)]
        if place in shown_places and name in shown_names and panel in shown_panels:
            mark = _mark(asked, point, shown_names.index(name), shown_places.index(place))
            marks[panel].append(mark)
    left = len(drawn) - sum(map(len, marks.values()))
    return Picture(
        title=title or heading(asked),
        x_title=asked.by,
        y_title=_unit_of(asked),
        dates=asked.by in (DAY, WEEK, MONTH) and all(map(_is_day, shown_places)),
        log=asked.scale == "log",
        places=tuple(map(shortened, shown_places)),
        series=tuple(_series(name, place) for place, name in enumerate(shown_names)),
        panels=tuple(Panel(shortened(name), tuple(found)) for name, found in marks.items()),
        bars=_bars(asked),
        caption=caption(asked, left, len(drawn)),
    )


def heading(asked: Asked) -> str:
    """The figure in words."""
    beside = [name for name in (asked.colour,) if name]
    each = f", for each {asked.panels}" if asked.panels else ""
    return f"{asked.metric} by {' and '.join([asked.by, *beside])}{each}"


def caption(asked: Asked, left: int, of: int) -> str:
    """What is drawn, of what, and what was left out."""
    metric = BY_NAME.get(asked.metric)
    what = (
        f"{asked.metric}: {metric.meaning}" if metric else f"{asked.metric}, which a test defines."
    )
    said = [what, _drawn(asked)]
    said.append("Failed and implausible executions are counted in the table and never averaged.")
    if left:
        said.append(
            f"The figure shows {of - left} of {of} groups: at most {MOST_PLACES} places, "
            f"{MOST_SERIES} series and {MOST_PANELS} panels; the table has all."
        )
    if asked.scale == "log":
        said.append("Means of zero and below have no place on a logarithmic axis.")
    return " ".join(said)


def _drawn(asked: Asked) -> str:
    if asked.view == DISTRIBUTION:
        return (
            "Boxes hold the middle half of the executions around their median, whiskers end at the "
            "5 % and 95 % quantiles."
        )
    return {
        RMS: "Points are means over executions, error bars their RMS around the mean; a single "
        "one has no bar.",
        INTERVAL: "Points are means over jobs of each job's mean, error bars the 95 % t interval of "
        "that mean; one job alone has no bar.",
        NO_BARS: "Points are means over executions.",
    }[asked.bars]


def _bars(asked: Asked) -> str:
    if asked.view == DISTRIBUTION:
        return "medians, quartiles, 5 % and 95 % quantiles of executions"
    return {
        RMS: "means, error bars: RMS of executions",
        INTERVAL: "means over jobs, error bars: 95 % interval of the mean",
        NO_BARS: "means of executions",
    }[asked.bars]


def _mark(asked: Asked, point: Point, series: int, place: int) -> Mark:
    mean = point.mean or 0.0
    low = high = None
    if asked.view != DISTRIBUTION and asked.bars == INTERVAL:
        low, high = point.low, point.high
    elif asked.view != DISTRIBUTION and asked.bars == RMS and point.number > 1:
        assert point.rms is not None
        low, high = mean - point.rms, mean + point.rms
    names = [f"{name}: {written(point, name)}" for name in asked.groups]
    y = point.quantiles[2] if point.quantiles else mean
    bar = f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else ""
    n = f"{point.jobs} jobs" if point.jobs is not None else f"n = {point.number}"
    what = "median" if point.quantiles else "mean"
    text = "\n".join([*names, f"{what} {y:.4g}{bar}, {n}"])
    return Mark(series, place, y, low, high, point.quantiles, text)


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


def _texts(asked: Asked, points: Sequence[Point], name: str) -> dict[Scalar, str]:
    """The values of a column as they are written, in their own order.

    Of variants what all have in common is left out, and the release where another column tells it.
    """
    if not name:
        return {None: ""}
    values = {point.key[name] for point in points}
    ordered = sorted(values, key=lambda value: (2,) if value is None else natural_order(value))
    texts = {value: value_text(name, value) for value in ordered}
    if name != "variant_label" or len(texts) < 2:
        return texts
    words = {value: text.split() for value, text in texts.items()}
    told = "axis_root" in asked.groups
    common = set.intersection(*map(set, words.values()))
    return {
        value: " ".join(
            word for word in found if word not in common and not (told and word.startswith("root="))
        )
        or texts[value]
        for value, found in words.items()
    }


def _series(name: str, place: int) -> Series:
    # Neighbours differ in both, and 24 pass before any pair comes again.
    marker = (place + place // 24) % len(MARKERS)
    return Series(shortened(name), COLOURS[place % len(COLOURS)], MARKERS[marker])


def _unit_of(asked: Asked) -> str:
    metric = BY_NAME.get(asked.metric)
    unit = metric.unit if metric else ""
    return f"{asked.metric} ({unit})" if unit not in ("", "1") else asked.metric


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
