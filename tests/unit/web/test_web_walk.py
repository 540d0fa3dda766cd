"""Walk over all pages of a filled database: addresses, escaping, exports, queries, and without verticals."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest
import sqlalchemy as sa
from measurement_factory import build_verdict, make_measurement
from page_contents import (
    UNIT_SIZES,
    PageContents,
    PageTable,
    agrees_with,
    find_heading_unit,
    parse_numbers,
)
from page_database import CHANGE, HOSTILE_TEXTS, SITES, build_measurements, fill_database
from service_thread import BROWSER, ServiceThread, StartService, run_service
from sqlalchemy.engine import Connection, Engine

from treehammer import verticals
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.verticals import has_vertical
from treehammer.web.display_formats import today
from treehammer.web.pages import comparison_list_page, effect_tables, load_pages

#: Last part of an address, which differs between pages of one kind; one of each kind is visited.
IDENTITY = re.compile(r"(?<=\w/)[^/]+$")
#: Files, pages with tests of their own, and a measurement and jobs that are not stored.
EXCLUDED = re.compile(
    r"/(static|docs|api|metrics|search|sign-|measurements/%|jobs/\d|root-file/)|"
    r".*(\.atom|/figure\.|drawing=|format=|sort-)"
)
HAS_WATCH = has_vertical("watch")
OF_THE_WATCH = (
    f"/changes/{CHANGE}",
    f"/digest?week={datetime.now(UTC):%G-W%V}",
    "/patrol",
    "/alarms",
)
# Which sites the overview lists first depends on the time of day.
STARTS = ("/", *OF_THE_WATCH * HAS_WATCH, "/sites/SITE_A")


@pytest.fixture(scope="module")
def visited(filled_service: ServiceThread) -> dict[str, PageContents]:
    """Contents of the pages by their addresses."""
    return dict(walk(filled_service))


def walk(service: ServiceThread) -> Iterator[tuple[str, PageContents]]:
    """Follow the links of all pages, one of each kind."""
    kinds: set[str] = set()
    (row, *_) = service.store.measurements(Selection(), ["measurement_id"])
    addresses = [*STARTS, f"/measurements/{row['measurement_id']}"]
    while addresses:
        address = addresses.pop(0).partition("#")[0]
        kind = IDENTITY.sub("ID", urlsplit(address).path)
        if kind in kinds or EXCLUDED.match(address):
            continue
        kinds.add(kind)
        answer = service.client.get(address, headers=BROWSER)
        assert answer.status_code == 200, (address, answer.text)
        assert all(text not in answer.text for text in HOSTILE_TEXTS[:2]), address
        page = PageContents.parse(answer.text)
        yield address, page
        addresses += page.list_links("/")
    pages = ("campaigns", "jobs", "measurements", "days", "sites", "compare")
    of_watch = ("changes", "releases") * HAS_WATCH
    assert {"/", *(f"/{page}/ID" for page in (*pages, *of_watch))} <= kinds


def test_every_page_has_search_heading_and_footer(visited: Mapping[str, PageContents]) -> None:
    for address, page in visited.items():
        assert "q" in page.fields, address
        assert len(page.list_texts("h1")) == 1, address
        assert page.text.count(f"Treehammer {__version__} · times are UTC") == 1, address


#: Numbers and days in another form than that of the pages: hyphens as signs, counts without commas,
#: days with names of months.
OTHER_FORMS = re.compile(
    r"(?<![\w.,:=/)\]–-])-\d[\d.]*(?![\w-])|"
    r"(?<![\w.,:=/-])\d{4,} (?:of|measurements?|jobs?|rows?|series|sites?)\b|"
    r"\b\d{1,2} (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) 20\d\d"
)


def test_numbers_and_days_have_one_form(visited: Mapping[str, PageContents]) -> None:
    forms = {address: OTHER_FORMS.findall(page.text) for address, page in visited.items()}
    assert {address: texts for address, texts in forms.items() if texts} == {}
    assert OTHER_FORMS.findall("from -0.4 % on 21 Nov 2026, 2340 of 2,400") == [
        "-0.4",
        "21 Nov 2026",
        "2340 of",
    ]


def test_every_number_of_every_page_is_that_of_its_exports(
    filled_service: ServiceThread, visited: Mapping[str, PageContents]
) -> None:
    """Numbers of a table are those of its CSV and JSON, by column name."""
    compared = 0
    for address, page in visited.items():
        base = f"{address}{'&' if '?' in address else '?'}"
        answer = filled_service.client.get(f"{base}format=json")
        exported = answer.json().get("tables", {}) if answer.status_code == 200 else {}
        # The service judges itself by the time since its last evaluation.
        for name in page.tables.keys() & exported.keys() - {"states"}:
            rows = exported[name]
            text = filled_service.client.get(f"{base}format=csv&table={name}").text
            lines = [*csv.DictReader(io.StringIO(text, newline=""))]
            assert lines == [{key: write(row[key]) for key in row} for row in rows], address
            compared += compare(address, page.tables[name], rows)
    assert compared > 450


def write(value: object) -> str:
    """Return a value as it stands in CSV."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, list | dict) else str(value)


def compare(address: str, table: PageTable, rows: list[dict[str, Any]]) -> int:
    """Compare the numbers of a table with its rows as JSON; return their number."""
    compared = 0
    if len(table.rows) != len(rows):
        return 0  # a page folds or shortens some
    for cells, row in zip(table.rows, rows, strict=True):
        for column, text in cells.items():
            value = row.get(column)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if parse_numbers(text) and " UTC" not in text and row.get("name") != "day":
                unit = find_heading_unit(table.columns[column])
                size = UNIT_SIZES.get(row.get("unit", ""), 1.0)
                assert agrees_with(text, value * size, unit), (address, table.name, column, text)
                compared += 1
    return compared


def test_tables_are_sorted_by_every_column(filled_service: ServiceThread) -> None:
    """Each request sorts all tables of a page by another column."""
    for address in ("/campaigns/over", "/compare/comparison"):
        orders: dict[str, list[str]] = {}
        for link in filled_service.read(address).list_links(r"\?.*sort-"):
            for name, value in parse_qsl(urlsplit(link).query):
                if name.startswith("sort-"):
                    orders.setdefault(name, []).append(value)
        assert orders, address
        for place in range(max(map(len, orders.values()))):
            query = {name: values[place % len(values)] for name, values in orders.items()}
            answer = filled_service.client.get(address, params=query)
            assert answer.status_code == 200, query
            assert answer.text.count("aria-sort") >= len(query)


def test_pages_and_metrics_render_without_states(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verticals, "VERTICALS", ())
    now = datetime.now(UTC)
    values: dict[str, Any] = {"site": "SITE_A", "root_version": "6.40.00", "axis_root": "6.40.00"}
    values |= {"day": int(f"{now:%Y%m%d}"), "started_us": int(now.timestamp() * 1e6)}
    with start_service(reading_open=True) as service:
        service.store.add([make_measurement("m", **values)])
        for address in ("/", "/sites/SITE_A"):
            tables = service.load_tables(address).keys()
            assert not {"states", "state_changes", "changepoints"} & tables
        assert service.load_tables("/sites")["sites"][0].keys() & {"state", "use"} == set()
        for address in ("/", "/?by=storage_site", "/sites", "/sites/SITE_A"):
            service.load_page(address)
        # Without pages of releases and figures, the search only lists them.
        answer = service.client.get("/search?q=6.40.00", headers={"Accept": "text/html"})
        assert answer.status_code == 200
        assert service.load_tables("/search?q=6.40.00")["hits"][0]["address"] == ""
        metrics = service.get_path("/metrics").text
        assert 'treehammer_measurements_total{outcome="' in metrics
        assert "treehammer_site_status" not in metrics
        assert service.client.get("/alarms").status_code == 404


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
        timing = few.client.get(address).headers["Server-Timing"]
        assert re.fullmatch(r"total;dur=\d+\.\d", timing)


def test_long_tables_are_truncated_in_html_only(
    few: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effect_tables, "MAX_SHOWN_ROWS", 2)
    page = few.client.get("/compare/comparison")
    assert re.findall(r"First .* rows; CSV and JSON hold all.", page.text) == [
        "First 2 of 4 rows; CSV and JSON hold all."
    ]
    tables = few.client.get("/compare/comparison?format=json").json()["tables"]
    assert [len(tables[name]) for name in ("pooled", "by_site")] == [2, 6]


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
