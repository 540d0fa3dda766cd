"""Watched series and change points in every database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from measurement_factory import make_measurement, variant_values

from treehammer.analysis.changes.change_text import describe_change, list_places, select_changes
from treehammer.analysis.changes.change_update import update_changes
from treehammer.analysis.changes.daily_series import NodeIdentity
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.watch.alarms import (
    fetch_change_points,
    fetch_watched_days,
    fetch_watched_series,
    find_change_point,
)
from treehammer.sql.write.store import Store

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
