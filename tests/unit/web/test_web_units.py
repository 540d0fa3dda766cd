"""Formatting of numbers with units."""

from __future__ import annotations

import math

import pytest

from treehammer.web.display.display_units import aligned_format, fit_unit


@pytest.mark.parametrize(
    "unit, values, name, first",
    [
        ("s", [3.1e-5, 6.4e-5], "µs", "31.00"),
        ("s", [0.5, 2.0], "s", "0.500"),
        ("B", [7_600_000, 4_100_000], "MB", "7.600"),
        ("1", [0.183, 0.0471], "", "0.1830"),
        ("1", [438.0, 12_000.0], "", "438"),
        ("1", [3e12], "", "3e+12"),
        ("s", [0.0], "s", "0"),
        ("MB", [30.0], "MB", "30.00"),
    ],
)
def test_unit_fits_largest_value(unit: str, values: list[float], name: str, first: str) -> None:
    found = fit_unit(unit, values)
    assert found.name == name
    assert aligned_format(values, found)(values[0]) == first


def test_decimals_are_aligned() -> None:
    values = [0.183, 0.0471, 0.00002, None, math.inf]
    write = aligned_format(values, fit_unit("1", values))
    assert [write(one) for one in values] == ["0.1830", "0.0471", "2.0e-05", "–", "inf"]
    values = [10.2, 0.02, 0.021]
    write = aligned_format(values, fit_unit("1", values))
    assert [write(one) for one in values] == ["10.20", "0.020", "0.021"]
