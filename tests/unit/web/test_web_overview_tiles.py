"""The tiles of the overview, and the order of its sites."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from measurement_factory import (
    build_verdict,
    make_campaign_row,
    make_job_row,
    make_measurement,
)
from page_tables import read_tables
from release_campaigns import add_campaign
from service_thread import run_service

from treehammer.cli import cli
from treehammer.sql.write.store import Store

TODAY = datetime.now(UTC).date()
#: Site -> good and failed measurements of its latest day.
OUTCOMES = {"A_GOOD": (10, 0), "B_FAILS": (0, 3), "C_WARNS": (9, 1), "D_HALF": (5, 5)}


def fill(folder: Path) -> None:
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        for site, counts in OUTCOMES.items():
            for number in range(sum(counts)):
                back = 1 if site == "B_FAILS" else 0
                day = TODAY - timedelta(days=back)
                failed: dict[str, Any] = {"failure_class": "open"} if number >= counts[0] else {}
                store.add(
                    [
                        make_measurement(
                            f"{site}-{number}",
                            site=site,
                            day=day.year * 10000 + day.month * 100 + day.day,
                            plausible=True,
                            **failed,
                        )
                    ]
                )
        verdicts = [
            build_verdict("c", label=str(number), verdict=verdict)
            for number, verdict in enumerate(("slower", "same", "same"))
        ]
        store.replace_comparison("c", [], verdicts)


def test_tiles_count_latest_days_and_lead_to_evidence(tmp_path: Path) -> None:
    fill(tmp_path)
    with run_service(tmp_path, reading_open=True) as service:
        page = unescape(service.load_page("/"))
    tiles = re.findall(
        r'<li><a href="([^"]*)"(?: class="(\w+)")?><strong>(.*?)</strong> (.*?)</a></li>', page
    )
    assert [(address, css, number) for address, css, number, _ in tiles] == [
        ("#days", "critical", "1 of 4"),
        ("#days", "warning", "2 of 4"),
        ("/compare/c", "critical", "1 of 3"),
        ("#running", "", "0"),
    ]
    assert tiles[2][3].startswith("variants slower over sites: ROOT 6.40.00 against 6.38.00")


def test_tile_of_running_campaigns_shows_progress(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        for name, planned in (("first", 3), ("second", 1)):
            job = make_job_row(f"job-{name}", campaign_id=name, state="running")
            store.add_campaign(make_campaign_row(name, planned_measurements=planned), [job])
        # Those beyond the plan, such as of a repeated job, do not count for other campaigns.
        recorded = [("first", 1), ("second", 1), ("second", 2)]
        store.add([make_measurement(f"job-{name}", n, campaign_id=name) for name, n in recorded])
    with run_service(tmp_path, reading_open=True) as service:
        tiles = service.load_page("/").split('<ul class="tiles">')[1].split("</ul>")[0]
    assert "<strong>2</strong> campaigns running: 2 of 4 measurements" in tiles
    assert '<progress max="1" value="0.5"' in tiles


def test_worst_sites_come_first_in_the_matrix_only(tmp_path: Path) -> None:
    fill(tmp_path)
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/")
        rows = service.load_tables("/")["site_days"]
    matrix = read_tables(page)["days"]
    assert matrix.column("site") == ["B_FAILS", "D_HALF", "C_WARNS", "A_GOOD"]
    assert list(dict.fromkeys(str(row["site"]) for row in rows)) == sorted(OUTCOMES)
    assert "warning severity-3" in {cell.css_class for cell in matrix.cells[1].values()}


def test_empty_service_shows_no_tiles_of_sites(tmp_path: Path) -> None:
    with run_service(tmp_path, reading_open=True) as service:
        tiles = service.load_page("/").split('<ul class="tiles">')[1].split("</ul>")[0]
    assert "sites" not in tiles
    assert "campaigns running" in tiles


def test_every_summary_states_the_verdict_of_the_widest_scope(tmp_path: Path) -> None:
    """On one host the conclusion is its verdict; that no second site was measured hides nothing."""
    url = f"sqlite:///{tmp_path / 'results.db'}"
    with Store.open(url) as store:
        campaign = add_campaign(store, "one host", 0.0, hosts=1)
    command = ["--database", url, "compare", "6.38.00", "6.40.00", "--campaign", campaign]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "On this host, there is no difference beyond 2 %" in done.output
    with run_service(tmp_path, reading_open=True) as service:
        overview, listed = (unescape(service.load_page(path)) for path in ("/", "/compare"))
        answer = service.client.get("/api/v1/overview").json()
        compared = answer["tables"]["verdicts"][0]["comparison_id"]
        page = unescape(service.load_page(f"/compare/{compared}"))
    assert "<strong>0 of 1</strong> variants slower by host: ROOT 6.40.00" in overview
    assert overview.count("CPU and wall: 1 same by host") == 2  # the table, and what changed
    assert "CPU and wall: 1 same by host" in listed
    assert "not enough data" not in overview + listed
    assert "On this host, there is no difference beyond 2 %" in page
    row = answer["tables"]["verdicts"][0]
    assert row["headline"] == "CPU: 1 same by host"
    assert (row["over_sites"], row["by_site"]) == ({"not enough data": 1}, {"same": 1})
