"""Sorting and filtering of tables on pages."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest
from service_thread import ServiceThread

from treehammer.errors import ConfigError
from treehammer.tables import DataTable, LazyRows, TableColumn
from treehammer.web.arranged_table import TableArrangement

_ROWS: list[dict[str, Any]] = [
    {"release": "6.38.00", "jobs": 2, "change": "+1.0 %", "effect": 0.01},
    {"release": "6.9.00", "jobs": None, "change": "−3.0 %", "effect": -0.03},
    {"release": "6.40.00", "jobs": 0, "change": "", "effect": None},
]


def _table(**changes: Any) -> DataTable:
    columns = (
        TableColumn("release", "ROOT release"),
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("change", "change", is_number=True, sort_key="effect"),
        TableColumn("effect", hidden=True),
    )
    return DataTable("work", "Work", columns, _ROWS, **changes)


def _releases(**parameters: str) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in parameters.items()}
    return [row["release"] for row in TableArrangement.parse(given, "work").apply(_table()).rows]


@pytest.mark.parametrize(
    "order, expected",
    [
        ("release", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-release", ["6.40.00", "6.38.00", "6.9.00"]),
        ("jobs", ["6.40.00", "6.38.00", "6.9.00"]),
        ("-jobs", ["6.38.00", "6.40.00", "6.9.00"]),
        ("change", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-change", ["6.38.00", "6.9.00", "6.40.00"]),
    ],
)
def test_sort_orders_numbers_text_and_empty_cells(order: str, expected: list[str]) -> None:
    assert _releases(sort_work=order) == expected


def test_filter_needs_all_words_in_any_column() -> None:
    assert _releases(find_work="6. 3") == ["6.38.00", "6.9.00"]
    assert _releases(find_work="−3.0 6.9") == ["6.9.00"]
    assert _releases(find_work="absent") == []
    assert _releases(find_other="absent") == [row["release"] for row in _ROWS]


def test_unknown_column_and_long_filter_are_refused() -> None:
    # Hidden columns are exported, but readers can't see their order.
    for key in ("absent", "effect"):
        with pytest.raises(ConfigError, match="sort-work must be one of release, jobs, change"):
            _releases(sort_work=key)
    with pytest.raises(ConfigError, match="at most 200 characters"):
        _releases(find_work="x" * 201)


def test_headings_cycle_through_both_orders_and_the_tables_own() -> None:
    release, jobs = _table().columns[:2]

    def next_order(order: str, column: TableColumn) -> str | None:
        return TableArrangement.parse({"sort-work": order}, "work").next_order(column)

    assert [next_order(order, release) for order in ("", "release", "-release")] == [
        "release",
        "-release",
        None,
    ]
    assert [next_order(order, jobs) for order in ("", "-jobs", "jobs")] == ["-jobs", "jobs", None]


def test_limit_applies_after_sorting() -> None:
    table = _table(max_rows=1, newest=True)
    assert [row["release"] for row in table.shown_rows] == ["6.40.00"]
    assert table.shown_note == "Last 1 of 3 rows; CSV and JSON hold all."
    arranged = TableArrangement.parse({"sort-work": "release"}, "work").apply(table)
    assert [row["release"] for row in arranged.shown_rows] == ["6.9.00"]
    assert arranged.shown_note == "First 1 of 3 rows; CSV and JSON hold all."


def test_pages_of_longer_lists_keep_their_order() -> None:
    table = _table(is_arrangeable=False)
    assert TableArrangement.parse({"sort-work": "release"}, "work").apply(table) is table


def test_lazy_rows_build_only_what_is_read() -> None:
    built: list[int] = []

    def build(item: int) -> dict[str, int]:
        built.append(item)
        return {"item": item}

    rows = LazyRows(range(100), build)
    assert (len(rows), rows[3], [row["item"] for row in rows[:2]]) == (100, {"item": 3}, [0, 1])
    assert built == [3, 0, 1]


def test_page_and_files_have_the_requested_order(filled_service: ServiceThread) -> None:
    service = filled_service
    page = service.client.get("/sites").text
    first = re.findall(r'<th scope="row"[^>]*>(?:<a [^>]*>)?([^<]+)', page)
    assert len(first) >= 3
    address = "/sites?days=7&sort-sites=-site"
    page = service.client.get(address).text
    shown = re.findall(r'<th scope="row"[^>]*>(?:<a [^>]*>)?([^<]+)', page)
    assert sorted(shown) == sorted(first)
    assert shown != first
    assert 'aria-sort="descending"' in page
    # The third click restores the page's own order and keeps its other parameters.
    assert 'href="?days=7" title' in page or 'href="?days=7">' in page
    rows = csv.DictReader(io.StringIO(service.client.get(f"{address}&format=csv").text))
    assert len([row["site"] for row in rows]) == len(shown)
    refused = service.client.get("/sites?sort-sites=nothing")
    assert refused.status_code == 400
    assert "sort-sites must be one of site" in refused.json()["error"]
