"""Days as the database counts them: YYYYMMDD, of UTC."""

from __future__ import annotations

from datetime import date
from functools import lru_cache

#: Microseconds of a day; clocks know no leap seconds.
DAY_US = 86_400_000_000
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
#: Days from 1970 to the end of the calendar.
CALENDAR_DAYS = date.max.toordinal() - _EPOCH_ORDINAL + 1


def day_to_number(day: date) -> int:
    """A day as its number."""
    return day.year * 10000 + day.month * 100 + day.day


def number_to_day(number: int) -> date | None:
    """The day that is meant; None when no calendar has it."""
    try:
        return date(number // 10000, number // 100 % 100, number % 100)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def epoch_day_to_number(days: int) -> int | None:
    """The number of the day that begins so many days after 1970 did; None outside of the calendar."""
    if not 0 <= days < CALENDAR_DAYS:
        return None
    return day_to_number(date.fromordinal(_EPOCH_ORDINAL + days))
