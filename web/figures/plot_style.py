"""Style common to all figures: colors, markers, fonts and lines."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from treehammer.analysis.statistics.sample import natural_sort_key

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
#: Markers by their names in Vega.
MARKERS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
#: Line styles of lines without markers, as lengths of dashes and gaps.
DASHES: tuple[tuple[int, ...], ...] = ((1, 0), (9, 4), (3, 3), (8, 3, 2, 3))
#: Colors of texts and of grid lines; pages replace them by their own.
INK_COLOR, GRID_COLOR = "#1d2329", "#d9dee3"

#: Configuration of Vega-Lite for all charts.
THEME: Mapping[str, Any] = {
    "background": "#ffffff",
    "font": "DejaVu Sans, sans-serif",
    # Pages describe charts themselves; a description for each mark would take long.
    "mark": {"aria": False},
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "domainColor": INK_COLOR,
        "tickColor": INK_COLOR,
        "gridColor": GRID_COLOR,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 320,
    },
    "legend": {
        "aria": False,
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "labelFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 0,
        "titleLimit": 0,
    },
    "header": {
        "labelColor": INK_COLOR,
        "titleColor": INK_COLOR,
        "labelAnchor": "start",
        "labelFontSize": 12,
        "labelFontWeight": "bold",
    },
    "title": {
        "aria": False,
        "color": INK_COLOR,
        "subtitleColor": INK_COLOR,
        "anchor": "start",
        "fontSize": 14,
        "subtitleFontSize": 11,
    },
    "point": {"size": 40},
}

_VERSION = re.compile(r"\d+[./-](\d+)[./-](\d+)$")


def choose_release_colors(releases: Iterable[str]) -> dict[str, str]:
    """Choose a color for each release, the same in every figure.

    Only if two releases of a figure have the same color, the later one takes the next free color.
    """
    chosen: dict[str, str] = {}
    for release in sorted({*releases}, key=natural_sort_key):
        slot = _color_slot(release)
        slots = [(slot + step) % len(PALETTE) for step in range(len(PALETTE))]
        free = [PALETTE[index] for index in slots if PALETTE[index] not in chosen.values()]
        chosen[release] = free[0] if free else PALETTE[slot]
    return chosen


def _color_slot(release: str) -> int:
    """Choose a place in the palette; neighboring releases and patches have different ones."""
    version = _VERSION.search(release)
    if version is None:
        return zlib.crc32(release.encode()) % len(PALETTE)
    minor, patch = map(int, version.groups())
    return (minor // 2 + 3 * (patch // 2)) % len(PALETTE)
