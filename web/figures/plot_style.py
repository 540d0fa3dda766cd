"""Style common to all figures: colors, markers and lines."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

#: Okabe and Ito's colors, distinguishable for color-blind readers, without black and with a darker
#: yellow, so that all are visible on white and on near-black.
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
#: Plotly's name of a marker -> matplotlib's name.
MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "triangle-down": "v",
    "cross": "P",
}


def plot_style(ink: str, more: Mapping[str, Any]) -> dict[Any, Any]:
    """Settings for matplotlib: one color for texts and axes, and reproducible files.

    Args:
        ink: color of texts and axes.
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


#: Style of files.
FILE_STYLE = plot_style(
    "#1d2329",
    {
        "pdf.fonttype": 42,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.axisbelow": True,
        "grid.alpha": 0.2,
    },
)
_METADATA: Mapping[str, Mapping[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}


def save_figure(figure: Any, form: str) -> bytes:
    """Save a matplotlib figure as PNG, SVG or PDF without a date, cropped to the drawing."""
    stream = io.BytesIO()
    figure.savefig(stream, format=form, dpi=150, metadata=_METADATA[form], bbox_inches="tight")
    return stream.getvalue()
