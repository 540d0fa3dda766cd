"""The time in microseconds, and UTC days as whole numbers, YYYYMMDD.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import time
from datetime import date
from functools import lru_cache
from typing import Optional

#: Microseconds of a day; clocks know no leap seconds.
DAY_US = 86_400_000_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
#: Days from 1970 to the end of the calendar.
CALENDAR_DAYS = date.max.toordinal() - _EPOCH_ORDINAL + 1


def current_us() -> int:
    """Return the time in microseconds since 1970 UTC."""
    return time.time_ns() // 1000


def day_to_number(day: date) -> int:
    """Convert a day to its number."""
    return day.year * 10000 + day.month * 100 + day.day


def number_to_day(number: int) -> Optional[date]:
    """Convert a number to its day; None when no calendar has it."""
    try:
        return date(number // 10000, number // 100 % 100, number % 100)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def epoch_day_to_number(days: int) -> Optional[int]:
    """Convert days since 1970-01-01 to a day's number; None outside of the calendar."""
    if not 0 <= days < CALENDAR_DAYS:
        return None
    return day_to_number(date.fromordinal(_EPOCH_ORDINAL + days))
