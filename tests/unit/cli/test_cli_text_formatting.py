"""Numbers, sizes and times as text."""

from __future__ import annotations

import pytest

from treehammer.text_formatting import format_signed, format_size, format_time


@pytest.mark.parametrize(
    ("number", "text"),
    [(3.14, "+3.1"), (-0.44, "−0.4"), (-0.04, "+0.0"), (0.0, "+0.0"), (1234.56, "+1234.6")],
)
def test_signs_are_typographic_and_zero_is_positive(number: float, text: str) -> None:
    assert format_signed(number) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (950, "950 bytes"), (49_660_000, "49.7 MB"), (2_208_309_933, "2.2 GB")],
)
def test_sizes_have_one_decimal_in_their_unit(size: int, text: str) -> None:
    assert format_size(size) == text


def test_times_are_in_utc() -> None:
    assert format_time(0) == "1970-01-01 00:00:00"
    assert format_time(253_402_300_799_999_999) == "9999-12-31 23:59:59"
