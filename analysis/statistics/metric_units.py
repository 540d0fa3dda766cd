"""Unit in which a metric is shown: the same on all pages, in the terminal and in reports.

Files, the API and Prometheus have the units of the catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.text_formatting import format_cell, format_minute, format_significant

#: Ending of quantities for each event.
_PER_EVENT = "_per_event"
#: Names of times that are short: of events, single operations and round trips.
_SHORT_TIME = re.compile(
    r"per_event|latency|_rtt_|first_byte|clock_|segment_|net_mean|spread_s|(?:^|[._])(?:p\d+|max)_s$"
)


@dataclass(frozen=True)
class DisplayUnit:
    """A unit and its size in the metric's own unit; plain numbers have the name ''."""

    name: str
    size: float = 1.0

    def convert(self, value: float) -> float:
        """Convert a value of the metric into this unit."""
        return value / self.size


PLAIN_UNIT = DisplayUnit("")
_MILLISECOND, _MEGABYTE = DisplayUnit("ms", 1e-3), 1e6
#: Unit of the record -> unit that is shown, of all but short times.
_UNITS = {
    "": PLAIN_UNIT,
    "1": PLAIN_UNIT,
    "B": DisplayUnit("MB", _MEGABYTE),
    "B/s": DisplayUnit("MB/s", _MEGABYTE),
    "Hz": DisplayUnit("1/s"),
    "ns": DisplayUnit("ms", 1e6),
}


@cache
def find_display_unit(metric: str, unit: str = "1") -> DisplayUnit:
    """Find the unit in which a metric is shown.

    Times per event and of single operations are in ms, other times in s, bytes in MB, rates in 1/s
    or MB/s; other units are those of the record. The size of a value does not matter, so that the
    numbers of two tables can be compared.

    Args:
        metric: name of a metric of the catalogue, of a test or of a figure of operations.
        unit: its unit, unless the catalogue has it.
    """
    unit = METRICS_BY_NAME[metric].unit if metric in METRICS_BY_NAME else unit
    if unit == "s" and _SHORT_TIME.search(metric):
        return _MILLISECOND
    if unit == "J" and _PER_EVENT in metric:
        return DisplayUnit("mJ", 1e-3)
    return _UNITS.get(unit, DisplayUnit(unit))


def head_unit(metric: str, unit: str = "1", work: str = "event") -> str:
    """Return the unit for a heading, such as ``ms/event``; '' for plain numbers."""
    name = find_display_unit(metric, unit).name
    return f"{name}/{work}" if name and _PER_EVENT in metric else name


def format_metric(
    metric: str, value: Any, unit: str = "1", *, with_unit: bool = True, work: str = "event"
) -> str:
    """Format the value of a metric or column in its display unit; days and times as such."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return format_cell(value)
    if metric == "day":
        return format_cell(number_to_day(int(value)) or value)
    if metric.endswith("_us"):
        return f"{format_minute(int(value))} UTC"
    display_unit = find_display_unit(metric, unit)
    if display_unit.size == 1 and isinstance(value, int):
        text = format_cell(value)
    else:
        text = format_significant(
            display_unit.convert(value), trailing_zeros=display_unit.name != ""
        )
    if not with_unit:
        return text
    name = head_unit(metric, unit, work)
    return f"{text}{name.removeprefix('1')}" if name.startswith("1/") else f"{text} {name}".strip()
