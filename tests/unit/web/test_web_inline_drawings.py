"""Drawings inside tables: sparklines of sites, and bars of effects on their common axis."""

from __future__ import annotations

import re
from datetime import date

import pytest
from measurement_factory import build_verdict

from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.analysis.status.day_states import DayOutcomes
from treehammer.sql.core.rows import VerdictRow
from treehammer.web.pages.effect_tables import (
    EffectBar,
    find_axis_reach,
    place_effect_bar,
    render_effect,
)
from treehammer.web.pages.overview_tiles import DayCell, SiteRow

#: Largest reach of the axis: a factor of 12 in either direction.
MAX_REACH = 2.5


def draw_sparkline(*good: int) -> str:
    cells = [DayCell(date(2026, 3, 1), DayOutcomes(count, 5, 0)) for count in good]
    return SiteRow("SITE_A", tuple(cells)).sparkline


@pytest.mark.parametrize(
    ("good", "heights"),
    [
        ((10, 0, 5), [1.0, 0.0, 0.5]),
        ((3,), [1.0]),
        ((0, 0), [0.0, 0.0]),
        ((1, 3), [0.33, 1.0]),
    ],
)
def test_sparkline_has_a_step_per_day_relative_to_the_best(
    good: tuple[int, ...], heights: list[float]
) -> None:
    path = draw_sparkline(*good)
    # Downwards from the top of the box; each step is one wide, and the area is closed at the bottom.
    assert re.fullmatch(r"M0 1(V[\d.]+h1)+V1z", path)
    tops = [float(top) for top in re.findall(r"V([\d.]+)h1", path)]
    assert tops == pytest.approx([1 - height for height in heights])


def make_row(effect: float | None, low: float | None, high: float | None) -> VerdictRow:
    return build_verdict("c", effect=effect, low=low, high=high)


@pytest.mark.parametrize(
    ("rows", "reach"),
    [
        ([], 2 * DEFAULT_DELTA),
        ([make_row(None, None, None)], 2 * DEFAULT_DELTA),
        ([make_row(0.001, -0.001, 0.002)], 2 * DEFAULT_DELTA),
        # Without outliers the intervals fit, with a fifth of room.
        ([make_row(0.1, -0.2, 0.3)], 0.36),
        ([make_row(-0.1, -0.3, 0.2)], 0.36),
        # One wide interval of few jobs does not hide the other effects.
        ([make_row(0.1, 0.05, 0.15)] * 4 + [make_row(0.1, -2.0, 2.2)], 0.18),
        ([make_row(2.0, 1.9, 2.1)], MAX_REACH),
    ],
)
def test_axis_of_bars_fits_typical_effects(rows: list[VerdictRow], reach: float) -> None:
    assert find_axis_reach(rows) == pytest.approx(reach)


@pytest.mark.parametrize(
    ("values", "bar"),
    [
        ((0.1, 0.0, 0.2), EffectBar(50.0, 75.0, 62.5, False, False)),
        ((-0.2, -0.4, 0.0), EffectBar(0.0, 50.0, 25.0, False, False)),
        ((0.3, -0.5, 0.5), EffectBar(0.0, 100.0, 87.5, True, True)),
        ((0.5, 0.3, 0.7), EffectBar(87.5, 100.0, None, False, True)),
        ((-0.6, -0.7, -0.5), EffectBar(0.0, 0.0, None, True, False)),
        ((0.1, None, 0.2), None),
        ((None, 0.1, 0.2), None),
    ],
)
def test_bar_is_placed_around_the_middle_and_clipped(
    values: tuple[float | None, ...], bar: EffectBar | None
) -> None:
    row = dict(zip(("effect", "low", "high"), values, strict=True))
    assert place_effect_bar(row, 0.4) == bar


@pytest.mark.parametrize(("delta", "band"), [(0.02, (47.5, 5.0)), (0.8, (0.0, 100.0))])
def test_ignored_effects_are_a_band_around_the_middle(
    delta: float, band: tuple[float, float]
) -> None:
    svg = render_effect({"effect": None, "low": None, "high": None}, 0.4, delta)
    found = re.search('class="none" x="([^"]*)" y="0" width="([^"]*)"', svg)
    assert found
    assert (float(found[1]), float(found[2])) == band
    assert "bar" not in svg
