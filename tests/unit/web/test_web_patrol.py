"""Page and API of the patrol."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from service_thread import ServiceThread, run_service

from treehammer.analysis.status.site_status import update_states
from treehammer.analysis.status.status_rules import load_shipped_rules
from treehammer.sql.core.watch_rows import OverrideRow, PatrolEntryRow, PatrolStartRow
from treehammer.sql.watch.patrol_report import write_entries, write_limits
from treehammer.sql.watch.patrol_starts import PatrolLease, PatrolStarts, SiteCharge, SiteLimits
from treehammer.sql.watch.state_history import add_override
from treehammer.sql.write.store import Store


@pytest.fixture(scope="module")
def patrol_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("patrol"), reading_open=True) as running:
        yield running


def fill_patrol(url: str) -> None:
    with Store.open(url) as store:
        lease = PatrolLease(store, "node1:/data")
        assert lease.acquire()
        write_limits(store, lease, {"SITE_A": SiteLimits(3600, 10**9), "SITE_B": SiteLimits()})
        daily = PatrolEntryRow("daily", 0, "<b>read", "", "all", 3600, 2, 2**50, "quiet hours", 1)
        idea = PatrolEntryRow("idea", 1, "client", "branch main", "all", None, 1, None, "", 1)
        write_entries(store, lease, [daily, idea])
        starts = PatrolStarts(store, lease)
        for number, occasion in enumerate(("time:1", "time:2")):
            row = PatrolStartRow("daily", occasion, f"c{number}", "", 1, 0, None, 0, "", "{}", "")
            charges = {"SITE_A": SiteCharge(600.0, 10**8), "SITE_B": SiteCharge(9.0, 0)}
            start = starts.claim(row, charges, {}, 9).start
            assert start
            if not number:
                starts.settle(start, {"SITE_A": SiteCharge(300.0, 10**7)})
        starts.note_existing("idea", {"tag:1": ""})
        now_us = time.time_ns() // 1000
        override = OverrideRow(
            "", "SITE_A", "site", "critical", "ada", "50% <failed>", now_us, 2 * now_us
        )
        add_override(store, override)
        update_states(store, time.time_ns() // 1000, load_shipped_rules())


def test_page_shows_entries_budgets_and_starts(patrol_service: ServiceThread) -> None:
    assert "No patrol has run" in patrol_service.load_page("/patrol")
    fill_patrol(patrol_service.url)
    page = patrol_service.load_page("/patrol")
    assert "Led by node1:/data" in page
    assert "<b>read" not in page
    document = patrol_service.load_document("/patrol")
    assert document["about"] == {"leader": "node1:/data"}
    tables = patrol_service.load_tables("/patrol")
    daily, idea = tables["entries"]
    assert (daily["campaign_id"], daily["occasion"]) == ("c1", "time:2")
    assert (daily["in_flight"], daily["in_flight_limit"]) == (1, 2)
    assert (idea["last_start_us"], idea["follows"]) == (None, "branch main")
    first, second = tables["budgets"]
    assert (first["cpu_used_s"], first["cpu_left_s"]) == (900.0, 2700.0)
    assert (first["bytes_used"], first["bytes_left"]) == (11 * 10**7, 89 * 10**7)
    assert first["use"] == "excluded"
    assert "excluded since" in first["reason"]
    assert first["reason"].endswith("critical by ada: 50% <failed>")
    assert (second["use"], second["reason"]) == ("usable", "")
    assert (second["cpu_used_s"], second["cpu_left_s"]) == (9.0, None)
    assert [(one["campaign_id"], one["state"]) for one in tables["starts"]] == [
        ("c1", "claimed"),
        ("c0", "finished"),
    ]
