"""Charts as SVG elements inside a document, in its text color."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import escape

from treehammer.web.figures.drawing import draw_chart
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import FigureLayout
from treehammer.web.figures.plot_style import GRID_COLOR, INK_COLOR

_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE = re.compile(r' width="(\d+)" height="\d+"')
#: Width of a drawing on a narrow screen, where it can be scrolled, relative to its own.
_LEAST_WIDTH_REM = 0.045


@dataclass(frozen=True)
class InlineFigure:
    """An SVG element with a description of its points, and a caption."""

    svg: str
    caption: str


def draw_inline(layout: FigureLayout, name: str, alt: str) -> str:
    """Draw a figure as an SVG element with own ids and without a background.

    Args:
        layout: of the figure.
        name: start of its ids, which are unique in the document.
        alt: description of its points.
    """
    chart = chart_figure(layout)
    chart["config"] = {**chart["config"], "background": None}
    drawn = draw_chart(json.loads(json.dumps(chart)), "svg").decode()
    text = drawn.replace(GRID_COLOR, "#8885").replace(INK_COLOR, "currentColor")
    text = _IDS.sub(rf"\g<1>{name}-", text)
    size = _SIZE.search(text)
    width = int(size[1]) if size else 0
    # The page sets the size, the viewBox keeps the aspect ratio.
    style = f"min-width: {_LEAST_WIDTH_REM * width:.0f}rem"
    label = f' role="img" aria-label="{escape(alt)}" style="{style}"'
    return _SIZE.sub(label, text, count=1)
