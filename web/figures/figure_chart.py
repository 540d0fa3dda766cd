"""Charts of a figure's layout: points, curves, steps and heat maps."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

from treehammer.web.figures import chart_parts as vega
from treehammer.web.figures.figure_layout import (
    EQUAL_COLOR,
    NUMBER_COLOR,
    THEME,
    FigureLayout,
    Kind,
    Scale,
)

#: Maximum panels in a row of a file.
_PANELS_PER_ROW = 3
_HEIGHT, _PANEL_HEIGHT, _CURVES_HEIGHT = 380, 210, 300
#: Height of a plot on paper as a share of its width, and its least one.
_PAPER_ASPECT, _LEAST_HEIGHT = 0.62, 150
#: Most pixels of the height of a plot on paper: 230 mm.
MAX_PAPER_HEIGHT = 890
#: Least width of a panel on paper; room for the axis beside the panels, and between them.
_LEAST_PANEL_WIDTH, _AXIS_WIDTH, _PANEL_GAP = 200, 64, 20
#: Height of a row of a heat map; less where it would exceed a screen, but no less than a label needs.
_ROW_HEIGHT, _LEAST_ROW_HEIGHT, _TALL_HEIGHT = 18, 14, 760
#: Least width of a cell with a number.
_NUMBER_WIDTH = 34
#: Width of the colors of a legend in pixels, and letters in a line of its title, which is as wide.
_LEGEND_WIDTH, _LEGEND_LETTERS = 160, 24
#: Colors of cells that are worse and better than their row, and of those beside a metric without either.
_WORSE_COLOR, _BETTER_COLOR = "#b8431a", "#14639b"
#: Share of the cells whose difference from their row's median is within the scale of colors.
_COLORED_SHARE = 0.99


@dataclass(frozen=True)
class FigureChart:
    """Chart of a layout on a page, which can be had as a file.

    Attributes:
        links: start of the addresses of marks, and the part that each panel, place and series adds.
    """

    layout: FigureLayout
    links: Mapping[str, Any] | None = None

    @property
    def specification(self) -> vega.Specification:
        """The chart as Vega-Lite."""
        return chart_figure(self.layout, self.links)


def chart_figure(
    layout: FigureLayout, links: Mapping[str, Any] | None = None, *, paper_width: float = 0.0
) -> vega.Specification:
    """Build the chart of a layout.

    Args:
        links: start of the addresses of marks, and the part that each panel, place and series adds.
        paper_width: pixels of a column of a paper, whose own caption replaces title and notes; 0 for
            the width that the figure needs.
    """
    width, height, columns = _arrange_panels(layout, paper_width)
    full_width = width * columns
    layers, zoom = vega.add_zoom(_LAYERS[layout.kind](layout, full_width))
    chart: vega.Specification = {"layer": layers, "width": width, "height": height}
    if layout.has_panels:
        header = {"labelExpr": "panels[datum.value]", "title": None}
        facet = vega.encode_field("p", "ordinal", header=header)
        chart = {"facet": facet, "spec": chart, "columns": columns}
    chart.update(data=vega.MARKS, params=[*vega.make_lists(layout), zoom])
    notes = [layout.bars, layout.shared and f"all variants: {layout.shared}", layout.selection]
    notes += [layout.aggregated, layout.left_out]
    subtitle = vega.wrap_lines(notes, full_width)
    if not paper_width and layout.title:
        chart["title"] = {"text": layout.title, "subtitle": subtitle}
    elif paper_width and not layout.has_panels:
        # The angle of labels depends on the width, which row labels make smaller.
        chart["autosize"] = {"type": "fit-x", "contains": "padding", "resize": True}
    meta = _describe_chart(layout)
    specification = vega.complete_specification(
        chart, vega.list_rows(layout), {**meta, "links": links}
    )
    if paper_width and layout.kind == Kind.HEAT_MAP:
        longest = max(len(line.name) for line in layout.series)
        letters = min(11.0, height / len(layout.series) - 1, paper_width / min(longest, 60))
        labels = {"labelFontSize": letters, "labelLimit": paper_width / 2}
        specification["config"] = {**THEME, "axisY": labels}
    return specification


def _arrange_panels(layout: FigureLayout, paper_width: float) -> tuple[float, float, int]:
    """Return width and height of a panel in pixels, and the number of panels in a row."""
    width, height = _chart_size(layout)
    columns = min(len(layout.panels), _PANELS_PER_ROW)
    if paper_width:
        columns = min(columns, max(1, int(paper_width / _LEAST_PANEL_WIDTH)))
        axis_width = _AXIS_WIDTH if layout.has_panels else 0
        width = (paper_width - axis_width) / columns - (axis_width and _PANEL_GAP)
        is_heat_map = layout.kind == Kind.HEAT_MAP
        most = MAX_PAPER_HEIGHT if is_heat_map else max(_PAPER_ASPECT * width, _LEAST_HEIGHT)
        height = min(height, most)
    return width, height, columns


def _describe_chart(layout: FigureLayout) -> dict[str, Any]:
    """Describe a chart for the page: its legend and size; rows of a heat map have labels instead."""
    is_heat_map = layout.kind == Kind.HEAT_MAP
    series = () if is_heat_map else layout.series
    if layout.kind == Kind.STEPS:
        series = tuple(replace(line, marker="line") for line in series)
    return {
        "series": [asdict(line) for line in series],
        # Narrow columns of a heat map have labels, or numbers, that cannot be read.
        **({"places": len(layout.places)} if is_heat_map else {}),
        **({"column_width": _NUMBER_WIDTH} if layout.limit else {}),
        "legend": layout.groups[2],
        "panels": len(layout.panels),
    }


def _chart_size(layout: FigureLayout) -> tuple[float, float]:
    """Return the size of a panel in a file, in pixels."""
    has_rows, rows = layout.kind == Kind.HEAT_MAP, len(layout.series)
    if layout.has_panels:
        panel_height = _CURVES_HEIGHT if layout.kind == Kind.CURVES else _PANEL_HEIGHT
        return vega.PANEL_WIDTH, max(float(rows * _ROW_HEIGHT if has_rows else panel_height), 60)
    points = len(layout.places) * (1 if layout.dates or has_rows else rows)
    height = float(_HEIGHT)
    if has_rows:
        height = rows * min(max(_TALL_HEIGHT / rows, _LEAST_ROW_HEIGHT), float(_ROW_HEIGHT))
    return min(max(700.0, 14.0 * points), 2200.0), max(height, 60)


class _MarkLayers:
    """Makes layers of marks that lie at places and have a color by series."""

    def __init__(self, layout: FigureLayout, width: float) -> None:
        self._layout, self.looks = layout, vega.encode_series(layout.series, width)
        at = f"datum.x + {vega.GROUP_WIDTH} * ((datum.s + 0.5) / {len(layout.series)} - 0.5)"
        if layout.kind == Kind.CURVES:
            at = "datum.x"
        self._transform = [*vega.add_common_fields(), *vega.calculate_fields(at=at)]
        self._base = {
            "x": vega.encode_places(layout, "x" if layout.kind == Kind.STEPS else "at"),
            "color": self.looks["color"],
            "opacity": vega.FADE_SERIES,
        }

    def layer(
        self,
        mark: str,
        low: str = "y",
        high: str = "",
        *,
        filters: Sequence[vega.Specification] = (),
        channels: Mapping[str, Any] = MappingProxyType({}),
        is_described: bool = False,
        **style: Any,
    ) -> vega.Specification:
        """Make a layer of marks at one value, or between two; points are always described."""
        encoding = {**self._base, "y": vega.encode_values(self._layout, low), **channels}
        if high:
            encoding["y2"] = {"field": high}
        if mark == "point":
            encoding["shape"] = self.looks["shape"]
        if mark == "point" or is_described:
            encoding["tooltip"] = vega.list_tooltips(self._layout, *_TOOLTIPS[self._layout.kind])
        return vega.make_layer(mark, encoding, [*self._transform, *filters], **style)


#: Kind -> numbers in tooltips, by field and title; that of the number of executions is added.
_MEAN_TOOLTIP = (("y", "mean"), ("l", "from"), ("h", "to"), ("n", ""))
_TOOLTIPS: Mapping[str, Sequence[tuple[str, str]]] = {
    **dict.fromkeys((Kind.POINTS, Kind.CURVES, Kind.HEAT_MAP), _MEAN_TOOLTIP),
    Kind.STEPS: (("y", ""),),
}


def _layer_points(layout: FigureLayout, width: float) -> list[vega.Specification]:
    marks = _MarkLayers(layout, width)
    quiet = [number for number, line in enumerate(layout.series) if line.is_quiet]
    loud: list[vega.Specification] = []
    layers, names = [], []
    if quiet:
        loud = [{"filter": f"indexof({quiet}, datum.s) < 0"}]
        quiet_filters = [{"filter": f"indexof({quiet}, datum.s) >= 0"}]
        if layout.joined:
            layers.append(marks.layer("line", filters=quiet_filters, strokeWidth=0.8))
        layers.append(marks.layer("point", filters=quiet_filters, filled=True, opacity=1, size=10))
        names = [_name_ends(marks, loud)]
    if layout.joined and (layout.dates or layout.kind == Kind.CURVES):
        layers.append(marks.layer("line", filters=loud, strokeWidth=2 if quiet else 1.2))
    bars = marks.layer("rule", "l", "h", filters=[*loud, vega.DROP_MISSING_BARS], strokeWidth=1.2)
    points = marks.layer("point", filters=loud, filled=True, opacity=1)
    return [bars, *layers, points, *names]


def _name_ends(marks: _MarkLayers, filters: Sequence[vega.Specification]) -> vega.Specification:
    """Write the names of lines at their ends."""
    last: vega.Specification = {
        "window": [{"op": "last_value", "field": "x", "as": "last"}],
        "groupby": ["p", "s"],
        "frame": [None, None],
        "sort": [{"field": "x"}],
    }
    ends = [*filters, last, {"filter": "datum.x == datum.last"}]
    name = {"text": vega.encode_field("name", vega.NOMINAL)}
    style: vega.Specification = {"align": "right", "dy": -9, "fontWeight": "bold"}
    return marks.layer("text", filters=ends, channels=name, **style)


def _layer_steps(layout: FigureLayout, width: float) -> list[vega.Specification]:
    style: vega.Specification = {
        "interpolate": "step",
        "strokeWidth": 2,
        "point": {"opacity": 0, "size": 80},
    }
    marks = _MarkLayers(layout, width)
    dashes = {"strokeDash": marks.looks["strokeDash"]}
    return [marks.layer("line", channels=dashes, is_described=True, **style)]


def _layer_heat(layout: FigureLayout, _width: float) -> list[vega.Specification]:
    count = len(layout.series)
    rows = {
        "values": list(range(count)),
        "labelExpr": "series[round(datum.value)]",
        "ticks": False,
        "grid": False,
        "labelOverlap": False,
    }
    scale = {"domain": [count - 0.5, -0.5], "nice": False, "zero": False}
    edges = vega.calculate_fields(
        x0="datum.x - 0.47", x1="datum.x + 0.47", y0="datum.s - 0.45", y1="datum.s + 0.45"
    )
    encoding = {
        "x": vega.encode_places(layout, "x0"),
        "x2": {"field": "x1"},
        "y": vega.encode_field("y0", vega.QUANTITATIVE, title=None, axis=rows, scale=scale),
        "y2": {"field": "y1"},
        "opacity": vega.FADE_SERIES,
        "tooltip": vega.list_tooltips(layout, *_MEAN_TOOLTIP),
    }
    medians = _find_row_medians(layout)
    is_relative = medians and not layout.limit
    title = layout.y_title + (": difference from the row's median, %" if is_relative else "")
    legend: vega.Specification = {
        "orient": "top",
        "gradientLength": _LEGEND_WIDTH,
        "tickCount": 4,
        "title": textwrap.wrap(title, _LEGEND_LETTERS),
    }
    transform = [*vega.add_common_fields(), *edges]
    if layout.limit:
        return _layer_limited_heat(layout, encoding, transform, legend)
    if not medians:
        plain_colors = {
            "scheme": "cividis",
            "type": "log" if layout.scale == Scale.LOG else "linear",
        }
        legend["format"] = ".3~g"
        encoding["color"] = vega.encode_field(
            "y", vega.QUANTITATIVE, scale=plain_colors, legend=legend
        )
        return [vega.make_layer("rect", encoding, transform, clip=True)]
    differences = sorted(abs(100 * (mark.y / medians[mark.series] - 1)) for mark in layout.marks)
    # Larger differences would leave the others without colors.
    reach = max(differences[int(_COLORED_SHARE * (len(differences) - 1))], 1.0)
    reach = float(f"{reach:.2g}")
    ends = [_WORSE_COLOR, EQUAL_COLOR, _BETTER_COLOR]
    colors: vega.Specification = {
        "type": "linear",
        "domain": [-reach, 0, reach],
        "range": ends[::-1] if layout.better == "lower" else ends,
        "clamp": True,
        "interpolate": "rgb",
    }
    legend["format"] = "+.2~g"
    encoding["color"] = vega.encode_field("d", vega.QUANTITATIVE, scale=colors, legend=legend)
    difference = vega.encode_field(
        "d", vega.QUANTITATIVE, title="% from the row's median", format="+.2~f"
    )
    encoding["tooltip"] = [*vega.list_tooltips(layout, *_MEAN_TOOLTIP), difference]
    transform += vega.calculate_fields(d=f"100 * (datum.y / {medians}[datum.s] - 1)")
    return [vega.make_layer("rect", encoding, transform, clip=True)]


def _layer_limited_heat(
    layout: FigureLayout,
    encoding: vega.Specification,
    transform: list[vega.Specification],
    legend: vega.Specification,
) -> list[vega.Specification]:
    """Color ratios by the limit, which is gray, and write them into their cells."""
    limit = layout.limit or 1.0
    reach = max((max(mark.y / limit, limit / mark.y) for mark in layout.marks), default=1.0)
    ends = [_BETTER_COLOR, EQUAL_COLOR, _WORSE_COLOR]
    colors: vega.Specification = {
        "type": "log",
        "domain": [limit / max(reach, 1.1), limit, limit * max(reach, 1.1)],
        "range": ends if layout.better == "lower" else ends[::-1],
        "interpolate": "rgb",
    }
    legend |= {"format": ".2~g", "values": [limit / reach, limit, limit * reach]}
    color = vega.encode_field("y", vega.QUANTITATIVE, scale=colors, legend=legend)
    # Numbers are readable on the gray middle and on the dark ends.
    is_dark = f"datum.y > {limit * reach**0.5} || datum.y < {limit / reach**0.5}"
    number = {
        "x": vega.encode_places(layout, "x"),
        "y": {**encoding["y"], "field": "s"},
        "text": vega.encode_field("y", vega.QUANTITATIVE, format=".2~f"),
        "color": {"condition": {"test": is_dark, "value": "#ffffff"}, "value": NUMBER_COLOR},
    }
    return [
        vega.make_layer("rect", {**encoding, "color": color}, transform, clip=True),
        vega.make_layer("text", number, transform, fontSize=10),
    ]


def _find_row_medians(layout: FigureLayout) -> list[float]:
    """Return the median of each row; none if differences from one cannot be told as shares."""
    rows: list[list[float]] = [[] for _ in layout.series]
    for mark in layout.marks:
        rows[mark.series].append(mark.y)
    if len(layout.places) == 1 or any(value <= 0 for row in rows for value in row):
        return []
    return [float(format(median(row), ".7g")) if row else 1.0 for row in rows]


_LAYERS: Mapping[str, Callable[[FigureLayout, float], list[vega.Specification]]] = {
    Kind.POINTS: _layer_points,
    Kind.CURVES: _layer_points,
    Kind.STEPS: _layer_steps,
    Kind.HEAT_MAP: _layer_heat,
}
