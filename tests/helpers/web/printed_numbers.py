"""Comparison of printed numbers with exact values, to the precision of what is printed."""

from __future__ import annotations

import math
import re

#: Symbol of a unit -> its size in the unit of the record.
UNIT_SIZES = {
    "ns": 1e-9,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "%": 0.01,
    "bytes": 1.0,
    "B": 1.0,
    "kB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "kHz": 1e3,
    "MHz": 1e6,
    "GHz": 1e9,
}
_NUMBER = re.compile(
    r"([+−-]?)([\d,]+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(bytes|min|[nµm]?s\b|%|[kMG]?B\b|[kMG]Hz)?"
)
_HEADING_UNIT = re.compile(r", (ms|s|MB|kB)(?:/event)?$|\((s|ms)\)$")


def find_heading_unit(heading: str) -> str:
    """Find the unit in a heading such as ``CPU, ms/event``; '' for none."""
    match = _HEADING_UNIT.search(heading)
    return (match[1] or match[2]) if match else ""


def parse_numbers(text: str, unit: str = "") -> list[tuple[float, float]]:
    """Parse all numbers of a text: value in the record's unit, and half of the last printed digit.

    Args:
        text: of a cell.
        unit: of numbers that are printed without one.
    """
    numbers = []
    for sign, digits, printed_unit in _NUMBER.findall(text):
        mantissa, _, exponent = digits.replace(",", "").partition("e")
        size = UNIT_SIZES[printed_unit or unit] if printed_unit or unit else 1.0
        step = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
        value = float(mantissa) * 10.0 ** int(exponent or 0)
        numbers.append((size * (-value if sign in ("−", "-") else value), 0.5 * size * step))
    return numbers


def agrees_with(text: str, value: float | None, unit: str = "") -> bool:
    """Return whether the first number of a text is a value, rounded; a dash stands for None."""
    if value is None or math.isnan(value):
        return not parse_numbers(text) or text == "–"
    numbers = parse_numbers(text, unit)
    return bool(numbers) and abs(numbers[0][0] - value) <= numbers[0][1] + 1e-9 * abs(value)
