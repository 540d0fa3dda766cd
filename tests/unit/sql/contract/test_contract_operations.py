"""Operations of load tests are stored with their measurement and rolled up by day."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from measurement_factory import (
    STARTED_DAY,
    make_measurement,
    make_operation,
    random_measurements,
)
from store_helpers import find_rollup_differences

from treehammer.collectors.record.operation_steps import LatencyHistogram
from treehammer.errors import StoreError
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import operation, rollup_operation
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.read.operation_figures import list_operation_days
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store


def read_table(store: Store, table: sa.Table) -> list[dict[str, Any]]:
    query = sa.select(table).order_by(*table.primary_key)
    with read_transaction(store._engine) as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def test_operations_are_stored_once_and_in_order(store: Store) -> None:
    steps = [make_operation(step=n, server="s" if n else "", step_s=10) for n in (2, 0, 1)]
    item = make_measurement(operations=steps)
    assert store.add([item]) == AddResult(1, 0)
    assert store.add([item, make_measurement("other")]) == AddResult(1, 1)
    assert store.preview_add([item]) == AddResult(0, 1)
    rows = read_table(store, operation)
    expected = [
        {**step, "server": step["server"] or None, "measurement_id": item.id, "line": line}
        for line, step in enumerate(steps)
    ]
    assert rows == expected
    assert isinstance(rows[0]["step_s"], float)


@pytest.mark.parametrize("changed", [[], [make_operation([0.5])], [make_operation()] * 2])
def test_other_operations_are_a_conflict(store: Store, changed: list[dict[str, Any]]) -> None:
    item = make_measurement(operations=[make_operation()])
    other = make_measurement(operations=changed)
    store.add([item])
    assert store.add([other]) == AddResult(0, 0, (item.id,))
    assert len(read_table(store, operation)) == 1
    assert find_rollup_differences(store) == ""


def test_days_of_storages_have_their_operations_and_round_trips(store: Store) -> None:
    cases: dict[str, dict[str, Any]] = {
        "a": {"site": "X", "storage_site": "A", "door_rtt_s": 0.25},
        "b": {"site": "A", "storage_site": "A", "door_rtt_s": 0.75},
        "c": {"site": "A", "storage_site": "A", "plausible": False},
        "d": {"site": "B", "day": STARTED_DAY + 1},
        "e": {"site": "A", "day": STARTED_DAY - 1},
    }
    for job, values in cases.items():
        limited = make_operation([9.0], operation="read", step=1, generator_limited=True)
        server = make_operation([9.0], operation="read", side="server")
        steps = [make_operation([1.0] * 3, {"reset": 1}, operation="read"), limited, server]
        store.add([make_measurement(job, operations=steps, **values)])
    rows = list_operation_days(store, STARTED_DAY, STARTED_DAY + 1)
    assert {(row.site, row.day - STARTED_DAY, row.round_trip_s) for row in rows} == {
        ("A", 0, 0.25),
        ("A", 0, 0.75),
        ("B", 1, None),
    }
    for row in rows:
        assert (row.operation, row.done, row.failed, row.limited_steps) == ("read", 3, 1, 1)
        assert row.latency.mean == pytest.approx(1.0, rel=0.01)
    with store.snapshot() as snapshot:
        assert snapshot.count_operation_rows(Selection()) == 15
        assert snapshot.count_operation_rows(Selection.parse((), ["site=A"])) == 9
        assert snapshot.count_operation_rows(Selection(("none",))) == 0


def test_rollup_sums_steps_without_those_limited_by_the_generator(store: Store) -> None:
    def add(job: str, *steps: dict[str, Any]) -> None:
        store.add([make_measurement(job, operations=steps)])

    add("a", make_operation([0.001, 0.002], {"timeout": 1}, late=1), make_operation([9.0], step=1))
    add("b", make_operation([0.25], bytes=7), make_operation(operation="read", side="server"))
    add("c", make_operation([5.0], step=4, generator_limited=True))
    opened, read = read_table(store, rollup_operation)
    assert (opened["day"], opened["outcome"], opened["side"]) == (20260301, "good", "client")
    assert [opened[name] for name in ("steps", "limited_steps", "scheduled", "done")] == [
        3,
        1,
        5,
        4,
    ]
    assert [opened[name] for name in ("failed", "late", "bytes")] == [1, 1, 7]
    latency = LatencyHistogram.decode(opened["latency"])
    assert latency.count == 4
    assert latency.maximum == pytest.approx(9.0, rel=0.01)
    assert (read["side"], read["operation"], read["steps"]) == ("server", "read", 1)


def test_rollups_agree_after_any_order_of_writes(store: Store) -> None:
    for seed in range(3):
        store.add(random_measurements(seed, 100))
        assert find_rollup_differences(store) == ""
    store.add(random_measurements(0, 100))  # again: nothing is counted twice
    assert find_rollup_differences(store) == ""
    before = read_table(store, rollup_operation)
    assert {row["outcome"] for row in before} >= {"good", "implausible", "open"}
    store.rebuild_rollups()
    assert read_table(store, rollup_operation) == before
    with write_transaction(store._engine) as connection:
        connection.execute(sa.text("UPDATE rollup_operation SET done = done + 1"))
    assert find_rollup_differences(store) != ""


def test_invented_counts_do_not_overflow(store: Store) -> None:
    most = 2**63 - 1
    latency = LatencyHistogram()
    latency.record(0.001, most)
    step = make_operation([], scheduled=most, bytes=most)
    steps = [{**step, "done": most, "latency": latency.encode()}] * 2
    store.add(make_measurement(job, operations=steps) for job in "ab")
    (row,) = read_table(store, rollup_operation)
    assert (row["done"], row["bytes"]) == (most, most)
    assert find_rollup_differences(store) == ""


def test_marked_measurements_move_to_another_outcome(store: Store) -> None:
    common: dict[str, Any] = {"dataset_hash": "d", "site": "SITE_A", "door": "root"}
    store.add(
        make_measurement(str(n), started_us=n, operations=[make_operation()], **common)
        for n in (10, 20, 30)
    )
    found = ReplicaRow("f1", 15, "data", "d", "SITE_A", "root", "f", "root://x", True, "")
    bad = ReplicaRow("f2", 25, "data", "d", "SITE_A", "root", "f", "root://x", False, "adler32")
    store.add_replicas([found, bad])
    assert store.mark_bad_replicas() == 2
    rows = read_table(store, rollup_operation)
    assert {row["outcome"]: row["steps"] for row in rows} == {"good": 1, "implausible": 2}
    assert find_rollup_differences(store) == ""


# The lint for Oracle takes an assignment to a large object for a comparison.
@pytest.mark.backends("sqlite", "postgresql")
@pytest.mark.parametrize(
    "change",
    [
        sa.update(rollup_operation).values(limited_steps=7),
        sa.update(rollup_operation).values(latency=""),
        sa.update(rollup_operation).values(latency="HISTFAAA"),
        sa.update(rollup_operation).values(side="server"),
        sa.delete(rollup_operation),
    ],
    ids=str,
)
def test_differences_are_reported_and_repaired(
    store: Store, url: str, change: sa.Update | sa.Delete
) -> None:
    store.add([make_measurement(operations=[make_operation()])])
    assert check_database(url)["operation"] == 1
    with write_transaction(store._engine) as connection:
        assert connection.execute(change).rowcount
    with pytest.raises(StoreError, match=r"day \d+, subject_id(.|\n)*treehammer db rebuild"):
        check_database(url)
    store.rebuild_rollups()
    assert check_database(url)["rollup_operation"] == 1


@pytest.mark.backends("sqlite", "postgresql")
def test_damaged_histogram_is_reported_with_its_remedy(store: Store, url: str) -> None:
    item = make_measurement(operations=[make_operation(), make_operation(step=1)])
    store.add([item])
    with write_transaction(store._engine) as connection:
        connection.execute(sa.update(operation).values(latency="HISTFAAA"))
    with pytest.raises(StoreError, match=f"latency of 1 measurement is damaged: {item.id}"):
        check_database(url)
    with pytest.raises(StoreError, match="no histogram of latencies"):
        store.rebuild_rollups()
    with write_transaction(store._engine) as connection:
        connection.execute(sa.update(operation).values(latency=None))
    store.rebuild_rollups()
    assert check_database(url)["operation"] == 2
