"""States of sites on the overview, the site's page and the page of a change."""

from __future__ import annotations

import re
import time
from html import unescape
from pathlib import Path

from measurement_factory import make_campaign_row, make_job_row
from page_tables import read_tables
from service_thread import run_service
from status_story import HOUR_US, make_recent_runs

from treehammer.analysis.status.site_status import update_states
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.sql.core.watch_rows import OverrideRow
from treehammer.sql.watch import state_history
from treehammer.sql.write.store import Store


def fill_sites(folder: Path, sites: dict[str, bool]) -> None:
    """Add runs of the last four hours, good or all failed, and evaluate the states."""
    now_us = time.time_ns() // 1000
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        jobs = [
            make_job_row(f"{site}{number}", site=site) for site in sites for number in range(16)
        ]
        store.add_campaign(make_campaign_row(), jobs)
        store.add(make_recent_runs(sites, 16, 15))
        override = OverrideRow(
            "", "D", "", "downtime", "ada", "moved", now_us - 9, now_us + HOUR_US
        )
        state_history.add_override(store, override)
        update_states(store, now_us + 1, load_status_rules())


def test_pages_show_states_with_evidence(tmp_path: Path) -> None:
    fill_sites(tmp_path, {"A": True, "B": False, "C": True, "D": True})
    with run_service(tmp_path, reading_open=True) as service:
        overview = unescape(service.load_page("/"))
        states = service.load_tables("/")["states"]
        page = unescape(service.load_page("/sites/B"))
        history = service.load_tables("/sites/B")["state_changes"]
        listed = {row["site"]: row["state"] for row in service.load_tables("/sites")["sites"]}
        change = next(row for row in states if row["site"] == "B" and row["of"] == "jobs")
        evidence = unescape(service.load_page(f"/state-changes/{change['id']}"))
        results = service.load_tables(f"/state-changes/{change['id']}")["results"]
        for result in results:
            assert service.client.get(result["address"]).status_code == 200, result
        missing = service.client.get("/state-changes/nothing")
    assert re.findall(r"<strong>(.*?)</strong> (sites .*?)</a>", overview) == [
        ("1 of 4", "sites critical"),
        ("0 of 4", "sites with warnings"),
        ("1 of 4", "sites in a downtime"),
    ]
    assert read_tables(overview)["days"].column("site") == [*"BDAC"]
    assert listed == {"A": "ok", "B": "critical", "C": "ok", "D": "downtime"}
    assert f'/state-changes/{change["id"]}">evidence</a>' in page
    assert [row["state"] for row in history if row["of"] == "jobs"] == ["critical", "warning"]
    assert "open: " in evidence
    assert {row["kind"] for row in results} == {"measurement", "job", "campaign"}
    assert missing.status_code == 404


def test_a_central_event_is_announced(tmp_path: Path) -> None:
    fill_sites(tmp_path, {"A": False, "B": False, "C": False, "D": True})
    with run_service(tmp_path, reading_open=True) as service:
        overview = unescape(service.load_page("/"))
        states = {(row["site"], row["of"]): row for row in service.load_tables("/")["states"]}
    assert "Central since" in overview
    assert states["A", "jobs"]["state"] == "warning"
    assert states["A", "jobs"]["cause"] == "central"
    assert states["", "all sites"]["state"] == "critical"
