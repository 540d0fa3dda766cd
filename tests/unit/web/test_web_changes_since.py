"""Changes since yesterday on the overview."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from measurement_factory import build_verdict, make_campaign_row, make_measurement
from service_thread import ServiceThread, StartService

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store
from treehammer.web import display_formats
from treehammer.web.pages import overview_changes

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


def load_changes(overview_service: ServiceThread, query: str = "") -> list[str]:
    answer = overview_service.client.get(f"/api/v1/overview{query}")
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["about"]["changes"]
    return found


def add(overview_service: ServiceThread, *some: Iterator[Measurement]) -> None:
    with Store.open(overview_service.url) as store:
        store.add(one for found in some for one in found)


@pytest.fixture
def overview_service(start_service: StartService) -> Iterator[ServiceThread]:
    with start_service(reading_open=True) as overview_service:
        yield overview_service


def test_unchanged_status_is_not_listed(overview_service: ServiceThread) -> None:
    add(overview_service, on("A", 3, 2), on("A", 1, 2), on("A", 0, 2))
    assert load_changes(overview_service) == ["4 measurements received: 4 of 4 good."]


def test_status_is_compared_with_previous_measured_day(overview_service: ServiceThread) -> None:
    add(overview_service, on("A", 9, 0, 2), on("A", 1, 2), on("A", 0, 1, 3))
    _, line = load_changes(overview_service)
    assert line == (
        f"A: warning (1 of 4 good, 3 failed on {format_day(0)}); ok on {format_day(1)}."
    )
    # The days shown on the page do not matter.
    until = display_formats.today() - timedelta(days=100)
    for query in ("?days=7", "?days=60", f"?days=30&to={until}"):
        assert load_changes(overview_service, query) == load_changes(overview_service)


def test_change_of_yesterday_is_listed(overview_service: ServiceThread) -> None:
    add(overview_service, on("A", 2, 2), on("A", 1, 0, 1), on("A", 0, 0, 2))
    _, line = load_changes(overview_service)
    assert line == (
        f"A: critical since {format_day(1)} (0 of 2 good, 2 failed on {format_day(0)}); "
        f"ok on {format_day(2)}."
    )


def test_recovery_names_previous_status(overview_service: ServiceThread) -> None:
    add(overview_service, on("A", 2, 2), on("A", 1, 0, 2), on("A", 0, 2))
    assert load_changes(overview_service)[1:] == [
        f"A: ok (2 of 2 good on {format_day(0)}); critical on {format_day(1)}."
    ]


def test_quiet_site_is_listed_once(overview_service: ServiceThread) -> None:
    add(overview_service, on("A", 3, 2), on("A", 2, 2), on("B", 3, 1))
    assert load_changes(overview_service) == [f"A: no measurements since {format_day(2)}."]


def test_quiet_sites_share_a_sentence(overview_service: ServiceThread) -> None:
    sites = [f"S{number}" for number in range(overview_changes.MAX_QUIET_SITES + 3)]
    add(overview_service, *(on(site, 2, 1) for site in sites), on("GONE", 3, 1))
    start = f"No measurements since {format_day(2)}: "
    assert load_changes(overview_service) == [f"{start}{', '.join(sites)}."]
    listed = (
        overview_service.client.get("/").text.split('class="changes"', 1)[1].split("</ul>", 1)[0]
    )
    (item,) = re.findall(r"<li>(.*?)</li>", listed)
    assert re.sub(r"<[^>]+>", "", item) == f"{start}S0, S1, S2, S3, S4, S5 and 3 more."
    assert re.findall(r"site=(\w+)", item) == sites[:6]


def test_first_measurements_are_listed(overview_service: ServiceThread) -> None:
    other: dict[str, Any] = {"axis_root": "6.40.00"}
    add(overview_service, on("A", 200, 1), on("A", 0, 1, **other), on("B", 100, 1, door="file"))
    add(
        overview_service,
        on("B", 0, 1, **other),
        on("B", 1, 1, door="https"),
        on("C", 1, 1, **other),
    )
    # Releases and doors of a new site, and anything measured before, are not listed.
    assert load_changes(overview_service)[1:] == [
        "First measurements from C.",
        "ROOT 6.40.00: first measurements at A, B.",
        "door https: first measurements at B.",
        "door root: first measurements at B.",
    ]


def test_new_comparisons_are_listed(overview_service: ServiceThread) -> None:
    two_days_ago = NOW_US - 2 * DAY_US
    with Store.open(overview_service.url) as store:
        for name, judged, us in (
            ("new", "same", NOW_US),
            ("worse", "slower", NOW_US),
            ("old", "slower", two_days_ago),
        ):
            row = build_verdict(name, created_us=us, verdict=judged, scope="site")
            store.replace_comparison(name, [], [row])
    (worse, new) = load_changes(overview_service)
    assert "1 slower by site" in worse
    assert "1 same by site" in new
    page = overview_service.client.get("/").text
    assert page.index('href="/compare/worse"') < page.index('href="/compare/new"')


def test_new_campaigns_are_listed_by_name(overview_service: ServiceThread) -> None:
    with Store.open(overview_service.url) as store:
        for number in range(12):
            store.add_campaign(make_campaign_row(f"c{number:02}", created_us=NOW_US - number), [])
        store.add_campaign(make_campaign_row("old", created_us=NOW_US - 2 * DAY_US), [])
    names = [f"name of c{number:02}" for number in range(12)]
    assert load_changes(overview_service) == [f"12 campaigns submitted: {', '.join(names)}."]
    listed = (
        overview_service.client.get("/").text.split('class="changes"', 1)[1].split("</ul>", 1)[0]
    )
    assert re.sub(r"<[^>]+>", "", listed).strip().endswith("name of c09 and 2 more.")
    assert listed.count('href="/campaigns/c') == 10


def test_changes_are_sorted_by_severity_and_folded(overview_service: ServiceThread) -> None:
    for number in range(overview_changes.MAX_CHANGES):
        add(overview_service, on(f"W{number}", 1, 3), on(f"W{number}", 0, 3, 1))
    add(overview_service, on("GOOD", 1, 0, 1), on("GOOD", 0, 1), on("QUIET", 2, 1))
    add(
        overview_service,
        on("BAD", 1, 1),
        on("BAD", 0, 0, 1),
        on("WORSE", 1, 4),
        on("WORSE", 0, 1, 3),
    )
    first = [line.partition(":")[0] for line in load_changes(overview_service)[1:]]
    new = f"First measurements from BAD, GOOD, {', '.join(first[3:-2])}, WORSE."
    assert first == [
        "BAD",
        "QUIET",
        "WORSE",
        *(f"W{n}" for n in range(overview_changes.MAX_CHANGES)),
        "GOOD",
        new,
    ]
    page = overview_service.client.get("/").text
    at_once, folded = page.split('class="changes"')[1:3]
    assert at_once.count("<li>") == overview_changes.MAX_CHANGES
    assert "<summary>6 more</summary>" in at_once
    assert folded.split("</ul>", 1)[0].count("<li>") == 6
