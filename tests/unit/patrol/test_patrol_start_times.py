"""Times of starts: slots, jitter, quiet hours."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.patrol.patrol_file import QuietHours, StartTimes
from treehammer.text_formatting import SECOND_US

HOUR_US = 3600 * SECOND_US


@given(st.integers(10**15, 2 * 10**15), st.integers(1, 100_000), st.integers(0, 100_000))
def test_slots_follow_each_other(now_us: int, every_s: int, jitter_s: int) -> None:
    times = StartTimes("entry", every_s, min(jitter_s, every_s))
    latest, following = times.latest_slot(now_us), times.next_slot(now_us)
    assert latest.due_us <= now_us < following.due_us
    assert times.latest_slot(following.due_us) == following
    assert following.due_us - latest.due_us <= 2 * every_s * SECOND_US


def test_delays_are_stable_and_spread() -> None:
    same = StartTimes("a", 3600, 600), StartTimes("a", 3600, 600)
    first = [times.next_slot(10**15).due_us for times in same]
    assert first[0] == first[1]
    delays = {StartTimes(f"e{n}", 3600, 600).next_slot(10**15).due_us % HOUR_US for n in range(50)}
    assert len(delays) == 50
    assert 0 <= min(delays) < 120 * SECOND_US < 480 * SECOND_US < max(delays) < 600 * SECOND_US
    assert StartTimes("a", 3600).latest_slot(10**15).name == "time:2001-09-09T01:00:00Z"


@pytest.mark.parametrize(
    "moment, end",
    [
        ("2026-03-28 21:59:30", "2026-03-28 21:59:30"),
        ("2026-03-28 22:00:00", "2026-03-29 06:00:00"),
        ("2026-03-29 05:59:59", "2026-03-29 06:00:00"),
        ("2026-10-24 23:30:00", "2026-10-25 06:00:00"),
        ("2026-03-29 12:10:00", "2026-03-29 12:15:00"),
    ],
)
def test_quiet_hours_end_by_local_time(moment: str, end: str) -> None:
    zone = ZoneInfo("Europe/Zurich")
    now, expected = (datetime.fromisoformat(text).replace(tzinfo=zone) for text in (moment, end))
    quiet = QuietHours(((22 * 60, 6 * 60), (12 * 60, 12 * 60 + 15)), "Europe/Zurich")
    assert (
        quiet.end_of_quiet(round(now.timestamp()) * SECOND_US)
        == round(expected.timestamp()) * SECOND_US
    )


def test_quiet_hours_may_cover_the_whole_day() -> None:
    assert QuietHours(((0, 720), (720, 0))).end_of_quiet(10**15) == 0
    assert QuietHours().end_of_quiet(10**15) == 10**15
