"""Charts of a figure's layout: points, boxes, steps, heat maps and sorted dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from treehammer.web.figures.chart_parts import (
    DROP_MISSING_BARS,
    FADE_SERIES,
    GROUP_WIDTH,
    MARKS,
    PANEL_WIDTH,
    QUANTITATIVE,
    Specification,
    add_common_fields,
    add_zoom,
    calculate_fields,
    complete_specification,
    encode_color,
    encode_field,
    encode_marker,
    encode_places,
    encode_series,
    encode_values,
    list_mean_tooltips,
    list_rows,
    list_tooltips,
    make_layer,
    make_lists,
    wrap_lines,
)
from treehammer.web.figures.figure_layout import (
    BOXES,
    DASHES,
    DOTS,
    HEAT_MAP,
    LOG,
    POINTS,
    STEPS,
    FigureLayout,
)

#: Maximum panels in a row of a file.
_PANELS_PER_ROW = 3
_HEIGHT, _PANEL_HEIGHT = 380, 210
#: Height of a row of a heat map or of sorted dots; less in heat maps that would exceed a screen.
_ROW_HEIGHT, _LEAST_ROW_HEIGHT, _HEAT_MAP_HEIGHT = 18, 10, 760
#: Series up to which sorted dots lie below each other and have error bars.
_MAX_DODGED = 6


@dataclass(frozen=True)
class FigureChart:
    """Chart of a layout on a page, which can be had as a file."""

    layout: FigureLayout
    links: Mapping[str, Any] | None = None

    @property
    def specification(self) -> Specification:
        """The chart as Vega-Lite."""
        return chart_figure(self.layout, self.links)


def chart_figure(layout: FigureLayout, links: Mapping[str, Any] | None = None) -> Specification:
    """Build the chart of a layout.

    Args:
        layout: of the figure.
        links: start of the addresses of marks, and the part that each panel, place and series adds.
    """
    width, height = _chart_size(layout)
    columns = min(len(layout.panels), _PANELS_PER_ROW if layout.kind != DOTS else 2)
    full_width = width * columns
    layers, zoom = add_zoom(_LAYERS[layout.kind](layout, full_width))
    chart: Specification = {"layer": layers, "width": width, "height": height}
    if layout.has_panels:
        header = {"labelExpr": "panels[datum.value]", "title": None}
        facet = encode_field("p", "ordinal", header=header)
        chart = {"facet": facet, "spec": chart, "columns": columns}
    chart.update(data=MARKS, params=[*make_lists(layout), zoom])
    notes = (layout.bars, layout.shared and f"all variants: {layout.shared}", layout.selection)
    subtitle = wrap_lines([*filter(None, notes), layout.aggregated, layout.left_out], full_width)
    if layout.title:
        chart["title"] = {"text": layout.title, "subtitle": subtitle}
    meta = {
        # Rows of a heat map have labels.
        "series": [] if layout.kind == HEAT_MAP else [asdict(series) for series in layout.series],
        "legend": layout.groups[2],
        "panels": len(layout.panels),
        "links": links,
    }
    return complete_specification(chart, list_rows(layout), meta)


def _chart_size(layout: FigureLayout) -> tuple[float, float]:
    """Return the size of a panel in a file, in pixels."""
    places, series = len(layout.places), len(layout.series)
    dodged = max(1.0, series / 2) if series <= _MAX_DODGED else 1.0
    rows = {HEAT_MAP: series, DOTS: places * dodged}.get(layout.kind, 0)
    row_height = float(_ROW_HEIGHT)
    if layout.kind == HEAT_MAP:
        row_height = min(max(_HEAT_MAP_HEIGHT / series, _LEAST_ROW_HEIGHT), _ROW_HEIGHT)
    height = row_height * rows if rows else float(_PANEL_HEIGHT if layout.has_panels else _HEIGHT)
    if layout.has_panels:
        return PANEL_WIDTH, max(height, 60)
    points = places * (1 if layout.dates or layout.kind in (HEAT_MAP, DOTS) else series)
    return min(max(700.0, 14.0 * points), 2200.0), max(height, 60)


def _calculate_position(layout: FigureLayout) -> list[Specification]:
    """Add the common fields, and a position for each series around its place."""
    count = len(layout.series)
    at = f"datum.x + {GROUP_WIDTH} * ((datum.s + 0.5) / {count} - 0.5)"
    return [*add_common_fields(), *calculate_fields(at=at)]


def _layer_points(layout: FigureLayout, width: float) -> list[Specification]:
    transform = _calculate_position(layout)
    base = {
        "x": encode_places(layout, "at"),
        "color": encode_color(layout.series, width),
        "opacity": FADE_SERIES,
    }
    values = {**base, "y": encode_values(layout)}
    bars = {**base, "y": encode_values(layout, "l"), "y2": {"field": "h"}}
    layers = [make_layer("rule", bars, [*transform, DROP_MISSING_BARS], strokeWidth=1.2)]
    if layout.dates and layout.joined:
        layers.append(make_layer("line", values, transform, strokeWidth=1.2))
    points = {
        **values,
        "shape": encode_marker(layout.series, width),
        "tooltip": list_mean_tooltips(layout),
    }
    return [*layers, make_layer("point", points, transform, filled=True, opacity=1)]


def _layer_boxes(layout: FigureLayout, width: float) -> list[Specification]:
    transform = _calculate_position(layout)
    base = {
        "x": encode_places(layout, "at"),
        "color": encode_color(layout.series, width),
        "opacity": FADE_SERIES,
    }
    tooltip = list_tooltips(
        layout,
        ("a", "5 %"),
        ("b", "25 %"),
        ("y", "median"),
        ("d", "75 %"),
        ("e", "95 %"),
        ("n", layout.counted),
    )
    whiskers = {**base, "y": encode_values(layout, "a"), "y2": {"field": "e"}}
    boxes = {**base, "y": encode_values(layout, "b"), "y2": {"field": "d"}, "tooltip": tooltip}
    median = {
        **base,
        "y": encode_values(layout),
        "shape": encode_marker(layout.series, width),
        "tooltip": tooltip,
    }
    style = {"filled": True, "stroke": "white", "strokeWidth": 1, "size": 45}
    return [
        make_layer("rule", whiskers, transform),
        make_layer("rule", boxes, transform, strokeWidth=7),
        make_layer("point", median, transform, **style),
    ]


def _layer_steps(layout: FigureLayout, width: float) -> list[Specification]:
    dashes = [DASHES[number % len(DASHES)] for number in range(len(layout.series))]
    encoding = {
        "x": encode_places(layout, "x"),
        "y": encode_values(layout),
        "color": encode_color(layout.series, width),
        "opacity": FADE_SERIES,
        "strokeDash": encode_series(layout.series, dashes, width),
        "tooltip": list_tooltips(layout, ("y", layout.y_title)),
    }
    style = {"interpolate": "step", "strokeWidth": 2, "point": {"opacity": 0, "size": 80}}
    return [make_layer("line", encoding, _calculate_position(layout), **style)]


def _layer_heat(layout: FigureLayout, _width: float) -> list[Specification]:
    count = len(layout.series)
    rows = {
        "values": list(range(count)),
        "labelExpr": "series[round(datum.value)]",
        "ticks": False,
        "grid": False,
        "labelOverlap": "greedy",
        "labelFontSize": 11 if count <= _HEAT_MAP_HEIGHT // _ROW_HEIGHT else 9,
    }
    scale = {"domain": [count - 0.5, -0.5], "nice": False, "zero": False}
    color = encode_field(
        "y",
        QUANTITATIVE,
        title=layout.y_title,
        scale={"scheme": "cividis", "type": "log" if layout.scale == LOG else "linear"},
        legend={"orient": "top", "gradientLength": 160, "format": ".3~g", "tickCount": 4},
    )
    edges = calculate_fields(
        x0="datum.x - 0.47", x1="datum.x + 0.47", y0="datum.s - 0.45", y1="datum.s + 0.45"
    )
    encoding = {
        "x": encode_places(layout, "x0"),
        "x2": {"field": "x1"},
        "y": encode_field("y0", QUANTITATIVE, title=None, axis=rows, scale=scale),
        "y2": {"field": "y1"},
        "color": color,
        "opacity": FADE_SERIES,
        "tooltip": list_mean_tooltips(layout),
    }
    return [make_layer("rect", encoding, [*add_common_fields(), *edges], clip=True)]


def _layer_dots(layout: FigureLayout, width: float) -> list[Specification]:
    dodged = len(layout.series) <= _MAX_DODGED
    transform = _calculate_position(layout)
    base = {
        "y": encode_places(layout, "at" if dodged else "x", upright=True),
        "color": encode_color(layout.series, width),
        "opacity": FADE_SERIES,
    }
    bars = {**base, "x": encode_values(layout, "l"), "x2": {"field": "h"}}
    lines = make_layer("rule", bars, [*transform, DROP_MISSING_BARS], strokeWidth=1)
    points = {
        **base,
        "x": encode_values(layout),
        "shape": encode_marker(layout.series, width),
        "tooltip": list_mean_tooltips(layout),
    }
    dots = make_layer("point", points, transform, filled=True)
    return [lines, dots] if dodged else [dots]


_LAYERS: Mapping[str, Callable[[FigureLayout, float], list[Specification]]] = {
    POINTS: _layer_points,
    BOXES: _layer_boxes,
    STEPS: _layer_steps,
    HEAT_MAP: _layer_heat,
    DOTS: _layer_dots,
}
