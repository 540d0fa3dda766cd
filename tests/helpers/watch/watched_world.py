"""States, changes, alarms and a patrol for databases that tests of pages fill."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from measurement_factory import (
    build_alarm_event,
    build_change_point,
    build_watched_day,
    build_watched_series,
)
from page_database import CHANGE, HOSTILE_TEXTS, RELEASES, SITES, STATE_CHANGE

from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.sql.core.evidence import StateEvidence
from treehammer.sql.core.watch_rows import (
    PatrolEntryRow,
    PatrolStartRow,
    RuleSetRow,
    StatusChangeRow,
)
from treehammer.sql.write.store import Store
from treehammer.watch.store import alarms, state_history
from treehammer.watch.store.alarms import EventTable
from treehammer.watch.store.patrol_report import write_entries, write_limits
from treehammer.watch.store.patrol_starts import PatrolLease, PatrolStarts, SiteCharge, SiteLimits


def _add_state(store: Store) -> None:
    """Record a state of one site, with hostile texts as reason and evidence."""
    evidence = StateEvidence(
        tests={HOSTILE_TEXTS[0]: {"succeeded": 1, "failed": 3}},
        failures={"open": 3},
        jobs=("r4",),
        campaigns=("running",),
        measurements=(HOSTILE_TEXTS[2],),
    )
    change = StatusChangeRow(
        id="",
        subject_kind="site",
        site=HOSTILE_TEXTS[1],
        rule="",
        state="critical",
        previous="ok",
        since_us=1_772_323_200_000_000,
        decided_us=1_772_323_200_000_001,
        cause="exclusion",
        rule_version="0123456789ab",
        reason=HOSTILE_TEXTS[1],
        evidence=evidence,
    )
    rules = RuleSetRow("0123456789ab", "{}", 0, 1_772_323_200_000_001)
    state_history.record_evaluation(
        store, before=None, rule_set=rules, superseded=(), changes=[change]
    )


def add_watch(store: Store) -> None:
    """Record changes over time, a patrol and an event, with hostile texts."""
    now = datetime.now(UTC)
    days = [day_to_number((now - timedelta(days=back)).date()) for back in range(40)]
    series = [
        build_watched_series(f"{release} {site}", site=site, release=release, variant_label=variant)
        for release in (*RELEASES[1:], HOSTILE_TEXTS[0])
        for site, variant in zip(SITES, HOSTILE_TEXTS, strict=False)
    ]
    values = [
        build_watched_day(watched.id, day, 0.05 * (back < 20) + 0.002 * ((back + place) % 3))
        for place, watched in enumerate(series)
        for back, day in enumerate(days)
    ]
    alarms.replace_watched_days(store, series, values, days[-1], days[0])
    times = {"found_us": int(now.timestamp() * 1e6), "day": days[20]}
    changes = [
        build_change_point(CHANGE, cause=HOSTILE_TEXTS[1], **times),
        build_change_point("site", attribution="site", subject=HOSTILE_TEXTS[0], **times),
        build_change_point("new", state="provisional", effect=-0.3, **times),
    ]
    alarms.replace_change_points(store, changes, 0)
    _add_patrol(store)
    _add_state(store)
    event = build_alarm_event(
        subject=SITES[4],
        happened_us=times["found_us"],
        title=f"CRITICAL: site {SITES[4]}",
        text=HOSTILE_TEXTS[2],
        evidence=f"/state-changes/{STATE_CHANGE}",
    )
    EventTable(store).record_events([event])


def _add_patrol(store: Store) -> None:
    lease = PatrolLease(store, "node1:/data")
    lease.acquire()
    write_limits(store, lease, {SITES[0]: SiteLimits(3600, 10**9), SITES[4]: SiteLimits()})
    entry = PatrolEntryRow("daily", 0, HOSTILE_TEXTS[0], "", "all", 3600, 2, 2**50, "quiet", 1)
    write_entries(store, lease, [entry])
    start = PatrolStartRow("daily", "time:1", "over", "", 1, 0, None, 0, "", "{}", HOSTILE_TEXTS[2])
    PatrolStarts(store, lease).claim(start, {SITES[0]: SiteCharge(600.0, 10**8)}, {}, 9)
