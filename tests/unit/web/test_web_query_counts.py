"""Tests of the cost of pages: queries, limits and their documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from measurement_factory import build_verdict, make_measurement
from page_database import SITES, build_measurements, fill_database
from service_thread import ServiceThread, run_service
from sqlalchemy.engine import Connection, Engine

from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.write.store import Store
from treehammer.verticals import has_vertical
from treehammer.web.display_formats import today
from treehammer.web.pages import comparison_list_page, effect_tables, load_pages

DAY = datetime.now(UTC).date().isoformat()
FIGURES = (
    "/explore?by=day&color=site&from=&to=",
    "/explore?by=variant&color=axis_root&panels=site",
    "/api/v1/explore?by=day",
)
#: Answered from roll-ups and verdicts alone: as pages declare, and with other parameters.
ROLLUP_PAGES = (
    *(re.sub("[{}]", "", page.path) for page in load_pages() if not page.reads_measurements),
    *(FIGURES if has_vertical("explore") else ()),
    "/?days=60",
    "/metrics",
    "/api/v1/sites",
)
#: Also look up some measurements by an index.
INDEX_PAGES = (
    f"/days/{DAY}?site={SITES[0]}",
    f"/sites/{SITES[0]}?days=180",
    "/campaigns",
    "/campaigns/over",
    "/jobs/o1",
)
COPIES = 1


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with _filled(tmp_path_factory.mktemp("few"), 0) as service:
        yield service


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with _filled(tmp_path_factory.mktemp("many"), COPIES) as service:
        yield service


@contextmanager
def _filled(folder: Path, copies: int) -> Iterator[ServiceThread]:
    """Serve a database with further copies of the measurements, which add no roll-up rows."""
    url = f"sqlite:///{folder / 'results.db'}"
    fill_database(url)
    with Store.open(url) as store:
        store.add(make_measurement("o1", round_, campaign_id="over") for round_ in (1, 2))
        for copy in range(copies):
            measurements = build_measurements(today())
            store.add(
                replace(item, values={**item.values, "measurement_id": f"{copy}-{number}"})
                for number, item in enumerate(measurements)
            )
    with run_service(folder, reading_open=True) as service:
        service.load_document("/health")  # opens the database
        yield service


@contextmanager
def _record_queries(service: ServiceThread) -> Iterator[list[tuple[str, list[str]]]]:
    """Record the queries to the service's database with SQLite's query plans."""
    queries: list[tuple[str, list[str]]] = []

    def watch(
        connection: Connection, _cursor: object, text: str, parameters: object, *_: object
    ) -> None:
        asked = str(connection.engine.url) == service.url and text.startswith(("SELECT", "WITH"))
        # The service refreshes keys and looks for bad replicas from time to time.
        if asked and not re.search(r"FROM (access_|read_session\b|replica\b)", text):
            driver = connection.connection.driver_connection
            assert driver is not None
            plan = driver.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            queries.append((text, [row[-1] for row in plan]))

    sa.event.listen(Engine, "before_cursor_execute", watch)
    try:
        yield queries
    finally:
        sa.event.remove(Engine, "before_cursor_execute", watch)


def _queries_of(service: ServiceThread, address: str) -> list[tuple[str, list[str]]]:
    with _record_queries(service) as queries:
        answer = service.client.get(address, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    assert queries
    return queries


@pytest.mark.parametrize("address", ROLLUP_PAGES + INDEX_PAGES)
def test_cost_of_queries_is_independent_of_measurements(
    few: ServiceThread, many: ServiceThread, address: str
) -> None:
    asked = _queries_of(many, address)
    assert len(asked) == len(_queries_of(few, address))
    for text, plan in asked:
        campaigns_alone = "count(*)" in text and "measurement.campaign_id IN" in text
        if address in ROLLUP_PAGES and not campaigns_alone:
            reads = re.search(r"\b(FROM|JOIN) measurement\b", text)
            assert not reads, f"{address} has reads_measurements=False, and reads them: {text}"
        assert not any(re.match(r"SCAN measurement\b", step) for step in plan), (text, plan)


def test_responses_have_server_timing(few: ServiceThread) -> None:
    for address in ("/", "/nothing", "/api/v1/health"):
        told = few.client.get(address).headers["Server-Timing"]
        assert re.fullmatch(r"total;dur=\d+\.\d", told)


def test_long_tables_are_truncated_in_html_only(
    few: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect_tables, "MAX_SHOWN_ROWS", 2)
    page = few.client.get("/compare/comparison")
    assert re.findall(r"First .* rows; CSV and JSON hold all.", page.text) == [
        "First 2 of 4 rows; CSV and JSON hold all."
    ]
    told = few.client.get("/compare/comparison?format=json").json()["tables"]
    assert [len(told[name]) for name in ("pooled", "by_site")] == [2, 6]


@pytest.mark.parametrize(
    "where, limit, page, expected",
    [
        (campaign_queries, "MAX_JOB_MEASUREMENTS", "jobs/o1", "Not all measurements are shown"),
        (overview_queries, "MAX_BAD_MEASUREMENTS", "days/", "The first 1;"),
        (
            campaign_queries,
            "MAX_FAILURE_MESSAGES",
            "campaigns/over",
            "From the first 1 failed measurements.",
        ),
    ],
)
def test_pages_note_truncation(
    many: ServiceThread,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    limit: str,
    page: str,
    expected: str,
) -> None:
    if page == "days/":
        rows = many.client.get("/?format=json").json()["tables"]["site_days"]
        bad = next(row for row in rows if row["failed"] > 1)
        page += f"{bad['day']}?site={quote(bad['site'], safe='')}"
    assert expected not in many.client.get(f"/{page}").text
    monkeypatch.setattr(where, limit, 1)
    assert expected in many.client.get(f"/{page}").text


def test_list_of_comparisons_is_paginated(
    pages: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_list_page, "COMPARISONS_PER_PAGE", 2)
    for number in range(3):
        pages.store.replace_comparison(
            f"c{number}", [], [build_verdict(f"c{number}", created_us=number)]
        )
    first, second = (
        pages.client.get(f"/compare?page={page}&format=json").json()["tables"]["comparisons"]
        for page in (1, 2)
    )
    assert [row["comparison_id"] for row in (*first, *second)] == ["c2", "c1", "c0"]
    assert "page 2 of 2" in pages.client.get("/compare?page=2").text
    about = pages.client.get("/api/v1/comparisons?page=2").json()["about"]
    assert about == {"page": 2, "pages": 2, "count": 3}
