"""Line charts over days or numbers as inline SVG, without scripts and in the page's colors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Protocol

#: Size in pixels, and margins for labels.
WIDTH, HEIGHT = 900, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 28, 32
#: Width of the value axis, which stays visible while the chart is scrolled.
AXIS_WIDTH = 58
#: Marks closer than this are merged into a band.
_MIN_MARK_DISTANCE = 18.0
#: Minimum number of steps of the value axis, maximum number of labels of the date axis.
_MIN_VALUE_STEPS, _MAX_DATE_LABELS = 5, 8


class ChartAxis(Protocol):
    """Axis of a chart: shares of its length from its start."""

    def place(self, at: Any) -> float:
        """Return the share at a value of the axis."""

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares and labels of the ticks."""


class DayAxis:
    """Axis of days.

    Args:
        first: first day.
        last: last day.
    """

    def __init__(self, first: date, last: date) -> None:
        self._first, self._days = first, max(1, (last - first).days)

    def place(self, at: date) -> float:
        """Return the share at the middle of a day."""
        return ((at - self._first).days + 0.5) / (self._days + 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares and labels of the ticks."""
        step = -(-(self._days + 1) // _MAX_DATE_LABELS)
        days = [self._first + timedelta(days=number) for number in range(0, self._days + 1, step)]
        return [(self.place(day), f"{day.day} {day:%b}") for day in days]


class NumberAxis:
    """Axis of numbers that holds all given ones.

    Args:
        values: of the axis, at least one; on a logarithmic axis at least one positive.
        format_tick: formats the number at a tick.
        logarithmic: ticks at powers of ten; numbers that are not positive lie at its start.
    """

    def __init__(
        self,
        values: Iterable[float],
        format_tick: Callable[[float], str] = "{:.6g}".format,
        *,
        logarithmic: bool = False,
    ) -> None:
        self._format, self._logarithmic = format_tick, logarithmic
        if logarithmic:
            scaled = [math.log10(value) for value in values if value > 0]
            low, high = math.floor(min(scaled)), math.ceil(max(scaled))
            self._ticks = [float(power) for power in range(low, max(high, low + 1) + 1)]
        else:
            scaled = list(values)
            self._ticks = _round_ticks(min(scaled), max(scaled))
        self._low = min(self._ticks[0], *scaled)
        self._high = max(self._ticks[-1], *scaled)

    def place(self, at: float) -> float:
        """Return the share at a number."""
        if self._logarithmic:
            at = math.log10(at) if at > 0 else self._low
        return (at - self._low) / ((self._high - self._low) or 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """Return shares and labels of the ticks."""
        numbers = [10.0**tick for tick in self._ticks] if self._logarithmic else self._ticks
        return [(self.place(number), self._format(number)) for number in numbers]


@dataclass(frozen=True)
class ChartDot:
    """A value at a day or number.

    Attributes:
        at: position along the axis.
        value: the value.
        error: half length of the error bar, None if unknown.
        text: tooltip.
        hollow: draw an outline only.
    """

    at: date | float
    value: float
    error: float | None = None
    text: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class ChartLine:
    """A line through dots in the order of their positions.

    Attributes:
        name: name in the legend.
        css_class: CSS class.
        dots: in order of their positions.
        round: draw circles instead of squares.
        plain: draw no dots.
    """

    name: str
    css_class: str
    dots: Sequence[ChartDot]
    round: bool = True
    plain: bool = False


@dataclass(frozen=True)
class ChartMark:
    """A numbered vertical line at a day or number with a tooltip."""

    at: date | float
    number: int
    text: str


@dataclass(frozen=True)
class MarkBand:
    """One mark in pixels, or a band from ``x`` to ``end`` for several close ones."""

    x: float
    end: float
    label: str
    text: str


@dataclass(frozen=True)
class PlacedDot:
    """A dot in pixels."""

    x: float
    y: float
    low: float | None
    high: float | None
    dot: ChartDot


class LineChart:
    """Geometry of a chart, for a template.

    Args:
        title: description for screen readers.
        lines: at least one of them has a dot.
        axis: horizontal axis.
        marks: vertical lines in the order of their positions.
        marked: what the numbers of marks count, in the plural.
        values: vertical axis, by default a linear one that fits the lines.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[ChartLine],
        axis: ChartAxis,
        marks: Sequence[ChartMark] = (),
        *,
        marked: str = "changes",
        values: ChartAxis | None = None,
    ) -> None:
        self.title = title
        self.width, self.height, self.axis = WIDTH, HEIGHT, AXIS_WIDTH
        self.left, self.right, self.top, self.bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
        self._across, self._up = axis, values or NumberAxis(_value_range(lines))
        self.lines = [(line, [self._place_dot(dot) for dot in line.dots]) for line in lines]
        self.marks = list(_merge_marks([(self._x(mark.at), mark) for mark in marks], marked))

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the vertical axis."""
        return [(self._y_at(share), text) for share, text in self._up.ticks()]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the horizontal axis."""
        return [(self._x_at(share), text) for share, text in self._across.ticks()]

    def describe(self) -> dict[str, Any]:
        """Describe the drawing in pixels, for :mod:`treehammer.web.figures.chart_drawing`."""
        return {
            "frame": [self.left, self.right, self.top, self.bottom],
            "x_ticks": self.x_ticks,
            "y_ticks": self.y_ticks,
            "marks": [[mark.x, mark.end, mark.label] for mark in self.marks],
            "lines": [
                {
                    "name": line.name,
                    "css_class": line.css_class,
                    "round": line.round,
                    "plain": line.plain,
                    "dots": [[one.x, one.y, one.low, one.high, one.dot.hollow] for one in dots],
                }
                for line, dots in self.lines
            ],
        }

    def polyline_points(self, placed: Sequence[PlacedDot]) -> str:
        """Corners of a line in SVG notation."""
        return " ".join(f"{one.x:.1f},{one.y:.1f}" for one in placed)

    def _place_dot(self, dot: ChartDot) -> PlacedDot:
        low, high = (
            (self._y(dot.value - dot.error), self._y(dot.value + dot.error))
            if dot.error
            else (None, None)
        )
        return PlacedDot(self._x(dot.at), self._y(dot.value), low, high, dot)

    def _x(self, at: date | float) -> float:
        return self._x_at(self._across.place(at))

    def _y(self, value: float) -> float:
        return self._y_at(self._up.place(value))

    def _x_at(self, share: float) -> float:
        return round(self.left + share * (self.right - self.left), 1)

    def _y_at(self, share: float) -> float:
        return round(self.bottom - share * (self.bottom - self.top), 1)


def _merge_marks(marks: Sequence[tuple[float, ChartMark]], marked: str) -> Iterator[MarkBand]:
    """Merge marks that are too close for their numbers."""
    near: list[tuple[float, ChartMark]] = []
    for place, (x, mark) in enumerate(marks):
        near.append((x, mark))
        if place + 1 < len(marks) and marks[place + 1][0] - x < _MIN_MARK_DISTANCE:
            continue
        first, last = near[0][1], mark
        one = first is last
        label = f"{first.number}" if one else f"{first.number}–{last.number}"
        text = first.text if one else f"{marked} {first.number} to {last.number} in the table"
        yield MarkBand(near[0][0], x, label, text)
        near = []


def _value_range(lines: Sequence[ChartLine]) -> list[float]:
    dots = [dot for line in lines for dot in line.dots]
    return [dot.value + sign * (dot.error or 0.0) for dot in dots for sign in (-1, 1)]


def _round_ticks(low: float, high: float) -> list[float]:
    """Ticks enclosing both values, spaced by 1, 2 or 5 times a power of ten."""
    if not high > low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / _MIN_VALUE_STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]
