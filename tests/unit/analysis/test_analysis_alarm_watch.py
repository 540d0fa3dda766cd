"""States become events once, and so do recoveries."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measurement_factory import build_change_point

from treehammer.analysis.alarms.alarm_overview import judge_service
from treehammer.analysis.alarms.alarm_watch import find_change_points, find_state_changes
from treehammer.analysis.status.subject_state import AlarmKind, AlarmLevel, SubjectState
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarms import AlarmOutbox, OutboxSummary
from treehammer.sql.write.store import Store

HOUR = 3_600_000_000


@pytest.fixture
def outbox(store: Store) -> AlarmOutbox:
    return AlarmOutbox(store)


def observe(
    outbox: AlarmOutbox, level: AlarmLevel, now_us: int, *, excused: bool = False
) -> list[AlarmMessage]:
    """Record a site's state; return the new events."""
    site = SubjectState(
        AlarmKind.SITE, "SITE_A", level, "reason", ("detail",), since_us=now_us - 5,
        evidence="/sites/SITE_A", rule="daily/1", is_excused=excused,
    )  # fmt: skip
    events = find_state_changes([site], outbox.load_states(), now_us)
    return outbox.record_events(events, lambda _: ())


def test_each_change_is_one_event(outbox: AlarmOutbox) -> None:
    assert observe(outbox, AlarmLevel.OK, 10) == []
    (event,) = observe(outbox, AlarmLevel.CRITICAL, 20)
    assert event.title == "CRITICAL: site SITE_A, was OK: reason"
    assert event.text == "reason\ndetail\nRule: daily/1"
    assert (event.severity, event.happened_us, event.evidence) == ("critical", 15, "/sites/SITE_A")
    assert observe(outbox, AlarmLevel.CRITICAL, 30) == []
    (event,) = observe(outbox, AlarmLevel.OK, 40)
    assert (event.title, event.severity) == ("OK: site SITE_A, was CRITICAL: reason", "critical")
    (event,) = observe(outbox, AlarmLevel.CRITICAL, 50)
    assert len(outbox.list_events(10)) == 3


def test_processes_that_see_different_states_record_one_event(outbox: AlarmOutbox) -> None:
    observe(outbox, AlarmLevel.OK, 10)
    states = outbox.load_states()
    for level, now_us in ((AlarmLevel.CRITICAL, 30), (AlarmLevel.WARNING, 20)):
        site = SubjectState(AlarmKind.SITE, "SITE_A", level, "reason")
        outbox.record_events(find_state_changes([site], states, now_us), lambda _: ())
    assert [event.state for event in outbox.list_events(10)] == ["CRITICAL"]
    # A process whose clock is behind continues the sequence.
    assert len(observe(outbox, AlarmLevel.WARNING, 20)) == 1
    assert observe(outbox, AlarmLevel.WARNING, 40) == []


@pytest.mark.parametrize(
    ("level", "events"),
    [
        (AlarmLevel.OK, 0),
        (AlarmLevel.UNKNOWN, 0),
        (AlarmLevel.WARNING, 1),
        (AlarmLevel.CRITICAL, 1),
    ],
)
def test_first_sight_is_an_event_only_in_trouble(
    outbox: AlarmOutbox, level: AlarmLevel, events: int
) -> None:
    assert len(observe(outbox, level, 10)) == events


def test_nobody_is_told_of_an_excused_state(outbox: AlarmOutbox) -> None:
    observe(outbox, AlarmLevel.OK, 10)
    assert observe(outbox, AlarmLevel.DOWNTIME, 20, excused=True) == []
    assert observe(outbox, AlarmLevel.WARNING, 30, excused=True) == []
    assert observe(outbox, AlarmLevel.OK, 40) == []
    assert observe(outbox, AlarmLevel.DOWNTIME, 50, excused=True) == []
    assert len(observe(outbox, AlarmLevel.CRITICAL, 60)) == 1


def test_recent_confirmed_slowdown_is_an_event() -> None:
    now_us = 1_790_000_000_000_000  # 2026-09-21
    slow = build_change_point(
        "c1", found_us=now_us, day=20260915, attribution="site", subject="SITE_A", evidence="[]"
    )
    (event,) = find_change_points([slow], now_us)
    assert event.title.startswith("Change: Site SITE_A: ")
    assert "+5.1 %" in event.title
    assert (event.subject_kind, event.subject) == ("site", "SITE_A")
    assert event.evidence == "/changes/c1"
    for other in (
        replace(slow, effect=-0.05),
        replace(slow, state="provisional"),
        replace(slow, found_us=now_us - 8 * 24 * HOUR),
        replace(slow, day=20260801),
    ):
        assert list(find_change_points([other], now_us)) == []


@pytest.mark.parametrize(
    ("jobs", "outbox_facts", "level", "summary"),
    [
        ({}, (0, 3, 0, None), AlarmLevel.OK, "0 jobs in progress, 0 held"),
        ({"running": 10, "held": 4}, (0, 0, 0, None), AlarmLevel.OK, "14 jobs in progress, 4 held"),
        ({"running": 10, "held": 5}, (0, 0, 0, None), AlarmLevel.WARNING, "5 held jobs"),
        ({"held": 9}, (0, 0, 0, None), AlarmLevel.CRITICAL, "9 held jobs"),
        ({}, (1, 0, 0, 0), AlarmLevel.WARNING, "a message waits for 2 h"),
        ({}, (0, 0, 2, None), AlarmLevel.WARNING, "2 undeliverable messages"),
    ],
)
def test_service_is_judged_by_jobs_and_messages(
    jobs: dict[str, int],
    outbox_facts: tuple[int, int, int, int | None],
    level: AlarmLevel,
    summary: str,
) -> None:
    state = judge_service(jobs, OutboxSummary(*outbox_facts), 2 * HOUR, 2 * HOUR)
    assert (state.level, state.summary) == (level, summary)


@pytest.mark.parametrize(
    ("evaluated_us", "level"),
    [(None, AlarmLevel.OK), (29 * HOUR, AlarmLevel.WARNING), (HOUR, AlarmLevel.CRITICAL)],
)
def test_stale_states_are_a_state_of_the_service(
    evaluated_us: int | None, level: AlarmLevel
) -> None:
    outbox = OutboxSummary(0, 0, 0, None)
    assert judge_service({}, outbox, evaluated_us, 31 * HOUR).level is level
