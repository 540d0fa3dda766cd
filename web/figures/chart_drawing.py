"""Files of line charts: the geometry of the pages, drawn with matplotlib."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from treehammer.web.figures.plot_style import FILE_STYLE, PALETTE, save_figure

#: Size of a chart in inches, charts in a row, and letters in a line of a caption.
_WIDTH_IN, _HEIGHT_IN, _COLUMNS = 7.0, 3.4, 2
_CAPTION_CHARS = 100
#: Color and line style of lines that are no measurements.
_PLAIN_LOOKS: Mapping[str, tuple[str, Any]] = {
    "ideal": ("#5f6b76", "dashed"),
    "target": ("#b3261e", "dotted"),
}


def draw_charts(sheet: Mapping[str, Any], form: str) -> bytes:
    """Draw charts onto one sheet as PNG, SVG or PDF.

    Args:
        sheet: ``title``, and ``charts`` with ``heading``, ``caption`` and ``drawing``
            (:meth:`treehammer.web.figures.line_chart.LineChart.describe`).
        form: the format.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    charts = sheet["charts"]
    columns = min(len(charts), _COLUMNS)
    lines = -(-len(charts) // columns)
    with mpl.rc_context(FILE_STYLE):
        figure = Figure(figsize=(_WIDTH_IN * columns, _HEIGHT_IN * lines), layout="constrained")
        grid = figure.subplots(lines, columns, squeeze=False).flat
        for axes, chart in zip(grid, charts, strict=False):
            _draw_chart(axes, chart)
        for axes in list(grid)[len(charts) :]:
            axes.set_axis_off()
        figure.suptitle(sheet["title"], fontsize=11)
        return save_figure(figure, form)


def _draw_chart(axes: Any, chart: Mapping[str, Any]) -> None:
    drawing = chart["drawing"]
    left, right, top, bottom = drawing["frame"]
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    for ticks, place in (
        (drawing["x_ticks"], axes.set_xticks),
        (drawing["y_ticks"], axes.set_yticks),
    ):
        place([at for at, _ in ticks], [text for _, text in ticks])
    for x, end, label in drawing["marks"]:
        axes.axvspan(x, end, color="#8c8c8c", alpha=0.4, linewidth=1)
        axes.text((x + end) / 2, top, label, ha="center", va="bottom", fontsize=7)
    for line in drawing["lines"]:
        _draw_line(axes, line)
    axes.set_title(chart["heading"], loc="left", pad=16)
    axes.set_xlabel("\n".join(textwrap.wrap(chart["caption"], _CAPTION_CHARS)), fontsize=7)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_line(axes: Any, line: Mapping[str, Any]) -> None:
    color, style = _PLAIN_LOOKS.get(line["css_class"], ("", "solid"))
    color = color or PALETTE[int(line["css_class"].removeprefix("color"))]
    look = {
        "color": color,
        "linestyle": style,
        "linewidth": 1,
        "label": line["name"],
        "clip_on": False,
    }
    if not line["plain"]:
        look.update(marker="o" if line["round"] else "s", markersize=4)
    dots = line["dots"]
    axes.plot([dot[0] for dot in dots], [dot[1] for dot in dots], **look)
    hollow = [dot for dot in dots if dot[4]]
    if hollow and not line["plain"]:
        places = ([dot[0] for dot in hollow], [dot[1] for dot in hollow])
        axes.plot(*places, "o", color=color, markerfacecolor="white", markersize=4, clip_on=False)
