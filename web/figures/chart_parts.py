"""Parts that charts share: data, axes of places, series, zoom, panels and titles."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from treehammer.web.display_formats import midnight_us
from treehammer.web.figures.figure_layout import (
    DASHES,
    GRID_COLOR,
    INK_COLOR,
    THEME,
    FigureLayout,
    FigureSeries,
    Scale,
)

#: Vega-Lite specification, as plain data.
Specification = dict[str, Any]

#: Parameters of the legend: numbers of hidden series, and of the highlighted one.
LEGEND_PARAMETERS: tuple[Specification, ...] = (
    {"name": "hidden", "value": []},
    {"name": "lit", "value": -1},
)
#: Data of a chart; the values are added to its specification.
MARKS: Specification = {"name": "marks"}
#: Selection that zooms and moves the axes.
ZOOM = "zoom"
#: Name of the layer whose axes are zoomed, which the others share.
_ZOOMED_LAYER = "zoomed"
_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
QUANTITATIVE, NOMINAL, TEMPORAL = "quantitative", "nominal", "temporal"
#: Shapes of markers that Vega names differently.
MARKER_SHAPES = {"line": "stroke"}
#: Letters in a line of a title, by the width of a file in pixels.
_LETTER_WIDTH = 6.5
#: Width of a group of points relative to the distance between places.
GROUP_WIDTH = 0.8
_TURNED_LABEL_DEGREES = -40
#: Labels up to this number are slanted if they do not fit; more are upright.
MAX_SLANTED = 12
#: Width of a panel of several in a file.
PANEL_WIDTH = 330.0
#: Format of drawn numbers; tables and files have all digits.
_NUMBER_FORMAT = ".7g"


def make_layer(
    mark: str, encoding: Mapping[str, Any], transform: Sequence[Specification] = (), **style: Any
) -> Specification:
    """Make a layer of marks of one type."""
    return {
        "mark": {"type": mark, **style},
        "encoding": dict(encoding),
        **({"transform": list(transform)} if transform else {}),
    }


def encode_field(field: str, kind: str, **options: Any) -> Specification:
    """Encode a field of the marks."""
    return {"field": field, "type": kind, **options}


def add_zoom(
    layers: Sequence[Specification], channels: Sequence[str] = ("x", "y")
) -> tuple[list[Specification], Specification]:
    """Name the layer to zoom; return the layers and the parameter that zooms.

    The wheel zooms with Ctrl, dragging moves and a double click resets.
    """
    first, *following = layers
    zoom = {
        "name": ZOOM,
        "select": {
            "type": "interval",
            "encodings": list(channels),
            "zoom": "wheel![event.ctrlKey]",
        },
        "bind": "scales",
        "views": [_ZOOMED_LAYER],
    }
    return [{**first, "name": _ZOOMED_LAYER}, *following], zoom


def make_lists(layout: FigureLayout) -> list[Specification]:
    """Make the parameters that hold labels by number, and the state of the legend."""
    lists: Mapping[str, Any] = {
        "panels": [panel.title for panel in layout.panels],
        "places": list(layout.places),
        "series": [line.name for line in layout.series],
        "hidden": [],
        "lit": -1,
    }
    return [{"name": name, "value": value} for name, value in lists.items()]


def calculate_fields(**expressions: str) -> list[Specification]:
    """Add fields to the marks."""
    return [{"calculate": text, "as": name} for name, text in expressions.items()]


def add_common_fields() -> list[Specification]:
    """Leave out hidden series, and name panel, place and series of each mark."""
    names = {"panel": "panels[datum.p]", "place": "places[datum.x]", "name": "series[datum.s]"}
    return [HIDE_SERIES, *calculate_fields(**names)]


#: Leaves out the series that are hidden in the legend.
HIDE_SERIES: Specification = {"filter": "indexof(hidden, datum.s) < 0"}
#: Leaves out marks without an error bar, which would be drawn at the edge.
DROP_MISSING_BARS: Specification = {"filter": "isValid(datum.l)"}
#: Opacity that makes one series stand out.
FADE_SERIES: Specification = {
    "condition": {"test": "lit < 0 || lit == datum.s", "value": 1},
    "value": 0.12,
}


def encode_series(
    series: Sequence[FigureSeries], width: float, names: str = "series"
) -> dict[str, Specification]:
    """Return color, marker and dashes by series, with a legend of their names, an expression."""
    styles = {
        "color": [line.color for line in series],
        "shape": [MARKER_SHAPES.get(line.marker, line.marker) for line in series],
        "strokeDash": [DASHES[number % len(DASHES)] for number in range(len(series))],
    }
    domain, legend = list(range(len(series))), _make_legend(series, width, names)
    return {
        channel: encode_field(
            "s", NOMINAL, scale={"domain": domain, "range": of_series}, legend=legend
        )
        for channel, of_series in styles.items()
    }


def _make_legend(series: Sequence[FigureSeries], width: float, names: str) -> Specification | None:
    """Return the legend of series below a chart; None for a single series without a name."""
    titled = [number for number, line in enumerate(series) if not line.is_quiet]
    if len(series) == 1 and not series[0].name:
        return None
    entry = 40 + max(len(series[number].name) for number in titled) * _LETTER_WIDTH
    return {
        "title": None,
        "orient": "bottom",
        "columns": max(1, min(len(titled), int(width / entry))),
        **({"values": titled} if len(titled) < len(series) else {}),
        "labelExpr": f"{names}[datum.value]",
        "symbolLimit": 0,
        "symbolOpacity": 1,
    }


def encode_values(layout: FigureLayout, field: str) -> Specification:
    """Return the axis of values: fitted to the data, from zero, or logarithmic."""
    ends = _value_domain(layout)
    scale = {
        "type": "log" if layout.scale == Scale.LOG else "linear",
        "domain": list(ends),
        "nice": False,
        **without_zero(layout.scale == Scale.LOG),
    }
    axis: Specification = {"gridColor": _ZERO_STANDS_OUT}
    if layout.scale == Scale.LOG:
        axis |= log_ticks(*ends)
    elif layout.whole:
        axis |= WHOLE_TICKS
    return encode_field(field, QUANTITATIVE, title=layout.y_title, axis=axis, scale=scale)


#: Ticks of an axis of counts.
WHOLE_TICKS: Specification = {"tickMinStep": 1, "format": ",d"}
#: Decades of a logarithmic axis up to which 2 and 5, and 5 alone, have ticks beside 1.
_MAX_FINE_DECADES, _MAX_HALF_DECADES = 3, 5


def log_ticks(low: float, high: float) -> Specification:
    """Return the ticks of a logarithmic axis: 1, 2, 5 and 10, fewer over many decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = last - first
    steps: tuple[int, ...] = (1, 2, 5) if decades <= _MAX_FINE_DECADES else (1, 5)
    steps = steps if decades <= _MAX_HALF_DECADES else (1,)
    # 10 ** -3 * 5 would be 0.005000000000000001.
    values = [float(f"{step}e{power}") for power in range(first, last + 1) for step in steps]
    return {"values": [value for value in values if low <= value <= high], "format": "~g"}


#: Colors of grid lines.
_ZERO_STANDS_OUT: Specification = {
    "condition": {"test": "datum.value == 0", "value": INK_COLOR},
    "value": GRID_COLOR,
}


def without_zero(log: bool) -> dict[str, Any]:
    """Return the option of axes that need not begin at zero; logarithmic ones never do."""
    return {} if log else {"zero": False}


def _value_domain(layout: FigureLayout) -> tuple[float, float]:
    """Return the range of all panels, with some room."""
    high = max(mark.highest for mark in layout.marks)
    if layout.scale == Scale.LOG:
        low = min(mark.lowest if mark.lowest > 0 else mark.y for mark in layout.marks)
        return low / 1.1, high * 1.1
    low = min(mark.lowest for mark in layout.marks)
    if layout.scale == Scale.LINEAR:
        return add_room(low, high)
    return add_room(min(low, 0.0), max(high, 0.0))


def add_room(low: float, high: float) -> tuple[float, float]:
    """Widen a range, but not across zero, which is an end of the axis, not a place in it."""
    if low == high == 0:
        return -1.0, 1.0
    room = 0.04 * (high - low) or 0.5 * abs(high)
    first = low - room if low < 0 else max(low - room, 0.0)
    last = high + room if high > 0 else min(high + room, 0.0)
    return first, last


def encode_places(layout: FigureLayout, field: str) -> Specification:
    """Return the axis of places (numbers in a field): days, or numbers labeled by names."""
    if layout.dates:
        return _encode_days(layout)
    count = len(layout.places)
    # Bins are labeled by their lower edges.
    shift = 0.5 if layout.bins else 0.0
    axis: Specification = {
        "values": [number - shift for number in range(count)],
        "labelExpr": f"places[round(datum.value + {shift})]",
        **_turn_labels(layout),
        # Boxes around slanted labels overlap where the labels do not.
        "labelOverlap": "greedy" if layout.has_panels or count > MAX_SLANTED else False,
        "ticks": bool(shift),
        "grid": False,
    }
    scale = {"domain": [-0.5, count - 0.5], "nice": False, "zero": False}
    return encode_field(field, QUANTITATIVE, title=layout.x_title, scale=scale, axis=axis)


def _encode_days(layout: FigureLayout) -> Specification:
    years = {place[:4] for place in layout.places}
    axis: Specification = {
        "grid": False,
        "tickCount": 8,
        "format": "%-d %b" if len(years) == 1 else "%-d %b %Y",
    }
    days = {"type": "utc", "nice": False, "padding": 8}
    return encode_field("t", TEMPORAL, title=layout.x_title, scale=days, axis=axis)


def _turn_labels(layout: FigureLayout) -> Specification:
    """Return the rotation of labels, and the end that lies at the tick; both depend on the width."""
    width = _LETTER_WIDTH * max(map(len, layout.places)) * len(layout.places)
    if layout.has_panels:
        return {"labelAngle": -90 if width > PANEL_WIDTH else 0}
    turned = -90 if len(layout.places) > MAX_SLANTED else _TURNED_LABEL_DEGREES
    is_fitting = f"{width:.0f} < width"
    angle = f"{is_fitting} ? 0 : {30 * len(layout.places)} < width ? {turned} : -90"
    # Vega-Lite would begin level labels at the tick, as it does not know the angle.
    align = f"{is_fitting} ? 'center' : 'right'"
    return {"labelAngle": {"expr": angle}, "labelAlign": {"expr": align}}


def list_tooltips(layout: FigureLayout, *numbers: tuple[str, str]) -> list[Specification]:
    """Return the tooltip of a mark: its groups, then numbers by field and title.

    Numbers without a title are the counted executions or jobs, or the value of the axis.
    """
    untitled = {"n": layout.count_title, "y": layout.y_title}
    groups = [
        encode_field(field, NOMINAL, title=title)
        for field, title in zip(("panel", "place", "name"), layout.groups, strict=True)
        if title
    ]
    return groups + [
        encode_field(
            field,
            QUANTITATIVE,
            title=title or untitled[field],
            format="" if field == "n" else ".4~g",
        )
        for field, title in numbers
    ]


def list_rows(layout: FigureLayout) -> list[dict[str, Any]]:
    """Return the marks as rows of numbers."""
    rows = []
    for panel, of_panel in enumerate(layout.panels):
        for mark in of_panel.marks:
            row: dict[str, Any] = {"p": panel, "x": mark.place, "s": mark.series}
            if mark.count is not None:
                row["n"] = mark.count
            for key, number in (("y", mark.y), ("l", mark.low), ("h", mark.high)):
                if number is not None:
                    row[key] = float(format(number, _NUMBER_FORMAT))
            if layout.dates:
                place = layout.places[mark.place]
                day = date.fromisoformat(place if len(place) > 7 else f"{place}-01")
                row["t"] = midnight_us(day) // 1000
            rows.append(row)
    return rows


def wrap_lines(texts: Sequence[str], width: float) -> list[str]:
    """Wrap texts to the width of a file in pixels."""
    letters = max(60, int(width / _LETTER_WIDTH))
    return [line for text in texts for line in textwrap.wrap(text, letters)]


def chart_layers(
    layers: Sequence[Specification],
    title: str,
    size: tuple[float, float],
    *,
    zoomed: Sequence[str] = ("x", "y"),
) -> Specification:
    """Make a chart of layers with a size in pixels, whose series can be hidden and axes zoomed."""
    zoomable, zoom = add_zoom(layers, zoomed)
    width, height = size
    return {
        "layer": zoomable,
        "data": MARKS,
        "params": [zoom, *LEGEND_PARAMETERS],
        "title": title,
        "width": width,
        "height": height,
    }


def complete_specification(
    chart: Specification, rows: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]
) -> Specification:
    """Add data and the style of all charts.

    Args:
        chart: the chart, whose data are :data:`MARKS`.
        meta: what the page shows beside it: ``series`` of its legend, number of ``panels``, ``links``.
    """
    datasets = {str(MARKS["name"]): rows}
    return {"$schema": _SCHEMA, **chart, "config": THEME, "datasets": datasets, "usermeta": meta}
