"""Patrols in every database: one leader, each start once, budgets."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from measurement_factory import make_campaign_row

from treehammer.sql.core.watch_rows import PatrolStartRow
from treehammer.sql.engine.database_engine import read_clock
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
