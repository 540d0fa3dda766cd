"""Text for people: counts, times, durations and sizes, lists and durations that they type, and progress."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from rich.filesize import decimal

from treehammer.errors import ConfigError

#: Microseconds of a second, the unit of times in the database.
SECOND_US = 1_000_000
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_DURATION_S = 36_500 * 86_400  # what it ends is before the year 10000, the last of a date
MEGABYTE = 1_000_000
#: Receives the number of bytes transferred since its last call.
ByteCallback = Callable[[int], None]


def parse_duration(text: str, where: str) -> int:
    """Parse a duration such as ``90s``, ``30m``, ``24h`` or ``2d`` into seconds.

    Raises:
        ConfigError: the text is not a duration, or is 0 or longer than a hundred years.
    """
    match = re.fullmatch(r"\s*(\d{1,7})\s*([smhd])\s*", text)
    seconds = int(match[1]) * _SECONDS_PER_UNIT[match[2]] if match else 0
    if not 0 < seconds <= MAX_DURATION_S:
        hint = "Write it like 90s, 30m, 24h or 2d, up to 36500d."
        raise ConfigError(f"{text!r} is not a duration", where=where, hint=hint)
    return seconds


def parse_time(text: str, option: str) -> int:
    """Parse a date or a date and time, by default in UTC, into microseconds since 1970.

    Raises:
        ConfigError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):  # also in the year 0 or 10000 of UTC
        raise ConfigError(
            f"must be a time such as 2026-03-01 or 2026-03-01T12:00, not {text[:40]!r}",
            where=option,
        ) from None
    return round(moment.timestamp() * SECOND_US)


@dataclass(frozen=True)
class JobRamp:
    """Growth of the number of concurrent jobs: ``jobs`` more every ``every_s`` seconds."""

    jobs: int
    every_s: int

    @classmethod
    def parse(cls, text: str, where: str) -> JobRamp:
        """Parse text such as ``5/10m``.

        Raises:
            ConfigError: the text is not a ramp.
        """
        jobs, _, every = text.partition("/")
        if not re.fullmatch(r"\s*\d{1,7}\s*", jobs) or not int(jobs) or not every:
            hint = "Write it like 5/10m: five more jobs every ten minutes."
            raise ConfigError(f"{text!r} is not a ramp", where=where, hint=hint)
        return cls(int(jobs), parse_duration(every, where))


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Format a count with its noun: ``1 job``, ``2,340 jobs``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {plural or noun + 's'}"


def format_counts(counts: Mapping[str, int]) -> str:
    """Format counts by name: ``3 faster, 1 slower``; a dash for none."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "–"


def join_names(names: Sequence[str], limit: int = 3) -> str:
    """Join names, at most so many before the number of the others: ``A, B, C and 4 more``."""
    more = len(names) - limit
    return f"{', '.join(names[:limit])} and {more} more" if more > 0 else ", ".join(names)


def split_list(text: str) -> tuple[str, ...]:
    """Split a list at its commas; without empty parts."""
    return tuple(part for part in map(str.strip, text.split(",")) if part)


def join_lines(text: str) -> str:
    """Join the lines of a message to one line of sentences."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return re.sub(r"(?<=[^.:?])\n", ". ", "\n".join(lines)).replace("\n", " ")


def format_time(time_us: int) -> str:
    """Format microseconds since 1970 as date and time in UTC: ``2026-03-01 12:30:00``."""
    return f"{datetime.fromtimestamp(time_us // SECOND_US, UTC):%Y-%m-%d %H:%M:%S}"


def format_minute(time_us: int) -> str:
    """Format microseconds since 1970 as date, hour and minute in UTC: ``2026-03-01 12:30``."""
    return format_time(time_us)[:-3]


def write_minus(number: str) -> str:
    """Write the sign of a formatted negative number as a minus sign, which no hyphen is; zero has none."""
    number = re.sub(r"^-(?=0(?:\.0*)?(?![\d.,]))", "", number)
    return f"−{number[1:]}" if number.startswith("-") else number


def format_significant(value: float, digits: int = 3, *, trailing_zeros: bool = False) -> str:
    """Format a number with so many significant digits, without a power of ten: ``3,350``, ``0.032``.

    Digits before the decimal point are never dropped. Magnitudes below 1e-6 or from 1e15 keep a
    power of ten.
    """
    if not math.isfinite(value) or value == 0 or not 1e-6 <= abs(value) < 1e15:
        return write_minus(f"{value:.{digits}g}")
    # The rounded number decides, as 999.6 has four digits before the point.
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])
    text = write_minus(f"{value:,.{max(digits - 1 - exponent, 0)}f}")
    return text.rstrip("0").rstrip(".") if "." in text and not trailing_zeros else text


def format_cell(value: Any) -> str:
    """Format any value of a table; a dash for None and ''."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return write_minus(f"{value:,}")
    return format_significant(value, 4) if isinstance(value, float) else str(value)


def format_duration(seconds: float) -> str:
    """Format a duration in its natural unit: ``90 s``, ``3 min``, ``2.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_share(share: float, decimals: int = 0) -> str:
    """Format a share in per cent: ``6 %``, or ``5.9 %`` with one decimal."""
    return write_minus(f"{100 * share:,.{decimals}f} %")


def format_signed(number: float) -> str:
    """Format a number with its sign and one decimal: ``+3.1``, ``−0.4``; zero is positive."""
    return write_minus(f"{number:+z,.1f}")


def format_size(size: float) -> str:
    """Format a number of bytes: ``950 bytes``, ``1.3 MB``, ``4.5 GB``."""
    return decimal(round(size))


def make_single_line(text: str) -> str:
    """Return text as one line, with spaces for line breaks and control characters."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


class ProgressCallback(Protocol):
    """Function that moves a progress bar and sets its note."""

    def __call__(self, count: int, note: str = "") -> None:
        """Move the bar to ``count``."""


#: Opens a progress bar from a description and a total: ``treehammer.terminal.progress_bar`` or
#: :func:`no_progress`.
ProgressFactory = Callable[[str, int], AbstractContextManager[ProgressCallback]]


@contextmanager
def no_progress(_description: str, _total: int) -> Iterator[ProgressCallback]:
    """Open a progress bar that shows nothing."""
    yield lambda count, note="": None


@contextmanager
def byte_progress(bars: ProgressFactory, description: str, total: int) -> Iterator[ByteCallback]:
    """Open a bar that counts in megabytes; ``total`` is in bytes."""
    total_megabytes = -(-total // MEGABYTE)
    with bars(f"{description} (MB)", total_megabytes) as step:
        size = 0

        def advance(count: int) -> None:
            nonlocal size
            size += count
            step(size // MEGABYTE if size < total else total_megabytes)

        yield advance


def check_text(value: object) -> str:
    """Return a value as text.

    Raises:
        ValueError: it contains a lone surrogate, as file names that are not UTF-8 do.
    """
    text = str(value)
    if re.search("[\ud800-\udfff]", text):
        raise ValueError(f"{text!r} is not valid text")
    return text
