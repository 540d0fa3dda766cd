"""Formats of values for readers: days, numbers in units, CPU efficiency, and filters of templates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.descriptive.efficiency_diagnosis import PART_COLUMNS, diagnose_efficiency
from treehammer.analysis.statistics.metric_units import DisplayUnit
from treehammer.collectors.record import day_numbers
from treehammer.tables import DataTable, Row
from treehammer.text_formatting import (
    format_minute,
    format_signed,
    format_significant,
    pluralize,
    write_minus,
)
from treehammer.web.labels import head_axis, head_column, title_column

#: Convert a date into a database day number (YYYYMMDD).
day_number = day_numbers.day_to_number

#: Significant digits of the largest number.
_MAX_DIGITS = 4
TIME_TABLE = "time"
_UNIT_SPACE = re.compile(r" (?<=\d )(?=%|(?:[mµ]?s|min|h|d|[kMGT]?(?:B|bit|Hz))\b)")


def today() -> date:
    """Return the current day (UTC)."""
    return datetime.now(UTC).date()


def day_from_number(number: int) -> date:
    """Convert a database day number; impossible dates become ``date.max``."""
    return day_numbers.number_to_day(number) or date.max


def midnight_us(day: date) -> int:
    """Start of a day in microseconds since 1970 UTC."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000


def days_until(last: date, count: int) -> list[date]:
    """List ``count`` consecutive days ending with ``last``, as far as the calendar has them."""
    first = max(last.toordinal() - count + 1, 1)
    return list(map(date.fromordinal, range(first, last.toordinal() + 1)))


def aligned_format(
    values: Iterable[float | None], unit: DisplayUnit
) -> Callable[[float | None], str]:
    """Build a formatter that writes all values with the same number of decimals."""
    # A figure has thousands of values.
    magnitudes = [abs(value) for value in values if value is not None]
    largest = unit.convert(max(filter(math.isfinite, magnitudes), default=0.0))
    plain = not largest or 1e-4 <= largest < 1e9
    digits = max(_MAX_DIGITS - 1 - math.floor(math.log10(largest)), 0) if plain and largest else 0

    def write(value: float | None) -> str:
        if value is None:
            return "–"
        number = unit.convert(value)
        # Values too small for the common decimals keep two significant digits.
        if not plain:
            return write_minus(f"{number:.4g}")
        if 0 < abs(number) < 10 ** (1 - digits):
            return format_significant(number, 2, trailing_zeros=True)
        return write_minus(f"{number:,.{digits}f}")

    return write


def format_per_cent(share: float | None) -> str:
    """Format a share as a signed percentage; a dash for None."""
    return "–" if share is None else f"{format_signed(100 * share)} %"


def format_seconds(value: float) -> str:
    """Format seconds in the fitting unit: ``32 µs``, ``1.1 ms``, ``2.1 s``."""
    if value >= 999.5:
        return f"{value:,.0f} s"
    # 999.5 of a unit would round to 1e+03 of it.
    unit, size = next(
        (step for step in (("s", 1.0), ("ms", 1e-3)) if value >= 0.9995 * step[1]), ("µs", 1e-6)
    )
    return f"{value / size:.3g} {unit}"


def format_mean_and_rms(mean: float, rms: float) -> str:
    """Write mean ± RMS to the RMS's second digit, or four digits of the mean if the RMS is tiny."""
    if rms <= 1e-3 * abs(mean):
        plain = format_significant(mean, 4)
        return plain if rms == 0 else f"{plain} ± {rms:.1g}"
    decimals = verdict_text.digits_for_error(rms)
    return write_minus(f"{mean:,.{decimals}f} ± {rms:,.{decimals}f}")


@dataclass(frozen=True)
class EfficiencyExplanation:
    """Answer to "why is the CPU efficiency low?".

    Attributes:
        sentences: the main cause first, then the evidence; none without measurements.
    """

    sentences: Sequence[str]
    table: DataTable


def explain_efficiency(subject: str, rows: Sequence[Row], note: str = "") -> EfficiencyExplanation:
    """Explain measurements with :data:`.DIAGNOSIS_COLUMNS` as ``treehammer explain`` does."""
    diagnosis = diagnose_efficiency(rows)
    text = (
        "Timed measurements without failure, all passes; the parts add up to their wall time. "
        f"Paired ones are left out. {note}"
    )
    table = DataTable(
        TIME_TABLE,
        "Parts of the wall time",
        PART_COLUMNS,
        diagnosis.breakdown.list_parts() if diagnosis else (),
        empty_text="No timed measurement without failure in solo mode.",
        note=text.strip(),
    )
    return EfficiencyExplanation(diagnosis.describe(subject) if diagnosis else (), table)


def keep_units(content: object) -> Markup:
    """Render content of a page so that no line ends between a number and its unit."""
    return Markup(_UNIT_SPACE.sub("\N{NO-BREAK SPACE}", escape(content)))  # noqa: S704


@cache
def build_environment(**filters: Callable[..., Any]) -> Environment:
    """Create an environment with autoescaping and strict undefined variables.

    Templates are loaded from ``templates/`` and ``static/``, and each is compiled once per process.
    """
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("treehammer.web", folder) for folder in ("templates", "static")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"default": vars}  # of dataclasses
    environment.filters |= {
        "kind": lambda section: type(section).__name__,
        "time": format_time,
        "counted": pluralize,
        "keep_units": keep_units,
        "column_title": title_column,
        "column_head": head_column,
        "axis_head": head_axis,
        **filters,
    }
    return environment


def format_time(us: int) -> str:
    """Format microseconds since 1970 as ``2026-03-01 12:30 UTC``."""
    return f"{format_minute(us)} UTC"
