"""Messages, change points and checks of releases in every database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from measurement_factory import (
    build_alarm_event,
    make_campaign_row,
    make_job_row,
    make_measurement,
    variant_values,
)

from treehammer.analysis.changes.change_text import describe_change, list_places, select_changes
from treehammer.analysis.changes.change_update import update_changes
from treehammer.analysis.changes.daily_series import NodeIdentity
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.watch_rows import AlarmMessage, ReleaseCheck
from treehammer.sql.watch.alarms import (
    NO_SEVERITY,
    AlarmOutbox,
    ReleaseCheckTable,
    fetch_change_points,
    fetch_watched_days,
    fetch_watched_series,
    find_change_point,
)
from treehammer.sql.write.store import Store

MAIL, HOOK = ("mail", "a@example.org"), ("webhook", "")
EVENT = build_alarm_event(happened_us=90, recorded_us=100, text="line\n" * 2000)


def record(store: Store, *events: AlarmMessage) -> list[AlarmMessage]:
    return AlarmOutbox(store).record_events(events, lambda _: [MAIL, HOOK, MAIL])


def test_event_is_recorded_once_with_its_messages(store: Store) -> None:
    outbox = AlarmOutbox(store)
    assert record(store, EVENT) == [EVENT]
    # A second process that saw the same change, or another one of the same state before.
    assert record(store, replace(EVENT, state="OK")) == []
    later = replace(EVENT, id="later", event_id="later", state="OK", recorded_us=101)
    quiet = replace(EVENT, id="quiet", event_id="quiet", subject="B", severity=NO_SEVERITY)
    release = replace(EVENT, id="slower", event_id="slower", kind="regression")
    assert record(store, later, quiet, release) == [later, release]
    assert outbox.load_states() == {("site", EVENT.subject): later, ("site", "B"): quiet}
    assert outbox.list_events(10) == [EVENT, later, release]
    messages = [message for message in outbox.list_messages(10) if message.event_id == EVENT.id]
    assert {(message.channel, message.recipient) for message in messages} == {MAIL, HOOK}
    assert {message.text for message in messages} == {EVENT.text}
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.oldest_us) == (8, 0, 100)


def test_claimed_message_is_sent_by_one_process(store: Store) -> None:
    outbox = AlarmOutbox(store)
    record(store, EVENT)
    assert outbox.claim_message(99, 1000) is None  # not due
    first, other = outbox.claim_message(100, 1000), outbox.claim_message(100, 1000)
    assert first
    assert other
    assert first.id != other.id
    assert outbox.claim_message(1099, 1000) is None
    # The process that sent the first one died.
    outbox.mark_sent(other, 200)
    again = outbox.claim_message(1100, 1000)
    assert again
    assert (again.id, again.attempts) == (first.id, 2)
    outbox.mark_failed(again, "refused " * 1000, due_us=5000)
    assert outbox.claim_message(4999, 1000) is None
    again = outbox.claim_message(5000, 1000)
    assert again
    assert again.error.startswith("refused")
    outbox.mark_failed(again, "no such user", due_us=None)
    assert outbox.claim_message(10**15, 1000) is None
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.given_up) == (0, 1, 1)
    assert summary.oldest_us is None


def test_late_attempt_does_not_repeat_a_sent_message(store: Store) -> None:
    outbox = AlarmOutbox(store)
    AlarmOutbox(store).record_events([EVENT], lambda _: [HOOK])
    late, timely = outbox.claim_message(100, 1000), outbox.claim_message(1100, 1000)
    assert late
    assert timely
    # Neither while the second attempt runs, nor after it.
    outbox.mark_failed(late, "timeout", due_us=1150)
    assert outbox.claim_message(1200, 1000) is None
    outbox.mark_sent(timely, 1200)
    outbox.mark_failed(late, "timeout", due_us=1250)
    assert outbox.claim_message(10**15, 1000) is None
    assert outbox.summarize().sent == 1
    # The first attempt was accepted after all, and the second one failed.
    outbox.mark_failed(timely, "timeout", due_us=None)
    assert outbox.summarize().sent == 1


NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
CONTROL, RELEASE = "6.38.00", "6.40.00"
STEP_AGO = 10


def build_measurements(
    first_ago: int, last_ago: int, control_slowdown: float = 1.0
) -> Iterator[Measurement]:
    """Yield one job per site and day; the release is 10 % slower at all sites for ten days."""
    dice = Random(first_ago)
    for ago in range(first_ago, last_ago, -1):
        day = NOW - timedelta(days=ago)
        for site in ("A", "B", "C"):
            for position, release in enumerate((CONTROL, RELEASE), 1):
                slow = 1.1 if release == RELEASE and ago < STEP_AGO else 1.0
                slow *= control_slowdown if ago < STEP_AGO else 1.0
                seconds = 0.02 * slow * dice.gauss(1, 0.005)
                values = {
                    **variant_values(f"branches=1 root={release}"),
                    "axis_root": release,
                    "root_version": release,
                    "root_commit": "new" if slow > 1 else "old",
                    "test_name": "read",
                    "site": site,
                    "host": f"node.{site}",
                    "door": "near",
                    "kind": "timed",
                    "plausible": True,
                    "day": day_to_number(day.date()),
                    "started_us": int(day.timestamp() * 1e6),
                    "cpu_per_event_s": seconds,
                    "wall_per_event_s": seconds,
                    "failure_class": None,
                }
                yield make_measurement(f"{site}-{ago}", 1, position, **values)


def test_changes_are_found_stored_and_kept(store: Store) -> None:
    store.add(build_measurements(30, 4))
    early = update_changes(store, NOW - timedelta(days=4))
    assert (early.new, early.changes) == (2, 2)
    before = {row.metric: row for row in fetch_change_points(store)}
    store.add(build_measurements(4, -1))
    later = update_changes(store, NOW)
    assert (later.new, later.changes) == (0, 2)
    assert later.days < 15
    rows = fetch_change_points(store)
    assert {row.metric: row.id for row in rows} == {m: row.id for m, row in before.items()}
    (cpu,) = (row for row in rows if row.metric == "cpu_per_event_s")
    assert (cpu.attribution, cpu.subject, cpu.control) == ("release", RELEASE, CONTROL)
    assert cpu.day == day_to_number((NOW - timedelta(days=STEP_AGO - 1)).date())
    assert cpu.state == "confirmed"
    assert cpu.days_after > before["cpu_per_event_s"].days_after
    assert cpu.found_us < cpu.updated_us
    assert "ROOT build 6.40.00 old → 6.40.00 new" in cpu.cause
    assert describe_change(cpu).startswith("ROOT 6.40.00: CPU")
    assert {one["site"] for one in list_places(cpu)} == {"A", "B", "C"}
    assert select_changes(rows, site="B", release=RELEASE) == rows
    assert select_changes(rows, site="D") == select_changes(rows, release="6.36") == []
    assert find_change_point(store, cpu.id) == cpu
    assert find_change_point(store, "none") is None
    # One ratio and one level for each site and metric.
    assert len(fetch_watched_series(store)) == 12
    assert len(fetch_watched_series(store, site="A", kind="ratio")) == 2
    window = day_to_number((NOW - timedelta(days=30)).date()), day_to_number(NOW.date())
    assert len(fetch_watched_days(store, *window)) == 12 * 31
    assert len(fetch_watched_days(store, *window, kind="ratio", site="A")) == 2 * 31
    assert update_changes(store, NOW, rebuild=True).new == 0


def test_changing_host_names_are_recognized_and_named(store: Store) -> None:
    def rename(number: int, measurement: Measurement) -> Measurement:
        machine = "wn1.example" if measurement.values["site"] == "A" else None
        names = {"host": f"pod-{number}", "cpu_model": "EPYC", "machine": machine}
        return replace(measurement, values={**measurement.values, **names})

    store.add(rename(number, one) for number, one in enumerate(build_measurements(30, -1, 1.2)))
    updated = update_changes(store, NOW)
    assert updated.nodes_by == {NodeIdentity.MACHINE: {"A"}, NodeIdentity.CPU_MODEL: {"B", "C"}}
    change = next(row for row in fetch_change_points(store) if row.kind == "level")
    assert "of 6.38.00 (nodes by machine identity and CPU model)" in describe_change(change)


CHECK = ReleaseCheck(
    id="check",
    campaign_id="finished",
    test_name="",
    a="6.38.00",
    b="6.40.00",
    state="suspected",
    comparison_id="",
    compared=4,
    slower=1,
    effect=0.05,
    text="",
    reruns=0,
    rerun_id="",
    checked_us=10,
    changed_us=10,
)


def test_only_finished_campaigns_are_examined(store: Store) -> None:
    table = ReleaseCheckTable(store)
    for name, created, states in (
        ("old", 1, ["done"]),
        ("finished", 50, ["done", "lost"]),
        ("running", 50, ["done", "running"]),
        ("empty", 50, []),
        ("later", 60, ["cancelled"]),
    ):
        jobs = [
            make_job_row(f"{name}{n}", campaign_id=name, state=state)
            for n, state in enumerate(states)
        ]
        store.add_campaign(make_campaign_row(name, created_us=created), jobs)
    assert table.list_unchecked_campaigns(since_us=2) == ["finished", "later"]
    assert [table.is_finished(one) for one in ("finished", "running", "empty")] == [
        True,
        False,
        False,
    ]
    table.add_checks([CHECK])
    assert table.list_unchecked_campaigns(since_us=2) == ["later"]
    table.update_check(CHECK, replace(CHECK, rerun_id="later", state="rerunning"))
    assert table.list_unchecked_campaigns(since_us=2) == []


def test_check_is_changed_by_one_process(store: Store) -> None:
    table = ReleaseCheckTable(store)
    table.add_checks([CHECK, CHECK])
    table.add_checks([replace(CHECK, effect=None), replace(CHECK, id="other", b="7.00.00")])
    assert table.list_checks(release="6.40.00") == [CHECK]
    after = replace(CHECK, state="rerunning", rerun_id="r1", reruns=1, changed_us=20)
    assert table.update_check(CHECK, after)
    assert not table.update_check(CHECK, replace(after, rerun_id="r2"))
    assert table.list_checks(states=("rerunning",)) == [after]


def test_releases_of_a_campaign_are_listed(store: Store) -> None:
    store.add(
        [
            make_measurement(
                f"j{n}",
                campaign_id=campaign,
                axis_root=root,
                **variant_values(f"branches=1 root={root}"),
            )
            for n, (campaign, root) in enumerate(
                (("one", "6.38.00"), ("one", "6.40.00"), ("two", "6.40.00"), ("two", "7.00.00"))
            )
        ]
    )
    table = ReleaseCheckTable(store)
    assert table.list_releases("one") == ["6.38.00", "6.40.00"]
    assert table.list_measured_releases() == ["6.38.00", "6.40.00", "7.00.00"]
