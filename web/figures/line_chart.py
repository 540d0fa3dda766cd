"""Line charts over days or numbers, with error bars and numbered marks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from functools import cached_property
from typing import Any

from treehammer.web.display_formats import midnight_us
from treehammer.web.figures import chart_parts as vega
from treehammer.web.figures.figure_layout import PALETTE, FigureSeries

#: Size of a chart in a file.
_WIDTH, _HEIGHT = 700, 260
#: Marks closer than this share of the axis are merged into a band.
_MIN_MARK_DISTANCE = 0.022
_DASHED = {"median": [5, 4], "ideal": [5, 4], "target": [2, 3]}
#: Colors of lines by their role.
_COLORS = {
    "own": PALETTE[0],
    "median": PALETTE[5],
    "ideal": PALETTE[7],
    "target": PALETTE[5],
    **{f"color{number}": color for number, color in enumerate(PALETTE)},
}
_GRAY = PALETTE[7]
_HOLLOW, _FILLED = {"filter": "datum.o"}, {"filter": "!datum.o"}


@dataclass(frozen=True)
class DayAxis:
    """Axis of days."""

    first: date
    last: date

    def place(self, day: date) -> float:
        """Return the milliseconds of the middle of a day."""
        return midnight_us(day) / 1000 + 43_200_000

    @property
    def ends(self) -> tuple[float, float]:
        """Start of the first day and end of the last one."""
        return midnight_us(self.first) / 1000, midnight_us(self.last + timedelta(days=1)) / 1000

    def encode(self, field: str, *, grid: bool) -> vega.Specification:
        """Encode a field as days."""
        # Vega-Lite cannot merge equal domains of days of several layers.
        scale = {"type": "utc", "nice": False, "padding": 12}
        axis = {"grid": grid, "format": "%-d %b", "tickCount": 8}
        return vega.encode_field(field, vega.TEMPORAL, title=None, scale=scale, axis=axis)


@dataclass(frozen=True)
class NumberAxis:
    """Axis of numbers that holds all given ones.

    Attributes:
        values: of the axis, at least one; on a logarithmic axis at least one positive.
        title: quantity or unit.
        logarithmic: leave out numbers that are not positive.
    """

    values: Sequence[float]
    title: str
    seconds: bool = False
    whole: bool = False
    logarithmic: bool = False

    def place(self, number: float) -> float | None:
        """Return a number, or None if it has no place on the axis."""
        return number if number > 0 or not self.logarithmic else None

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest number."""
        placed = [value for value in self.values if value > 0 or not self.logarithmic]
        low, high = min(placed), max(placed)
        if self.logarithmic:
            return (low / 2, high * 2) if low == high else (low / 1.1, high * 1.1)
        # Dots at the ends are drawn in full: at zero on an axis of whole numbers, too.
        if not self.whole:
            return vega.add_room(low, high)
        room = 0.03 * (high - low) or 0.5
        return low - room, high + room

    def encode(self, field: str, *, grid: bool) -> vega.Specification:
        """Encode a field as numbers."""
        scale = {
            "type": "log" if self.logarithmic else "linear",
            "domain": list(self.ends),
            "nice": not self.whole and not self.logarithmic,
            **vega.without_zero(self.logarithmic),
        }
        axis: vega.Specification = {"grid": grid}
        if self.logarithmic:
            axis |= vega.log_ticks(*self.ends)
        elif all(float(value).is_integer() for value in self.values):
            axis["tickMinStep"] = 1
        if self.seconds:
            axis["labelExpr"] = "format(datum.value, '~s') + 's'"
        elif self.whole:
            axis |= {"tickMinStep": 1, "format": "d"}
        title = self.title or None
        return vega.encode_field(field, vega.QUANTITATIVE, title=title, scale=scale, axis=axis)


@dataclass(frozen=True)
class ChartDot:
    """A value at a day or number.

    Attributes:
        error: half length of the error bar, None if unknown.
    """

    at: Any
    value: float
    error: float | None = None
    text: str = ""
    hollow: bool = False
    link: str = ""


@dataclass(frozen=True)
class ChartLine:
    """A line through dots in the order of their positions.

    Attributes:
        role: ``own``, ``median``, ``ideal``, ``target``, or ``color`` with a number of the palette.
        joined: draw the line; else dots alone.
        color: replaces that of the role, e.g. the color of a release.
    """

    name: str
    role: str
    dots: Sequence[ChartDot]
    round: bool = True
    plain: bool = False
    joined: bool = True
    color: str = ""

    @property
    def style(self) -> FigureSeries:
        """Color and marker."""
        marker = "line" if self.plain else "circle" if self.round else "square"
        return FigureSeries(self.name, self.color or _COLORS[self.role], marker)


@dataclass(frozen=True)
class ChartMark:
    """A numbered vertical line at a day or number with a tooltip."""

    at: Any
    number: int
    text: str


class LineChart:
    """Lines with a common axis.

    Args:
        lines: at least one of them has a dot.
        marks: vertical lines in the order of their positions.
        marked: what the numbers of marks count, in the plural.
        values: vertical axis, or the title of a linear one that fits the lines.
    """

    def __init__(
        self,
        title: str,
        lines: Sequence[ChartLine],
        axis: DayAxis | NumberAxis,
        marks: Sequence[ChartMark] = (),
        *,
        marked: str = "changes",
        values: NumberAxis | str,
    ) -> None:
        self.title, self.lines = title, lines
        self._dots = [dot for line in lines for dot in line.dots]
        ends = [dot.value + sign * (dot.error or 0.0) for dot in self._dots for sign in (-1, 1)]
        self._across = axis
        self._up = NumberAxis(ends, values) if isinstance(values, str) else values
        low, high = axis.ends
        placed = [(float(axis.place(mark.at) or low), mark) for mark in marks]
        self.marks = list(_merge_marks(placed, marked, _MIN_MARK_DISTANCE * (high - low)))

    @property
    def specification(self) -> vega.Specification:
        """The chart as Vega-Lite."""
        chart = vega.chart_layers(self._layers(), self.title, (_WIDTH, _HEIGHT))
        meta = {"series": [asdict(line.style) for line in self.lines]}
        rows = [row for number, line in enumerate(self.lines) for row in self._rows(number, line)]
        return vega.complete_specification(chart, rows, meta)

    def _rows(self, number: int, line: ChartLine) -> Iterator[dict[str, Any]]:
        for dot in line.dots:
            value = self._up.place(dot.value)
            row = {"s": number, "x": self._across.place(dot.at), "y": value, "text": dot.text}
            if dot.error:
                row |= {"l": self._up.place(dot.value - dot.error), "h": dot.value + dot.error}
            if dot.hollow:
                row["o"] = True
            if dot.link:
                row["u"] = dot.link
            if value is not None:
                yield row

    def _layers(self) -> list[vega.Specification]:
        series = [line.style for line in self.lines]
        looks = vega.encode_series(series, _WIDTH, json.dumps([style.name for style in series]))
        base = {
            "x": self._across.encode("x", grid=False),
            "color": looks["color"],
            # Vega's own opacity of points, 0.7, leaves too little contrast on near-black.
            "opacity": vega.FADE_SERIES,
        }
        values = {**base, "y": self._up.encode("y", grid=True)}
        bars = {**base, "y": self._up.encode("l", grid=True), "y2": {"field": "h"}}
        points = {
            **values,
            "shape": looks["shape"],
            "tooltip": vega.encode_field("text", vega.NOMINAL, title=" "),
        }
        return [*self._layer_lines(values), *self._layer_dots(points, bars), *self._layer_marks()]

    def _layer_lines(self, encoding: vega.Specification) -> Iterator[vega.Specification]:
        """Draw a layer of lines for each kind of dashes."""
        numbers: dict[str, list[int]] = {}
        for number, line in enumerate(self.lines):
            if line.dots and line.joined:
                numbers.setdefault(json.dumps(_DASHED.get(line.role)), []).append(number)
        for dash, line_numbers in numbers.items():
            line_filter = {"filter": f"indexof({line_numbers}, datum.s) >= 0"}
            style: vega.Specification = {
                "strokeDash": json.loads(dash) or [1, 0],
                "strokeWidth": 1.5,
            }
            yield vega.make_layer("line", encoding, [vega.HIDE_SERIES, line_filter], **style)

    def _layer_dots(
        self, points: vega.Specification, bars: vega.Specification
    ) -> Iterator[vega.Specification]:
        """Draw error bars, then hollow and filled dots; Vega warns of a layer without data."""
        plain = [number for number, line in enumerate(self.lines) if line.plain]
        dotted = [vega.HIDE_SERIES, {"filter": f"indexof({plain}, datum.s) < 0"}]
        if any(dot.error for dot in self._dots):
            yield vega.make_layer("rule", bars, [*dotted, vega.DROP_MISSING_BARS])
        if any(dot.hollow for dot in self._dots):
            yield vega.make_layer("point", points, [*dotted, _HOLLOW], filled=False, size=45)
        if not all(dot.hollow for dot in self._dots):
            yield vega.make_layer("point", points, [*dotted, _FILLED], filled=True, size=45)

    def _layer_marks(self) -> Iterator[vega.Specification]:
        if not self.marks:
            return
        position = self._across.encode("x", grid=False)
        rule: vega.Specification = {"color": _GRAY, "strokeWidth": 2, "strokeDash": [2, 3]}
        # Beside the line: above the plot it would lie outside of the drawing.
        text: vega.Specification = {
            "y": 8,
            "dx": 6,
            "align": "left",
            "fontWeight": "bold",
            "color": _GRAY,
        }
        yield {
            "data": {"values": self.marks},
            "encoding": {"tooltip": vega.encode_field("text", vega.NOMINAL, title=" ")},
            "layer": [
                # A range of days would need a domain of its own.
                vega.make_layer("rule", {"x": position}, **rule),
                vega.make_layer("rule", {"x": self._across.encode("end", grid=False)}, **rule),
                vega.make_layer(
                    "text",
                    {"x": position, "text": vega.encode_field("label", vega.NOMINAL)},
                    **text,
                ),
            ],
        }


def _merge_marks(
    marks: Sequence[tuple[float, ChartMark]], marked: str, least: float
) -> Iterator[dict[str, Any]]:
    """Merge marks that are too close for their numbers to bands from ``x`` to ``end``."""
    cluster: list[tuple[float, ChartMark]] = []
    for place, (x, mark) in enumerate(marks):
        cluster.append((x, mark))
        if place + 1 < len(marks) and marks[place + 1][0] - x < least:
            continue
        first, last = cluster[0][1], mark
        is_single = first is last
        label = f"{first.number}" if is_single else f"{first.number}–{last.number}"
        text = first.text if is_single else f"{marked} {first.number} to {last.number} in the table"
        yield {"x": cluster[0][0], "end": x, "label": label, "text": text}
        cluster = []
