"""Means with their bars, and distributions: the figure and its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from treehammer.collectors.metrics import BY_NAME
from treehammer.sql.selection import Scalar
from treehammer.web.pages import captions
from treehammer.web.pages.asked import DISTRIBUTION, INTERVAL, RMS, Asked
from treehammer.web.pages.columns import number_columns
from treehammer.web.pages.picture import (
    Mark,
    Names,
    Panel,
    Picture,
    Spot,
    is_time,
    laid_out,
    value_text,
    written,
)
from treehammer.web.pages.points import QUANTILES, Point, Points
from treehammer.web.pages.tables import Column, Table
from treehammer.web.pages.units import Unit, aligned, fitting
from treehammer.web.pages.variants import VARIANT, without_release

_QUANTILES = tuple(f"p{100 * share:g}" for share in QUANTILES)


def picture(asked: Asked, points: Sequence[Point], title: str = "") -> Picture | None:
    """Lay out the points; None when there is nothing to draw."""
    drawn = [p for p in points if p.mean is not None and (asked.scale != "log" or p.mean > 0)]
    if not drawn:
        return None
    unit = _unit(asked, drawn)
    places, names, panels = (
        Names(asked, drawn, column) for column in (asked.by, asked.colour, asked.panels)
    )
    short, x_title = places.along()
    shared = [one.variants.shared for one in (places, names, panels) if one.variants]
    empty = Picture(
        title=title or captions.heading(asked),
        x_title=x_title,
        y_title=captions.y_title(asked, unit),
        dates=is_time(asked.by, places.all),
        bins=False,
        log=asked.scale == "log",
        places=tuple(places.all),
        series=tuple(names.series()),
        panels=tuple(Panel(name, ()) for name in panels.all),
        bars=captions.bars(asked),
        shared=next(iter(shared), ""),
        caption=captions.caption(asked),
    )
    found = [
        (Spot(panels[point], places[point], names[point]), partial(_mark, asked, point, unit))
        for point in drawn
    ]
    return laid_out(empty, found, short)


def _unit(asked: Asked, points: Sequence[Point]) -> Unit:
    metric = BY_NAME.get(asked.metric)
    return fitting(metric.unit if metric else "1", (point.mean for point in points))


def _mark(asked: Asked, point: Point, unit: Unit, series: int, place: int) -> Mark:
    mean = point.mean or 0.0
    low = high = None
    if asked.view != DISTRIBUTION and asked.bars == INTERVAL:
        low, high = point.low, point.high
    elif asked.view != DISTRIBUTION and asked.bars == RMS and point.number > 1:
        assert point.rms is not None
        low, high = mean - point.rms, mean + point.rms
    low, high = (None if end is None else unit.of(end) for end in (low, high))
    box = tuple(unit.of(value) for value in point.quantiles)
    names = [f"{name}: {written(point, name)}" for name in asked.groups]
    y = box[2] if box else unit.of(mean)
    bar = f" ({low:.4g} to {high:.4g})" if low is not None and high is not None else ""
    n = f"{point.jobs} jobs" if point.jobs is not None else f"n = {point.number}"
    what = "median" if box else "mean"
    text = "\n".join([*names, f"{what} {y:.4g}{bar} {unit.name}".rstrip() + f", {n}"])
    return Mark(series, place, y, low, high, box, text)


def table(asked: Asked, found: Points) -> Table:
    """All groups with their numbers, as programs get them; people read them in the unit that fits."""
    outcomes: tuple[str, ...] = ("good", "failed", "implausible")
    numbers: tuple[str, ...] = ("mean", "rms", "smallest", "largest")
    if asked.view == DISTRIBUTION:
        outcomes, numbers = (), ("smallest", *_QUANTILES, "largest", "mean")
    elif asked.bars == INTERVAL:
        numbers = ("jobs", "mean", "low", "high")
    elif found.source == "roll-ups":
        numbers = ("mean", "rms")
    rows = [_row(asked, point) for point in found.points]
    unit = _unit(asked, found.points)
    shown = [row[name] for row in rows for name in numbers if name != "jobs"]
    number = aligned(shown, unit)
    columns = (
        *group_columns(asked),
        *number_columns(*outcomes),
        Column("number", "n", number=True),
        *(
            Column(name, name, number=True)
            if name == "jobs"
            else Column(name, name, number, number=True)
            for name in numbers
        ),
    )
    own = BY_NAME[asked.metric].unit if asked.metric in BY_NAME else ""
    said = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree are in {own}." if unit.name and unit.name != own else ""
    return Table("figure", f"{captions.heading(asked)}{said}", columns, rows, note=note)


def group_columns(asked: Asked) -> list[Column]:
    """The columns whose values make a group."""
    told = "axis_root" in asked.groups
    return [Column(name, name, _written(name, told), long=name == VARIANT) for name in asked.groups]


def _written(name: str, release_told: bool) -> Callable[[Scalar], str]:
    if name == VARIANT and release_told:
        return lambda value: without_release(value_text(name, value))
    return lambda value: value_text(name, value)


def _row(asked: Asked, point: Point) -> dict[str, Any]:
    values = vars(point)
    quantiles = point.quantiles or (None,) * len(QUANTILES)
    return {
        **{name: point.key[name] for name in asked.groups},
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILES, quantiles, strict=True)),
    }
