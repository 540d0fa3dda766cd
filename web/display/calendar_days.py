"""Days as addresses and people write them, and as the database counts them (YYYYMMDD)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta

from treehammer.errors import ConfigError
from treehammer.sql.core import day_numbers

#: As the database counts a day.
day_number = day_numbers.day_to_number

_ONE_DAY = timedelta(days=1)


def today() -> date:
    """The day it is (UTC)."""
    return datetime.now(UTC).date()


def day_from_number(number: int) -> date:
    """The day that the database means; what is none, as of made-up measurements, is the last one."""
    found = day_numbers.number_to_day(number)
    return date.max if found is None else found


def midnight_us(day: date) -> int:
    """When it began, in microseconds since 1970 UTC."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000


def parse_day(text: str, name: str) -> date:
    """Read ``2026-03-01``.

    Raises:
        ConfigError: it is no day.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name} must be a day like 2026-03-01, not {text[:40]!r}") from None


def days_until(last: date, count: int) -> list[date]:
    """So many days that end with ``last``."""
    return list(_iter_days_until(last, count))


def _iter_days_until(last: date, count: int) -> Iterator[date]:
    for back in reversed(range(count)):
        try:
            yield last - back * _ONE_DAY
        except OverflowError:
            continue


def format_day(day: date) -> str:
    """For people: ``21 Nov 2026``."""
    return f"{day.day} {day:%b} {day.year}"
