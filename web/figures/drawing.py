"""Draw a figure into a file, as a subprocess because matplotlib and uproot are slow to import.

``python -m treehammer.web.figures.drawing FORMAT`` reads a figure as JSON from stdin and writes the file
to stdout.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from treehammer.binary_stdout import open_binary_stdout
from treehammer.web.figures.chart_drawing import draw_charts
from treehammer.web.figures.plot_style import FILE_STYLE, MARKERS, save_figure

#: File format -> media type.
FIGURE_FORMATS = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "root": "application/x-root",
}
TREE_NAME = "figure"

#: Width of a group of points relative to the distance between places.
_GROUP_WIDTH = 0.8
#: Line styles of steps, which have no markers.
_LINE_STYLES: tuple[Any, ...] = ("solid", "dashed", "dotted", "dashdot")
_ROTATED_LABEL_DEGREES = 40
#: Maximum panels in a row.
_PANELS_PER_ROW = 3
#: Font sizes in points; width of a letter in inches per point; width of a marker in inches.
_SMALL_FONT_PT, _LEGEND_FONT_PT = 8, 9
_LETTER_WIDTH_IN, _MARKER_WIDTH_IN = 0.0085, 0.6


def draw_figure(picture: Mapping[str, Any], form: str) -> bytes:
    """Draw a :class:`treehammer.web.figures.figure_layout.FigureLayout` (JSON) as PNG, SVG or PDF."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = picture["panels"]
    columns = min(len(panels), _PANELS_PER_ROW)
    lines = -(-len(panels) // columns)
    width, height = _figure_size(picture, columns, lines)
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for number, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
            _draw_panel(axes, picture, panel)
            if number + columns >= len(panels):
                # The lowest panel of its column; the last row may be incomplete.
                axes.tick_params(axis="x", labelbottom=True)
                axes.set_xlabel(picture["x_title"])
        _scale_y_axis(grid[0][0], picture)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        subtitle = [picture["bars"]]
        if picture["shared"]:
            subtitle.append(f"all variants: {picture['shared']}")
        figure.suptitle("\n".join([picture["title"], *subtitle]), fontsize=11)
        for axes in grid[:, 0]:
            axes.set_ylabel(picture["y_title"])
        _draw_legend(figure, picture, width)
        # Placed below everything else; the file is cropped to the drawing.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for legend in figure.legends:
            # Otherwise the legend would move with the edge of the file.
            legend.set_bbox_to_anchor((0, 0, 1, 1), figure.transSubfigure)
        lowest = figure.get_tightbbox().y0 / height - 0.01
        figure.text(0.01, lowest, _footer_text(picture, width), va="top", fontsize=_SMALL_FONT_PT)
        return save_figure(figure, form)


def _figure_size(picture: Mapping[str, Any], columns: int, lines: int) -> tuple[float, float]:
    """Size in inches that fits panels, labels and the legend."""
    places, series = picture["places"], picture["series"]
    points = len(places) * (1 if picture["dates"] else len(series))
    width = min(max(8.0, 1.5 + 0.12 * points), 24.0) if columns == 1 else 4.2 * columns
    # A legend with many entries has several columns.
    width = max(width, min(3, -(-len(series) // 8)) * _legend_entry_width(series) + 0.1)
    rows = -(-len(series) // _legend_columns(series, width))
    height = (4.8 if lines == 1 else 3.0 * lines + 0.6) + 0.22 * (1 + rows)
    if angle := _label_angle(picture):
        height += max(map(len, places)) * (0.07 if angle > _ROTATED_LABEL_DEGREES else 0.05)
    return width, height


def _footer_text(picture: Mapping[str, Any], width: float) -> str:
    """Selection and notes, which must stay with the file."""
    texts = (picture["selection"], picture["aggregated"], picture["left_out"])
    letters = int(width / (_SMALL_FONT_PT * _LETTER_WIDTH_IN))
    lines = (textwrap.wrap(text, letters) for text in texts)
    return "\n".join(line for of_text in lines for line in of_text)


def _legend_entry_width(series: Sequence[Mapping[str, Any]]) -> float:
    """Width of a legend entry in inches."""
    return (
        _MARKER_WIDTH_IN
        + max(len(one["name"]) for one in series) * _LEGEND_FONT_PT * _LETTER_WIDTH_IN
    )


def _legend_columns(series: Sequence[Mapping[str, Any]], width: float) -> int:
    """Number of legend columns."""
    return max(1, min(len(series), int(width / _legend_entry_width(series))))


def _draw_panel(axes: Any, picture: Mapping[str, Any], panel: Mapping[str, Any]) -> None:
    for number in range(len(picture["series"])):
        marks = [mark for mark in panel["marks"] if mark["series"] == number]
        if marks:
            _draw_series(axes, picture, number, marks)
    _style_x_axis(axes, picture, picture["places"])
    if panel["title"]:
        axes.set_title(panel["title"], loc="left")


def _draw_series(
    axes: Any, picture: Mapping[str, Any], number: int, marks: Sequence[Mapping[str, Any]]
) -> None:
    """Draw the marks of one series as boxes, as a histogram or as points with bars."""
    one = picture["series"][number]
    look = {"color": one["color"], "marker": MARKERS[one["marker"]], "markersize": 5}
    x = [_x_position(picture, mark["place"], number) for mark in marks]
    y = [mark["y"] for mark in marks]
    if marks[0]["box"]:
        _draw_boxes(axes, x, marks, _GROUP_WIDTH / len(picture["series"]), look)
    elif picture["bins"]:
        line = _LINE_STYLES[number % len(_LINE_STYLES)]
        # Extend the first and last bin to their outer edges.
        x, y = [x[0] - 0.5, *x, x[-1] + 0.5], [y[0], *y, y[-1]]
        axes.step(x, y, where="mid", color=one["color"], linestyle=line, linewidth=1.5)
    else:
        line = "-" if picture["dates"] else "none"
        bars = [
            [mark["y"] - _smallest_positive(mark, "low") for mark in marks],
            [_smallest_positive(mark, "high") - mark["y"] for mark in marks],
        ]
        axes.errorbar(x, y, yerr=bars, capsize=2.5, linestyle=line, linewidth=1, **look)


def _smallest_positive(mark: Mapping[str, Any], end: str) -> float:
    return float(mark["y"] if mark[end] is None else mark[end])


def _x_position(picture: Mapping[str, Any], place: int, series: int) -> Any:
    if picture["dates"]:
        text = picture["places"][place]
        return date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    if picture["bins"]:
        return place
    return place + _GROUP_WIDTH * ((series + 0.5) / len(picture["series"]) - 0.5)


def _draw_boxes(
    axes: Any, x: Sequence[Any], marks: Sequence[Any], width: float, look: Mapping[str, Any]
) -> None:
    at = [_import_dates().date2num(one) if isinstance(one, date) else one for one in x]
    keys = ("whislo", "q1", "med", "q3", "whishi")
    stats = [dict(zip(keys, mark["box"], strict=True)) for mark in marks]
    line = {"color": look["color"]}
    axes.bxp(
        stats,
        positions=at,
        widths=0.8 * width,
        showfliers=False,
        manage_ticks=False,
        boxprops=line,
        whiskerprops=line,
        capprops=line,
        medianprops={**line, "linewidth": 2},
    )
    axes.plot(at, [mark["y"] for mark in marks], linestyle="none", **look)


def _style_x_axis(axes: Any, picture: Mapping[str, Any], places: Sequence[str]) -> None:
    if picture["dates"]:
        mdates = _import_dates()
        locator = mdates.AutoDateLocator(minticks=2, maxticks=8)
        locator.intervald[mdates.HOURLY] = [24]
        axes.xaxis_date()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(mdates.ConciseDateFormatter(locator))
    else:
        angle = _label_angle(picture)
        # Bins are labeled by their lower edges.
        shift = 0.5 if picture["bins"] else 0.0
        axes.set_xticks(
            [place - shift for place in range(len(places))],
            places,
            rotation=angle,
            ha="right" if angle == _ROTATED_LABEL_DEGREES else "center",
            rotation_mode="anchor" if angle == _ROTATED_LABEL_DEGREES else "default",
            fontsize=8 if angle else 10,
        )
        axes.set_xlim(-0.5, len(places) - 0.5)


def _scale_y_axis(axes: Any, picture: Mapping[str, Any]) -> None:
    """Set the scale of the shared vertical axis, after all panels are drawn."""
    marks = [mark for panel in picture["panels"] for mark in panel["marks"]]
    if picture["log"]:
        axes.set_yscale("log")
    elif (
        min(
            _smallest_positive(mark, "low") if not mark["box"] else mark["box"][0] for mark in marks
        )
        >= 0
    ):
        axes.set_ylim(bottom=0)


def _import_dates() -> Any:
    """Import ``matplotlib.dates``, which has no type annotations."""
    from matplotlib import dates

    return dates


def _label_angle(picture: Mapping[str, Any]) -> int:
    """Rotation of the place labels in degrees."""
    places, several = picture["places"], len(picture["panels"]) > 1
    if picture["dates"] or max(map(len, places)) * len(places) < (24 if several else 70):
        return 0
    return 90 if several or len(places) > 12 else _ROTATED_LABEL_DEGREES


def _draw_legend(figure: Any, picture: Mapping[str, Any], width: float) -> None:
    from matplotlib.lines import Line2D

    series = picture["series"]
    if len(series) == 1 and not series[0]["name"]:
        return
    handles = [
        # matplotlib hides entries with a leading underscore.
        Line2D(
            [],
            [],
            label=f" {one['name']}",
            color=one["color"],
            marker="" if picture["bins"] else MARKERS[one["marker"]],
            linestyle=_LINE_STYLES[number % len(_LINE_STYLES)] if picture["bins"] else "none",
        )
        for number, one in enumerate(series)
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=_legend_columns(series, width),
        fontsize=_LEGEND_FONT_PT,
    )


def write_tree(
    columns: Sequence[Mapping[str, str]], rows: Sequence[Mapping[str, Any]], title: str
) -> bytes:
    """Write rows as a ROOT file with one TTree.

    Missing values are an empty text, NaN, -2^63, or 255 for booleans.

    Args:
        columns: each with ``name`` and ``type``: text, int, float or bool.
        rows: values by name.
        title: title of the tree.
    """
    import numpy as np
    import uproot

    kinds = {"int": (np.int64, -(2**63)), "float": (np.float64, np.nan), "bool": (np.uint8, 255)}
    arrays: dict[str, Any] = {}
    for column in columns:
        name = column["name"]
        values = [row[name] for row in rows]
        if column["type"] == "text":
            # ROOT strings end at the first NUL.
            arrays[name] = ["" if one is None else str(one).replace("\0", "") for one in values]
        else:
            dtype, unknown = kinds[column["type"]]
            arrays[name] = np.array([unknown if one is None else one for one in values], dtype)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figure.root"
        with uproot.recreate(file) as out:
            types = {
                name: "string" if isinstance(values, list) else values.dtype
                for name, values in arrays.items()
            }
            out.mktree(TREE_NAME, types, title=title.replace("\0", ""))
            if rows:
                out[TREE_NAME].extend(arrays)
        return file.read_bytes()


def draw_file(form: str, request: Mapping[str, Any]) -> bytes:
    """Draw a file of one of :data:`FIGURE_FORMATS`."""
    if form == "root":
        return write_tree(request["columns"], request["rows"], request["title"])
    if "charts" in request:
        return draw_charts(request, form)
    return draw_figure(request["picture"], form)


def main() -> None:
    """Read JSON from stdin and write the file to stdout."""
    content = draw_file(sys.argv[1], json.load(sys.stdin))
    with open_binary_stdout() as out:
        out.write(content)


if __name__ == "__main__":
    main()
