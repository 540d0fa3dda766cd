"""Formatting of numbers with units."""

from __future__ import annotations

import math

import pytest

from treehammer.text_formatting import format_significant
from treehammer.web.display_formats import aligned_format, fit_unit, format_per_cent, format_seconds
from treehammer.web.figures.explore_query import METRICS
from treehammer.web.labels import head_axis, head_column


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
    assert [write(one) for one in values] == ["0.1830", "0.0471", "0.000020", "–", "inf"]
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


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1455.3, 3, "1455"),
        (33_500.0, 4, "33500"),
        (999.6, 3, "1000"),
        (0.032, 3, "0.032"),
        (3.1e-5, 2, "0.000031"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_numbers_have_no_powers_of_ten(value: float, digits: int, text: str) -> None:
    assert format_significant(value, digits) == text


@pytest.mark.parametrize(
    "name, title",
    [
        ("cpu_per_event_s", "CPU time per event"),
        ("wall_per_event_s", "Wall time per event"),
        ("axis_root", "ROOT release"),
        ("eff_job", "CPU efficiency"),
        ("pass_loop_user_s", "Pass loop user CPU time"),
        ("read_latency_p95_s", "Read latency, 95 % quantile"),
        ("bytes_read", "Bytes read"),
        ("mem_total_bytes", "Memory total"),
        ("extra_queue_depth", "Queue depth"),
        ("extra_per_event", "Per event"),
        ("p5", "P5"),
    ],
)
def test_columns_have_titles_for_people(name: str, title: str) -> None:
    assert head_column(name) == title


def test_titles_of_metrics_are_distinct() -> None:
    titles = [head_column(metric.name) for metric in METRICS]
    assert len({*titles}) == len(titles)
    assert head_axis("root") == "ROOT release"
    assert head_axis("site") == "Site"
