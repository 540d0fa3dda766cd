"""Patrol starts the reruns of suspected regressions, each once, and records them."""

from __future__ import annotations

from dataclasses import asdict

import sqlalchemy as sa
from release_campaigns import add_campaign
from simulated_campaign import START_US

from treehammer.analysis.alarms.alarm_watch import requested_reruns, watch_campaigns
from treehammer.analysis.alarms.release_state import CheckState
from treehammer.patrol.campaign_starts import PatrolRequest, find_reruns, record_reruns
from treehammer.sql.core.schema import patrol_start
from treehammer.sql.core.watch_rows import PatrolStartRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.watch.alarms import ReleaseCheckTable
from treehammer.sql.watch.patrol_starts import (
    CLAIMED,
    FINISHED,
    SUBMITTED,
    PatrolLease,
    PatrolStarts,
)
from treehammer.sql.write.store import Store

AXES = {"root": ("6.38.00", "6.40.00")}


def add_start(store: Store, occasion: str, campaign_id: str, state: str) -> None:
    request = PatrolRequest("repository@c0ffee:ttree-read", ("T2_A",), "nightly", 1, AXES)
    row = PatrolStartRow(
        "nightly", occasion, campaign_id, state, 1, 1, None, 1, "host", request.format(), ""
    )
    with store.writing_connection() as connection:
        same = patrol_start.c.occasion == occasion
        connection.execute(sa.delete(patrol_start).where(same))
        connection.execute(sa.insert(patrol_start), [asdict(row)])


def test_rerun_is_an_occasion_of_the_entry_that_raised_it(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    first = add_campaign(store, "nightly", 0.08)
    add_start(store, "time:1", first, FINISHED)
    watch_campaigns(store, START_US)
    assert find_reruns(store, starts, "other", 7) == {}
    ((name, occasion),) = find_reruns(store, starts, "nightly", 7).items()
    assert name.startswith("rerun:")
    # The same commit and axes, whatever the entry follows now.
    assert (occasion.spec, occasion.axes) == ("repository@c0ffee:ttree-read", AXES)
    again = add_campaign(store, "again", 0.08, seed=2)
    add_start(store, name, again, CLAIMED)
    record_reruns(store, starts, 8)
    assert requested_reruns(store)
    add_start(store, name, again, SUBMITTED)
    for _ in range(2):
        record_reruns(store, starts, 8)
    (check,) = ReleaseCheckTable(store).list_checks()
    assert (check.state, check.rerun_id) == (CheckState.RERUNNING, again)
    assert find_reruns(store, starts, "nightly", 9) == {}
    (check,) = watch_campaigns(store, START_US)
    assert check.state == CheckState.CONFIRMED


def test_campaign_of_a_person_is_not_repeated(store: Store) -> None:
    starts = PatrolStarts(store, PatrolLease(store, "host", 60, read_clock))
    add_campaign(store, "by hand", 0.08)
    watch_campaigns(store, START_US)
    assert requested_reruns(store)
    assert find_reruns(store, starts, "nightly", 7) == {}
