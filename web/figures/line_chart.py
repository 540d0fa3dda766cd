"""Line charts over days as drawings inside the page: they need no script and follow its colours."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

#: Pixels of the drawing, and what is kept free around the lines for texts.
WIDTH, HEIGHT = 900, 320
LEFT, RIGHT, TOP, BOTTOM = 76, 16, 28, 32
#: What of the left stays in sight while the rest is scrolled: the axis of values.
AXIS_WIDTH = 58
#: Marks that are nearer to each other become one.
_MIN_MARK_DISTANCE = 18.0
#: The fewest steps of the axis of values, the most texts on that of days.
_MIN_VALUE_STEPS, _MAX_DATE_LABELS = 5, 8


@dataclass(frozen=True)
class ChartDot:
    """A value on a day.

    Attributes:
        day: when.
        value: in the chart's unit.
        error: what it may be off by, None when that is not known.
        text: about it, when it is pointed at.
        hollow: drawn as an outline.
    """

    day: date
    value: float
    error: float | None = None
    text: str = ""
    hollow: bool = False


@dataclass(frozen=True)
class ChartLine:
    """Dots in order of days; ``look`` is a class of the style sheet, ``round`` dots or squares."""

    name: str
    css_class: str
    dots: Sequence[ChartDot]
    round: bool = True


@dataclass(frozen=True)
class ChartMark:
    """A vertical line on a day, with its number above it and a text when it is pointed at."""

    day: date
    number: int
    text: str


@dataclass(frozen=True)
class MarkBand:
    """A mark in pixels, or several that are too near to each other: a band from ``x`` to ``end``."""

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
    """What a template draws.

    Args:
        title: what it shows, for those who do not see it.
        lines: at least one of them with a dot.
        marks: vertical lines, in order of days.
        first: the first day of the axis.
        last: the last one.
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
        """Heights and their texts."""
        return [(self._y(value), f"{value:.6g}") for value in self._ticks]

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Places of days and their texts."""
        step = -(-(self._days + 1) // _MAX_DATE_LABELS)
        days = [self._first + timedelta(days=number) for number in range(0, self._days + 1, step)]
        return [(self._x(day), f"{day.day} {day:%b}") for day in days]

    def polyline_points(self, placed: Sequence[PlacedDot]) -> str:
        """The corners of a line, as SVG writes them."""
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
    """Marks with room for their numbers; of those without one band."""
    near: list[tuple[float, ChartMark]] = []
    for place, (x, mark) in enumerate(marks):
        near.append((x, mark))
        if place + 1 < len(marks) and marks[place + 1][0] - x < _MIN_MARK_DISTANCE:
            continue
        first, last = near[0][1], mark
        one = first is last
        label = f"{first.number}" if one else f"{first.number}–{last.number}"
        text = first.text if one else f"changes {first.number} to {last.number} of the table"
        yield MarkBand(near[0][0], x, label, text)
        near = []


def _value_range(lines: Sequence[ChartLine]) -> list[float]:
    dots = [dot for line in lines for dot in line.dots]
    return [dot.value + sign * (dot.error or 0.0) for dot in dots for sign in (-1, 1)]


def _round_ticks(low: float, high: float) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that enclose both ends."""
    if not high > low:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / _MIN_VALUE_STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, last + 1)]
