"""Line charts over days as inline SVG, without scripts and in the page's colors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

#: Size in pixels, and margins for labels.
WIDTH, HEIGHT = 900, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 28, 32
#: Width of the value axis, which stays visible while the chart is scrolled.
AXIS_WIDTH = 58
#: Marks closer than this are merged into a band.
_MIN_MARK_DISTANCE = 18.0
#: Minimum number of steps of the value axis, maximum number of labels of the date axis.
_MIN_VALUE_STEPS, _MAX_DATE_LABELS = 5, 8


@dataclass(frozen=True)
class ChartDot:
    """A value on a day.

    Attributes:
        day: the day.
        value: the value.
        error: half length of the error bar, None if unknown.
        text: tooltip.
        hollow: draw an outline only.
    """

    day: date
    value: float
    error: float | None = None
    text: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class ChartLine:
    """A line through dots in order of days.

    Attributes:
        name: name in the legend.
        css_class: CSS class.
        dots: in order of days.
        round: draw circles instead of squares.
    """

    name: str
    css_class: str
    dots: Sequence[ChartDot]
    round: bool = True


@dataclass(frozen=True)
class ChartMark:
    """A numbered vertical line on a day with a tooltip."""

    day: date
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
        marks: vertical lines in order of days.
        first: first day of the axis.
        last: last day of the axis.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[ChartLine],
        marks: Sequence[ChartMark],
        first: date,
        last: date,
    ) -> None:
        self.title = title
        self.width, self.height, self.axis = WIDTH, HEIGHT, AXIS_WIDTH
        self.left, self.right, self.top, self.bottom = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
        self._first, self._days = first, max(1, (last - first).days)
        values = _value_range(lines)
        self._ticks = _round_ticks(min(values), max(values))
        self._low = min(self._ticks[0], *values)
        self._high = max(self._ticks[-1], *values)
        self.lines = [(line, [self._place_dot(dot) for dot in line.dots]) for line in lines]
        self.marks = list(_merge_marks([(self._x(mark.day), mark) for mark in marks]))

    @property
    def y_ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the value axis."""
        return [(self._y(value), f"{value:.6g}") for value in self._ticks]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Positions and labels of the date axis."""
        step = -(-(self._days + 1) // _MAX_DATE_LABELS)
        days = [self._first + timedelta(days=number) for number in range(0, self._days + 1, step)]
        return [(self._x(day), f"{day.day} {day:%b}") for day in days]

    def polyline_points(self, placed: Sequence[PlacedDot]) -> str:
        """Corners of a line in SVG notation."""
        return " ".join(f"{one.x:.1f},{one.y:.1f}" for one in placed)

    def _place_dot(self, dot: ChartDot) -> PlacedDot:
        low, high = (
            (self._y(dot.value - dot.error), self._y(dot.value + dot.error))
            if dot.error
            else (None, None)
        )
        return PlacedDot(self._x(dot.day), self._y(dot.value), low, high, dot)

    def _x(self, day: date) -> float:
        share = ((day - self._first).days + 0.5) / (self._days + 1)
        return round(self.left + share * (self.right - self.left), 1)

    def _y(self, value: float) -> float:
        share = (value - self._low) / ((self._high - self._low) or 1.0)
        return round(self.bottom - share * (self.bottom - self.top), 1)


def _merge_marks(marks: Sequence[tuple[float, ChartMark]]) -> Iterator[MarkBand]:
    """Merge marks that are too close for their numbers."""
    near: list[tuple[float, ChartMark]] = []
    for place, (x, mark) in enumerate(marks):
        near.append((x, mark))
        if place + 1 < len(marks) and marks[place + 1][0] - x < _MIN_MARK_DISTANCE:
            continue
        first, last = near[0][1], mark
        one = first is last
        label = f"{first.number}" if one else f"{first.number}–{last.number}"
        text = first.text if one else f"changes {first.number} to {last.number} in the table"
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
