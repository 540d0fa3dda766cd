"""Formatting of numbers with units."""

from __future__ import annotations

import math

import pytest

from treehammer.web.display.display_units import (
    aligned_format,
    fit_unit,
    format_per_cent,
    format_seconds,
)


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


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0, "0 µs"),
        (32e-6, "32 µs"),
        (0.0009996, "1 ms"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (999.6, "1000 s"),
        (3350.0, "3350 s"),
    ],
)
def test_seconds_never_have_exponents(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_small_losses_are_not_minus_zero() -> None:
    texts = [format_per_cent(share) for share in (-0.0004, 0.0004, -0.0006, 0.05)]
    assert texts == ["+0.0 %", "+0.0 %", "−0.1 %", "+5.0 %"]
