"""Tests of changes over time, and of the overview with changes since yesterday."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from html import unescape
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from measurement_factory import (
    build_change_point,
    build_verdict,
    build_watched_day,
    build_watched_series,
    make_campaign_row,
    make_job_row,
    make_measurement,
)
from page_contents import list_marks, load_charts
from service_thread import ServiceThread, run_service
from simulated_campaign import add_campaign

from treehammer.cli import cli
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import NothingToDoError
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence, VerdictEvidence
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.watch_rows import ChangePointRow, RuleSetRow, StatusChangeRow
from treehammer.sql.write.store import Store
from treehammer.watch.changes.weekly_digest import (
    default_week,
    load_digest,
    parse_week,
    this_week,
)
from treehammer.watch.store.alarms import replace_change_points, replace_watched_days
from treehammer.watch.store.state_history import record_evaluation
from treehammer.web import display_formats
from treehammer.web.pages import overview_days

NOW = datetime.now(UTC)
ATOM = "{http://www.w3.org/2005/Atom}"


def day_ago(days: int) -> int:
    return day_to_number((NOW - timedelta(days=days)).date())


def list_changes() -> list[ChangePointRow]:
    times = {"found_us": int(NOW.timestamp() * 1e6), "day": day_ago(20)}
    series = ChangedSeries("B", "B", "near", nodes_by="CPU model", effect=-0.1)
    storage = ChangeEvidence((series,))
    return [
        build_change_point("cpu", cause="ROOT build a → b", **times),
        build_change_point("wall", metric="wall_per_event_s", effect=0.04, **times),
        build_change_point(
            "storage",
            kind="level",
            attribution="storage",
            subject="B",
            effect=-0.1,
            evidence=storage,
            **times,
        ),
        build_change_point("new", state="provisional", effect=0.3, **times),
    ]


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'results.db'}"
    series = [
        build_watched_series(f"{site}{release}{metric}", site=site, release=release, metric=metric)
        for site in "AB"
        for release in ("6.40.00", "master")
        for metric in ("cpu_per_event_s", "wall_per_event_s")
    ]
    days = [
        build_watched_day(watched.id, day_ago(back), 0.05 * (back < 20) + 0.001 * (back % 3))
        for watched in series
        for back in range(40)
    ]
    with Store.open(url) as store:
        store.add([make_measurement(site="A")])
        replace_watched_days(store, series, days, day_ago(40), day_ago(0))
        replace_change_points(store, list_changes(), 0)
    return url


@pytest.fixture
def service(database: str, tmp_path: Path) -> Iterator[ServiceThread]:
    with run_service(tmp_path, reading_open=True) as running:
        yield running


def test_pages_show_changes_with_their_evidence(service: ServiceThread) -> None:
    page = service.read("/changes").text
    assert page.index("+35.0 %") < page.index("−9.5 %")
    assert "storage B" not in service.read("/changes?site=A").text
    for address, texts in {
        "/changes/cpu": ("ROOT 6.40.00: CPU", "changed on that day: ROOT build a → b", "+5.0 %"),
        "/changes/storage": ("CPU of 6.38.00 (nodes by CPU model)", "nodes recognized by"),
        "/releases/6.40.00": ("relative to 6.38.00, in per cent", "CPU time per event of "),
        "/releases/6.40.00?metric=wall_per_event_s": ("Wall time per event of ",),
        "/sites/A": ("Slower or faster since",),
    }.items():
        page_text = unescape(service.load_page(address))
        assert all(text in page_text for text in texts), address
    assert "nodes recognized by" not in service.read("/changes/cpu").text
    assert "NOWHERE" in service.read("/releases/6.40.00?site=NOWHERE", 400).text
    assert "master" in service.load_page("/releases/6.40.00?drawing=test-1.svg")
    rows = service.load_tables("/changes")["changepoints"]
    assert {row["id"] for row in rows} == {"cpu", "wall", "storage", "new"}


def test_commits_of_tests_are_listed_without_working_trees(
    service: ServiceThread, database: str
) -> None:
    a, b = "a" * 40, "b" * 40
    made = {"axis": "commit", "created_us": int(NOW.timestamp() * 1e6), "verdict": "slower"}
    with Store.open(database) as store:
        for name, sides in {
            "clean": (a, b),
            "separate": (a, b),
            "tree": (a, f"{a}+123456789012"),
        }.items():
            is_unpaired = name == "separate"
            evidence = VerdictEvidence(of_a={"test_name": "muons"}, unpaired=is_unpaired)
            verdict = build_verdict(name, a=sides[0], b=sides[1], evidence=evidence, **made)
            store.replace_comparison(name, [], [verdict])
    page = service.read("/changes")
    assert "bbbbbbbbbb against aaaaaaaaaa" in page.text
    assert "CPU: 1 slower over sites" in page.text
    assert "/compare/clean" in page.list_links()
    rows = service.load_tables("/changes")["commits"]
    assert {(row["test"], row["a"], row["b"], row["measured"]) for row in rows} == {
        ("muons", a, b, "in turns"),
        ("muons", a, b, "by separate jobs"),
    }


def test_step_of_drawn_line_is_the_stated_change(pages: ServiceThread) -> None:
    """One of three variants changed; before, all of them were 3 % faster than the control."""
    variants = ("branches=2%", "branches=50%", "branches=100%")
    series = [build_watched_series(v, variant_label=v, work=v) for v in variants]
    days = [
        build_watched_day(
            variant.id, day_ago(back), -0.03 + 0.0488 * (back < 20 and variant.id == variants[0])
        )
        for variant in series
        for back in range(40)
    ]
    place = ("A", "A", "near", "6.40.00", variants[0])
    evidence = ChangeEvidence((ChangedSeries(*place, effect=0.0488, error=0.001),))
    change = build_change_point(day=day_ago(19), effect=0.0488, evidence=evidence)
    replace_watched_days(pages.store, series, days, day_ago(40), day_ago(0))
    replace_change_points(pages.store, [change], 0)
    answer = pages.client.get(f"/changes/{change.id}?drawing=course.svg")
    assert "svg" in answer.headers["content-type"], "the page draws its change"
    (chart,) = load_charts(pages.load_page(f"/changes/{change.id}"))
    steps = [mark["y"] for mark in list_marks(chart)]
    assert steps[0] == pytest.approx(0)
    assert steps[-1] == pytest.approx(5, rel=1e-3)
    # The table, too, converts the effect from ln.
    (listed,) = pages.read(f"/changes/{change.id}").tables["places"].rows
    assert (listed["change"], listed["error"]) == ("+5.0 %", "0.1 %")
    rows = pages.load_tables("/releases/6.40.00")["ratios"]
    page = unescape(pages.load_page("/releases/6.40.00"))
    assert "+5.0 %" in page
    means: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        after = int(row["day"].replace("-", "")) >= day_ago(19)
        means.setdefault((row["series"], after), []).append(1 + row["ratio"] / 100)
    changed, unchanged = "series of change 1", "series without a change"
    assert {name for name, _ in means} == {changed, unchanged}
    for name, step in ((changed, 1.05), (unchanged, 1.0)):
        drawn = fmean(means[name, True]) / fmean(means[name, False])
        assert drawn == pytest.approx(step, abs=0.0005)


def test_digest_has_one_line_for_each_change(service: ServiceThread) -> None:
    year, week, _ = NOW.isocalendar()
    page = unescape(service.load_page(f"/digest?week={year}-W{week:02}"))
    assert page.count("<li>ROOT 6.40.00 since") == 2
    assert "Storage B since" in page
    assert "/changes/storage" in page
    feed = ElementTree.fromstring(service.load_page("/changes.atom"))
    entries = feed.findall(f"{ATOM}entry")
    links = [entry.find(f"{ATOM}link") for entry in entries]
    assert [str(link.get("href")).rpartition("/")[2] for link in links if link is not None] == [
        "cpu",
        "wall",
    ]


def test_digest_is_printed_with_links(database: str, tmp_path: Path) -> None:
    year, week, _ = NOW.isocalendar()
    arguments = ["--database", database, "digest", "--week", f"{year}-W{week:02}"]
    printed = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
    assert "## Slower\n\n- ROOT 6.40.00 since" in printed
    assert "wall relative to 6.38.00 +4.1 %" in printed
    assert "([evidence](/changes/cpu))" in printed
    html = CliRunner().invoke(cli, [*arguments, "--html"], catch_exceptions=False).output
    assert '<a href="/changes/storage">' in html
    listed = CliRunner().invoke(
        cli, ["--database", database, "changes", "--site", "B", "--json"], catch_exceptions=False
    )
    assert [row["id"] for row in json.loads(listed.stdout)] == ["storage"]
    for option, word in (("--site", "SITE_Q"), ("--release", "6.39.99")):
        with pytest.raises(NothingToDoError, match=word):
            CliRunner().invoke(
                cli, ["--database", database, "changes", option, word], catch_exceptions=False
            )


def test_quiet_week_says_so(pages: ServiceThread) -> None:
    digest = load_digest(pages.store, parse_week("2020-W01")).to_markdown("")
    assert "**0 bad states, 0 new failures, 0 slowdowns, 0 comparisons, 0 campaigns; " in digest
    for text in ("No site failed.", "Nothing became slower.", "Nothing was compared."):
        assert text in digest
    with pytest.raises(ValueError, match="week"):
        parse_week("2020-W60")


def test_week_has_new_failures_campaigns_and_cost(pages: ServiceThread) -> None:
    first_day = this_week(display_formats.today())
    day, week_before = (
        display_formats.day_number(first_day - timedelta(days=days)) for days in (0, 7)
    )
    start_us = display_formats.midnight_us(first_day)
    campaign = make_campaign_row("c1", name="nightly", created_us=start_us, planned_measurements=5)
    jobs = [
        make_job_row(f"job {number}", campaign_id="c1", site="SITE_A", state="done")
        for number in range(4)
    ]
    pages.store.add_campaign(campaign, jobs)
    pages.store.set_attempts(
        AttemptRow(job.id, 1, "done", start_us + 1, start_us + 1 + 1_800_000_000, 0, "", "")
        for job in jobs
    )
    values: dict[str, Any] = {"test_name": "ttree-read", "site": "SITE_A", "campaign_id": "c1"}
    values |= {"day": day, "started_us": start_us + 1, "payload_user_s": 800.0}
    values |= {"payload_sys_s": 100.0, "bytes_read": 10**9, "bytes_read_extra": None}
    values |= {"passes_done": 3, "stagein_bytes": None}
    earlier = values | {
        "campaign_id": "c0",
        "day": week_before,
        "started_us": start_us - 7 * DAY_US + 1,
    }
    pages.store.add(
        [
            make_measurement("job 0", **values),
            make_measurement("job 1", **values, failure_class="open"),
            make_measurement("job 2", **values, failure_class="open"),
            make_measurement("job 3", **values, failure_class="read"),
            make_measurement("earlier", **earlier, failure_class="read"),
        ]
    )
    sections = {
        section.title: [line.text for line in section.lines]
        for section in load_digest(pages.store, first_day).sections
    }
    assert sections["New failures"] == [
        "ttree-read: 2 measurements failed with 'open' at SITE_A; none in the 28 days before"
    ]
    assert sections["Campaigns"] == ["nightly (ttree-read): 4 of 5 measured, 3 failed"]
    # Four jobs of half an hour and 900 s of CPU, which read a GB three times.
    assert sections["Cost by site"] == [
        "SITE_A: 4 measurements in 2 slot hours, 1 CPU hours, 12.0 GB read"
    ]
    page = pages.load_page(f"/digest?week={first_day:%G-W%V}")
    assert "4 measurements in 2 slot hours, 1 CPU hours, 12.0 GB read." in page
    cost = "Cost: 4 measurements in 2 slot hours, 1 CPU hours, 12.0 GB read; about 5 measurements "
    cost += "in 2.5 slot hours, 1.2 CPU hours, 15.0 GB read as planned."
    assert cost in pages.read("/campaigns/c1").text


def test_campaign_shows_planned_cost(pages: ServiceThread) -> None:
    estimate = {"wall_s": 7200.0, "cpu_s": 5400.0, "read_bytes": 12e9}
    for id_, seconds in {"planned": estimate, "partly": {**estimate, "cpu_s": None}}.items():
        plan = json.dumps({"estimate": seconds})
        pages.store.add_campaign(make_campaign_row(id_, name=id_, plan=plan), [])
    expected = "Planned cost: 2 slot hours, 1.5 CPU hours, 12.0 GB."
    assert expected in pages.read("/campaigns/planned").text
    assert "Planned cost: 2 slot hours, 12.0 GB." in pages.read("/campaigns/partly").text
    pages.store.add([make_measurement("job 9", campaign_id="planned")])
    assert "; planned were 2 slot hours, 1.5" in pages.read("/campaigns/planned").text


NOW_US = time.time_ns() // 1000
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
    return display_formats.format_day(display_formats.today() - timedelta(days=back))


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
    assert overview.count("CPU and wall: 1 same by host") == 1
    assert "CPU and wall: 1 same by host" in listed
    assert "not enough data" not in overview + listed
    assert "On this host, there is no difference beyond 2 %" in page
    row = answer["tables"]["verdicts"][0]
    assert row["headline"] == "CPU: 1 same by host"
    assert (row["over_sites"], row["by_site"]) == ({"not enough data": 1}, {"same": 1})


def test_digest_lists_a_central_event_once(pages: ServiceThread) -> None:
    now_us = time.time_ns() // 1000
    changes = [
        StatusChangeRow(
            id="",
            subject_kind="site",
            site=site,
            state="warning",
            previous="ok",
            since_us=now_us,
            decided_us=now_us,
            cause="central",
            reason=f"central: 5 of 5 sites turned critical ({number} of 12 failed)",
        )
        for number, site in enumerate("ABCDE")
    ]
    rules = RuleSetRow("0123456789ab", "{}", 0, now_us)
    record_evaluation(pages.store, before=None, rule_set=rules, superseded=(), changes=changes)
    (section, *_) = load_digest(pages.store, this_week(display_formats.today())).sections
    (line,) = section.lines
    assert line.text.startswith("A (jobs), B (jobs), C (jobs) and 2 more: warning since")


def test_digest_of_a_monday_is_that_of_the_week_before() -> None:
    assert default_week(date(2026, 11, 30)) == date(2026, 11, 23)
    assert default_week(date(2026, 12, 1)) == date(2026, 11, 30)
