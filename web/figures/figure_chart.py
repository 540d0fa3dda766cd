"""Charts of a figure's layout: points, boxes, steps, heat maps and sorted dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import altair as alt

from treehammer.web.figures.chart_parts import (
    GROUP_WIDTH,
    MARKS,
    PANEL_WIDTH,
    Specification,
    add_common_fields,
    drop_missing_bars,
    encode_color,
    encode_marker,
    encode_places,
    encode_values,
    fade_series,
    list_rows,
    list_tooltips,
    make_legend,
    make_lists,
    make_zoom,
    wrap_lines,
    write_specification,
)
from treehammer.web.figures.figure_layout import (
    BOXES,
    DOTS,
    HEAT_MAP,
    POINTS,
    STEPS,
    FigureLayout,
)
from treehammer.web.figures.plot_style import DASHES

#: Maximum panels in a row of a file.
_PANELS_PER_ROW = 3
_HEIGHT, _PANEL_HEIGHT = 380, 210
#: Height of a row of a heat map or of sorted dots.
_ROW_HEIGHT = 18
#: Series up to which sorted dots lie below each other and have error bars.
_MAX_DODGED = 6


@dataclass(frozen=True)
class FigureChart:
    """Chart of a layout on a page, which can be had as a file."""

    layout: FigureLayout

    @property
    def specification(self) -> Specification:
        """The chart as Vega-Lite."""
        return chart_figure(self.layout)


def chart_figure(layout: FigureLayout, links: Mapping[str, Any] | None = None) -> Specification:
    """Build the chart of a layout.

    Args:
        layout: of the figure.
        links: start of the addresses of marks, and what each panel, place and series adds to it.
    """
    several = len(layout.panels) > 1
    width, height = _chart_size(layout)
    columns = min(len(layout.panels), _PANELS_PER_ROW if layout.kind != DOTS else 2)
    whole = width * columns
    layers = _LAYERS[layout.kind](layout, whole)
    panel = alt.layer(*layers).properties(width=width, height=height).add_params(make_zoom())
    if several:
        header = alt.Header(labelExpr="panels[datum.value]", title=None)
        facet = alt.Facet("p:O", header=header)
        chart = panel.facet(facet, columns=columns, data=MARKS)
    else:
        chart = panel.properties(data=MARKS)
    chart = chart.add_params(*make_lists(layout))
    notes = (layout.bars, layout.shared and f"all variants: {layout.shared}", layout.selection)
    subtitle = wrap_lines([*filter(None, notes), layout.aggregated, layout.left_out], whole)
    if layout.title:
        chart = chart.properties(title=alt.TitleParams(text=layout.title, subtitle=subtitle))
    meta = {
        # Rows of a heat map have labels.
        "series": [] if layout.kind == HEAT_MAP else [asdict(one) for one in layout.series],
        "legend": layout.groups[2],
        "panels": len(layout.panels),
        "links": links,
    }
    return write_specification(chart, list_rows(layout), meta)


def _chart_size(layout: FigureLayout) -> tuple[float, float]:
    """Size of a panel in a file, in pixels."""
    places, series = len(layout.places), len(layout.series)
    several = len(layout.panels) > 1
    dodged = max(1.0, series / 2) if series <= _MAX_DODGED else 1.0
    rows = {HEAT_MAP: series, DOTS: places * dodged}.get(layout.kind, 0)
    height = float(_ROW_HEIGHT * rows if rows else _PANEL_HEIGHT if several else _HEIGHT)
    if several:
        return PANEL_WIDTH, max(height, 60)
    points = places * (1 if layout.dates or layout.kind in (HEAT_MAP, DOTS) else series)
    return min(max(700.0, 14.0 * points), 2200.0), max(height, 60)


def _prepare(layout: FigureLayout, width: float) -> alt.Chart:
    """Chart with the color of series and a position for each."""
    count = len(layout.series)
    return (
        add_common_fields(alt.Chart())
        .transform_calculate(at=f"datum.x + {GROUP_WIDTH} * ((datum.s + 0.5) / {count} - 0.5)")
        .encode(color=encode_color(layout.series, width), opacity=fade_series())
    )


def _layer_points(layout: FigureLayout, width: float) -> list[alt.Chart]:
    several = len(layout.panels) > 1
    x = encode_places(layout, alt.X, "at", several=several)
    base = _prepare(layout, width).encode(x=x)
    y = encode_values(layout, alt.Y)
    layers = [
        drop_missing_bars(base)
        .mark_rule(strokeWidth=1.2)
        .encode(encode_values(layout, alt.Y, "l"), y2="h:Q")
    ]
    if layout.dates and layout.joined:
        layers.append(base.mark_line(strokeWidth=1.2).encode(y))
    tooltips = list_tooltips(
        layout, ("y", "mean"), ("l", "from"), ("h", "to"), ("n", layout.counted)
    )
    points = base.mark_point(filled=True, opacity=1).encode(
        y, shape=encode_marker(layout.series, width), tooltip=tooltips
    )
    return [*layers, points]


def _layer_boxes(layout: FigureLayout, width: float) -> list[alt.Chart]:
    several = len(layout.panels) > 1
    x = encode_places(layout, alt.X, "at", several=several)
    base = _prepare(layout, width).encode(x=x)
    tooltips = list_tooltips(
        layout,
        ("a", "5 %"),
        ("b", "25 %"),
        ("y", "median"),
        ("d", "75 %"),
        ("e", "95 %"),
        ("n", layout.counted),
    )
    whiskers = base.mark_rule().encode(encode_values(layout, alt.Y, "a"), y2="e:Q")
    boxes = base.mark_rule(strokeWidth=7).encode(
        encode_values(layout, alt.Y, "b"), y2="d:Q", tooltip=tooltips
    )
    median = base.mark_point(filled=True, stroke="white", strokeWidth=1, size=45).encode(
        encode_values(layout, alt.Y),
        shape=encode_marker(layout.series, width),
        tooltip=tooltips,
    )
    return [whiskers, boxes, median]


def _layer_steps(layout: FigureLayout, width: float) -> list[alt.Chart]:
    several = len(layout.panels) > 1
    dashes = [DASHES[number % len(DASHES)] for number in range(len(layout.series))]
    steps = (
        _prepare(layout, width)
        .mark_line(interpolate="step", strokeWidth=2, point={"opacity": 0, "size": 80})
        .encode(
            encode_places(layout, alt.X, "x", several=several),
            encode_values(layout, alt.Y),
            strokeDash=alt.StrokeDash(
                "s:N",
                scale=alt.Scale(domain=list(range(len(layout.series))), range=dashes),
                legend=make_legend(layout.series, width),
            ),
            tooltip=list_tooltips(layout, ("y", layout.y_title)),
        )
    )
    return [steps]


def _layer_heat(layout: FigureLayout, width: float) -> list[alt.Chart]:
    several = len(layout.panels) > 1
    count = len(layout.series)
    rows = alt.Axis(
        values=list(range(count)),
        labelExpr="series[round(datum.value)]",
        ticks=False,
        grid=False,
        labelOverlap="greedy",
    )
    scale = alt.Scale(domain=[count - 0.5, -0.5], nice=False, zero=False)
    color = alt.Color(
        "y:Q",
        title=layout.y_title,
        scale=alt.Scale(scheme="cividis", type="log" if layout.scale == "log" else "linear"),
        legend=alt.Legend(orient="top", gradientLength=160, format=".3~g", tickCount=4),
    )
    cells = (
        add_common_fields(alt.Chart())
        .transform_calculate(
            x0="datum.x - 0.47", x1="datum.x + 0.47", y0="datum.s - 0.45", y1="datum.s + 0.45"
        )
        .mark_rect(clip=True)
        .encode(
            encode_places(layout, alt.X, "x0", several=several),
            alt.Y("y0:Q", title=None, axis=rows, scale=scale),
            x2="x1:Q",
            y2="y1:Q",
            color=color,
            opacity=fade_series(),
            tooltip=list_tooltips(
                layout, ("y", "mean"), ("l", "from"), ("h", "to"), ("n", layout.counted)
            ),
        )
    )
    return [cells]


def _layer_dots(layout: FigureLayout, width: float) -> list[alt.Chart]:
    dodged = len(layout.series) <= _MAX_DODGED
    several = len(layout.panels) > 1
    places = encode_places(layout, alt.Y, "at" if dodged else "x", several=several)
    base = _prepare(layout, width).encode(y=places)
    lines = (
        drop_missing_bars(base)
        .mark_rule(strokeWidth=1)
        .encode(encode_values(layout, alt.X, "l"), x2="h:Q")
    )
    dots = base.mark_point(filled=True).encode(
        encode_values(layout, alt.X),
        shape=encode_marker(layout.series, width),
        tooltip=list_tooltips(
            layout, ("y", "mean"), ("l", "from"), ("h", "to"), ("n", layout.counted)
        ),
    )
    return [lines, dots] if dodged else [dots]


_LAYERS: Mapping[str, Callable[[FigureLayout, float], list[alt.Chart]]] = {
    POINTS: _layer_points,
    BOXES: _layer_boxes,
    STEPS: _layer_steps,
    HEAT_MAP: _layer_heat,
    DOTS: _layer_dots,
}
