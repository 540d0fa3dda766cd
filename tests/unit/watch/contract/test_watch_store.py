"""Messages, change points, checks of releases, patrols and states of sites in every database."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from measurement_factory import (
    HOUR_US,
    STORY_US,
    build_alarm_event,
    fill_story,
    make_campaign_row,
    make_downtime,
    make_job_row,
    make_measurement,
    make_override,
    make_run,
    variant_values,
)

from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.core.watch_rows import AlarmMessage, PatrolStartRow, ReleaseCheck, RuleSetRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.overview_queries import STORAGE_SITE
from treehammer.sql.write.maintenance import ChangeScope, DatabaseChange
from treehammer.sql.write.store import Store
from treehammer.watch.changes.change_points import describe_change, select_changes, update_changes
from treehammer.watch.changes.daily_series import NodeIdentity
from treehammer.watch.changes.weekly_digest import load_digest, this_week
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import parse_status_rules
from treehammer.watch.store import state_history
from treehammer.watch.store.alarms import (
    NO_SEVERITY,
    EventTable,
    ReleaseCheckTable,
    find_change_point,
    load_change_points,
    load_watched_days,
    load_watched_series,
    replace_change_points,
)
from treehammer.watch.store.patrol_report import load_report, write_limits
from treehammer.watch.store.patrol_starts import (
    FAILED,
    STORED,
    LeaseLostError,
    PatrolLease,
    PatrolStarts,
    SiteCharge,
    SiteLimits,
    load_use,
)
from treehammer.watch.store.state_history import list_run_outcomes

EVENT = build_alarm_event(happened_us=90, recorded_us=100, text="line\n" * 2000)


def record(store: Store, *events: AlarmMessage) -> list[AlarmMessage]:
    return EventTable(store).record_events(events)


def test_event_is_recorded_once(store: Store) -> None:
    event_table = EventTable(store)
    assert record(store, EVENT) == [EVENT]
    # A second process that saw the same change, or another one of the same state before.
    assert record(store, replace(EVENT, state="OK")) == []
    later = replace(EVENT, id="later", event_id="later", state="OK", recorded_us=101)
    quiet = replace(EVENT, id="quiet", event_id="quiet", subject="B", severity=NO_SEVERITY)
    release = replace(EVENT, id="slower", event_id="slower", kind="regression")
    assert record(store, later, quiet, release) == [later, release]
    assert event_table.load_states() == {("site", EVENT.subject): later, ("site", "B"): quiet}
    assert event_table.list_events(10) == [EVENT, later, release]


NOW = datetime(2026, 3, 31, 12, tzinfo=UTC)
CONTROL, RELEASE = "6.38.00", "6.40.00"
STEP_AGO = 10


def build_measurements(
    first_ago: int,
    last_ago: int,
    control_slowdown: float = 1.0,
    drift: float = 0.0,
    peak: float = 1.0,
) -> Iterator[Measurement]:
    """Yield one job per site and day; the release is 10 % slower at all sites for ten days.

    With a peak it is slower still on three of them, with a drift by so much each day instead.
    """
    dice = Random(first_ago)
    for ago in range(first_ago, last_ago, -1):
        day = NOW - timedelta(days=ago)
        for site in ("A", "B", "C"):
            for position, release in enumerate((CONTROL, RELEASE), 1):
                slow = 1.1 if release == RELEASE and ago < STEP_AGO else 1.0
                slow *= peak if slow > 1 and ago >= STEP_AGO - 3 else 1.0
                if drift:
                    slow = 1 + drift * (first_ago - ago) * (release == RELEASE)
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
    before = {row.metric: row for row in load_change_points(store)}
    store.add(build_measurements(4, -1))
    later = update_changes(store, NOW)
    assert (later.new, later.changes) == (0, 2)
    assert later.days < 15
    rows = load_change_points(store)
    assert {row.metric: row.id for row in rows} == {m: row.id for m, row in before.items()}
    (cpu,) = (row for row in rows if row.metric == "cpu_per_event_s")
    assert (cpu.attribution, cpu.subject, cpu.control) == ("release", RELEASE, CONTROL)
    assert cpu.day == day_to_number((NOW - timedelta(days=STEP_AGO - 1)).date())
    assert cpu.state == "confirmed"
    assert cpu.days_after > before["cpu_per_event_s"].days_after
    assert cpu.found_us < cpu.updated_us
    assert "ROOT build 6.40.00 old → 6.40.00 new" in cpu.cause
    assert describe_change(cpu).startswith("ROOT 6.40.00: CPU")
    assert {series.site for series in cpu.evidence.series} == {"A", "B", "C"}
    assert select_changes(rows, site="B", release=RELEASE) == rows
    assert select_changes(rows, site="D") == select_changes(rows, release="6.36") == []
    assert find_change_point(store, cpu.id) == cpu
    assert find_change_point(store, "none") is None
    # One ratio and one level for each site and metric.
    assert len(load_watched_series(store)) == 12
    assert len(load_watched_series(store, site="A", kind="ratio")) == 2
    window = day_to_number((NOW - timedelta(days=30)).date()), day_to_number(NOW.date())
    assert len(load_watched_days(store, *window)) == 12 * 31
    assert len(load_watched_days(store, *window, kind="ratio", site="A")) == 2 * 31
    assert update_changes(store, NOW, rebuild=True).new == 0
    old, now_us = NOW - timedelta(days=20), int(NOW.timestamp() * 1e6)
    scope = ChangeScope(until_us=int(old.timestamp() * 1e6))
    store.apply_change(DatabaseChange("quarantine", scope, "me", now_us, "wrong clock", "all"))
    update_changes(store, NOW)
    assert not load_watched_days(store, window[0], day_to_number(old.date()) - 1), "no figure"


def test_lasting_slowdown_keeps_its_identity_beside_an_incident(store: Store) -> None:
    store.add(build_measurements(30, -1, peak=1.2))
    identities = []
    for now in (NOW - timedelta(days=1), NOW):
        update_changes(store, now)
        lasting, incident = (
            row for row in load_change_points(store) if row.metric == "cpu_per_event_s"
        )
        assert (lasting.state, incident.state) == ("confirmed", "provisional")
        assert lasting.effect == pytest.approx(0.095, abs=0.01)
        identities.append((lasting.id, incident.id))
    assert identities[0] == identities[1]


def test_drift_is_one_change_while_the_window_moves(store: Store) -> None:
    store.add(build_measurements(100, -1, drift=0.001))
    assert update_changes(store, NOW - timedelta(days=8)).new == 2
    first = {row.metric: row for row in load_change_points(store)}
    updated = update_changes(store, NOW)
    assert (updated.new, updated.changes) == (0, 2)
    rows = load_change_points(store)
    assert {row.metric: row.id for row in rows} == {m: row.id for m, row in first.items()}
    (cpu,) = (row for row in rows if row.metric == "cpu_per_event_s")
    assert cpu.until_day == day_to_number(NOW.date())
    assert cpu.day > first[cpu.metric].day
    assert " … +" in (text := describe_change(cpu))
    assert " steadily from 2026-01-01 to 2026-03-31" in text
    (line,) = (
        line.text
        for section in load_digest(store, this_week(NOW.date() - timedelta(days=8))).sections
        for line in section.lines
        if section.title == "Slower"
    )
    assert line.startswith("ROOT 6.40.00 steadily from 2026-01-01 to 2026-03-31, test read: ")
    replace_change_points(store, (), 0)  # as on an evening that does not see it
    update_changes(store, NOW)
    assert {row.id for row in load_change_points(store)} == {row.id for row in rows}


def test_changing_host_names_are_recognized_and_named(store: Store) -> None:
    def rename(number: int, measurement: Measurement) -> Measurement:
        machine = "wn1.example" if measurement.values["site"] == "A" else None
        names = {"host": f"pod-{number}", "cpu_model": "EPYC", "machine": machine}
        return replace(measurement, values={**measurement.values, **names})

    store.add(rename(number, item) for number, item in enumerate(build_measurements(30, -1, 1.2)))
    updated = update_changes(store, NOW)
    assert updated.nodes_by == {NodeIdentity.MACHINE: {"A"}, NodeIdentity.CPU_MODEL: {"B", "C"}}
    change = next(row for row in load_change_points(store) if row.kind == "level")
    assert "of 6.38.00 (nodes by machine identity and CPU model)" in describe_change(change)


CHECK = ReleaseCheck(
    "check", "finished", "", "6.38.00", "6.40.00", "suspected",
    compared=4, slower=1, effect=0.05, checked_us=10, changed_us=10,
)  # fmt: skip


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
    assert [table.is_finished(campaign_id) for campaign_id in ("finished", "running", "empty")] == [
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


def test_servers_and_earlier_campaigns_are_listed(store: Store) -> None:
    table = ReleaseCheckTable(store)
    for name, created_us, test in (("first", 1, "a"), ("other", 2, "b"), ("last", 3, "a")):
        row = make_campaign_row(name, created_us=created_us)
        store.add_campaign(replace(row, test_name=test), [])
    store.add(
        [
            make_measurement(f"j{n}", campaign_id="last", server_version=version, started_us=n)
            for n, version in enumerate(("5.8.1", "5.8.1", "6.2.0"), 1)
        ]
    )
    uses = {row["server_version"]: row["last_us"] for row in table.list_servers("last")}
    assert uses == {"5.8.1": 2, "6.2.0": 3}
    assert [row.id for row in table.list_earlier_campaigns("last", 10)] == ["first"]
    assert table.list_earlier_campaigns("first", 10) == []


class FakeClock:
    """Time of the database, set by the test."""

    def __init__(self) -> None:
        self.now_us = 10**15

    def __call__(self, _connection: object) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def make_start(occasion: str, entry: str = "e") -> PatrolStartRow:
    campaign = f"{entry}-{occasion}"
    return PatrolStartRow(entry, occasion, campaign, "", 7, 0, None, 0, "", "{}", "")


def make_leader(store: Store, clock: FakeClock, name: str = "here") -> PatrolStarts:
    lease = PatrolLease(store, name, 60, clock)
    assert lease.acquire()
    return PatrolStarts(store, lease)


def test_lease_passes_to_another_patrol(store: Store, clock: FakeClock) -> None:
    lease, other = (PatrolLease(store, name, 60, clock) for name in ("one", "other"))
    assert (lease.acquire(), other.acquire(), lease.epoch, other.epoch) == (True, False, 1, 0)
    clock.advance(40)
    assert lease.acquire()
    clock.advance(59)
    assert not other.acquire()
    clock.advance(1)
    assert (other.acquire(), other.epoch) == (True, 2)
    starts = PatrolStarts(store, lease)
    with pytest.raises(LeaseLostError, match="another patrol"):
        starts.claim(make_start("a"), {}, {}, 1)
    assert not lease.acquire()
    other.release()
    assert (lease.acquire(), lease.epoch) == (True, 3)
    clock.advance(61)
    with pytest.raises(LeaseLostError, match="expired"):
        starts.claim(make_start("a"), {}, {}, 1)
    assert starts.list_open() == []


def test_restarted_patrol_takes_over_its_lease(store: Store, clock: FakeClock) -> None:
    killed, restarted = (PatrolLease(store, "here", 60, clock) for _ in range(2))
    assert killed.acquire()
    assert (restarted.acquire(), restarted.epoch) == (True, 2)
    with pytest.raises(LeaseLostError):
        PatrolStarts(store, killed).claim(make_start("a"), {}, {}, 1)


def test_occasion_starts_once(store: Store, clock: FakeClock) -> None:
    starts = make_leader(store, clock)
    first = starts.claim(make_start("a"), {}, {}, 2).start
    assert first is not None
    assert (first.claimed_us, first.epoch, first.holder) == (clock.now_us, 1, "here")
    assert "already" in starts.claim(make_start("a"), {}, {}, 9).reason
    assert starts.claim(make_start("b"), {}, {}, 2).start
    assert "in_flight" in starts.claim(make_start("c"), {}, {}, 2).reason
    assert starts.claim(make_start("probe:s"), {}, {}, 9).start
    assert "in_flight" in starts.claim(make_start("c"), {}, {}, 2).reason
    assert starts.settle(first, {})
    assert not starts.settle(first, {})
    assert starts.claim(make_start("c"), {}, {}, 2).start
    starts.note_existing("e", {"tag:1": "existed", "a": ""})
    assert starts.find_existing("e", ["tag:1", "a", "z"]) == {"tag:1", "a"}


def test_earlier_start_is_the_last_finished_one_of_its_kind(store: Store, clock: FakeClock) -> None:
    starts = make_leader(store, clock)
    rows: dict[str, PatrolStartRow] = {}
    for place in ("e commit:a", "e time:1", "other commit:a", "e commit:b", "e commit:c"):
        entry, occasion = place.split()
        claimed = starts.claim(make_start(occasion, entry), {}, {}, 9).start
        assert claimed is not None
        rows[place] = claimed
        clock.advance(1)
        if place != "e commit:b":
            starts.settle(rows[place], {})
    earlier = starts.find_earlier_start(rows["e commit:c"], "commit:")
    assert earlier is not None
    assert earlier.occasion == "commit:a", "b is still in flight"
    assert starts.find_earlier_start(rows["e commit:a"], "commit:") is None


def test_budget_is_reserved_and_settled(store: Store, clock: FakeClock) -> None:
    starts = make_leader(store, clock)
    limits = {"s": SiteLimits(100, 1000), "t": SiteLimits(None, 1000)}
    charges = {"s": SiteCharge(60, 10), "t": SiteCharge(500, 600)}
    write_limits(store, starts._lease, limits)
    first = starts.claim(make_start("a"), charges, limits, 9).start
    assert first is not None
    refused = starts.claim(make_start("b"), charges, limits, 9)
    assert (refused.start, refused.exhausted) == (None, ("s", "t"))
    assert starts.settle(first, {"s": SiteCharge(40, 5)})
    with store.connection() as connection:
        day = clock.now_us // 86_400_000_000
        assert load_use(connection, day) == {"s": SiteCharge(40, 5), "t": SiteCharge(0, 0)}
    assert starts.claim(make_start("b"), charges, limits, 9).start
    clock.advance(86_400)
    starts._lease.acquire()
    assert starts.claim(make_start("c"), charges, limits, 9).start
    sites = {use.site.site: use for use in load_report(store, clock).sites}
    assert (sites["s"].site.cpu_limit_s, sites["s"].bytes_left) == (100, 990)


def test_claim_is_completed_by_one_patrol(store: Store, clock: FakeClock) -> None:
    dead = make_leader(store, clock, "dead")
    start = dead.claim(make_start("a"), {}, {}, 1).start
    stored = dead.claim(make_start("b"), {}, {}, 2).start
    assert start
    assert stored
    campaign = make_campaign_row()
    store.add_campaign(replace(campaign, id=stored.campaign_id), [], dead.permit_campaign(stored))
    clock.advance(61)
    heir = make_leader(store, clock, "heir")
    taken = heir.take_over(start)
    assert taken is not None
    assert (taken.holder, taken.epoch) == ("heir", 2)
    assert heir.take_over(stored) is None
    with pytest.raises(LeaseLostError, match="belongs to another"):
        store.add_campaign(replace(campaign, id=start.campaign_id), [], dead.permit_campaign(start))
    assert [row.id for row in store.campaigns()] == [stored.campaign_id]
    store.add_campaign(replace(campaign, id=start.campaign_id), [], heir.permit_campaign(taken))
    assert {entry.state for entry in heir.list_open()} == {STORED}
    heir.mark_submitted(taken)
    assert heir.settle(stored, {}, state=FAILED, message="gone")
    assert {entry.state for entry in load_report(store, clock).starts} == {"submitted", FAILED}


@pytest.mark.backends("sqlite", "postgresql")
def test_two_patrols_contend_for_the_lead(store: Store) -> None:
    with store.connection() as connection:
        assert abs(read_clock(connection) / 1e6 - time.time()) < 60
    barrier = threading.Barrier(2)
    won: list[tuple[str, str]] = []

    def contend(name: str) -> None:
        lease = PatrolLease(store, name, 60)
        starts = PatrolStarts(store, lease)
        barrier.wait()
        for number in range(20):
            while not lease.acquire():
                with pytest.raises(LeaseLostError):
                    starts.claim(make_start(f"time:{number}"), {}, {}, 100)
            if (start := starts.claim(make_start(f"time:{number}"), {}, {}, 100).start) is not None:
                won.append((start.occasion, name))
            lease.release()

    threads = [threading.Thread(target=contend, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    claimed = PatrolStarts(store, PatrolLease(store, "reader")).list_open()
    assert sorted(won) == sorted((row.occasion, row.holder) for row in claimed)
    assert sorted(row.occasion for row in claimed) == sorted(f"time:{n}" for n in range(20))
    # An epoch has one holder.
    assert len({(row.epoch, row.holder) for row in claimed}) == len({row.epoch for row in claimed})


RULES = parse_status_rules(
    """
[rules.exclusion]
kind = "tests"
window = "6h"
failed_runs = 3
failing_tests = 2
recovery_runs = 2
hold = "2h"
forget = "1d"
""",
    "rules.toml",
)


def test_runs_are_listed_by_site_test_and_storage(store: Store) -> None:
    fill_story(store)
    runs = list_run_outcomes(store, STORY_US + HOUR_US - 1, STORY_US + 4 * HOUR_US)
    assert [(run.job_id, run.site, run.storage_site, run.test, dict(run.outcomes)) for run in runs][
        :3
    ] == [
        ("h", "A", "", "ttree-read", {"held": 1}),
        ("j1load", "A", "A", "load", {"good": 1}),
        ("j1read", "A", "A", "read", {"good": 1}),
    ]
    [remote] = [run for run in runs if run.job_id == "remote"]
    assert (remote.site, remote.storage_site, dict(remote.outcomes)) == ("B", "A", {"open": 1})
    assert len(runs) == 10
    scope = ChangeScope(since_us=0)
    store.apply_change(DatabaseChange("quarantine", scope, "me", STORY_US, "nonsense", "all"))
    assert [run.job_id for run in list_run_outcomes(store, 0, STORY_US + 4 * HOUR_US)] == ["h"]


def test_runs_are_split_by_door(store: Store) -> None:
    store.add(
        [
            make_run("both", 1, good=True, door="root"),
            make_run("both", 1.2, good=False, door="https", round_=2),
            make_run("remote", 2, good=False, site="B", storage="A", door="https"),
        ]
    )
    runs = list_run_outcomes(store, STORY_US, STORY_US + 4 * HOUR_US)
    assert [
        (run.job_id, run.outcomes, {door: part.outcomes for door, part in run.by_door.items()})
        for run in runs
    ] == [
        ("both", {"open": 1, "good": 1}, {"A:https": {"open": 1}, "A:root": {"good": 1}}),
        ("remote", {"open": 1}, {"A:https": {"open": 1}}),
    ]
    ends = [run.ended_us - STORY_US for run in (runs[0].by_door["A:root"], runs[0])]
    assert ends == [HOUR_US, round(1.2 * HOUR_US)]


def test_doors_are_listed_only_on_request(store: Store) -> None:
    row = replace(make_override(0, 12), site="A:https", subject_kind="door")
    state_history.add_override(store, row)
    update_states(store, STORY_US + HOUR_US, RULES)
    lists = (
        state_history.list_state_changes,
        state_history.list_current_states,
        state_history.list_standing_states,
    )
    for list_rows in lists:
        assert not list_rows(store)
        assert [change.site for change in list_rows(store, doors=True)] == ["A:https"]
    assert [len(state_history.list_current_states(store, site=s, doors=True)) for s in "Aa"] == [
        1,
        0,
    ]


def test_failures_are_explained(store: Store) -> None:
    fill_story(store)
    store.add_campaign(
        make_campaign_row("campaign", created_us=STORY_US, test_name="read", commit_id="a"), []
    )
    store.add_campaign(
        make_campaign_row("before", created_us=STORY_US - HOUR_US, test_name="read", commit_id="b"),
        [],
    )
    store.add(make_run(f"b{n}", n / 8, good=True, site="B") for n in range(1, 40))
    day = explain_period(store, "A", Period.of_day(STORY_US + HOUR_US))
    part = explain_period(store, "A", Period(STORY_US, STORY_US + 5 * HOUR_US))
    storage = explain_period(store, "A", Period.of_day(STORY_US), by=STORAGE_SITE)
    begin = ", since 2026-03-01 02:59 UTC"
    assert (day and day.sentence, part and part.sentence, storage and storage.sentence) == (
        f"8 of 12 failed here, 1 of 40 elsewhere: the site{begin}",
        f"6 of 10 failed here, 1 of 40 elsewhere: the site{begin}",
        f"9 of 13 failed here in 9 jobs, 0 of 39 elsewhere: too few to tell{begin}",
    )


def test_states_are_kept_with_evidence(store: Store) -> None:
    fill_story(store)
    assert update_states(store, STORY_US + 7 * HOUR_US, RULES).recorded
    changes = state_history.list_state_changes(store, site="A")
    states = [(row.subject_kind, row.state, (row.since_us - STORY_US) / HOUR_US) for row in changes]
    assert sorted(states) == [
        ("site", "critical", 5),
        ("site", "ok", 2),
        ("storage_site", "critical", 5),
        ("storage_site", "ok", 2),
        ("storage_site", "warning", 4),
    ]
    last = state_history.list_current_states(store, site="A")[0]
    assert state_history.find_change(store, last.id) == last
    assert last.evidence.failures == {"open": 6}
    assert not update_states(store, STORY_US + 7 * HOUR_US + 1, RULES).changes


def test_downtimes_and_overrides_correct_states(store: Store) -> None:
    fill_story(store)
    update_states(store, STORY_US + 7 * HOUR_US, RULES)
    result = state_history.replace_downtimes(store, "goc", [make_downtime(2.5, 9)], STORY_US)
    assert (result.new, result.withdrawn) == (1, 0)
    update = update_states(store, STORY_US + 8 * HOUR_US, RULES)
    assert {row.state for row in update.superseded} == {"critical", "warning"}
    assert {row.state for row in state_history.list_current_states(store)} == {"downtime"}
    moved = replace(make_downtime(2.5, 9), ends_us=STORY_US + 10 * HOUR_US)
    repeated = state_history.replace_downtimes(store, "goc", [moved], STORY_US)
    assert (repeated.new, repeated.changed, repeated.unchanged) == (0, 1, 0)
    assert state_history.list_downtimes(store) == [moved]
    state_history.add_override(store, make_override(8.5, 12, "ok"))
    update_states(store, STORY_US + 9 * HOUR_US, RULES)
    assert {row.cause for row in state_history.list_current_states(store)} == {"override"}
    state_history.end_overrides(store, "A", now_us=STORY_US + round(9.5 * HOUR_US), who="bob")
    [override] = state_history.list_overrides(store)
    assert (override.state, override.ended_by) == ("ok", "bob")


def test_of_two_evaluations_at_once_one_is_recorded(store: Store) -> None:
    first, second = (RuleSetRow("v", "{}", 0, now_us) for now_us in (5, 6))
    unchanged = {"superseded": (), "changes": ()}
    assert state_history.record_evaluation(store, before=None, rule_set=first, **unchanged)
    assert not state_history.record_evaluation(store, before=None, rule_set=second, **unchanged)
    assert state_history.record_evaluation(store, before=first, rule_set=second, **unchanged)
    assert state_history.find_latest_rule_set(store) == second
