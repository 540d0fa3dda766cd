"""Tests of changes over time, and of the overview with changes since yesterday."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from click.testing import CliRunner
from measurement_factory import build_verdict, make_campaign_row, make_job_row, make_measurement
from service_thread import ServiceThread
from simulated_campaign import add_campaign

from treehammer.cli import cli
from treehammer.collectors.record.day_numbers import current_us, day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store
from treehammer.web import display_formats
from treehammer.web.pages import overview_days


def test_campaign_shows_planned_cost(pages: ServiceThread) -> None:
    estimate = {"wall_s": 7200.0, "cpu_s": 5400.0, "read_bytes": 12e9}
    for id_, seconds in {"planned": estimate, "partly": {**estimate, "read_bytes": 0}}.items():
        plan = json.dumps({"estimate": seconds})
        pages.store.add_campaign(make_campaign_row(id_, name=id_, plan=plan), [])
    expected = "Planned cost: 2 slot hours, 1.5 CPU hours, 12.0 GB."
    assert expected in pages.read("/campaigns/planned").text
    assert "Planned cost: 2 slot hours, 1.5 CPU hours." in pages.read("/campaigns/partly").text
    pages.store.add([make_measurement("job 9", campaign_id="planned")])
    assert "; planned were 2 slot hours, 1.5" in pages.read("/campaigns/planned").text


NOW_US = current_us()
DAY_US = 86_400_000_000
FAILED = {"failure_class": "open"}


def on(site: str, back: int, good: int, failed: int = 0, **more: Any) -> Iterator[Measurement]:
    """Measurements of a site ``back`` days ago."""
    day = display_formats.day_number(display_formats.today() - timedelta(days=back))
    for number in range(good + failed):
        values: dict[str, Any] = {"site": site, "day": day, "axis_root": "6.38.00", "door": "root"}
        values |= {"plausible": True, **(FAILED if number >= good else {}), **more}
        name = f"{site} {back} {number} {more}"
        yield make_measurement(name, started_us=NOW_US - back * DAY_US, **values)


def format_day(back: int) -> str:
    return str(display_formats.today() - timedelta(days=back))


def load_changes(pages: ServiceThread, query: str = "") -> list[str]:
    answer = pages.client.get(f"/api/v1/overview{query}")
    assert answer.status_code == 200, answer.text
    changes: list[str] = answer.json()["about"]["changes"]
    return changes


def add(service: ServiceThread, *measured: Iterator[Measurement]) -> None:
    service.store.add(measurement for measurements in measured for measurement in measurements)


@pytest.mark.parametrize(
    ("measured", "lines"),
    [
        ([("A", 3, 2), ("A", 1, 2), ("A", 0, 2)], ["4 measurements received: 4 of 4 good."]),
        (
            [("A", 9, 0, 2), ("A", 1, 2), ("A", 0, 1, 3)],
            [f"A: partly bad (1 of 4 good, 3 failed on {format_day(0)}); fine on {format_day(1)}."],
        ),
        (
            [("A", 2, 2), ("A", 1, 0, 1), ("A", 0, 0, 2)],
            [
                f"A: none good since {format_day(1)} (0 of 2 good, 2 failed on {format_day(0)}); "
                f"fine on {format_day(2)}."
            ],
        ),
        (
            [("A", 2, 2), ("A", 1, 0, 2), ("A", 0, 2)],
            [f"A: fine (2 of 2 good on {format_day(0)}); none good on {format_day(1)}."],
        ),
        ([("A", 3, 2), ("A", 2, 2), ("B", 3, 1)], [f"A: no measurements since {format_day(2)}."]),
    ],
    ids=["unchanged", "since today", "since yesterday", "recovered", "quiet"],
)
def test_grade_is_compared_with_previous_measured_day(
    pages: ServiceThread, measured: list[tuple[Any, ...]], lines: list[str]
) -> None:
    add(pages, *(on(*runs) for runs in measured))
    assert load_changes(pages)[-1:] == lines
    # The days shown on the page do not matter.
    until = display_formats.today() - timedelta(days=100)
    for query in ("?days=7", f"?days=30&to={until}"):
        assert load_changes(pages, query) == load_changes(pages)


def test_quiet_sites_share_a_sentence(pages: ServiceThread) -> None:
    sites = [f"S{number}" for number in range(overview_days.MAX_QUIET_SITES + 3)]
    add(pages, *(on(site, 2, 1) for site in sites), on("GONE", 3, 1))
    start = f"No measurements since {format_day(2)}: "
    assert load_changes(pages) == [f"{start}{', '.join(sites)}."]
    (item,) = (text for text in pages.read("/").list_texts("li") if text.startswith(start))
    assert item == f"{start}S0, S1, S2, S3, S4, S5 and 3 more."


def test_first_measurements_are_listed(pages: ServiceThread) -> None:
    other: dict[str, Any] = {"axis_root": "6.40.00"}
    add(pages, on("A", 200, 1), on("A", 0, 1, **other), on("B", 100, 1, door="file"))
    add(pages, on("B", 0, 1, **other), on("B", 1, 1, door="https"), on("C", 1, 1, **other))
    # Releases and doors of a new site, and anything measured before, are not listed.
    assert load_changes(pages)[1:] == [
        "First measurements from C.",
        "ROOT 6.40.00: first measurements at A, B.",
        "door https: first measurements at B.",
        "door root: first measurements at B.",
    ]


def test_comparisons_are_listed_once_below_the_tile_of_the_slowest(pages: ServiceThread) -> None:
    for name, judged, us in (("new", "same", NOW_US), ("worse", "slower", NOW_US - DAY_US)):
        row = build_verdict(name, created_us=us, verdict=judged, scope="site")
        pages.store.replace_comparison(name, [], [row])
    page = pages.read("/")
    links = [link for link in page.list_links("/compare/") if not link.endswith("recompute=1")]
    assert links == ["/compare/worse", "/compare/new", "/compare/worse"]
    assert "1 of 1 variants slower by site" in page.text
    pages.store.replace_comparison("worse", [], [build_verdict("worse", verdict="undecided")])
    pages.store.replace_comparison("new", [], [build_verdict("new", verdict="different")])
    assert "0 of 1 variants decided over sites" in pages.read("/").text


def test_sites_with_less_efficiency_than_similar_ones_stand_out(pages: ServiceThread) -> None:
    efficiencies = {"A": 0.8, "B": 0.81, "C": 0.8, "D": 0.79, "E": 0.7}
    add(pages, *(on(site, 1, 2, eff_job=mean) for site, mean in efficiencies.items()))
    # Other work is not compared.
    add(pages, on("B", 1, 9, eff_job=0.1, test_name="own"))
    page = pages.read("/")
    assert "1 less CPU efficiency than similar sites: E" in page.text
    matrix = page.tables["days"]
    assert matrix.column("efficiency") == ["70 %", "80 %", "81 %", "80 %", "79 %"]
    assert matrix.column("site")[0] == "E"
    add(pages, on("F", 1, 2, eff_job=0.6), on("G", 1, 2, eff_job=0.9))
    assert "2 less CPU efficiency than similar sites: F, E" in pages.read("/").text


def test_new_campaigns_are_listed_by_name(pages: ServiceThread) -> None:
    for number in range(12):
        row = make_campaign_row(f"c{number:02}", created_us=NOW_US - number)
        pages.store.add_campaign(row, [])
    pages.store.add_campaign(make_campaign_row("old", created_us=NOW_US - 2 * DAY_US), [])
    names = [f"name of c{number:02}" for number in range(12)]
    assert load_changes(pages) == [f"12 campaigns submitted: {', '.join(names)}."]
    (item,) = (text for text in pages.read("/").list_texts("li") if "submitted" in text)
    assert item.endswith("name of c09 and 2 more.")


def test_changes_are_sorted_by_severity_and_folded(pages: ServiceThread) -> None:
    for number in range(overview_days.MAX_CHANGES):
        add(pages, on(f"W{number}", 1, 3), on(f"W{number}", 0, 3, 1))
    add(pages, on("GOOD", 1, 0, 1), on("GOOD", 0, 1), on("QUIET", 2, 1))
    add(pages, on("BAD", 1, 1), on("BAD", 0, 0, 1), on("WORSE", 1, 4), on("WORSE", 0, 1, 3))
    first = [line.partition(":")[0] for line in load_changes(pages)[1:]]
    new = f"First measurements from BAD, GOOD, {', '.join(first[3:-2])}, WORSE."
    assert first == [
        "BAD",
        "QUIET",
        "WORSE",
        *(f"W{n}" for n in range(overview_days.MAX_CHANGES)),
        "GOOD",
        new,
    ]
    assert pages.read("/").list_texts("summary")[0] == "6 more"
    at_once, folded = pages.load_page("/").split('class="changes"')[1:3]
    assert at_once.count("<li>") == overview_days.MAX_CHANGES
    assert folded.split("</ul>", 1)[0].count("<li>") == 6


TODAY = datetime.now(UTC).date()
#: Site -> good and failed measurements of its latest day; implausible ones of the third.
OUTCOMES = {"A_GOOD": (10, 0), "B_FAILS": (0, 3), "C_WARNS": (9, 1), "D_HALF": (5, 5)}


def fill(store: Store) -> None:
    for site, (good, failed) in OUTCOMES.items():
        day = day_to_number(TODAY - timedelta(days=site == "B_FAILS"))
        store.add(
            make_measurement(
                f"{site}-{number}",
                site=site,
                day=day,
                plausible=number < good or site != "C_WARNS",
                failure_class="open" if number >= good and site != "C_WARNS" else None,
            )
            for number in range(good + failed)
        )
    verdicts = [
        build_verdict("c", label=str(number), verdict=verdict)
        for number, verdict in enumerate(("slower", "same", "same"))
    ]
    store.replace_comparison("c", [], verdicts)


def test_tiles_count_latest_days_and_lead_to_evidence(pages: ServiceThread) -> None:
    fill(pages.store)
    tiles = re.findall(
        r'<li><a href="([^"]*)"(?: class="(\w+)")?><strong>(.*?)</strong> (.*?)</a></li>',
        pages.load_page("/"),
    )
    assert [tile[:3] for tile in tiles] == [
        ("#days", "critical", "1 of 4"),
        ("#days", "warning", "2 of 4"),
        ("#days", "warning", "6 of 30"),
        ("/compare/c", "critical", "1 of 3"),
        ("#running", "", "0"),
    ]
    assert tiles[2][3].startswith("measurements failed or implausible on ")
    assert tiles[3][3].startswith("variants slower over sites: ROOT 6.40.00 against 6.38.00")


def test_submitter_is_on_campaigns_and_overview(pages: ServiceThread) -> None:
    running = [make_job_row("j", campaign_id="c", state="running")]
    plan = json.dumps({"submitter": "ada"})
    pages.store.add_campaign(make_campaign_row("c", plan=plan, planned_measurements=5), running)
    for address, table in (("/", "running"), ("/campaigns", "campaigns")):
        assert pages.read(address).tables[table].column("submitter") == ["ada"]
    assert " by ada" in pages.read("/campaigns/c").text
    assert "1 campaign running by ada: 0 of 5 measurements" in pages.read("/").text


def test_tile_of_running_campaigns_shows_progress(pages: ServiceThread) -> None:
    for name, planned in (("first", 3), ("second", 1)):
        job = make_job_row(f"job-{name}", campaign_id=name, state="running")
        pages.store.add_campaign(make_campaign_row(name, planned_measurements=planned), [job])
    recorded = [("first", 1), ("second", 1)]
    pages.store.add([make_measurement(f"job-{name}", n, campaign_id=name) for name, n in recorded])
    # The second one is over, as its page says, although its job has not ended.
    assert "1 campaign running: 1 of 3 measurements" in pages.read("/").text
    over = {
        name: pages.load_document(f"/campaigns/{name}")["about"]["progress"]["over"]
        for name in ("first", "second")
    }
    assert over == {"first": False, "second": True}
    assert '<progress max="1" value="0.333"' in pages.load_page("/")


def test_worst_sites_come_first_in_the_matrix_only(pages: ServiceThread) -> None:
    fill(pages.store)
    rows = pages.load_tables("/")["site_days"]
    matrix = pages.read("/").tables["days"]
    assert matrix.column("site") == ["B_FAILS", "D_HALF", "C_WARNS", "A_GOOD"]
    assert list(dict.fromkeys(str(row["site"]) for row in rows)) == sorted(OUTCOMES)
    assert "warning severity-3" in {cell.css_class for cell in matrix.cells[1].values()}


def test_every_summary_states_the_verdict_of_the_widest_scope(pages: ServiceThread) -> None:
    """On one host the conclusion is its verdict; that no second site was measured hides nothing."""
    campaign = add_campaign(pages.store, "one host", 0.0, hosts=1)
    command = ["--database", pages.url, "compare", "6.38.00", "6.40.00", "--campaign", campaign]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert "On this host, there is no difference beyond 2 %" in done.output
    overview, listed = (unescape(pages.load_page(path)) for path in ("/", "/compare"))
    answer = pages.client.get("/api/v1/overview").json()
    compared = answer["tables"]["verdicts"][0]["comparison_id"]
    page = unescape(pages.load_page(f"/compare/{compared}"))
    assert "<strong>0 of 1</strong> variants slower by host: ROOT 6.40.00" in overview
    assert overview.count("CPU and wall: 1 same by host") == 1
    assert "CPU and wall: 1 same by host" in listed
    assert "not enough data" not in overview + listed
    assert "On this host, there is no difference beyond 2 %" in page
    row = answer["tables"]["verdicts"][0]
    assert row["headline"] == "CPU: 1 same by host"
    assert (row["over_sites"], row["by_site"]) == ({"not enough data": 1}, {"same": 1})
