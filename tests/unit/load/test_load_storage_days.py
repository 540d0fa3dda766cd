"""States of storages by day."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest
from measurement_factory import STARTED_DAY, make_measurement, make_operation
from service_thread import BROWSER, ServiceThread

from treehammer.analysis.status.operations_rule import OperationsRule
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.load.operation_figures import OperationDay
from treehammer.load.storage_days import StorageDay


def operations(
    name: str, done: int, failed: int = 0, seconds: float = 1.0, **changes: Any
) -> OperationDay:
    latency = LatencyHistogram()
    if done:
        latency.record(seconds, done)
    return replace(OperationDay("A", 1, name, 0, done, failed, latency, None), **changes)


def judge(*rows: OperationDay) -> StorageDay:
    return StorageDay.from_operations(rows, OperationsRule())


@pytest.mark.parametrize(
    "rows, letter, reason",
    [
        ([operations("open", 100, 6)], "G", "100 of 106 opens succeeded"),
        ([operations("open", 100, 7)], "W", "7 of 107 opens failed"),
        ([operations("open", 0, 20)], "F", "none of 20 opens succeeded"),
        ([operations("open", 19)], "N", "too few operations"),
        ([operations("open", 0, 19)], "N", "too few operations"),
        ([operations("open", 100), operations("read", 0, 30)], "F", "none of 30 reads succeeded"),
        ([operations("open", 5, 5), operations("read", 20)], "G", "20 of 20 reads succeeded"),
        ([operations("read", 20, 0, 2.9)], "G", "2.9"),
        ([operations("read", 20, 0, 3.1)], "W", "s per block"),
        ([operations("read", 19, 0, 3.1)], "N", "too few"),
        ([operations("read", 20, 0, 3.1, round_trip_s=0.2)], "G", "2.9"),
        ([operations("vector_read", 20, 2)], "W", "2 of 22 reads failed"),
        ([operations("open", 0, 0, limited_steps=6)], "N", "6 steps left out"),
        ([operations("delete", 100, 100)], "–", "no load test"),
    ],
)
def test_letter_follows_thresholds(rows: list[OperationDay], letter: str, reason: str) -> None:
    day = judge(*rows)
    assert day.letter == letter
    assert reason in str(day)


def test_round_trip_of_each_reader_is_taken_out() -> None:
    near = operations("read", 30, 0, 1.0, round_trip_s=0.001)
    far = operations("read", 10, 0, 2.0, round_trip_s=0.5)
    day = judge(near, far)
    assert day.block_s == pytest.approx((30 * 0.999 + 10 * 1.5) / 40, rel=0.01)


DAY = date.fromisoformat(str(STARTED_DAY))


def test_letters_of_storages_link_to_their_campaigns(pages: ServiceThread) -> None:
    assert "Storages under load" not in pages.load_page(f"/?to={DAY}")
    for job, storage, failures in (("a", "B", {}), ("b", "C", {"reset": 9})):
        steps = [make_operation([0.001] * 30, failures)]
        pages.store.add([make_measurement(job, operations=steps, site="A", storage_site=storage)])
    page = pages.read(f"/?to={DAY}")
    cells = [cell for table in page.tables.values() for row in table.cells for cell in row.values()]
    assert [cell.tooltip for cell in cells if "opens" in cell.tooltip] == [
        "B, 2026-03-01: ok, 30 of 30 opens succeeded",
        "C, 2026-03-01: warning, 9 of 39 opens failed",
    ]
    rows = pages.load_tables(f"/api/v1/overview?to={DAY}")["storage_days"]
    assert [(row["storage_site"], row["letter"], row["open_failed"]) for row in rows] == [
        ("B", "G", 0),
        ("C", "W", 9),
    ]
    [address, _] = page.list_links(".*by=campaign_id")
    assert pages.client.get(address, headers=BROWSER).status_code == 200
