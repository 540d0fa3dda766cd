"""Conversion of days between dates, URLs and database numbers (YYYYMMDD)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta

from treehammer.collectors.record import day_numbers
from treehammer.errors import ConfigError

#: Convert a date into a database day number (YYYYMMDD).
day_number = day_numbers.day_to_number

_ONE_DAY = timedelta(days=1)


def today() -> date:
    """Return the current day (UTC)."""
    return datetime.now(UTC).date()


def day_from_number(number: int) -> date:
    """Convert a database day number; impossible dates become ``date.max``."""
    day = day_numbers.number_to_day(number)
    return date.max if day is None else day


def midnight_us(day: date) -> int:
    """Start of a day in microseconds since 1970 UTC."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000


def parse_day(text: str, name: str) -> date:
    """Parse an ISO date such as ``2026-03-01``.

    Args:
        text: the text.
        name: of the parameter, for the error message.

    Raises:
        ConfigError: it is not a date.
    """
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{name} must be a date such as 2026-03-01, not {text[:40]!r}") from None


def parse_window(
    parameters: Mapping[str, str], choices: Collection[int], default: int
) -> list[date]:
    """Parse parameters ``to`` and ``days`` into consecutive days; by default up to today.

    Raises:
        ConfigError: ``to`` is not a date, or ``days`` not one of the choices.
    """
    last = parse_day(parameters["to"], "to") if parameters.get("to") else today()
    count = parameters.get("days", str(default))
    allowed = [str(choice) for choice in choices]
    if count not in allowed:
        raise ConfigError(f"days must be one of {', '.join(allowed)}, not {count[:40]!r}")
    return days_until(last, int(count))


def days_until(last: date, count: int) -> list[date]:
    """List ``count`` consecutive days ending with ``last``."""
    return list(_iter_days_until(last, count))


def _iter_days_until(last: date, count: int) -> Iterator[date]:
    for distance in reversed(range(count)):
        try:
            yield last - distance * _ONE_DAY
        except OverflowError:
            continue


def format_day(day: date) -> str:
    """Format a day for readers: ``21 Nov 2026``."""
    return f"{day.day} {day:%b} {day.year}"
