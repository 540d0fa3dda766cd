"""Pages and digest of changes over time."""

from __future__ import annotations

import json
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
from service_thread import ServiceThread, make_service_settings, run_service

from treehammer.cli import cli
from treehammer.collectors.record.day_numbers import current_us, day_to_number
from treehammer.config import load_settings
from treehammer.errors import NothingToDoError
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence, VerdictEvidence
from treehammer.sql.core.rows import AttemptRow
from treehammer.sql.core.watch_rows import ChangePointRow, RuleSetRow, StatusChangeRow
from treehammer.sql.write.store import Store
from treehammer.watch.bisection.bisection_state import (
    MEASURED,
    SKIPPED,
    BisectionQuestion,
    BisectionState,
    CommitSource,
    ListedBuild,
    ProbeRecord,
)
from treehammer.watch.changes.weekly_digest import default_week, load_digest, parse_week, this_week
from treehammer.watch.store.alarms import replace_change_points, replace_watched_days
from treehammer.watch.store.state_history import record_evaluation
from treehammer.web import display_formats

DAY_US = 86_400_000_000


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
    settings = make_service_settings(tmp_path, url="https://results.example.org")
    with run_service(tmp_path, reading_open=True, settings=settings) as running:
        yield running


@pytest.mark.usefixtures("draw_in_process")
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


@pytest.mark.usefixtures("draw_in_process")
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
    drawing = pages.load_page(f"/changes/{change.id}?drawing=course.svg")
    assert f"<dc:source>/changes/{change.id}<" in drawing, "the page draws its change"
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


def test_searches_for_a_build_are_listed_and_have_pages(
    pages: ServiceThread, tmp_path: Path
) -> None:
    builds = tuple(ListedBuild(name, name) for name in ("6.38.00", "6.39.01", "6.40.00"))
    question = BisectionQuestion(
        builds=builds,
        source=CommitSource("/home/jane/root", "make", "path:{build}"),
        test_spec="ttree-read",
        axes={},
        overrides={},
        sites=("local",),
        from_sites=(),
        metric="read_calls",
        is_exact=True,
        certainty=0.95,
        job_limit=60,
    )
    state = BisectionState.start(question)
    for build, value in ((2, 12.0), (1, 10.0)):
        state = state.add_probe(ProbeRecord(build, MEASURED, f"c{build}", (), (10.0, value)))
    state = state.add_probe(ProbeRecord(0, SKIPPED, reason="does not start"))
    state.save(load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path))
    (row,) = pages.load_tables("/changes")["bisections"]
    assert row["builds"] == "6.38.00 … 6.40.00"
    assert row["conclusion"].startswith("6.40.00 changed read_calls by +20.0 %")
    page = pages.read(f"/bisections/{state.id}")
    assert [cell["build"].text for cell in page.tables["probes"].cells] == [
        "6.40.00",
        "6.39.01",
        "6.38.00",
    ]
    document = pages.load_document(f"/bisections/{state.id}")
    assert document["about"]["conclusion"] == row["conclusion"]
    assert "/home" not in pages.load_page(f"/bisections/{state.id}")
    assert pages.client.get("/bisections/unknown").status_code == 404


def test_digest_has_one_line_for_each_change(service: ServiceThread) -> None:
    year, week, _ = NOW.isocalendar()
    page = unescape(service.load_page(f"/digest?week={year}-W{week:02}"))
    assert page.count("<li>ROOT 6.40.00 since") == 2
    assert "Storage B since" in page
    assert "/changes/storage" in page
    feed = ElementTree.fromstring(service.load_page("/changes.atom"))
    entries = feed.findall(f"{ATOM}entry")
    links = [entry.find(f"{ATOM}link") for entry in entries]
    assert [link.get("href") for link in links if link is not None] == [
        "https://results.example.org/changes/cpu",
        "https://results.example.org/changes/wall",
    ]


def test_digest_is_printed_with_links(database: str) -> None:
    arguments = ["--database", database, "digest", "--week", f"{NOW:%G-W%V}"]
    printed = CliRunner().invoke(cli, arguments, catch_exceptions=False).output
    assert "## Slower\n\n- ROOT 6.40.00 since" in printed
    assert "wall relative to 6.38.00 +4.1 %" in printed
    assert "([evidence](/changes/cpu))" in printed
    html = CliRunner().invoke(cli, [*arguments, "--html"], catch_exceptions=False).output
    assert '<a href="/changes/storage">' in html
    assert '<meta charset="utf-8">' in html
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
    of_campaign = {"campaign_id": "c1", "site": "SITE_A"}
    jobs = [make_job_row(f"job {number}", **of_campaign, state="done") for number in range(4)]
    pages.store.add_campaign(campaign, jobs)
    pages.store.set_attempts(
        AttemptRow(job.id, 1, "done", start_us + 1, start_us + 1 + 1_800_000_000, 0, "", "")
        for job in jobs
    )
    values: dict[str, Any] = {"test_name": "ttree-read", **of_campaign}
    values |= {"day": day, "started_us": start_us + 1, "payload_user_s": 800.0}
    values |= {"payload_sys_s": 100.0, "bytes_read": 10**9, "bytes_read_extra": None}
    values |= {"passes_done": 3, "stagein_bytes": None}
    earlier = values | {"campaign_id": "c0", "day": week_before}
    earlier["started_us"] -= 7 * DAY_US
    pages.store.add(
        [
            make_measurement("job 0", **values),
            # Impossible values do not hide the cost of all others.
            make_measurement("job 1", **values, failure_class="open", setup_cpu_s=1e9),
            make_measurement("job 2", **values, failure_class="open", stagein_cpu_s=-7200.0),
            make_measurement(
                "job 3", **values | {"failure_class": "read", "bytes_read_extra": 2**62}
            ),
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


def test_digest_lists_sites_that_failed_and_a_central_event_once(pages: ServiceThread) -> None:
    now_us = current_us()
    changes = [
        StatusChangeRow(
            id="",
            subject_kind="site",
            site=site,
            state="warning",
            previous="ok",
            since_us=now_us - 8 * DAY_US * (site == "F"),
            decided_us=now_us,
            cause="daily" if site == "F" else "central",
            reason=f"central: 5 of 5 sites turned critical ({number} of 12 failed)",
        )
        for number, site in enumerate("ABCDEF")
    ]
    rules = RuleSetRow("0123456789ab", "{}", 0, now_us)
    record_evaluation(pages.store, before=None, rule_set=rules, superseded=(), changes=changes)
    (section, *_) = load_digest(pages.store, this_week(display_formats.today())).sections
    from_before, central = (line.text.partition(": warning since")[0] for line in section.lines)
    assert (from_before, central) == ("F (jobs)", "A (jobs), B (jobs), C (jobs) and 2 more")


def test_digest_of_a_monday_is_that_of_the_week_before() -> None:
    assert default_week(date(2026, 11, 30)) == date(2026, 11, 23)
    assert default_week(date(2026, 12, 1)) == date(2026, 11, 30)


def test_search_for_a_release_opens_its_page(pages: ServiceThread) -> None:
    pages.store.add([make_measurement(axis_root="6.40.00")])
    browser = {"Accept": "text/html"}
    answer = pages.client.get("/search?q=6.40", headers=browser, follow_redirects=False)
    assert answer.headers["location"] == "/releases/6.40.00"
    # It has no daily ratios yet.
    page = pages.read("/releases/6.40.00")
    assert "treehammer changes --update" in page.text
    assert any("axis_root=6.40.00" in link for link in page.list_links("/explore"))
    assert "never measured" in pages.read("/releases/7.0", 404).text
    assert pages.client.get("/changes/").headers["Location"] == "/changes"
