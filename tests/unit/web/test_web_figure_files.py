"""Drawing of charts into files: error bars, labels, notes and colors of releases."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from treehammer.web.figures.drawing import draw_chart
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import (
    POINTS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    choose_release_colors,
    style_series,
)
from treehammer.web.figures.line_chart import ChartDot, ChartLine, LineChart, NumberAxis

BLUE = "#0072b2"


def draw(marks: Sequence[Sequence[FigureMark]], names: Sequence[str] = ("n",), **more: Any) -> str:
    """A figure as SVG, with one panel per list of marks."""
    values: dict[str, Any] = {
        "kind": POINTS,
        "title": "<b>",
        "x_title": "where",
        "y_title": "what",
        "groups": ("", "place", "series"),
        "counted": "executions",
        "dates": False,
        "scale": "linear",
        "places": ("only",),
        "series": tuple(FigureSeries(name, BLUE, "circle") for name in names),
        "panels": tuple(
            FigurePanel(f"p{number}" if len(marks) > 1 else "", tuple(some))
            for number, some in enumerate(marks)
        ),
        **dict.fromkeys(("bars", "shared", "caption", "aggregated"), ""),
        "selection": "all days",
    }
    chart = chart_figure(FigureLayout(**{**values, **more}))
    return draw_chart(json.loads(json.dumps(chart)), "svg").decode()


def mark(y: float, low: float | None = None, high: float | None = None) -> FigureMark:
    return FigureMark(0, 0, y, low, high)


def test_points_of_line_charts_are_opaque() -> None:
    """Translucent blue has too little contrast on the dark theme's background."""
    line = ChartLine("SITE_A", "own", (ChartDot(0.0, 1.0), ChartDot(1.0, 2.0)))
    chart = LineChart("speed", [line], NumberAxis((0.0, 1.0)))
    drawn = draw_chart(json.loads(json.dumps(chart.draw_still({}))), "svg").decode()
    assert set(re.findall(r'opacity="([\d.]+)"', drawn)) <= {"1"}


def test_shared_axis_includes_all_points() -> None:
    drawn = draw([[mark(1.0)], [mark(100.0)]], ["_hidden"])
    # The shared axis has a label near the highest point.
    assert ">100<" in drawn
    assert "_hidden" in drawn


def test_error_bars_have_correct_ends() -> None:
    drawn = draw([[mark(10.0, 4.0, 13.0)]])
    bar = re.search(
        rf'<line [^>]*transform="translate\([\d.]+,([\d.]+)\)" x2="0" y2="(-?[\d.]+)" stroke="{BLUE}"',
        drawn,
    )
    point = re.search(
        rf'<path [^>]*transform="translate\([\d.]+,([\d.]+)\)" d="[^"]*" fill="{BLUE}"', drawn
    )
    assert bar
    assert point
    low, length = map(float, bar.groups())
    high = low + length
    assert (low - float(point[1])) / (low - high) == pytest.approx((10 - 4) / (13 - 4), rel=1e-4)


def test_file_has_selection_and_notes() -> None:
    notes = {
        "selection": "site=A; n = 5",
        "aggregated": "Each point aggregates 2 tests.",
        "left_out": "48 of 60",
    }
    drawn = draw([[mark(1.0)]], **notes)
    for text in notes.values():
        assert text in drawn


@pytest.mark.parametrize("count", [1, 2, 24])
def test_legend_entries_are_complete(count: int) -> None:
    names = [f"{number:02} " + "W" * 57 for number in range(count)]
    drawn = draw([[mark(1.0)]], names)
    assert [name for name in names if f">{name}<" not in drawn] == []


def test_each_panel_column_has_labels() -> None:
    drawn = draw([[mark(1.0)]] * 5)
    assert drawn.count(">only<") == 3
    assert drawn.count(">where<") == 3


def test_releases_have_the_same_color_in_every_figure() -> None:
    some = choose_release_colors(["6.40.00", "6.38.00"])
    all_ = choose_release_colors(["6.38.00", "6.40.00", "6.36.02", "6.40.02", "master"])
    assert some.items() <= all_.items()
    assert len({*all_.values()}) == len(all_)
    by_variant = style_series([("v 6.38", "v", "6.38.00"), ("v 6.40", "v", "6.40.00")])
    assert [one.color for one in by_variant] == [all_["6.38.00"], all_["6.40.00"]]
    assert len({one.marker for one in by_variant}) == 1
