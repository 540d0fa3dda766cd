"""Means with their bars, and distributions: the figure and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from treehammer.collectors.metrics import BY_NAME
from treehammer.sql.figures import TIMES
from treehammer.sql.selection import Scalar
from treehammer.web.pages import captions
from treehammer.web.pages.asked import DISTRIBUTION, INTERVAL, RMS, Asked
from treehammer.web.pages.columns import number_columns
from treehammer.web.pages.links import Links
from treehammer.web.pages.mixes import Mix
from treehammer.web.pages.picture import (
    MOST_PANELS,
    MOST_PLACES,
    MOST_TIMES,
    Mark,
    Names,
    Panel,
    Picture,
    Spot,
    laid_out,
    written,
)
from treehammer.web.pages.points import QUANTILES, Point, Points
from treehammer.web.pages.tables import Column, Row, Table
from treehammer.web.pages.units import Unit, aligned, fitting
from treehammer.web.pages.variants import VARIANT

#: Column -> how its values are written.
Texts = Mapping[str, Callable[[Scalar], str]]

_QUANTILES = tuple(f"p{100 * share:g}" for share in QUANTILES)


def picture(asked: Asked, found: Points, title: str) -> Picture | None:
    """Lay out the points; None when there is nothing to draw."""
    drawn = [p for p in found.points if p.mean is not None and (asked.scale != "log" or p.mean > 0)]
    if not drawn:
        return None
    unit = unit_of(asked, drawn)
    places, panels = (Names(found, drawn, column) for column in (asked.by, asked.panels))
    names = Names(found, drawn, asked.colour, asked.apart)
    texts = {name: written(found, name) for name in asked.groups}
    short, x_title = places.along()
    empty = Picture(
        title=title,
        x_title=x_title,
        y_title=captions.y_title(asked, unit),
        dates=places.are_time,
        bins=False,
        log=asked.scale == "log",
        places=tuple(places.kept(MOST_TIMES if places.are_time else MOST_PLACES)),
        series=tuple(names.series()),
        panels=tuple(Panel(name, ()) for name in panels.kept(MOST_PANELS)),
        bars=captions.bars(asked),
        shared=found.variants.shared,
        caption=captions.caption(asked),
        selection=captions.selection(asked, found.points),
        mixed=found.mix.words(asked.groups),
    )
    marks = [
        (
            Spot(panels[point], places[point], names[point]),
            partial(_mark, asked, point, unit, texts),
        )
        for point in drawn
    ]
    return laid_out(empty, marks, short)


def unit_of(asked: Asked, points: Iterable[Point]) -> Unit:
    """The unit in which people read the figure."""
    metric = BY_NAME.get(asked.metric)
    return fitting(metric.unit if metric else "1", (point.mean for point in points))


def _mark(asked: Asked, point: Point, unit: Unit, texts: Texts, series: int, place: int) -> Mark:
    mean = point.mean or 0.0
    low = high = None
    if asked.view != DISTRIBUTION and asked.bars == INTERVAL:
        low, high = point.low, point.high
    elif asked.view != DISTRIBUTION and asked.bars == RMS and point.number > 1:
        assert point.rms is not None
        low, high = mean - point.rms, mean + point.rms
    low, high = (None if end is None else unit.of(end) for end in (low, high))
    box = tuple(unit.of(value) for value in point.quantiles)
    names = [f"{name}: {texts[name](point.key[name])}" for name in asked.groups]
    y = box[2] if box else unit.of(mean)
    bar = f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else ""
    n = f"{point.jobs} jobs" if point.jobs is not None else f"n = {point.number}"
    what = "median" if box else "mean"
    text = "\n".join([*names, f"{what} {y:.4g}{bar} {unit.name}".rstrip() + f", {n}"])
    return Mark(series, place, y, low, high, box, text)


def table(asked: Asked, found: Points, links: Links) -> Table:
    """All groups with their numbers, as programs get them; people read them in the unit that fits."""
    numbers: tuple[str, ...] = ("mean", "rms", "smallest", "largest")
    if asked.view == DISTRIBUTION:
        numbers = ("smallest", *_QUANTILES, "largest", "mean")
    elif asked.bars == INTERVAL:
        numbers = ("jobs", "mean", "low", "high")
    elif found.source == "roll-ups":
        numbers = ("mean", "rms")
    rows = [_row(asked, point, found.mix) for point in found.points]
    unit = unit_of(asked, found.points)
    shown = [row[name] for row in rows for name in numbers if name != "jobs"]
    number = aligned(shown, unit)
    columns = (
        *group_columns(asked, found, links),
        *number_columns("good", "failed", "implausible"),
        Column("not_supported", "not supported", number=True),
        Column("number", "n", number=True, link=links.jobs),
        *(
            Column(name, name, number=True)
            if name == "jobs"
            else Column(name, name, number, number=True)
            for name in numbers
        ),
        *mixed_column(asked, rows),
    )
    own = BY_NAME[asked.metric].unit if asked.metric in BY_NAME else ""
    said = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree are in {own}." if unit.name and unit.name != own else ""
    return Table("figure", f"{captions.heading(asked)}{said}", columns, rows, note=note)


def group_columns(asked: Asked, found: Points, links: Links) -> list[Column]:
    """The columns whose values make a group."""
    return [
        Column(name, name, written(found, name), long=name == VARIANT, link=links.of(name))
        for name in asked.groups
    ]


def mixed_column(asked: Asked, rows: Sequence[Row]) -> list[Column]:
    """What each group takes together; not along a time axis, where this is known of whole lines."""
    if set(asked.groups) & set(TIMES):
        return []
    return [Column("mixes", "mixes", hidden=not any(row["mixes"] for row in rows))]


def _row(asked: Asked, point: Point, mix: Mix) -> dict[str, Any]:
    values = vars(point)
    quantiles = point.quantiles or (None,) * len(QUANTILES)
    return {
        **{name: point.key[name] for name in asked.groups},
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILES, quantiles, strict=True)),
        "mixes": mix.of(point.key),
    }
