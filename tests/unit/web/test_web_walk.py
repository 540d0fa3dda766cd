"""Walk over all pages of a filled database: addresses, escaping, and numbers beside their exports."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from measurement_factory import make_measurement
from page_contents import (
    UNIT_SIZES,
    PageContents,
    PageTable,
    agrees_with,
    find_heading_unit,
    parse_numbers,
)
from page_database import CHANGE, HOSTILE_TEXTS
from service_thread import BROWSER, ServiceThread, StartService

from treehammer import verticals
from treehammer.sql.read.query_model import Selection
from treehammer.version import __version__
from treehammer.verticals import has_vertical

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
    assert compared > 500


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
    started_us = int(now.timestamp() * 1e6)
    with start_service(reading_open=True) as service:
        service.store.add(
            [
                make_measurement(
                    "m",
                    site="SITE_A",
                    day=int(f"{now:%Y%m%d}"),
                    started_us=started_us,
                    axis_root="6.40.00",
                    root_version="6.40.00",
                )
            ]
        )
        tables = {address: service.load_tables(address) for address in ("/", "/sites/SITE_A")}
        assert not {"states", "state_changes", "changepoints"} & {
            *tables["/"],
            *tables["/sites/SITE_A"],
        }
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
