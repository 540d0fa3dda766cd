"""Drawing of figures into files: error bars, labels and notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from treehammer.web.figures.drawing import draw_figure
from treehammer.web.figures.figure_layout import FigureLayout, FigureMark, FigurePanel, FigureSeries

BLUE = "#0072b2"


def picture(
    marks: Sequence[Sequence[FigureMark]], names: Sequence[str] = ("n",), **more: Any
) -> Any:
    """A figure as JSON, with one panel per list of marks."""
    several = len(marks) > 1
    values: dict[str, Any] = {
        "title": "<b>",
        "x_title": "where",
        "y_title": "what",
        "dates": False,
        "bins": False,
        "log": False,
        "places": ("only",),
        "series": tuple(FigureSeries(name, BLUE, "circle") for name in names),
        "panels": tuple(
            FigurePanel(f"p{number}" if several else "", tuple(some))
            for number, some in enumerate(marks)
        ),
        "bars": "",
        "shared": "",
        "caption": "",
        "selection": "all days",
        "aggregated": "",
    }
    return asdict(FigureLayout(**{**values, **more}))


def mark(
    y: float, low: float | None = None, high: float | None = None, place: int = 0
) -> FigureMark:
    return FigureMark(0, place, y, low, high, (), "")


def width_in(drawn: str) -> float:
    found = re.search(r'viewBox="0 0 ([\d.]+) ', drawn)
    assert found
    return float(found[1])


def test_shared_axis_includes_all_points() -> None:
    drawn = draw_figure(picture([[mark(1.0)], [mark(100.0)]], ["_hidden"]), "svg").decode()
    # The shared axis has a label at the highest point.
    assert ">100<" in drawn
    assert "_hidden" in drawn


def test_error_bars_have_correct_ends() -> None:
    drawn = draw_figure(picture([[mark(10.0, 4.0, 13.0)]]), "svg").decode()
    bar = re.search(r'<g id="LineCollection_1">\s*<path d="M \S+ (\S+) \nL \S+ (\S+)', drawn)
    assert bar
    low, high = map(float, bar.groups())
    *_, caps_low, cap_high, point, _legend = re.findall(rf'y="(\S+)" style="fill: {BLUE}', drawn)
    assert [float(caps_low), float(cap_high)] == [low, high]
    assert (low - float(point)) / (low - high) == pytest.approx((10 - 4) / (13 - 4), rel=1e-4)


def test_file_has_selection_and_notes() -> None:
    notes = {
        "selection": "site=A; n = 5",
        "aggregated": "Each point aggregates 2 tests.",
        "left_out": "48 of 60",
    }
    drawn = draw_figure(picture([[mark(1.0)]], **notes), "svg").decode()
    for text in notes.values():
        assert text in drawn


@pytest.mark.parametrize("count", [1, 2, 3, 24])
def test_legend_entries_are_complete(count: int) -> None:
    names = [f"{number:02} " + "W" * 57 for number in range(count)]
    drawn = draw_figure(picture([[mark(1.0)]], names), "svg").decode()
    places = re.findall(
        r'translate\((\S+) \S+\)">\s*0?\d\d W+<|x="(\S+)" y="\S+"[^>]*> ?\d\d W', drawn
    )
    assert len(places) == count
    # A W in a 9 pt font is 9 pt wide.
    assert max(float(one or other) for one, other in places) + 57 * 8.9 < width_in(drawn)
    assert min(float(one or other) for one, other in places) > 0


def test_each_panel_column_has_labels() -> None:
    drawn = draw_figure(picture([[mark(1.0)]] * 5), "svg").decode()
    assert drawn.count(">only<") == 3
    assert drawn.count(">where<") == 3
