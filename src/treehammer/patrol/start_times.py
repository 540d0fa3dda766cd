"""Times of starts: slots of equal length with jitter, and quiet hours."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from treehammer.durations import SECOND_US

_MINUTES_PER_DAY = 1440


@dataclass(frozen=True)
class Slot:
    """One start by time: its name, unique within the entry, and the time at which it is due."""

    name: str
    due_us: int


@dataclass(frozen=True)
class StartTimes:
    """Slots of ``every_s`` seconds since 1970 UTC, each due after a delay of its own.

    The delay is derived from the names of entry and slot: the same after a restart, and different
    for entries that share a period.
    """

    entry: str
    every_s: int
    jitter_s: int = 0

    def latest_slot(self, now_us: int) -> Slot:
        """Return the latest slot that is due; earlier ones that were missed are not made up for."""
        number = now_us // (self.every_s * SECOND_US)
        slot = self._slot(number)
        return slot if slot.due_us <= now_us else self._slot(number - 1)

    def next_slot(self, now_us: int) -> Slot:
        """Return the first slot that is not due yet."""
        number = now_us // (self.every_s * SECOND_US)
        slot = self._slot(number)
        return slot if slot.due_us > now_us else self._slot(number + 1)

    def _slot(self, number: int) -> Slot:
        begin_s = number * self.every_s
        digest = hashlib.sha256(f"{self.entry} {begin_s}".encode()).digest()
        delay_us = int.from_bytes(digest[:8], "big") * self.jitter_s * SECOND_US >> 64
        begin = datetime.fromtimestamp(begin_s, UTC)
        return Slot(f"time:{begin:%Y-%m-%dT%H:%M:%SZ}", begin_s * SECOND_US + delay_us)


@dataclass(frozen=True)
class QuietHours:
    """Hours of the day without starts.

    Attributes:
        spans: begin and end in minutes since midnight; an end before the begin is on the next day.
        timezone: time zone of the spans.
    """

    spans: tuple[tuple[int, int], ...] = ()
    timezone: str = "UTC"

    def end_of_quiet(self, now_us: int) -> int:
        """Return the first time from now on at which a start is allowed; 0 if there is none."""
        if not self.spans:
            return now_us
        zone = ZoneInfo(self.timezone)
        moment = datetime.fromtimestamp(now_us / SECOND_US, zone)
        if not self._is_quiet(moment):
            return now_us
        # Spans have whole minutes; hours that a change of the clocks skips do not matter.
        first = moment.astimezone(UTC).replace(second=0, microsecond=0)
        for minutes in range(1, _MINUTES_PER_DAY + 61):
            later = first + timedelta(minutes=minutes)
            if not self._is_quiet(later.astimezone(zone)):
                return round(later.timestamp()) * SECOND_US
        return 0

    def _is_quiet(self, moment: datetime) -> bool:
        minute = moment.hour * 60 + moment.minute
        return any(
            begin <= minute < end if begin < end else minute >= begin or minute < end
            for begin, end in self.spans
        )
