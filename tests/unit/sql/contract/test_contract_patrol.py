"""Patrols and states of sites in every database."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest
from measurement_factory import (
    HOUR_US,
    STORY_US,
    fill_story,
    make_campaign_row,
    make_downtime,
    make_override,
    make_run,
)

from treehammer.analysis.status.failure_explanation import explain_period
from treehammer.analysis.status.site_status import update_states
from treehammer.analysis.status.status_rules import parse_status_rules
from treehammer.sql.core.watch_rows import PatrolStartRow, RuleSetRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.read.failure_counts import Period
from treehammer.sql.read.overview_queries import STORAGE_SITE
from treehammer.sql.watch import state_history
from treehammer.sql.watch.patrol_report import fetch_report, write_limits
from treehammer.sql.watch.patrol_starts import (
    FAILED,
    STORED,
    LeaseLostError,
    PatrolLease,
    PatrolStarts,
    SiteCharge,
    SiteLimits,
    fetch_use,
)
from treehammer.sql.watch.state_history import list_run_outcomes
from treehammer.sql.write.store import Store


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
    one, other = (PatrolLease(store, name, 60, clock) for name in ("one", "other"))
    assert (one.acquire(), other.acquire(), one.epoch, other.epoch) == (True, False, 1, 0)
    clock.advance(40)
    assert one.acquire()
    clock.advance(59)
    assert not other.acquire()
    clock.advance(1)
    assert (other.acquire(), other.epoch) == (True, 2)
    starts = PatrolStarts(store, one)
    with pytest.raises(LeaseLostError, match="another patrol"):
        starts.claim(make_start("a"), {}, {}, 1)
    assert not one.acquire()
    other.release()
    assert (one.acquire(), one.epoch) == (True, 3)
    clock.advance(61)
    with pytest.raises(LeaseLostError, match="expired"):
        starts.claim(make_start("a"), {}, {}, 1)
    assert starts.list_open() == []


def test_restarted_patrol_takes_over_its_lease(store: Store, clock: FakeClock) -> None:
    killed, again = (PatrolLease(store, "here", 60, clock) for _ in range(2))
    assert killed.acquire()
    assert (again.acquire(), again.epoch) == (True, 2)
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
        assert fetch_use(connection, day) == {"s": SiteCharge(40, 5), "t": SiteCharge(0, 0)}
    assert starts.claim(make_start("b"), charges, limits, 9).start
    clock.advance(86_400)
    starts._lease.acquire()
    assert starts.claim(make_start("c"), charges, limits, 9).start
    sites = {one.site.site: one for one in fetch_report(store, clock).sites}
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
    assert {one.state for one in heir.list_open()} == {STORED}
    heir.mark_submitted(taken)
    assert heir.settle(stored, {}, state=FAILED, message="gone")
    assert {one.state for one in fetch_report(store, clock).starts} == {"submitted", FAILED}


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
    assert sorted(won) == sorted((one.occasion, one.holder) for one in claimed)
    assert sorted(one.occasion for one in claimed) == sorted(f"time:{n}" for n in range(20))
    # An epoch has one holder.
    assert len({(one.epoch, one.holder) for one in claimed}) == len({one.epoch for one in claimed})


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
    first = runs[0].by_door["A:root"]
    assert (first.ended_us, runs[0].ended_us) == (
        STORY_US + HOUR_US,
        STORY_US + round(1.2 * HOUR_US),
    )


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
    told = [(row.subject_kind, row.state, (row.since_us - STORY_US) / HOUR_US) for row in changes]
    assert sorted(told) == [
        ("site", "critical", 5),
        ("site", "ok", 2),
        ("storage_site", "critical", 5),
        ("storage_site", "ok", 2),
        ("storage_site", "warning", 4),
    ]
    last = state_history.list_current_states(store, site="A")[0]
    assert state_history.find_change(store, last.id) == last
    assert json.loads(last.evidence)["failures"] == {"open": 6}
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
    again = state_history.replace_downtimes(store, "goc", [moved], STORY_US)
    assert (again.new, again.changed, again.unchanged) == (0, 1, 0)
    assert state_history.list_downtimes(store) == [moved]
    state_history.add_override(store, make_override(8.5, 12, "ok"))
    update_states(store, STORY_US + 9 * HOUR_US, RULES)
    assert {row.cause for row in state_history.list_current_states(store)} == {"override"}
    state_history.end_overrides(store, "A", now_us=STORY_US + round(9.5 * HOUR_US), who="bob")
    [kept] = state_history.list_overrides(store)
    assert (kept.state, kept.ended_by) == ("ok", "bob")


def test_of_two_evaluations_at_once_one_is_recorded(store: Store) -> None:
    first, second = (RuleSetRow("v", "{}", 0, now_us) for now_us in (5, 6))
    nothing = {"superseded": (), "changes": ()}
    assert state_history.record_evaluation(store, before=None, rule_set=first, **nothing)
    assert not state_history.record_evaluation(store, before=None, rule_set=second, **nothing)
    assert state_history.record_evaluation(store, before=first, rule_set=second, **nothing)
    assert state_history.find_latest_rule_set(store) == second
