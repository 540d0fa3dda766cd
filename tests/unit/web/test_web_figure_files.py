"""What is drawn into files: bars to their ends, all labels, and what a figure is of."""

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
    """One with a panel for each list of marks, as JSON has it."""
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


def test_no_point_is_cut_off_in_a_panel() -> None:
    drawn = draw_figure(picture([[mark(1.0)], [mark(100.0)]], ["_hidden"]), "svg").decode()
    # The labels of the shared axis reach the highest point.
    assert ">100<" in drawn
    assert "_hidden" in drawn


def test_bars_reach_their_ends() -> None:
    drawn = draw_figure(picture([[mark(10.0, 4.0, 13.0)]]), "svg").decode()
    bar = re.search(r'<g id="LineCollection_1">\s*<path d="M \S+ (\S+) \nL \S+ (\S+)', drawn)
    assert bar
    low, high = map(float, bar.groups())
    *_, caps_low, cap_high, point, _legend = re.findall(rf'y="(\S+)" style="fill: {BLUE}', drawn)
    assert [float(caps_low), float(cap_high)] == [low, high]
    assert (low - float(point)) / (low - high) == pytest.approx((10 - 4) / (13 - 4), rel=1e-4)


def test_a_file_says_what_it_is_of_and_what_it_leaves_out() -> None:
    said = {
        "selection": "site=A; n = 5",
        "aggregated": "Each point aggregates 2 tests.",
        "left_out": "48 of 60",
    }
    drawn = draw_figure(picture([[mark(1.0)]], **said), "svg").decode()
    for text in said.values():
        assert text in drawn


@pytest.mark.parametrize("count", [1, 2, 3, 24])
def test_no_entry_of_the_legend_is_cut_off(count: int) -> None:
    names = [f"{number:02} " + "W" * 57 for number in range(count)]
    drawn = draw_figure(picture([[mark(1.0)]], names), "svg").decode()
    places = re.findall(
        r'translate\((\S+) \S+\)">\s*0?\d\d W+<|x="(\S+)" y="\S+"[^>]*> ?\d\d W', drawn
    )
    assert len(places) == count
    # A W of nine points is nine of them wide.
    assert max(float(one or other) for one, other in places) + 57 * 8.9 < width_in(drawn)
    assert min(float(one or other) for one, other in places) > 0


def test_every_column_of_panels_has_its_labels() -> None:
    drawn = draw_figure(picture([[mark(1.0)]] * 5), "svg").decode()
    assert drawn.count(">only<") == 3
    assert drawn.count(">where<") == 3
