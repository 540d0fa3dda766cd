"""What all figures look like, wherever they are drawn: colours, markers, lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Okabe and Ito's colours without black, which dark pages swallow, and with a darker yellow: told
#: apart by colour-blind readers, and visible on white as on near-black.
PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#a89a00",
    "#8c8c8c",
)
#: Plotly's name of a marker -> matplotlib's.
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "triangle-down": "v",
    "cross": "P",
}


def plot_style(ink: str, more: Mapping[str, Any]) -> dict[Any, Any]:
    """matplotlib's settings: texts and axes in one colour, the same file for the same data.

    Args:
        ink: the colour.
        more: further settings.
    """
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "treehammer",
        "text.parse_math": False,
        "font.family": ["DejaVu Sans"],
        "font.size": 10,
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        **more,
    }
