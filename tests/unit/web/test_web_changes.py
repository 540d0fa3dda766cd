"""Pages of changes over time, the digest and the feed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from measurement_factory import (
    build_change_point,
    build_verdict,
    build_watched_day,
    build_watched_series,
    make_measurement,
)
from service_thread import ServiceThread, run_service

from treehammer.analysis.changes.change_text import build_digest, parse_week
from treehammer.cli import cli
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.errors import NothingToDoError
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.watch.alarms import replace_change_points, replace_watched_days
from treehammer.sql.write.store import Store

NOW = datetime.now(UTC)
ATOM = "{http://www.w3.org/2005/Atom}"


def day_ago(days: int) -> int:
    return day_to_number((NOW - timedelta(days=days)).date())


def list_changes() -> list[ChangePointRow]:
    found = {"found_us": int(NOW.timestamp() * 1e6), "day": day_ago(20)}
    place = {"site": "B", "storage_site": "B", "door": "near"}
    storage = json.dumps([{**place, "effect": -0.1, "nodes_by": "CPU model"}])
    return [
        build_change_point("cpu", cause="ROOT build a → b", **found),
        build_change_point("wall", metric="wall_per_event_s", effect=0.04, **found),
        build_change_point(
            "storage",
            kind="level",
            attribution="storage",
            subject="B",
            effect=-0.1,
            evidence=storage,
            **found,
        ),
        build_change_point("new", state="provisional", effect=0.3, **found),
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
        build_watched_day(one.id, day_ago(back), 0.05 * (back < 20) + 0.001 * (back % 3))
        for one in series
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
    page = unescape(service.load_page("/changes"))
    assert page.index("+35.0 %") < page.index("−9.5 %")
    assert "/changes/cpu" in page
    assert "storage B" not in unescape(service.load_page("/changes?site=A"))
    change = unescape(service.load_page("/changes/cpu"))
    assert "ROOT 6.40.00: CPU" in change
    assert "changed on that day: ROOT build a → b" in change
    assert "+5.0 %" in change
    level = unescape(service.load_page("/changes/storage"))
    assert "CPU of 6.38.00 (nodes by CPU model)" in level
    assert "nodes recognized by" in level
    assert "nodes recognized by" not in change
    release = unescape(service.load_page("/releases/6.40.00"))
    assert "relative to 6.38.00, in per cent" in release
    assert "CPU time per event of " in release
    wall = unescape(service.load_page("/releases/6.40.00?metric=wall_per_event_s"))
    assert "Wall time per event of " in wall
    refused = service.client.get("/releases/6.40.00?site=NOWHERE")
    assert (refused.status_code, "NOWHERE" in refused.text) == (400, True)
    drawn = service.load_page("/releases/6.40.00?drawing=test-1.svg")
    assert "master" in drawn
    assert "Slower or faster since" in unescape(service.load_page("/sites/A"))
    rows = json.loads(service.load_page("/changes?format=json"))["tables"]["changepoints"]
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
            evidence = json.dumps({"of_a": {"test_name": "muons"}, "unpaired": is_unpaired})
            verdict = build_verdict(name, a=sides[0], b=sides[1], evidence=evidence, **made)
            store.replace_comparison(name, [], [verdict])
    page = unescape(service.load_page("/changes"))
    assert "bbbbbbbbbb against aaaaaaaaaa" in page
    assert "CPU: 1 slower over sites" in page
    assert 'href="/compare/clean"' in page
    rows = json.loads(service.load_page("/changes?format=json"))["tables"]["commits"]
    assert {(row["test"], row["a"], row["b"], row["measured"]) for row in rows} == {
        ("muons", a, b, "in turns"),
        ("muons", a, b, "by separate jobs"),
    }


def test_step_of_drawn_line_is_the_stated_change(tmp_path: Path) -> None:
    """One of three variants changed; before, all of them were 3 % faster than the control."""
    variants = ("branches=2%", "branches=50%", "branches=100%")
    series = [build_watched_series(one, variant_label=one, work=one) for one in variants]
    days = [
        build_watched_day(
            one.id, day_ago(back), -0.03 + 0.0488 * (back < 20 and one.id == variants[0])
        )
        for one in series
        for back in range(40)
    ]
    place = {"site": "A", "storage_site": "A", "door": "near", "release": "6.40.00"}
    evidence = json.dumps([{**place, "variant": variants[0], "effect": 0.0488, "error": 0.001}])
    change = build_change_point(day=day_ago(19), effect=0.0488, evidence=evidence)
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        replace_watched_days(store, series, days, day_ago(40), day_ago(0))
        replace_change_points(store, [change], 0)
    with run_service(tmp_path, reading_open=True) as service:
        rows = service.load_tables("/releases/6.40.00")["ratios"]
        page = unescape(service.load_page("/releases/6.40.00"))
    assert "+5.0 %" in page
    means: dict[tuple[str, bool], list[float]] = {}
    for row in rows:
        after = int(row["day"].replace("-", "")) >= day_ago(19)
        means.setdefault((row["series"], after), []).append(1 + row["ratio"] / 100)
    changed, others = "series of change 1", "series without a change"
    assert {name for name, _ in means} == {changed, others}
    for name, step in ((changed, 1.05), (others, 1.0)):
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


def test_quiet_week_says_so() -> None:
    digest = build_digest(list_changes(), [], parse_week("2020-W01"))
    assert "Nothing became slower." in digest.to_markdown("")
    with pytest.raises(ValueError, match="week"):
        parse_week("2020-W60")
