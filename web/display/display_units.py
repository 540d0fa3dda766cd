"""Numbers in readable units with aligned decimals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.text_formatting import format_signed, format_significant

_UNIT_STEPS = {
    "s": (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)),
    "B": (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0)),
    "Hz": (("GHz", 1e9), ("MHz", 1e6), ("kHz", 1e3), ("Hz", 1.0)),
}
#: Significant digits of the largest number.
_MAX_DIGITS = 4


@dataclass(frozen=True)
class DisplayUnit:
    """A unit and its size in the metric's own unit; plain numbers have the name ''."""

    name: str
    size: float = 1.0

    def convert(self, value: float) -> float:
        """Convert a value of the metric into this unit."""
        return value / self.size


def fit_unit(unit: str, values: Iterable[float | None]) -> DisplayUnit:
    """Choose the unit in which the largest value is at least 1."""
    largest = _largest_magnitude(values)
    steps = _UNIT_STEPS.get(unit, (("" if unit == "1" else unit, 1.0),))
    name, size = next((step for step in steps if largest >= step[1]), steps[-1])
    return DisplayUnit(name, size) if largest else DisplayUnit(unit if unit != "1" else "")


def aligned_format(
    values: Iterable[float | None], unit: DisplayUnit
) -> Callable[[float | None], str]:
    """Build a formatter that writes all values with the same number of decimals."""
    largest = unit.convert(_largest_magnitude(values))
    plain = not largest or 1e-4 <= largest < 1e9
    digits = max(_MAX_DIGITS - 1 - math.floor(math.log10(largest)), 0) if plain and largest else 0

    def write(value: float | None) -> str:
        if value is None:
            return "–"
        number = unit.convert(value)
        # Values too small for the common decimals keep two significant digits.
        if not plain or 0 < abs(number) < 10 ** (1 - digits):
            return (
                f"{number:.4g}" if not plain else format_significant(number, 2, trailing_zeros=True)
            )
        return f"{number:.{digits}f}"

    return write


def _largest_magnitude(values: Iterable[float | None]) -> float:
    # A figure has thousands of values.
    magnitudes = [abs(value) for value in values if value is not None]
    return max(filter(math.isfinite, magnitudes), default=0.0)


def format_per_cent(share: float | None) -> str:
    """Format a share as a signed percentage; a dash for None."""
    return "–" if share is None else f"{format_signed(100 * share)} %"


def format_seconds(value: float) -> str:
    """Format seconds in the fitting unit: ``32 µs``, ``1.1 ms``, ``2.1 s``."""
    if value >= 999.5:
        return f"{value:.0f} s"
    # 999.5 of a unit would round to 1e+03 of it.
    unit, size = next(
        (step for step in (("s", 1.0), ("ms", 1e-3)) if value >= 0.9995 * step[1]), ("µs", 1e-6)
    )
    return f"{value / size:.3g} {unit}"


def format_mean_and_rms(mean: float, rms: float) -> str:
    """Write mean ± RMS to the RMS's second digit, or four digits of the mean if the RMS is tiny."""
    if rms <= 1e-3 * abs(mean):
        return f"{mean:.4g}" if rms == 0 else f"{mean:.4g} ± {rms:.1g}"
    decimals = verdict_text.digits_for_error(rms)
    return f"{mean:.{decimals}f} ± {rms:.{decimals}f}"
